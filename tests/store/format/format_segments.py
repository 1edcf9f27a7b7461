"""A small segment built by pyarrow and the codecs alone, without the store's writer."""

from __future__ import annotations

import zlib

import pyarrow as pa

from quiver.store.format.segment.file import (
    SegmentFooter,
    StreamEntry,
    encode_directory,
    encode_segment_footer,
    encode_segment_trailer,
)
from quiver.store.format.segment.manifest import ManifestBuilder, ManifestMetadata

METADATA = ManifestMetadata(1000, 2500, 40, 42)
TIMES_NS = (1_700_000_000_000_000_000, 1_700_000_000_000_000_007, 1_699_999_999_000_000_000)
BUNDLES = (
    ((30,), (0,), (0,)),
    ((30, 31), (0, 1), (1, 0)),
    ((30, 31), (2, 1), (0, 1)),
)


def ipc_file(*columns: list[int]) -> bytes:
    """An Arrow IPC file with one batch of one int64 column for each list."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("value", pa.int64())])
    with pa.ipc.new_file(sink, schema) as writer:
        for column in columns:
            writer.write_batch(pa.record_batch([pa.array(column, pa.int64())], schema=schema))
    return sink.getvalue().to_pybytes()


def manifest_builder(*, item_counts: tuple[int | None, ...] = (None, None, None)) -> ManifestBuilder:
    """A builder that holds `BUNDLES`."""
    builder = ManifestBuilder()
    for (slots, streams, chunks), time_ns, items in zip(BUNDLES, TIMES_NS, item_counts, strict=True):
        builder.append(slots, streams, chunks, time_ns, items)
    return builder


def build_segment(*, profile: str = "spec", footer_extra: bytes = b"", manifest: bytes | None = None) -> bytes:
    """Three streams, three bundles; *footer_extra* is what a later version would add to the footer."""
    out = bytearray()
    directory = []
    for stream_id, (slot, columns) in enumerate([(30, ([1, 2], [3])), (31, ([4], [5, 6])), (30, ([7],))]):
        out += bytes(-len(out) % 64)
        data = ipc_file(*columns)
        rows = sum(map(len, columns))
        directory.append(StreamEntry(stream_id, slot, bytes([stream_id]) * 32, len(out), len(data), rows, len(columns)))
        out += data
    table = encode_directory(directory)
    if manifest is None:
        manifest = manifest_builder(item_counts=(2, 2, 2)).encode(METADATA, profile)
    at = len(out)
    out += table + manifest
    footer = SegmentFooter(3, 3, at, len(table), at + len(table), len(manifest))
    out += encode_segment_footer(footer) + footer_extra
    return bytes(out + encode_segment_trailer(zlib.crc32(out), footer_size=34 + len(footer_extra)))
