"""Directories with sealed segments of known bundles, made without a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from quiver.bundle import OTLP_SCHEMA
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.encode import SlotEncoder
from quiver.store.segment.accumulator import OpenSegment
from quiver.store.segment.compression import Compression
from quiver.store.segment.writer import write_segment

INGESTED_NS = 1_700_000_000_000_000_000


class StoreMaker:
    """Writes segment after segment below *root*; the numbers in the rows come from one sequence."""

    def __init__(self, root: Path, identity: str | None = "5c0f0000-0000-0000-0000-000000000001") -> None:
        self.root = str(root)
        self.next_segment = 0
        self.next_id = 0
        (root / "segments").mkdir(parents=True, exist_ok=True)
        if identity is not None:
            (root / "quiver.id").write_text(identity + "\n")

    def seal(self, bundles: Sequence[Mapping[int, pa.RecordBatch]], compression: Compression = "none") -> str:
        """Seal *bundles* as the next segment and return its path."""
        segment, encoder = OpenSegment(streams_max=512), SlotEncoder()
        for number, slots in enumerate(bundles):
            encoded = encoder.encode(dict(sorted(slots.items())))
            position = number * 100
            segment.append(
                encoded.slots,
                ingested_at_ns=INGESTED_NS + number * 1000,
                sequence=number,
                wal_start=position,
                wal_end=position + 100,
                nbytes=encoded.nbytes,
            )
        info = write_segment(
            REAL_FILES,
            f"{self.root}/segments",
            self.next_segment,
            segment.seal(),
            profile="spec",
            compression=compression,
        )
        self.next_segment += 1
        return info.path

    def ids(self, count: int) -> list[int]:
        """Return the next *count* numbers."""
        first = self.next_id
        self.next_id += count
        return list(range(first, first + count))

    def rows(self, bundles: int, rows: int = 10, slot: int = 30) -> str:
        """Seal a segment of *bundles* bundles with *rows* numbered rows each in *slot*."""
        made = []
        for _ in range(bundles):
            ids = self.ids(rows)
            made.append({slot: pa.record_batch({"id": pa.array(ids), "text": pa.array([f"row {i}" for i in ids])})})
        return self.seal(made)

    def otlp(self, bundles: int, rows: int = 5) -> str:
        """Seal a segment of OTLP requests: logs, spans and metrics in turn, with numbered items."""
        makers = ((60, logs_request), (61, spans_request), (62, metrics_request))
        made = []
        for number in range(bundles):
            slot, make = makers[number % 3]
            made.append({slot: pa.record_batch({"data": [make(self.ids(rows))]}, schema=OTLP_SCHEMA)})
        return self.seal(made)


def seal_requests(store: StoreMaker, *requests: bytes) -> str:
    """Seal a segment of *requests* for logs, without changes, and return its path."""
    return store.seal([{60: pa.record_batch([pa.array([data])], schema=OTLP_SCHEMA)} for data in requests])


def logs_request(ids: Sequence[int]) -> bytes:
    """Return an export request with one log record per id; the id is its body and its time."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for i in ids:
        record = scope.log_records.add()
        record.time_unix_nano = i
        record.body.int_value = i
    return request.SerializeToString()


def spans_request(ids: Sequence[int]) -> bytes:
    """Return an export request with one span per id; the id is its start time."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for i in ids:
        span = scope.spans.add()
        span.name = f"span {i}"
        span.start_time_unix_nano = i
    return request.SerializeToString()


def metrics_request(ids: Sequence[int]) -> bytes:
    """Return an export request with one gauge point per id; the id is its value and its time."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = "gauge"
    for i in ids:
        point = metric.gauge.data_points.add()
        point.as_int = i
        point.time_unix_nano = i
    return request.SerializeToString()
