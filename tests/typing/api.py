"""The public API as a user writes it. Never run: mypy reads it, and an ignore that is not needed is an error."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

import quiver


def produce(path: str, logs: pa.RecordBatch) -> int:
    settings = quiver.Settings.from_mapping({"wal": {"flush_interval": "25ms"}, "segment.target_size": "32 MiB"})
    with quiver.open(path, settings) as store:
        receipt: quiver.BundleReceipt = store.ingest(quiver.Bundle({30: logs}))
        store.ingest(quiver.Bundle({"logs": logs}), durable=True, timeout=5)
        store.seal()
        store.maintain()
        return receipt.sequence


def consume(store: quiver.Store) -> list[pa.RecordBatch]:
    subscriber: quiver.Subscriber = store.register("parquet-exporter", start="earliest")
    store.register("from-a-segment", start=7)
    store.register("from-a-time", start=datetime.now(UTC))
    store.activate()
    batches = []
    while (handle := subscriber.next_bundle(timeout=5)) is not None:
        batches.append(handle.bundle[30])
        ref: quiver.BundleRef = handle.ref
        if ref.index % 2:
            handle.ack()
        elif ref.segment:
            handle.nack(1.5)
        else:
            handle.reject()
    return batches


def look(path: str) -> int:
    reader = quiver.read(path)
    return sum(bundle.nbytes for _ref, bundle in reader.bundles())


def retry(store: quiver.Store, bundle: quiver.Bundle) -> float:
    try:
        store.ingest(bundle, timeout=0.5)
    except quiver.CapacityError as full:
        return full.retry_after_s
    except quiver.QuiverError:
        store.close()
    return 0.0


def wrong(store: quiver.Store) -> None:
    store.ingest({30: None})  # type: ignore[arg-type]
    store.register("name", start=1.5)  # type: ignore[arg-type]
    quiver.open(b"bytes")  # type: ignore[call-overload]
