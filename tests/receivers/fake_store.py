"""A store that keeps bundles in a list and fails on request."""

import threading
from collections import deque
from types import SimpleNamespace

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.bundle import OTLP_FINGERPRINT, OTLP_SCHEMA, Bundle


def log_request(text: str = "hello", *, size: int = 0) -> bytes:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = text + "x" * size
    return request.SerializeToString()


class FakeStore:
    """
    `failures` are raised by the next calls of `ingest`, in order; None lets one succeed. If `gate` is set to an Event,
    `ingest` waits for it; `entered` counts the calls so far.
    """

    def __init__(self, entries=()) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self.durable: list[bool] = []
        self.failures: deque[Exception | None] = deque()
        self.gate: threading.Event | None = None
        self.entered = threading.Semaphore(0)
        self.entries = list(entries)
        self.syncs = 0
        self._lock = threading.Lock()

    def ingest(self, bundle: Bundle, *, durable=False, timeout=None):
        self.entered.release()
        if self.gate is not None:
            assert self.gate.wait(30)
        with self._lock:
            failure = self.failures.popleft() if self.failures else None
            if failure is not None:
                raise failure
            (slot,) = bundle.slots
            assert bundle[slot].schema.equals(OTLP_SCHEMA)
            bundle[slot].validate(full=True)
            self.kept += [(slot, value) for value in bundle[slot].column("data").to_pylist()]
            self.durable.append(durable)

    def sync(self) -> None:
        self.syncs += 1

    def recent_wal_entries(self):
        return iter(self.entries)


def wal_entry(data: bytes, *, slot: int = 60, ingested_at_ns: int, fingerprint: bytes = OTLP_FINGERPRINT):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, OTLP_SCHEMA) as stream:
        stream.write(pa.record_batch([pa.array([data], pa.binary())], schema=OTLP_SCHEMA))
    payload = memoryview(sink.getvalue())
    found = SimpleNamespace(slot=slot, fingerprint=fingerprint, row_count=1, payload=payload)
    return SimpleNamespace(entry_type=0, ingested_at_ns=ingested_at_ns, sequence=0, slots=(found,))
