"""
The sparse index of a sealed segment: about every 64 KiB the offset, number and time of a record. Bytes only.

::

    0   u32  magic          0x414F4658
    4   u16  version        1
    6   u16  entry_bytes    16
    8   u32  segment_index
    12  u32  count          entries that follow
    16  u64  base_offset    of the segment, and
    24  u64  end            the end of its last record: with other values it belongs to another segment
    32  u64  checksum       CRC-64/NVME of the 32 bytes before it and of all entries
    40       entries: u32 number of the record in its segment, from 0; u32 its offset; u64 its timestamp

It is derived from the segment: a missing or damaged index is made again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "INDEX_BYTES_MAX",
    "INDEX_ENTRY",
    "INDEX_HEADER",
    "INDEX_MAGIC",
    "IndexMark",
    "SparseIndex",
    "decode_index",
    "encode_index",
    "mark_records",
]

INDEX_HEADER = struct.Struct("<IHHIIQQQ")
INDEX_ENTRY = struct.Struct("<IIQ")
INDEX_MAGIC = 0x414F4658
INDEX_BYTES_MAX = 4 * 1024 * 1024
"""Larger indexes are not read: there is one entry for every 64 KiB of at most 4 GiB."""

_VERSION = 1
_STEP_BYTES = 64 * 1024
_CHECKED_BYTES = 32


class IndexMark(NamedTuple):
    """One record: its number in the segment, counted from 0, its offset, and its time."""

    number: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class SparseIndex:
    """Records of one segment, in order. *end* is the end of the segment's last record."""

    segment_index: int
    base_offset: int
    end: int
    marks: tuple[IndexMark, ...]


def mark_records(view: memoryview, end: int) -> tuple[IndexMark, ...]:
    """
    Return a mark for about every 64 KiB of the records in *view*, the bytes of a segment, up to *end*.

    Only record heads are read, not payloads: at an invalid length the marks end.
    """
    unpack = RECORD_HEAD.unpack_from
    found = []
    at = due = HEADER_BYTES
    number = 0
    while at + RECORD_HEAD_BYTES < end:
        length, _, timestamp, _ = unpack(view, at)
        next_at = at + RECORD_HEAD_BYTES + length
        if not length or next_at > end:
            break
        if at >= due:
            found.append(IndexMark(number, at, timestamp))
            due = at + _STEP_BYTES
        number += 1
        at = next_at
    return tuple(found)


def encode_index(index: SparseIndex) -> bytes:
    """Return the bytes of the file."""
    entries = b"".join(INDEX_ENTRY.pack(*mark) for mark in index.marks)
    fields = (
        INDEX_MAGIC, _VERSION, INDEX_ENTRY.size, index.segment_index, len(index.marks), index.base_offset, index.end,
    )  # fmt: skip
    checked = INDEX_HEADER.pack(*fields, 0)[:_CHECKED_BYTES]
    return INDEX_HEADER.pack(*fields, crc64_nvme(entries, crc64_nvme(checked))) + entries


def decode_index(view: memoryview) -> Answer[SparseIndex]:
    """Decode an index; its marks must be in order and before its end."""
    if len(view) < INDEX_HEADER.size:
        return NeedMore(INDEX_HEADER.size - len(view))
    magic, version, entry_bytes, segment_index, count, base_offset, end, checksum = INDEX_HEADER.unpack_from(view, 0)
    if magic != INDEX_MAGIC:
        return Damage(0, "not the index of a segment")
    if (version, entry_bytes) != (_VERSION, INDEX_ENTRY.size):
        return Damage(4, f"unsupported version {version} of an index, or entries of {entry_bytes} bytes")
    stop = INDEX_HEADER.size + count * INDEX_ENTRY.size
    if stop > INDEX_BYTES_MAX:
        return Damage(12, f"an index of {count} entries")
    if len(view) < stop:
        return NeedMore(stop - len(view))
    if len(view) > stop:
        return Damage(stop, "there are bytes after the index")
    entries = view[INDEX_HEADER.size : stop]
    if crc64_nvme(entries, crc64_nvme(view[:_CHECKED_BYTES])) != checksum:
        return Damage(32, "checksum mismatch in an index")
    marks = tuple(map(IndexMark._make, INDEX_ENTRY.iter_unpack(entries)))
    ordered = all(
        a.number < b.number and a.offset < b.offset and a.timestamp <= b.timestamp for a, b in pairwise(marks)
    )
    if not ordered or any(not HEADER_BYTES <= mark.offset < end for mark in marks):
        return Damage(INDEX_HEADER.size, "the entries of an index are out of order, or past its end")
    return Frame(SparseIndex(segment_index, base_offset, end, marks), stop)
