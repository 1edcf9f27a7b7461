"""
Header and footer of a segment file. Bytes only; all integers are little-endian.

::

    0            64                                            size - 96        size
    ┌────────────┬─────────────────────────────────────────────┬────────────────┐
    │ header     │ record │ record │ … │ zeros                 │ footer or zeros│
    └────────────┴─────────────────────────────────────────────┴────────────────┘

The header is written just before the first record, the footer when everything before it is durable. Neither has a
checksum. Decoders check magic, version, lengths and the zeros of the reserved bytes, and that both agree with each
other, with the name of the file and with the records (`agrees_with`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "FOOTER_BYTES",
    "FOOTER_MAGIC",
    "HEADER_BYTES",
    "SEGMENT_BYTES_MAX",
    "SEGMENT_FOOTER",
    "SEGMENT_HEADER",
    "SEGMENT_MAGIC",
    "SEGMENT_VERSION",
    "SegmentFooter",
    "SegmentHeader",
    "agrees_with",
    "decode_footer",
    "decode_header",
    "encode_footer",
    "encode_header",
]

SEGMENT_MAGIC = 0x414F4632
FOOTER_MAGIC = 0x464F4F54
SEGMENT_VERSION = 2
SEGMENT_HEADER = struct.Struct("<IHHIQQIqQQ8x")
SEGMENT_FOOTER = struct.Struct("<IIIQQQQQqIQQB15x")
HEADER_BYTES = SEGMENT_HEADER.size
FOOTER_BYTES = SEGMENT_FOOTER.size
SEGMENT_BYTES_MAX = 0xFFFF_FFFF
"""Sizes and offsets in a segment are 32-bit numbers."""

_HEADER_RESERVED = 56
_FOOTER_RESERVED = 81


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """
    The header of a segment, before its first record.

    Attributes:
        segment_index: the segment's id.
        base_record_count: records in the segments before.
        base_offset: bytes of the segments before: headers, records and footers.
        max_size: the size of the file.
        created_at: when it became active, wall clock in nanoseconds.
        base_timestamp: the timestamp of its first record.
        ext_id: the default cohort of its records.
    """

    segment_index: int
    base_record_count: int
    base_offset: int
    max_size: int
    created_at: int
    base_timestamp: int
    ext_id: int = 0


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """
    The footer of a sealed segment.

    Attributes:
        segment_index, base_record_count, ext_id: as in the header.
        record_count: records in this segment.
        durable_bytes: `base_offset` and the bytes of this segment's header and records.
        last_record_id, last_timestamp: of its last record.
        sealed_at: wall clock in nanoseconds.
        checksum: the folded CRC-64/NVME of all payloads, concatenated.
        coordinator_watermark: how far an upstream operation log was imported when this was sealed.
        flush_failure: whether flushes were failing when it was sealed.
    """

    segment_index: int
    base_record_count: int
    record_count: int
    durable_bytes: int
    last_record_id: int
    last_timestamp: int
    sealed_at: int
    checksum: int
    ext_id: int = 0
    coordinator_watermark: int = 0
    flush_failure: bool = False


def encode_header(header: SegmentHeader) -> bytes:
    """Return the 64 bytes of *header*."""
    return SEGMENT_HEADER.pack(
        SEGMENT_MAGIC, SEGMENT_VERSION, HEADER_BYTES, header.segment_index, header.base_record_count,
        header.base_offset, header.max_size, header.created_at, header.base_timestamp, header.ext_id,
    )  # fmt: skip


def decode_header(view: memoryview) -> Answer[SegmentHeader]:
    """Decode the header that *view* starts with."""
    if len(view) < HEADER_BYTES:
        return _short(view, SEGMENT_MAGIC, HEADER_BYTES, "segment")
    magic, version, length, *fields = SEGMENT_HEADER.unpack_from(view)
    if magic != SEGMENT_MAGIC:
        return Damage(0, "not a segment: the magic does not match")
    if version != SEGMENT_VERSION:
        return Damage(4, f"unsupported version {version} of a segment")
    if length != HEADER_BYTES:
        return Damage(6, f"header length {length} is not {HEADER_BYTES}")
    if any(view[_HEADER_RESERVED:HEADER_BYTES]):
        return Damage(_HEADER_RESERVED, "reserved bytes of the segment header are not zero")
    header = SegmentHeader(*fields)
    if header.max_size <= HEADER_BYTES + FOOTER_BYTES:
        return Damage(28, f"segment size {header.max_size} has no room for records")
    return Frame(header, HEADER_BYTES)


def encode_footer(footer: SegmentFooter) -> bytes:
    """Return the 96 bytes of *footer*."""
    return SEGMENT_FOOTER.pack(
        FOOTER_MAGIC, SEGMENT_VERSION, footer.segment_index, footer.base_record_count, footer.record_count,
        footer.durable_bytes, footer.last_record_id, footer.last_timestamp, footer.sealed_at, footer.checksum,
        footer.ext_id, footer.coordinator_watermark, footer.flush_failure,
    )  # fmt: skip


def decode_footer(view: memoryview) -> Answer[SegmentFooter]:
    """Decode the footer that *view* starts with: the last 96 bytes of the file."""
    if len(view) < FOOTER_BYTES:
        return _short(view, FOOTER_MAGIC, FOOTER_BYTES, "segment footer")
    magic, version, *fields, failure = SEGMENT_FOOTER.unpack_from(view)
    if magic != FOOTER_MAGIC:
        return Damage(0, "not a segment footer: the magic does not match")
    if version != SEGMENT_VERSION:
        return Damage(4, f"unsupported version {version} of a segment footer")
    if failure > 1:
        return Damage(_FOOTER_RESERVED - 1, f"flush failure flag is {failure}")
    if any(view[_FOOTER_RESERVED:FOOTER_BYTES]):
        return Damage(_FOOTER_RESERVED, "reserved bytes of the segment footer are not zero")
    values = (*fields, bool(failure))
    return Frame(SegmentFooter(*values), FOOTER_BYTES)


def _short(view: memoryview, magic: int, size: int, what: str) -> NeedMore | Damage:
    if not magic.to_bytes(4, "little").startswith(bytes(view[:4])):
        return Damage(0, f"not a {what}: the magic does not match")
    return NeedMore(size - len(view))


def agrees_with(footer: SegmentFooter, header: SegmentHeader) -> str | None:
    """Return how *footer* contradicts *header*, or None when they agree."""
    logical = footer.durable_bytes - header.base_offset
    index, offset = footer.last_record_id >> 32, footer.last_record_id & 0xFFFF_FFFF
    if (footer.segment_index, footer.base_record_count) != (header.segment_index, header.base_record_count):
        return "the footer belongs to another segment than the header"
    if not HEADER_BYTES <= logical <= header.max_size - FOOTER_BYTES:
        return f"the footer's {footer.durable_bytes} durable bytes lie outside the segment"
    if index != header.segment_index or not HEADER_BYTES <= offset <= logical:
        return f"the footer's last record {footer.last_record_id} lies outside the segment"
    return None
