r"""
The drop ledger: segments that a policy dropped before every subscriber had resolved them. Bytes only. The ledger of a
single subscriber lists the segments that an operator skipped for it.

::

    0   8   magic          b"QUIVER\0D"
    8   u16 version        1
    10  u16 header_size    24; more in a future that only adds fields: they are skipped
    12  u16 entry_size     40; as above, for each entry
    14  u16 reserved       zeros
    16  u32 entry_count
    20  4   reserved       zeros
    for every entry, ascending by number, from header_size on:
        u64 seg_seq
        u64 size_bytes     size of its file; 0 if it never had one
        u64 dropped_at     nanoseconds since the epoch
        u32 bundle_count
        u8  reason         1 size, 2 age, 16 skipped
        3   reserved       zeros
        u64 wal_position   0; without a file: the drop takes effect when the cursor has passed this position
    the last four bytes of the file:
        u32 crc32          IEEE, over all bytes before it

An entry is durable before any file of the segment is deleted, and stays until every subscriber's progress file has
recorded the segment as resolved. The file is a Quiver extension: engines that do not know it ignore it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quiver.invariant import invariant
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "DROP_ENTRIES_MAX",
    "DROP_ENTRY",
    "DROP_HEADER",
    "DROP_LEDGER_BYTES_MAX",
    "DROP_MAGIC",
    "DROP_VERSION",
    "DropReason",
    "DroppedSegment",
    "decode_drop_ledger",
    "encode_drop_ledger",
]

DropReason = Literal["size", "age", "skipped"]

DROP_MAGIC = b"QUIVER\0D"
DROP_VERSION = 1
DROP_HEADER = struct.Struct("<8sHHH2xI4x")
DROP_ENTRY = struct.Struct("<QQQIB3xQ")
DROP_ENTRIES_MAX = 65_536
DROP_LEDGER_BYTES_MAX = 64 * 1024 * 1024
"""Well above the size of a valid ledger, even with added fields: a larger file is not read."""

_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")
_SIZES_AT = 10
_REASONS: dict[int, DropReason] = {1: "size", 2: "age", 16: "skipped"}
"""Reasons from 16 on are decisions of an operator, not of a policy."""
_CODES = {reason: code for code, reason in _REASONS.items()}
_ENTRY_SIZE_MAX = 512


@dataclass(frozen=True, slots=True)
class DroppedSegment:
    """
    One segment that a policy dropped.

    Attributes:
        seq: its number.
        bundle_count: how many bundles it had; for a skipped segment, those that the subscriber had not resolved.
        size_bytes: the size of its file; 0 if it was dropped before it was written.
        reason: `size` for the cap or a full disk, `age` for expiry, `skipped` for one subscriber.
        dropped_at_ns: wall-clock time of the drop.
        wal_position_end: for a segment that was never written, the log position after it; otherwise 0. Until the log's
            cursor has passed it, recovery brings the bundles back under another number, and nothing was dropped.
    """

    seq: int
    bundle_count: int
    size_bytes: int
    reason: DropReason
    dropped_at_ns: int
    wal_position_end: int = 0


def encode_drop_ledger(entries: Sequence[DroppedSegment]) -> bytes:
    """
    Return the complete file.

    Raises:
        InvariantError: there are more than 65,536 entries, or a segment appears twice. Such a file could not be
            read again.
    """
    ordered = sorted(entries, key=lambda entry: entry.seq)
    is_readable = len({entry.seq for entry in ordered}) == len(ordered) <= DROP_ENTRIES_MAX
    invariant(is_readable, f"a drop ledger has at most {DROP_ENTRIES_MAX} segments, each once, not {len(ordered)}")
    body = DROP_HEADER.pack(DROP_MAGIC, DROP_VERSION, DROP_HEADER.size, DROP_ENTRY.size, len(ordered)) + b"".join(
        DROP_ENTRY.pack(
            entry.seq,
            entry.size_bytes,
            entry.dropped_at_ns,
            entry.bundle_count,
            _CODES[entry.reason],
            entry.wal_position_end,
        )
        for entry in ordered
    )
    return body + _CRC.pack(crc32(body))


def decode_drop_ledger(view: memoryview) -> Answer[tuple[DroppedSegment, ...]]:
    """Decode a drop ledger, ascending by segment number. Bytes after the file are ignored."""
    if not DROP_MAGIC.startswith(bytes(view[: len(DROP_MAGIC)])):
        return Damage(0, "not a drop ledger: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != DROP_VERSION:
        return Damage(8, f"unsupported version {version} of a drop ledger; this reads {DROP_VERSION}")
    if header_size < DROP_HEADER.size:
        return Damage(_SIZES_AT, f"header_size {header_size} is below {DROP_HEADER.size}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, entry_size, count = DROP_HEADER.unpack_from(view)
    if not DROP_ENTRY.size <= entry_size <= _ENTRY_SIZE_MAX:
        return Damage(12, f"entry_size {entry_size} is not {DROP_ENTRY.size} to {_ENTRY_SIZE_MAX}")
    if count > DROP_ENTRIES_MAX:
        return Damage(16, f"entry_count {count} is above the limit of {DROP_ENTRIES_MAX}")
    end = header_size + count * entry_size
    if len(view) < end + _CRC.size:
        return NeedMore(end + _CRC.size - len(view))
    if _CRC.unpack_from(view, end)[0] != crc32(view[:end]):
        return Damage(end, "checksum mismatch in the drop ledger")
    entries = _decode_entries(view[:end], header_size, entry_size)
    return entries if isinstance(entries, Damage) else Frame(entries, end + _CRC.size)


def _decode_entries(view: memoryview, start: int, entry_size: int) -> tuple[DroppedSegment, ...] | Damage:
    entries: list[DroppedSegment] = []
    for at in range(start, len(view), entry_size):
        seq, size_bytes, dropped_at_ns, bundle_count, reason, position = DROP_ENTRY.unpack_from(view, at)
        if reason not in _REASONS:
            return Damage(at, f"segment {seq}: unsupported reason {reason}")
        if entries and seq <= entries[-1].seq:
            return Damage(at, f"segment {seq} comes after {entries[-1].seq}")
        entries.append(DroppedSegment(seq, bundle_count, size_bytes, _REASONS[reason], dropped_at_ns, position))
    return tuple(entries)
