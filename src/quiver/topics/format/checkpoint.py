"""
`wal.ckpt` and `uploader.ckpt`: the state of a topic's log and of its upload.

They are the document's structs in fixed-width bincode, followed by eight bytes of this project: ``QCK1`` and the CRC-32
of everything before it. The document's own reader stops before them. A file without them is read as well, unchecked.
Nothing depends on either file alone: recovery scans the log, and uses a checkpoint only to increase offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "CHECKPOINT_BYTES_MAX",
    "CHECKPOINT_TRAILER",
    "RotatedFile",
    "UploaderCheckpoint",
    "WalCheckpoint",
    "decode_uploader_checkpoint",
    "decode_wal_checkpoint",
    "encode_uploader_checkpoint",
    "encode_wal_checkpoint",
]

CHECKPOINT_BYTES_MAX = 64 * 1024 * 1024
CHECKPOINT_TRAILER = struct.Struct("<4sI")
TRAILER_MAGIC = b"QCK1"

_U64 = struct.Struct("<Q")
_TAG = struct.Struct("<B")
_NO_OFFSET = (1 << 64) - 1
"""The last offset of an empty topic: one before the first, in 64 bits."""

RotatedFile = tuple[int, str, int]
"""Sequence number, file name, first offset."""


@dataclass(frozen=True, slots=True)
class WalCheckpoint:
    """
    The state of a log when it was last synced.

    Attributes:
        start_offset: the oldest offset in the local files.
        last_offset: the newest one that was synced; −1 if there was none.
        file_seq: number of the active file.
        file_path: name of the active file.
        rotated_files: the files before it, oldest first.
        active_file_name: the same as `file_path`.
        last_rotation_at: seconds since the epoch.
        active_file_first_offset: of the active file, if it has one.
    """

    start_offset: int
    last_offset: int
    file_seq: int
    file_path: str
    rotated_files: tuple[RotatedFile, ...] = ()
    active_file_name: str | None = None
    last_rotation_at: int | None = None
    active_file_first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class UploaderCheckpoint:
    """
    The progress of the upload: everything before this byte of this file is in the object store.

    Attributes:
        last_committed_offset: the newest offset there.
        last_read_file_seq: number of the file that is read next.
        last_read_byte_position: first byte in it that is not uploaded.
        last_object_id: the newest object.
        updated_at: seconds since the epoch.
    """

    last_committed_offset: int
    last_read_file_seq: int
    last_read_byte_position: int
    last_object_id: str | None
    updated_at: int


def encode_wal_checkpoint(value: WalCheckpoint) -> bytes:
    """Return the bytes of `wal.ckpt`."""
    parts = [
        _U64.pack(value.start_offset), _U64.pack(value.last_offset & _NO_OFFSET), _U64.pack(value.file_seq),
        _text(value.file_path), _U64.pack(len(value.rotated_files)),
    ]  # fmt: skip
    for seq, name, first_offset in value.rotated_files:
        parts += [_U64.pack(seq), _text(name), _U64.pack(first_offset)]
    parts += [
        _option_text(value.active_file_name), _option_u64(value.last_rotation_at),
        _option_u64(value.active_file_first_offset),
    ]  # fmt: skip
    return _sealed(b"".join(parts))


def decode_wal_checkpoint(data: Buffer) -> Answer[WalCheckpoint]:
    """Decode `wal.ckpt`."""
    body = _opened(data)
    if isinstance(body, Damage):
        return body
    cursor = Cursor(body)
    try:
        (start,) = cursor.take(_U64)
        (last,) = cursor.take(_U64)
        (seq,) = cursor.take(_U64)
        path = _take_text(cursor)
        (count,) = cursor.take(_U64)
        if count > cursor.remaining // 24:
            return Damage(cursor.offset, f"the count of rotated files, {count}, exceeds the remaining bytes")
        rotated = tuple((cursor.take(_U64)[0], _take_text(cursor), cursor.take(_U64)[0]) for _ in range(count))
        name = _take_text(cursor) if _take_tag(cursor) else None
        rotation_at = cursor.take(_U64)[0] if _take_tag(cursor) else None
        first = cursor.take(_U64)[0] if _take_tag(cursor) else None
    except ShortageError as shortage:
        return NeedMore(shortage.missing)
    except ValueError as error:
        return Damage(cursor.offset, str(error))
    last_offset = -1 if last == _NO_OFFSET else last
    value = WalCheckpoint(start, last_offset, seq, path, rotated, name, rotation_at, first)
    return Frame(value, cursor.offset)


def encode_uploader_checkpoint(value: UploaderCheckpoint) -> bytes:
    """Return the bytes of `uploader.ckpt`."""
    return _sealed(
        _U64.pack(value.last_committed_offset & _NO_OFFSET)
        + _U64.pack(value.last_read_file_seq)
        + _U64.pack(value.last_read_byte_position)
        + _option_text(value.last_object_id)
        + _U64.pack(value.updated_at)
    )


def decode_uploader_checkpoint(data: Buffer) -> Answer[UploaderCheckpoint]:
    """Decode `uploader.ckpt`."""
    body = _opened(data)
    if isinstance(body, Damage):
        return body
    cursor = Cursor(body)
    try:
        (committed,) = cursor.take(_U64)
        (seq,) = cursor.take(_U64)
        (position,) = cursor.take(_U64)
        object_id = _take_text(cursor) if _take_tag(cursor) else None
        (updated_at,) = cursor.take(_U64)
    except ShortageError as shortage:
        return NeedMore(shortage.missing)
    except ValueError as error:
        return Damage(cursor.offset, str(error))
    last_committed = -1 if committed == _NO_OFFSET else committed
    return Frame(UploaderCheckpoint(last_committed, seq, position, object_id, updated_at), cursor.offset)


def _sealed(body: bytes) -> bytes:
    return body + CHECKPOINT_TRAILER.pack(TRAILER_MAGIC, crc32(body))


def _opened(data: Buffer) -> memoryview | Damage:
    view = memoryview(data)
    if len(view) > CHECKPOINT_BYTES_MAX:
        return Damage(0, f"a checkpoint of {len(view)} bytes")
    if len(view) < CHECKPOINT_TRAILER.size:
        return view
    body = view[: -CHECKPOINT_TRAILER.size]
    magic, checksum = CHECKPOINT_TRAILER.unpack_from(view, len(body))
    if magic != TRAILER_MAGIC:
        return view
    return body if crc32(body) == checksum else Damage(len(body), "the checksum of the checkpoint differs")


def _text(value: str) -> bytes:
    data = value.encode()
    return _U64.pack(len(data)) + data


def _option_text(value: str | None) -> bytes:
    return b"\0" if value is None else b"\1" + _text(value)


def _option_u64(value: int | None) -> bytes:
    return b"\0" if value is None else b"\1" + _U64.pack(value)


def _take_text(cursor: Cursor) -> str:
    (size,) = cursor.take(_U64)
    return str(cursor.view(size), "utf-8")


def _take_tag(cursor: Cursor) -> bool:
    (tag,) = cursor.take(_TAG)
    if tag > 1:
        raise ValueError(f"an option starts with {tag} instead of 0 or 1")
    return bool(tag)
