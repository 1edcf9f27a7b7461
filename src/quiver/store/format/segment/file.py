r"""
The frame of a segment file: footer, trailer and stream directory. Bytes only.

::

    stream 0 … stream n-1     Arrow IPC files, each starting at a multiple of 64, with zeros between them
    stream directory          Arrow IPC file, one row per stream; not aligned
    batch manifest            Arrow IPC file, one row per bundle; not aligned
    footer                    34 bytes in version 1
    trailer                   16 bytes, the last of the file

    footer   0   u16 version            1
             2   u32 stream_count
             6   u32 bundle_count
             10  u64 directory_offset   from the start of the file
             18  u32 directory_length
             22  u64 manifest_offset
             30  u32 manifest_length
    trailer  0   u32 footer_size        without the trailer; if above 34, the rest is skipped
             4   8   magic              b"QUIVER\0S"
             12  u32 crc32              IEEE, over everything before it, from the start of the file

The checksum is written last: a file that was truncated or never finished does not have it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore
from quiver.store.format.segment.ipc_table import column_of, decode_table, encode_table, fixed_width
from quiver.store.format.wal_entry import FINGERPRINT_BYTES, SLOTS_MAX

__all__ = [
    "BUNDLES_READ_MAX",
    "BUNDLES_WRITTEN_MAX",
    "CHUNKS_MAX",
    "DIRECTORY_SCHEMA",
    "SEGMENT_FOOTER",
    "SEGMENT_MAGIC",
    "SEGMENT_TRAILER",
    "SEGMENT_VERSION",
    "STREAMS_MAX",
    "STREAM_ALIGNMENT",
    "SegmentFooter",
    "StreamEntry",
    "check_directory",
    "check_segment_checksum",
    "decode_directory",
    "decode_segment_footer",
    "encode_directory",
    "encode_segment_footer",
    "encode_segment_trailer",
]

SEGMENT_MAGIC = b"QUIVER\0S"
SEGMENT_VERSION = 1
SEGMENT_FOOTER = struct.Struct("<HIIQIQI")
SEGMENT_TRAILER = struct.Struct("<I8sI")
STREAM_ALIGNMENT = 64
STREAMS_MAX = 100_000
BUNDLES_WRITTEN_MAX = 65_536
"""A progress file, which has at most 1024 bitmap words per segment, cannot track more."""

BUNDLES_READ_MAX = 10_000_000
CHUNKS_MAX = 10_000_000

_CRC = struct.Struct("<I")
_TRAILER_FIELDS = struct.Struct("<I8s")
_VERSION = struct.Struct("<H")

DIRECTORY_SCHEMA = pa.schema(
    [
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("schema_fingerprint", pa.binary(FINGERPRINT_BYTES), nullable=False),
        pa.field("byte_offset", pa.uint64(), nullable=False),
        pa.field("byte_length", pa.uint64(), nullable=False),
        pa.field("row_count", pa.uint64(), nullable=False),
        pa.field("chunk_count", pa.uint32(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """The places of the two tables of a segment. Offsets count from the start of the file."""

    stream_count: int
    bundle_count: int
    directory_offset: int
    directory_length: int
    manifest_offset: int
    manifest_length: int
    version: int = SEGMENT_VERSION


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One row of the stream directory: an Arrow IPC file that holds all batches of one slot and schema."""

    stream_id: int
    slot: int
    fingerprint: bytes
    byte_offset: int
    byte_length: int
    row_count: int
    chunk_count: int


def encode_segment_footer(footer: SegmentFooter) -> bytes:
    """Return the 34 bytes of a version 1 footer."""
    return SEGMENT_FOOTER.pack(
        SEGMENT_VERSION,
        footer.stream_count,
        footer.bundle_count,
        footer.directory_offset,
        footer.directory_length,
        footer.manifest_offset,
        footer.manifest_length,
    )


def encode_segment_trailer(crc32_so_far: int, *, footer_size: int = SEGMENT_FOOTER.size) -> bytes:
    """Return the last 16 bytes of a segment; *crc32_so_far* covers all bytes up to and including the footer."""
    fields = _TRAILER_FIELDS.pack(footer_size, SEGMENT_MAGIC)
    return fields + _CRC.pack(crc32(fields, crc32_so_far))


def decode_segment_footer(view: memoryview, *, size_bytes: int | None = None) -> Answer[SegmentFooter]:
    """
    Decode the footer of the segment whose bytes, or last bytes, are *view*. The checksum is not verified.

    The regions in the answer are inside the file, before the footer, and its counts are within the limits. Offsets
    count from the start of the file, in damage reports, too.

    Args:
        view: the file, or its end; *need more* gives how many bytes are missing before it.
        size_bytes: length of the complete file, if *view* is only its end.
    """
    size = len(view) if size_bytes is None else size_bytes
    before = size - len(view)
    trailer_at = size - SEGMENT_TRAILER.size
    if trailer_at < before:
        return NeedMore(before - trailer_at)
    footer_size, magic, _ = SEGMENT_TRAILER.unpack_from(view, trailer_at - before)
    if magic != SEGMENT_MAGIC:
        return Damage(trailer_at + 4, "not a complete segment: the trailer's magic does not match")
    footer_at = trailer_at - footer_size
    if footer_at < 0:
        return Damage(trailer_at, f"footer_size {footer_size}, but {trailer_at} bytes are before the trailer")
    if footer_size < _VERSION.size:
        return Damage(trailer_at, f"footer_size {footer_size} has no space for a version")
    if footer_at < before:
        return NeedMore(before - footer_at)
    (version,) = _VERSION.unpack_from(view, footer_at - before)
    if version != SEGMENT_VERSION:
        return Damage(footer_at, f"unsupported version {version} of a segment; this reads {SEGMENT_VERSION}")
    if footer_size < SEGMENT_FOOTER.size:
        return Damage(trailer_at, f"footer_size {footer_size} is below {SEGMENT_FOOTER.size}")
    _, streams, bundles, *regions = SEGMENT_FOOTER.unpack_from(view, footer_at - before)
    footer = SegmentFooter(streams, bundles, *regions)
    problem = _check_footer(footer, footer_at)
    return problem if problem is not None else Frame(footer, size)


def _check_footer(footer: SegmentFooter, footer_at: int) -> Damage | None:
    if footer.stream_count > STREAMS_MAX:
        return Damage(footer_at + 2, f"stream_count {footer.stream_count} is above the limit of {STREAMS_MAX}")
    if footer.bundle_count > BUNDLES_READ_MAX:
        return Damage(footer_at + 6, f"bundle_count {footer.bundle_count} is above {BUNDLES_READ_MAX}")
    for at, name, offset, length in (
        (10, "directory", footer.directory_offset, footer.directory_length),
        (22, "manifest", footer.manifest_offset, footer.manifest_length),
    ):
        if offset + length > footer_at:
            return Damage(footer_at + at, f"the {name} at {offset}, {length} bytes, does not end before the footer")
    return None


def check_segment_checksum(view: memoryview) -> Damage | None:
    """Return the damage if the checksum of a complete segment does not match, else None. Reads every byte."""
    if len(view) < SEGMENT_TRAILER.size:
        return Damage(0, f"{len(view)} bytes are too short for a segment")
    end = len(view) - _CRC.size
    stored, actual = _CRC.unpack_from(view, end)[0], crc32(view[:end])
    if stored == actual:
        return None
    return Damage(end, f"checksum mismatch: stored {stored:08x}, computed {actual:08x}")


def encode_directory(streams: Sequence[StreamEntry]) -> bytes:
    """Return the stream directory: an Arrow IPC file with one row per stream, in the order given."""
    fingerprints = b"".join([stream.fingerprint for stream in streams])
    kinds = DIRECTORY_SCHEMA.types
    arrays = [
        fixed_width(array("I", [stream.stream_id for stream in streams]), kinds[0]),
        fixed_width(array("H", [stream.slot for stream in streams]), kinds[1]),
        pa.Array.from_buffers(kinds[2], len(streams), [None, pa.py_buffer(fingerprints)]),
        fixed_width(array("Q", [stream.byte_offset for stream in streams]), kinds[3]),
        fixed_width(array("Q", [stream.byte_length for stream in streams]), kinds[4]),
        fixed_width(array("Q", [stream.row_count for stream in streams]), kinds[5]),
        fixed_width(array("I", [stream.chunk_count for stream in streams]), kinds[6]),
    ]
    return encode_table(pa.record_batch(arrays, schema=DIRECTORY_SCHEMA))


def decode_directory(buffer: Buffer | pa.Buffer, *, at: int = 0) -> tuple[StreamEntry, ...] | Damage:
    """Decode the stream directory in *buffer*; *at* is its file offset, for a damage report."""
    what = "stream directory"
    batch = decode_table(buffer, what=what, at=at)
    if isinstance(batch, Damage):
        return batch
    if batch.num_rows > STREAMS_MAX:
        return Damage(at, f"the {what} has {batch.num_rows} streams, above the limit of {STREAMS_MAX}")
    columns = []
    for field in DIRECTORY_SCHEMA:
        column = column_of(batch, field.name, field.type, what=what, at=at)
        if isinstance(column, Damage):
            return column
        columns.append(column.to_pylist())
    return tuple(StreamEntry(*row) for row in zip(*columns, strict=True))


def check_directory(directory: Sequence[StreamEntry], footer: SegmentFooter) -> Damage | None:
    """
    Return the first contradiction between *directory* and *footer*, or None.

    After this check, stream ids are unique, and every stream is before the directory.
    """
    at = footer.directory_offset
    if len(directory) != footer.stream_count:
        return Damage(at, f"the directory has {len(directory)} streams, the footer says {footer.stream_count}")
    seen: set[int] = set()
    for stream in directory:
        if stream.stream_id in seen:
            return Damage(at, f"stream {stream.stream_id} appears twice in the directory")
        seen.add(stream.stream_id)
        if stream.slot >= SLOTS_MAX:
            return Damage(at, f"stream {stream.stream_id}: slot {stream.slot} is out of range")
        if stream.byte_offset + stream.byte_length > footer.directory_offset:
            return Damage(at, f"stream {stream.stream_id} does not end before the directory")
        if stream.chunk_count > CHUNKS_MAX:
            return Damage(at, f"stream {stream.stream_id}: {stream.chunk_count} chunks are above {CHUNKS_MAX}")
    return None
