"""
Take a live buffer as a Polars frame: one schema, whatever the producers sent, and nothing is taken out.

    pip install arrow-quiver polars
    python examples/query_polars.py [DIRECTORY]

Without a directory a small buffer is made first. With one, it is one whose slot "metrics" has columns like those below.
"""

from __future__ import annotations

import sys
import tempfile

import polars as pl
import pyarrow as pa

import quiver
from quiver.store.reading.read import StoreReader

SENSORS = quiver.Adapter("sensors", {1: "metrics"})


def fill(store: quiver.Store) -> None:
    """One producer counts in 16 bits and repeats its words; the next one has more to say."""
    words = pa.array(["oven", "oven", "freezer"]).dictionary_encode()
    early = pa.record_batch({"sensor": words, "celsius": pa.array([180, 200, -18], pa.int16())})
    late = pa.record_batch({"celsius": [181.5, -17.5], "sensor": ["oven", "freezer"], "battery": [0.5, None]})
    for rows in (early, late):
        store.ingest(quiver.Bundle({"metrics": rows}, adapter=SENSORS))


def report(buffer: StoreReader) -> None:
    frame = pl.DataFrame(buffer.scan("metrics"))
    print(frame)
    by_sensor = frame.lazy().group_by("sensor").agg(pl.col("celsius").mean().round(1)).sort("sensor")
    for sensor, celsius in by_sensor.collect().iter_rows():
        print(f"{sensor}: {celsius}")

    # More than fits in memory: batch by batch.
    hottest = max(pl.from_arrow(batch)["celsius"].max() for batch in buffer.scan("metrics", ["celsius"]))
    print(f"hottest: {hottest}")


def main(arguments: list[str]) -> None:
    if arguments:
        report(quiver.read(arguments[0], adapter=SENSORS))
        return
    with tempfile.TemporaryDirectory() as directory, quiver.open(directory, adapter=SENSORS) as store:
        fill(store)
        report(quiver.read(directory, adapter=SENSORS))


if __name__ == "__main__":
    main(sys.argv[1:])
