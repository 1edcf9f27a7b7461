"""
Query a live buffer in SQL: DuckDB reads it in place while its writer runs, and consumes nothing.

    pip install arrow-quiver duckdb
    python examples/query_duckdb.py [DIRECTORY]

Without a directory, it creates a small buffer first. The slot "logs" of your buffer needs the columns used below.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa

import quiver
from quiver.store.reading.read import StoreReader

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def batch(hour: int, severities: list[str], **more: list[object]) -> pa.RecordBatch:
    times = [MONDAY + timedelta(hours=hour, seconds=second) for second in range(len(severities))]
    columns = {"time": pa.array(times, pa.timestamp("us", "UTC")), "severity": severities}
    return pa.record_batch({**columns, **more})


def fill(store: quiver.Store) -> None:
    """Store the bundles of three producers whose columns differ."""
    store.ingest(quiver.Bundle({"logs": batch(8, ["INFO", "WARN", "INFO"])}))
    store.ingest(quiver.Bundle({"logs": batch(9, ["ERROR", "INFO"], millis=[12, 700])}))
    store.seal()  # the bundles so far are in a segment; the next one is only in the log
    store.ingest(quiver.Bundle({"logs": batch(10, ["ERROR"], millis=[1.5], host=["edge-1"])}))


def report(buffer: StoreReader) -> None:
    with duckdb.connect() as tables:
        tables.register("logs", buffer.scan("logs"))
        print(tables.sql("SELECT severity, count(*) AS n, max(millis) AS slowest FROM logs GROUP BY ALL ORDER BY ALL"))

        # Other columns are not read, and segments outside the range are not opened.
        since_nine = buffer.scan("logs", ["time", "severity"], start=MONDAY + timedelta(hours=9), by="event")
        tables.register("since_nine", since_nine)
        ((errors,),) = tables.sql("SELECT count(*) FROM since_nine WHERE severity = 'ERROR'").fetchall()
        print(f"errors since nine: {errors}")


def main(arguments: list[str]) -> None:
    if arguments:
        report(quiver.read(arguments[0]))
        return
    with tempfile.TemporaryDirectory() as directory, quiver.open(directory) as store:
        fill(store)
        report(quiver.read(directory))


if __name__ == "__main__":
    main(sys.argv[1:])
