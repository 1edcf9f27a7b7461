r"""
Early progress: what subscribers resolved of bundles that are not in a segment file yet. Bytes only.

::

    0   8   magic             b"QUIVER\0E"
    8   u16 version           1
    10  u16 header_size       24; more in a future that only adds fields: they are skipped
    12  u32 segment_count
    16  u32 entry_count
    20  4   reserved          zeros
    for every unsealed segment, ascending, from header_size on:
        u64 seg_seq           the number that it has
        u64 wal_position      position of its first bundle in the log
        u64 sequence          sequence number of its first bundle
    for every subscriber and segment, ascending by id and number:
        [64] subscriber       the id, padded with zeros
        u64  seg_seq          one of the segments above
        u32  bundle_count     bits of the bitmap
        4    reserved         zeros
        words of 64 bits      bit n is set: the subscriber has resolved bundle n; ceil(bundle_count / 64) words
    the last four bytes of the file:
        u32 crc32             IEEE, over all bytes before it

The file is durable before the first bundle of an unsealed segment is delivered. So after a crash the log is replayed
into segments with the same numbers and the same order of bundles: references stay valid, and what was resolved stays
resolved. The file is a Quiver extension: an engine that does not know it delivers the bundles again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quiver.invariant import invariant
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.store.format.names import is_subscriber_id
from quiver.store.format.segment.file import BUNDLES_WRITTEN_MAX

__all__ = [
    "EARLY_BYTES_MAX",
    "EARLY_ENTRIES_MAX",
    "EARLY_ENTRY",
    "EARLY_HEADER",
    "EARLY_MAGIC",
    "EARLY_SEGMENT",
    "EARLY_SEGMENTS_MAX",
    "EARLY_VERSION",
    "EarlyProgress",
    "UnsealedSegment",
    "decode_early_progress",
    "encode_early_progress",
]

EARLY_MAGIC = b"QUIVER\0E"
EARLY_VERSION = 1
EARLY_HEADER = struct.Struct("<8sHHII4x")
EARLY_SEGMENT = struct.Struct("<QQQ")
EARLY_ENTRY = struct.Struct("<64sQI4x")
EARLY_SEGMENTS_MAX = 1024
EARLY_ENTRIES_MAX = 65_536
EARLY_BYTES_MAX = 64 * 1024 * 1024
"""Above the size of a valid file of a store with a thousand subscribers: a larger file is not read."""

_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class UnsealedSegment:
    """A segment whose bundles are delivered before its file is written: number, and where its bundles begin."""

    seq: int
    wal_position: int
    sequence: int


@dataclass(frozen=True, slots=True)
class EarlyProgress:
    """
    The content of the file.

    Attributes:
        segments: the unsealed segments, ascending by number.
        resolved: by subscriber and segment number: how many bundles are known, and a bitmap of the resolved ones.
    """

    segments: tuple[UnsealedSegment, ...] = ()
    resolved: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


def encode_early_progress(progress: EarlyProgress) -> bytes:
    """
    Return the complete file.

    Raises:
        InvariantError: there are too many segments or subscribers. Such a file could not be read again.
    """
    segments, entries = progress.segments, progress.resolved
    is_readable = len(segments) <= EARLY_SEGMENTS_MAX and len(entries) <= EARLY_ENTRIES_MAX
    invariant(is_readable, "early progress lists more segments or subscribers than can be read")
    parts = [EARLY_HEADER.pack(EARLY_MAGIC, EARLY_VERSION, EARLY_HEADER.size, len(segments), len(entries))]
    parts += [EARLY_SEGMENT.pack(one.seq, one.wal_position, one.sequence) for one in segments]
    for (subscriber, seq), (bundle_count, bitmap) in sorted(entries.items()):
        parts.append(EARLY_ENTRY.pack(subscriber.encode(), seq, bundle_count))
        parts.append(bitmap.to_bytes(_bitmap_bytes(bundle_count), "little"))
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def _bitmap_bytes(bundle_count: int) -> int:
    return (bundle_count + 63) // 64 * 8


def decode_early_progress(view: memoryview) -> Answer[EarlyProgress]:
    """Decode the file at the start of *view*. Bytes after it are ignored."""
    if not EARLY_MAGIC.startswith(bytes(view[: len(EARLY_MAGIC)])):
        return Damage(0, "not early progress: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != EARLY_VERSION:
        return Damage(8, f"unsupported version {version} of early progress; this reads {EARLY_VERSION}")
    if header_size < EARLY_HEADER.size:
        return Damage(10, f"header_size {header_size} is below {EARLY_HEADER.size}")
    if len(view) < header_size:
        return NeedMore(header_size - len(view))
    _, _, _, segment_count, entry_count = EARLY_HEADER.unpack_from(view)
    if segment_count > EARLY_SEGMENTS_MAX:
        return Damage(12, f"segment_count {segment_count} is above the limit of {EARLY_SEGMENTS_MAX}")
    if entry_count > EARLY_ENTRIES_MAX:
        return Damage(16, f"entry_count {entry_count} is above the limit of {EARLY_ENTRIES_MAX}")
    return _decode_body(view, header_size, segment_count, entry_count)


def _decode_body(view: memoryview, at: int, segment_count: int, entry_count: int) -> Answer[EarlyProgress]:
    entries_at = at + segment_count * EARLY_SEGMENT.size
    if len(view) < entries_at:
        return NeedMore(entries_at - len(view))
    segments = tuple(UnsealedSegment(*fields) for fields in EARLY_SEGMENT.iter_unpack(view[at:entries_at]))
    found: list[tuple[int, bytes, int, int]] = []
    at = entries_at
    for _ in range(entry_count):
        if len(view) - at < EARLY_ENTRY.size:
            return NeedMore(EARLY_ENTRY.size - (len(view) - at))
        raw, seq, bundle_count = EARLY_ENTRY.unpack_from(view, at)
        if bundle_count > BUNDLES_WRITTEN_MAX:
            return Damage(at, f"bundle_count {bundle_count} is above the limit of {BUNDLES_WRITTEN_MAX}")
        found.append((at, raw, seq, bundle_count))
        at += EARLY_ENTRY.size + _bitmap_bytes(bundle_count)
    if len(view) < at + _CRC.size:
        return NeedMore(at + _CRC.size - len(view))
    if _CRC.unpack_from(view, at)[0] != crc32(view[:at]):
        return Damage(at, "checksum mismatch in early progress")
    return _checked(view, segments, found, at + _CRC.size)


def _checked(
    view: memoryview, segments: Sequence[UnsealedSegment], found: Sequence[tuple[int, bytes, int, int]], end: int
) -> Answer[EarlyProgress]:
    if any(one.seq >= other.seq for one, other in pairwise(segments)):
        return Damage(EARLY_HEADER.size, "the segments are not ascending")
    known = {segment.seq for segment in segments}
    resolved: dict[tuple[str, int], tuple[int, int]] = {}
    previous = ("", -1)
    for at, raw, seq, bundle_count in found:
        key = raw.rstrip(b"\0").decode("ascii", "replace"), seq
        if not is_subscriber_id(key[0]) or key <= previous:
            return Damage(at, f"entry {key} is not of a subscriber, or comes after {previous}")
        if seq not in known:
            return Damage(at, f"segment {seq} of subscriber {key[0]!r} is not listed")
        start = at + EARLY_ENTRY.size
        bitmap = int.from_bytes(view[start : start + _bitmap_bytes(bundle_count)], "little")
        if bitmap >> bundle_count:
            return Damage(start, f"a bit is set beyond the {bundle_count} bundles of segment {seq}")
        resolved[key] = bundle_count, bitmap
        previous = key
    return Frame(EarlyProgress(tuple(segments), resolved), end)
