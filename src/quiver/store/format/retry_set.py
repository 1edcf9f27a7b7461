r"""
The retry set of a subscriber: bundles that its destination could not take yet. Bytes only.

::

    0   8   magic          b"QUIVER\0R"
    8   u16 version        1
    10  u16 header_size    24; more in a future that only adds fields: they are skipped
    12  u16 entry_size     40; as above, for the fixed part of each entry
    14  u16 reserved       zeros
    16  u32 entry_count
    20  4   reserved       zeros
    for every entry, ascending by place, from header_size on:
        u64 seg_seq
        u32 bundle_index       below 65,536
        u32 attempts           failed attempts, 1 upwards
        u64 first_failed_at    nanoseconds since the epoch
        u64 next_try_at        nanoseconds since the epoch; not tried before
        u16 reason_size        at most 512
        u8  flags              bit 0: the exporter halted at it; other bits are written as zero and ignored
        5   reserved           zeros
        ... reason             UTF-8, why the last attempt failed
    the last four bytes of the file:
        u32 crc32              IEEE, over all bytes before it

A bundle in the set is not resolved, regardless of the position that an in-order reader has reached: its segment stays.
It leaves the set only after it is delivered or has become a dead letter. The file is a Quiver extension: engines that
do not know it ignore it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.bundle import BundleRef
from quiver.invariant import invariant
from quiver.primitives.checksum import crc32
from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "BUNDLE_INDEX_MAX",
    "REASON_BYTES_MAX",
    "RETRY_ENTRIES_MAX",
    "RETRY_ENTRY",
    "RETRY_HEADER",
    "RETRY_MAGIC",
    "RETRY_SET_BYTES_MAX",
    "RETRY_VERSION",
    "RetryEntry",
    "decode_retry_set",
    "encode_retry_set",
]

RETRY_MAGIC = b"QUIVER\0R"
RETRY_VERSION = 1
RETRY_HEADER = struct.Struct("<8sHHH2xI4x")
RETRY_ENTRY = struct.Struct("<QIIQQHB5x")
RETRY_ENTRIES_MAX = 65_536
BUNDLE_INDEX_MAX = 65_535
REASON_BYTES_MAX = 512
RETRY_SET_BYTES_MAX = 64 * 1024 * 1024
"""Well above the size of a valid set, even with added fields: a larger file is not read."""

_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")
_ENTRY_SIZE_MAX = 512
_HALTED = 1
_U64_MAX = 2**64 - 1
_U32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RetryEntry:
    """
    One bundle in the retry set.

    Attributes:
        ref: the bundle.
        attempts: how many attempts failed.
        first_failed_at_ns: wall-clock time of the first failure.
        next_try_at_ns: wall-clock time before which it is not tried again.
        reason: why the last attempt failed, human-readable.
        is_halted: the exporter stopped at this bundle and tries nothing until it is restarted.
    """

    ref: BundleRef
    attempts: int
    first_failed_at_ns: int
    next_try_at_ns: int
    reason: str = ""
    is_halted: bool = False


def encode_retry_set(entries: Iterable[RetryEntry]) -> bytes:
    """
    Return the complete file. Numbers that are too large become the maximum, and long reasons are cut.

    Raises:
        InvariantError: there are more than 65,536 entries, or a bundle appears twice. Such a file could not be
            read again.
    """
    ordered = sorted(entries, key=lambda entry: entry.ref)
    is_readable = len({entry.ref for entry in ordered}) == len(ordered) <= RETRY_ENTRIES_MAX
    invariant(is_readable, f"a retry set has at most {RETRY_ENTRIES_MAX} bundles, each once, not {len(ordered)}")
    body = bytearray(RETRY_HEADER.pack(RETRY_MAGIC, RETRY_VERSION, RETRY_HEADER.size, RETRY_ENTRY.size, len(ordered)))
    for entry in ordered:
        reason = _cut(entry.reason)
        body += RETRY_ENTRY.pack(
            entry.ref.segment,
            entry.ref.index,
            min(max(entry.attempts, 1), _U32_MAX),
            min(max(entry.first_failed_at_ns, 0), _U64_MAX),
            min(max(entry.next_try_at_ns, 0), _U64_MAX),
            len(reason),
            _HALTED if entry.is_halted else 0,
        )
        body += reason
    return bytes(body) + _CRC.pack(crc32(body))


def _cut(reason: str) -> bytes:
    # Never cut inside a character: a reader must get valid text.
    return reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()


def decode_retry_set(view: memoryview) -> Answer[tuple[RetryEntry, ...]]:
    """Decode a retry set, ascending by `ref`. Bytes after the file are ignored."""
    if not RETRY_MAGIC.startswith(bytes(view[: len(RETRY_MAGIC)])):
        return Damage(0, "not a retry set: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != RETRY_VERSION:
        return Damage(8, f"unsupported version {version} of a retry set; this reads {RETRY_VERSION}")
    if header_size < RETRY_HEADER.size:
        return Damage(10, f"header_size {header_size} is below {RETRY_HEADER.size}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, entry_size, count = RETRY_HEADER.unpack_from(view)
    if not RETRY_ENTRY.size <= entry_size <= _ENTRY_SIZE_MAX:
        return Damage(12, f"entry_size {entry_size} is not {RETRY_ENTRY.size} to {_ENTRY_SIZE_MAX}")
    if count > RETRY_ENTRIES_MAX:
        return Damage(16, f"entry_count {count} is above the limit of {RETRY_ENTRIES_MAX}")
    cursor = Cursor(view, header_size)
    try:
        entries = _decode_entries(cursor, entry_size, count)
        end = cursor.offset
        (found,) = cursor.take(_CRC)
    except ShortageError as shortage:
        return NeedMore(shortage.missing)
    if isinstance(entries, Damage):
        return entries
    if found != crc32(view[:end]):
        return Damage(end, "checksum mismatch in the retry set")
    return Frame(entries, end + _CRC.size)


def _decode_entries(cursor: Cursor, entry_size: int, count: int) -> tuple[RetryEntry, ...] | Damage:
    entries: list[RetryEntry] = []
    for _ in range(count):
        at = cursor.offset
        segment, index, attempts, first_ns, next_ns, reason_size, flags = cursor.take(RETRY_ENTRY)
        if index > BUNDLE_INDEX_MAX:
            return Damage(at, f"bundle_index {index} is above the limit of {BUNDLE_INDEX_MAX}")
        if reason_size > REASON_BYTES_MAX:
            return Damage(at, f"reason_size {reason_size} is above the limit of {REASON_BYTES_MAX}")
        cursor.skip(entry_size - RETRY_ENTRY.size)
        ref = BundleRef(segment, index)
        if entries and ref <= entries[-1].ref:
            return Damage(at, f"bundle {ref} comes after {entries[-1].ref}")
        reason = bytes(cursor.view(reason_size)).decode("utf-8", "replace")
        entries.append(RetryEntry(ref, attempts, first_ns, next_ns, reason, bool(flags & _HALTED)))
    return tuple(entries)
