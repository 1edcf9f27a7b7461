"""
The durability snapshot: how far each unsealed segment was synced when it was written. JSON text, values in and out.

A compact array of ``{"segment_id":0,"requested_bytes":1024,"durable_bytes":1024}``; bytes count from the beginning of
the segment's file. It may be outdated: at least this much was durable. Recovery concludes two things from it: the bytes
before `durable_bytes` need not be rewritten, and if they do not parse, they are damaged and not a torn tail.

An object may also have the five members of a `ScanMark`. With them, recovery compares one checksum of all bytes before
`durable_bytes`, instead of that of each record, and scans only what follows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["DURABILITY_BYTES_MAX", "ScanMark", "SegmentDurability", "decode_durability", "encode_durability"]

DURABILITY_BYTES_MAX = 1 << 20
_KEYS = ("segment_id", "requested_bytes", "durable_bytes")
_U64_MAX = 2**64 - 1
_MARK_KEYS = ("record_count", "last_offset", "last_timestamp", "crc64", "bytes_crc64")


@dataclass(frozen=True, slots=True)
class ScanMark:
    """
    The result of a scan over the durable records of a segment, and a checksum of the bytes that it holds for.

    Attributes:
        record_count: the number of records; at least 1.
        last_offset: the start of the last of them, from the beginning of the file.
        last_timestamp: its timestamp.
        crc64: CRC-64/NVME of all payloads, concatenated.
        bytes_crc64: CRC-64/NVME of the file's bytes from the end of its header to the end of that record.
    """

    record_count: int
    last_offset: int
    last_timestamp: int
    crc64: int
    bytes_crc64: int


@dataclass(frozen=True, slots=True)
class SegmentDurability:
    """One segment: bytes for which a flush was requested, bytes that were synced, and a mark at the last of these."""

    segment_id: int
    requested_bytes: int
    durable_bytes: int
    mark: ScanMark | None = None


def encode_durability(segments: Iterable[SegmentDurability]) -> bytes:
    """Return the text of a snapshot."""
    rows = []
    for one in segments:
        row = dict(zip(_KEYS, (one.segment_id, one.requested_bytes, one.durable_bytes), strict=True))
        rows.append(row if one.mark is None else row | dataclasses.asdict(one.mark))
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_durability(view: memoryview) -> Answer[tuple[SegmentDurability, ...]]:
    """Decode a complete snapshot file."""
    try:
        rows = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not a durability snapshot: it is not JSON text")
    if not isinstance(rows, list):
        return Damage(0, "not a durability snapshot: it is not an array")
    found = []
    for row in rows:
        values = [row.get(key) for key in _KEYS] if isinstance(row, dict) else []
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
        if len(numbers) != len(_KEYS) or numbers[2] > numbers[1]:
            return Damage(
                0, "not a durability snapshot: an entry lacks a number, or has more durable bytes than requested ones"
            )
        found.append(SegmentDurability(numbers[0], numbers[1], numbers[2], _mark(row)))
    return Frame(tuple(found), len(view))


def _mark(row: dict[str, object]) -> ScanMark | None:
    # A row without a usable mark is still useful: the segment is then scanned from its first record.
    values = [row.get(key) for key in _MARK_KEYS]
    numbers = [one for one in values if isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _U64_MAX]
    if len(numbers) != len(_MARK_KEYS) or not numbers[0]:
        return None
    return ScanMark(*numbers)
