"""
One record of the MAN1 manifest log, and the payload of each kind. Bytes only.

::

    0   u16  kind
    2   u16  flags           0
    4   u32  payload_len
    8   u64  segment_id
    16  u64  logical_offset  the segment's base offset; 0 for snapshots
    24  u64  timestamp_ms
    32  u64  payload_crc64   CRC-64/NVME of the payload; 0: not checked
    40       payload

A record of an unknown kind is skipped by its length: its payload stays bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "MANIFEST_PAYLOAD_BYTES_MAX",
    "MANIFEST_RECORD_HEAD",
    "MANIFEST_RECORD_HEAD_BYTES",
    "Event",
    "Fields",
    "ManifestRecord",
    "decode_manifest_record",
    "encode_manifest_record",
]

MANIFEST_RECORD_HEAD = struct.Struct("<HHIQQQQ")
MANIFEST_RECORD_HEAD_BYTES = MANIFEST_RECORD_HEAD.size
MANIFEST_PAYLOAD_BYTES_MAX = 64 << 20

Fields = tuple[int | str | bytes | None, ...]
"""The values of a payload, in the order of its layout."""


class Event(IntEnum):
    """The kind of a record. `LAYOUTS` has the layout of each payload."""

    SEGMENT_OPENED = 0
    SEAL_SEGMENT = 1
    COMPRESSION_STARTED = 2
    COMPRESSION_DONE = 3
    COMPRESSION_FAILED = 4
    UPLOAD_STARTED = 5
    UPLOAD_DONE = 6
    UPLOAD_FAILED = 7
    TIER2_DELETE_QUEUED = 8
    TIER2_DELETED = 9
    HYDRATION_STARTED = 10
    HYDRATION_DONE = 11
    HYDRATION_FAILED = 12
    LOCAL_EVICTED = 13
    SNAPSHOT_MARKER = 14
    CUSTOM_EVENT = 15
    TIER1_SNAPSHOT = 16


_NUMBERS = {code: struct.Struct(f"<{code}") for code in "BHIQ"}

LAYOUTS: dict[Event, str] = {
    Event.SEGMENT_OPENED: "QI",  # base_offset, epoch
    Event.SEAL_SEGMENT: "QQQQB",  # durable_bytes, checksum, ext_id, coordinator_watermark, flush_failure
    Event.COMPRESSION_STARTED: "I",  # job_id
    Event.COMPRESSION_DONE: "QI",  # compressed_bytes, dictionary_id
    Event.COMPRESSION_FAILED: "I",  # reason
    Event.UPLOAD_STARTED: "s",  # key
    Event.UPLOAD_DONE: "so",  # key, etag or None
    Event.UPLOAD_FAILED: "rs",  # reason, key: the key's length precedes both
    Event.TIER2_DELETE_QUEUED: "s",  # key
    Event.TIER2_DELETED: "s",  # key
    Event.HYDRATION_STARTED: "Q",  # source_tier
    Event.HYDRATION_DONE: "Q",  # resident_bytes
    Event.HYDRATION_FAILED: "I",  # reason: 1 is a missing warm file
    Event.LOCAL_EVICTED: "Q",  # reclaimed_bytes
    Event.SNAPSHOT_MARKER: "QQQ",  # chunk_index, chunk_offset, snapshot_id
    Event.CUSTOM_EVENT: "Ib",  # schema, blob
    Event.TIER1_SNAPSHOT: "j",  # JSON text
}
"""
Per kind: a number by its `struct` code, ``s`` a text with a u16 length, ``o`` the same or nothing, ``b`` bytes with a
u16 length, ``j`` a text with a u32 length, ``r`` a u32 between the length of the text that follows and the text.
"""


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """One record: its kind (a plain number when unknown), its segment, and the values of its payload."""

    kind: int
    segment_id: int
    logical_offset: int
    timestamp_ms: int
    fields: Fields


def encode_manifest_record(record: ManifestRecord) -> bytes:
    """Return the bytes of *record*; the fields are those of its kind's layout, or one `bytes` for an unknown kind."""
    payload = _encode_fields(record.kind, record.fields)
    head = MANIFEST_RECORD_HEAD.pack(
        record.kind, 0, len(payload), record.segment_id, record.logical_offset, record.timestamp_ms,
        crc64_nvme(payload),
    )  # fmt: skip
    return head + payload


def decode_manifest_record(view: memoryview, offset: int = 0) -> Answer[ManifestRecord]:
    """Decode the record at *offset*."""
    left = len(view) - offset
    if left < MANIFEST_RECORD_HEAD_BYTES:
        return NeedMore(MANIFEST_RECORD_HEAD_BYTES - left)
    kind, flags, length, segment_id, logical, timestamp, crc = MANIFEST_RECORD_HEAD.unpack_from(view, offset)
    if flags:
        return Damage(offset + 2, f"flags of a manifest record are {flags:#x}")
    if length > MANIFEST_PAYLOAD_BYTES_MAX:
        return Damage(offset + 4, f"a manifest record of {length} bytes")
    if left < MANIFEST_RECORD_HEAD_BYTES + length:
        return NeedMore(MANIFEST_RECORD_HEAD_BYTES + length - left)
    start = offset + MANIFEST_RECORD_HEAD_BYTES
    payload = view[start : start + length]
    if crc and crc64_nvme(payload) != crc:
        return Damage(start, "checksum mismatch in a manifest record")
    try:
        fields = _decode_fields(kind, payload)
    except (ShortageError, UnicodeDecodeError):
        return Damage(start, f"the payload does not fit a manifest record of kind {kind}")
    if fields is None:
        return Damage(start, f"bytes are left over in a manifest record of kind {kind}")
    return Frame(ManifestRecord(kind, segment_id, logical, timestamp, fields), start + length)


def _encode_fields(kind: int, fields: Fields) -> bytes:
    layout = LAYOUTS[Event(kind)] if kind in LAYOUTS else "*"
    pieces: list[bytes] = []
    reason = b""
    for code, value in zip(layout, fields, strict=True):
        if code == "*":
            pieces.append(bytes(_as_bytes(value)))
        elif code in _NUMBERS:
            pieces.append(_NUMBERS[code].pack(value))
        elif code == "r":
            reason = _NUMBERS["I"].pack(value)
        else:
            data = _as_bytes(value)
            pieces += [_NUMBERS["I" if code == "j" else "H"].pack(len(data)), reason, data]
            reason = b""
    return b"".join(pieces)


def _as_bytes(value: int | str | bytes | None) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else b""


def _decode_fields(kind: int, payload: memoryview) -> Fields | None:
    """Return the values, or None when bytes are left over."""
    if kind not in LAYOUTS:
        return (bytes(payload),)
    cursor = Cursor(payload)
    fields: list[int | str | bytes | None] = []
    length_first: int | None = None
    for code in LAYOUTS[Event(kind)]:
        if code in _NUMBERS:
            fields += cursor.take(_NUMBERS[code])
        elif code == "r":
            (length_first,) = cursor.take(_NUMBERS["H"])
            fields += cursor.take(_NUMBERS["I"])
        else:
            length = length_first if length_first is not None else _length(cursor, code)
            data = bytes(cursor.view(length))
            fields.append(data if code == "b" else (data.decode() or None if code == "o" else data.decode()))
    return None if cursor.remaining else tuple(fields)


def _length(cursor: Cursor, code: str) -> int:
    return int(cursor.take(_NUMBERS["I" if code == "j" else "H"])[0])
