"""
Files that newer clients store next to their segments. They are read, never written.

::

    record     0   4  magic        b"SFM1" in the manifest, b"AKW1" in the watermark
               4   u32 version     1
               8   i64 generation  above 0
               16  i64 first       manifest: base of the oldest segment; watermark: confirmed, -1 for none
               24  i64 second      manifest: base of the newest segment
               32  zeros
               60  u32 crc32c      of the 60 bytes before
    two of them, at 0 and at 4096 (in one middle version at 0 and 64); the valid one with the higher generation counts

    symbols    0   4  magic        b"SYD1"
               4   u8 version      1 or 2, then three zero bytes
    version 1  varint entries, varint bytes, entries (varint length, UTF-8), u32 crc32c of all of these; repeated
    version 2  varint length, UTF-8, u32 crc32c of both; repeated

A symbol's id is its index. The symbols end at the end of the file or at the first invalid piece: nothing was synced.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.primitives.checksum import crc32c
from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.qwp.wire.message import SYMBOL_BYTES_MAX
from quiver.qwp.wire.varint import VarintError, take_varint

__all__ = [
    "MANIFEST_MAGIC",
    "NEWER_RECORD",
    "SYMBOLS_MAGIC",
    "SYMBOL_FILE",
    "DualRecord",
    "decode_dual_record",
    "decode_symbol_file",
]

NEWER_RECORD = struct.Struct("<4sIqqq28xI")
SYMBOL_FILE = struct.Struct("<4sB3s")
MANIFEST_MAGIC = b"SFM1"
SYMBOLS_MAGIC = b"SYD1"
_CRC = struct.Struct("<I")
_PLACES = (0, 64, 4096)
_SYMBOLS_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class DualRecord:
    """The valid record with the highest generation."""

    generation: int
    first: int
    second: int


def decode_dual_record(view: memoryview, magic: bytes) -> Answer[DualRecord]:
    """Decode the newest valid record of a manifest or of a newer watermark."""
    best: DualRecord | None = None
    newer: Damage | None = None
    for place in _PLACES:
        answer = _decode_record(view, place, magic)
        if isinstance(answer, DualRecord):
            best = answer if best is None or answer.generation >= best.generation else best
        elif answer is not None:
            newer = answer
    if newer is not None:
        return newer
    if best is not None:
        return Frame(best, len(view))
    if len(view) < NEWER_RECORD.size:
        return NeedMore(NEWER_RECORD.size - len(view))
    return Damage(0, "no valid record")


def _decode_record(view: memoryview, place: int, magic: bytes) -> DualRecord | Damage | None:
    piece = view[place : place + NEWER_RECORD.size]
    if len(piece) < NEWER_RECORD.size or piece[:4] != magic:
        return None
    _, version, generation, first, second, crc = NEWER_RECORD.unpack(piece)
    if crc32c(piece[: NEWER_RECORD.size - _CRC.size]) != crc:
        return None
    if version != 1:
        return Damage(place + 4, f"unsupported version {version} of a record")
    return DualRecord(generation, first, second) if generation > 0 else None


def decode_symbol_file(view: memoryview) -> Answer[tuple[str, ...]]:
    """Decode the symbols up to the first invalid piece."""
    if not SYMBOLS_MAGIC.startswith(bytes(view[:4])):
        return Damage(0, "not a symbol file: the magic does not match")
    if len(view) < SYMBOL_FILE.size:
        return NeedMore(SYMBOL_FILE.size - len(view))
    _, version, reserved = SYMBOL_FILE.unpack_from(view)
    if version not in {1, 2}:
        return Damage(4, f"unsupported version {version} of a symbol file")
    if any(reserved):
        return Damage(5, "reserved bytes are not zero")
    cursor = Cursor(view, SYMBOL_FILE.size)
    symbols: list[str] = []
    end = cursor.offset
    while cursor.remaining and len(symbols) < _SYMBOLS_MAX:
        try:
            symbols += _take_piece(cursor, view, version)
        except (ShortageError, VarintError, UnicodeDecodeError):
            break
        end = cursor.offset
    return Frame(tuple(symbols), end)


def _take_piece(cursor: Cursor, view: memoryview, version: int) -> list[str]:
    start = cursor.offset
    if version == 1:
        count, size = take_varint(cursor), take_varint(cursor)
        entries = Cursor(cursor.view(size))
        symbols = [_take_symbol(entries) for _ in range(min(count, entries.remaining))]
        if len(symbols) != count or entries.remaining:
            raise ShortageError(start, 1)
    else:
        symbols = [_take_symbol(cursor)]
    end = cursor.offset
    if cursor.take(_CRC)[0] != crc32c(view[start:end]):
        raise ShortageError(start, 1)
    return symbols


def _take_symbol(cursor: Cursor) -> str:
    size = take_varint(cursor)
    if size > SYMBOL_BYTES_MAX:
        raise ShortageError(cursor.offset, 1)
    return str(cursor.view(size), "utf-8")
