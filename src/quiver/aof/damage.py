"""Reconstruction of segments with a damaged header or damaged records. Bytes only."""

from __future__ import annotations

from quiver.aof.format.names import SegmentName
from quiver.aof.format.record import RECORD_HEAD, RecordScan, join_record_id, scan_records
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SegmentHeader,
    decode_footer,
    decode_header,
    encode_header,
)
from quiver.aof.reading.resume import resume_after
from quiver.aof.reading.source import TIME_UNKNOWN, Extent, ReadableSegment
from quiver.primitives.scan import Frame

__all__ = ["header_of_sealed", "header_of_unsealed", "scan_past_damage"]


def header_of_sealed(view: memoryview, name: SegmentName) -> SegmentHeader | None:
    """
    Rebuild the header of a sealed segment from its other bytes; return None if it is not a sealed segment.

    The file name, the footer and the first record have all values of the header, and the records verify the footer.

    Args:
        view: the bytes of the segment's file, which is large enough for a header and a footer.
        name: the parsed name of the file.
    """
    size = len(view)
    answer = decode_footer(view[size - FOOTER_BYTES :])
    if not isinstance(answer, Frame) or answer.value.segment_index != name.segment_id & 0xFFFF_FFFF:
        return None
    footer = answer.value
    records = scan_records(view, HEADER_BYTES, size - FOOTER_BYTES)
    last = join_record_id(footer.segment_index, records.last_offset)
    facts = (name.base_offset + records.end, records.record_count, last, records.checksum)
    if facts != (footer.durable_bytes, footer.record_count, footer.last_record_id, footer.checksum):
        return None
    timestamp = RECORD_HEAD.unpack_from(view, HEADER_BYTES)[2] if records.record_count else footer.last_timestamp
    return SegmentHeader(
        footer.segment_index, footer.base_record_count, name.base_offset, size, name.created_at, timestamp,
        footer.ext_id,
    )  # fmt: skip


def header_of_unsealed(
    view: memoryview, name: SegmentName, *, base_record_count: int, ext_id: int
) -> SegmentHeader | None:
    """
    Rebuild the header of a segment without a footer; return None if its first record is not intact.

    Args:
        view: the bytes of the segment's file, which is large enough for a header and a footer.
        name: the parsed name of the file. By its base offset, the segment follows the one before it without a gap.
        base_record_count: the records of the log before it, according to the segment before it.
        ext_id: the `ext_id` of the segment before it.
    """
    size = len(view)
    if not scan_records(view, HEADER_BYTES, size - FOOTER_BYTES).record_count:
        return None
    (_, _, timestamp, _) = RECORD_HEAD.unpack_from(view, HEADER_BYTES)
    header = SegmentHeader(
        name.segment_id & 0xFFFF_FFFF, base_record_count, name.base_offset, size, max(0, name.created_at), timestamp,
        ext_id,
    )  # fmt: skip
    # A truncated file has a length that no segment has.
    return header if isinstance(decode_header(memoryview(encode_header(header))), Frame) else None


def scan_past_damage(view: memoryview, found: RecordScan, header: SegmentHeader, end: int) -> RecordScan:
    """
    Continue a scan after the damage that ended it, and return the complete result.

    Args:
        view: the bytes of the segment's file.
        found: the scan that ended at the damage.
        header: the header of the segment.
        end: the offset up to which there were records. Intact records that follow directly are included.

    Returns:
        The scan. Each damaged range counts as one record, because its records cannot be counted. `crc64` is that of
        *found*.
    """
    extent = Extent(header.base_offset, end, header.base_record_count, None)
    source = ReadableSegment(header.segment_index, "", view, end, True, TIME_UNKNOWN, extent, header.base_timestamp)
    kept = RecordScan(found.end, found.last_offset, found.record_count, found.last_timestamp, found.crc64)
    while kept.end < end:
        part = scan_records(view, resume_after(source, kept.end).offset, source.limit)
        kept.record_count += 1
        _add(kept, part)
    _add(kept, scan_records(view, end, min(len(view), header.max_size - FOOTER_BYTES)))
    return kept


def _add(kept: RecordScan, part: RecordScan) -> None:
    kept.end = part.end
    kept.record_count += part.record_count
    if part.record_count:
        kept.last_offset, kept.last_timestamp = part.last_offset, part.last_timestamp
