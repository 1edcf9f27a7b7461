"""
Read a live buffer as a Polars frame: it has one schema, even if those of the producers differ. Nothing is consumed.

    pip install arrow-quiver polars
    python examples/query_polars.py [DIRECTORY]

Without a directory, it creates a small buffer first. The slot "metrics" of your buffer needs the columns used below.
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
    """Store bundles of two producers: one with 16-bit integers and a dictionary, one with floats and another column."""
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

    # If the data does not fit in memory, read it batch by batch.
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
