r"""
The progress file: what one subscriber has resolved. Bytes only.

::

    0   8   magic                  b"QUIVSUB\0"
    8   u16 version                1
    10  u16 header_size            32; more in a future that only adds fields: they are skipped
    12  u16 flags                  0; others are reported, not refused
    14  u64 oldest_incomplete_seg
    22  u32 entry_count
    26  6   reserved               zeros
    for every entry, ascending, from header_size on:
        u64 seg_seq
        u32 bundle_count
        u16 bitmap_words           bundle_count / 64, rounded up
        u64 × bitmap_words         lowest bit of the first word: bundle 0; 1: resolved
    the last four bytes of the file:
        u32 crc32c or crc32        over all bytes before it

The architecture document specifies CRC-32C, the released Rust engine writes CRC-32 (IEEE). The `spec` profile writes
the first, the `otap` profile the second, and both are read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

from quiver.errors import UsageError
from quiver.invariant import invariant
from quiver.primitives.checksum import crc32, crc32c
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "BITMAP_WORDS_MAX",
    "PROGRESS_ENTRIES_MAX",
    "PROGRESS_ENTRY",
    "PROGRESS_HEADER",
    "PROGRESS_MAGIC",
    "PROGRESS_VERSION",
    "Progress",
    "SegmentProgress",
    "decode_progress",
    "encode_progress",
    "progress_checksum",
]

PROGRESS_MAGIC = b"QUIVSUB\0"
PROGRESS_VERSION = 1
PROGRESS_HEADER = struct.Struct("<8sHHHQI6x")
PROGRESS_ENTRY = struct.Struct("<QIH")
PROGRESS_ENTRIES_MAX = 1_000_000
BITMAP_WORDS_MAX = 1024
"""Therefore a segment can have at most 65,536 bundles."""

_PREFIX = struct.Struct("<8sHH")
_CRC = struct.Struct("<I")
_WORD_BITS = 64
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class SegmentProgress:
    """Progress within one segment: bit i of `bitmap` means that bundle i is resolved."""

    bundle_count: int
    bitmap: int


@dataclass(frozen=True, slots=True)
class Progress:
    """
    Progress of one subscriber.

    Attributes:
        oldest_incomplete: number of the oldest segment that is not fully resolved.
        entries: segment number → progress within it, ascending.
        flags: 0 in version 1; a reader reports other values and continues. Never written.
    """

    oldest_incomplete: int
    entries: dict[int, SegmentProgress] = field(default_factory=dict)
    flags: int = 0


def encode_progress(progress: Progress, *, profile: Literal["spec", "otap"]) -> bytes:
    """
    Return the complete file; *profile* chooses the checksum.

    Raises:
        UsageError: there are more than 1,000,000 entries. Such a file could not be read again.
        InvariantError: a segment has more than 65,536 bundles, or bits beyond its last bundle; the same applies.
    """
    if len(progress.entries) > PROGRESS_ENTRIES_MAX:
        raise UsageError(f"{len(progress.entries)} segments are above the limit of {PROGRESS_ENTRIES_MAX}")
    parts = [
        PROGRESS_HEADER.pack(
            PROGRESS_MAGIC,
            PROGRESS_VERSION,
            PROGRESS_HEADER.size,
            0,
            progress.oldest_incomplete,
            len(progress.entries),
        )
    ]
    for seq, entry in sorted(progress.entries.items()):
        words = _words(entry.bundle_count)
        is_readable = words <= BITMAP_WORDS_MAX and not entry.bitmap >> entry.bundle_count
        invariant(is_readable, f"a progress file has one bit for each bundle of a segment ({seq})")
        parts.append(PROGRESS_ENTRY.pack(seq, entry.bundle_count, words))
        parts.append(entry.bitmap.to_bytes(words * _WORD_BYTES, "little"))
    body = b"".join(parts)
    return body + _CRC.pack(crc32c(body) if profile == "spec" else crc32(body))


def progress_checksum(view: memoryview) -> Literal["crc32c", "crc32"] | None:
    """Return which checksum the last four bytes of *view* are, or None if they are neither."""
    if len(view) < _CRC.size:
        return None
    body = view[: -_CRC.size]
    (stored,) = _CRC.unpack_from(view, len(body))
    # CRC-32 first: it needs no import, and one of the two profiles never needs the other checksum.
    if stored == crc32(body):
        return "crc32"
    return "crc32c" if stored == crc32c(body) else None


def decode_progress(view: memoryview) -> Answer[Progress]:
    """
    Decode a complete progress file. Bytes between the last entry and the checksum are ignored.

    Bits beyond a segment's last bundle have no meaning and are dropped.
    """
    if not PROGRESS_MAGIC.startswith(bytes(view[: len(PROGRESS_MAGIC)])):
        return Damage(0, "not a progress file: the magic does not match")
    if len(view) < _PREFIX.size:
        return NeedMore(_PREFIX.size - len(view))
    _, version, header_size = _PREFIX.unpack_from(view)
    if version != PROGRESS_VERSION:
        return Damage(8, f"unsupported version {version} of a progress file; this reads {PROGRESS_VERSION}")
    if header_size < PROGRESS_HEADER.size:
        return Damage(10, f"header_size {header_size} is below {PROGRESS_HEADER.size}")
    if len(view) < header_size + _CRC.size:
        return NeedMore(header_size + _CRC.size - len(view))
    _, _, _, flags, oldest_incomplete, entry_count = PROGRESS_HEADER.unpack_from(view)
    is_valid = progress_checksum(view) is not None
    entries = _decode_entries(view[: -_CRC.size], header_size, entry_count)
    if not is_valid and not isinstance(entries, NeedMore):
        # A wrong count or length would only be a consequence of the wrong checksum.
        return Damage(len(view) - _CRC.size, "checksum mismatch: neither CRC-32C nor CRC-32")
    if isinstance(entries, NeedMore):
        return Damage(header_size, "the entries do not fit in the file") if is_valid else entries
    if isinstance(entries, Damage):
        return entries
    return Frame(Progress(oldest_incomplete, entries, flags), len(view))


def _decode_entries(body: memoryview, at: int, entry_count: int) -> dict[int, SegmentProgress] | Damage | NeedMore:
    if entry_count > PROGRESS_ENTRIES_MAX:
        return Damage(22, f"entry_count {entry_count} is above the limit of {PROGRESS_ENTRIES_MAX}")
    entries: dict[int, SegmentProgress] = {}
    for _ in range(entry_count):
        if len(body) - at < PROGRESS_ENTRY.size:
            return NeedMore(at + PROGRESS_ENTRY.size - len(body))
        seq, bundle_count, words = PROGRESS_ENTRY.unpack_from(body, at)
        if words > BITMAP_WORDS_MAX or words != _words(bundle_count):
            return Damage(at, f"segment {seq}: {words} bitmap words for {bundle_count} bundles")
        if seq in entries:
            return Damage(at, f"segment {seq} appears twice")
        at += PROGRESS_ENTRY.size
        end = at + words * _WORD_BYTES
        if end > len(body):
            return NeedMore(end - len(body))
        bitmap = int.from_bytes(body[at:end], "little") & ((1 << bundle_count) - 1)
        entries[seq] = SegmentProgress(bundle_count, bitmap)
        at = end
    return dict(sorted(entries.items()))


def _words(bundle_count: int) -> int:
    return -(-bundle_count // _WORD_BITS)
