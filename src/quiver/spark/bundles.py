"""
Whole bundles inside Spark tasks: only descriptors travel, Arrow types stay as they were stored.

::

    bundles = spark.read.format("quiver").option("path", "buffer/").option("mode", "bundles").load()
    counts = map_bundles(bundles, lambda ref, bundle: bundle["logs"].select(["id"]), "id bigint")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
from quiver.spark.cast import spark_schema
from quiver.spark.read_partition import open_checked
from quiver.store.segment.conform import coalesce, conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BundleFunction", "map_bundles", "open_bundles"]

BundleFunction = Callable[[BundleRef, Bundle], pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch] | None]
"""Takes a bundle and where it lies; returns rows, or None for none. Runs in a task, so it must pickle."""


def map_bundles(
    df: DataFrame,
    fn: BundleFunction,
    schema: StructType | pa.Schema | str,
    *,
    adapter: Adapter = OTAP,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """
    Return a frame of what *fn* returns for each bundle that *df* describes.

    Args:
        df: a frame of mode `bundles`, batch or streaming, filtered or not; of its columns `path`, `segment` and
            `index` are needed.
        fn: called once per bundle, in order within a task, with ``(ref, bundle)``.
        schema: of the result: Spark's, Arrow's, or as in ``"id bigint, name string"``. What *fn* returns is
            cast to it by name.
        adapter: the slot table that names are looked up in.
        fail_on_data_loss: False passes over bundles that are gone or damaged, with a warning.
    """
    declared = _declared(schema)
    task = _Task(fn, to_arrow_schema(declared, timezone="UTC"), adapter, fail_on_data_loss)
    return df.select("path", "segment", "index").mapInArrow(task, declared)


def open_bundles(
    descriptors: Iterable[pa.RecordBatch], *, adapter: Adapter = OTAP, fail_on_data_loss: bool = True
) -> Iterator[tuple[BundleRef, Bundle]]:
    """
    Yield the bundles that *descriptors* describe, in their order.

    Each segment is opened once while its descriptors follow one another.

    Raises:
        DataLoss: a segment is gone.
        Damaged: a segment is not what was written.
    """
    open_path, reader = "", None
    for batch in descriptors:
        columns = (batch.column(batch.schema.names.index(name)).to_pylist() for name in ("path", "segment", "index"))
        for path, segment, index in zip(*columns, strict=True):
            if path != open_path:
                open_path, reader = path, open_checked(path, fail_on_data_loss=fail_on_data_loss)
            if reader is None:
                continue
            ingested_at_ns = reader.ingested_at_ns(index)
            yield (
                BundleRef(segment, index),
                Bundle(reader.bundle(index), ingested_at_ns=ingested_at_ns, adapter=adapter),
            )


@dataclass(frozen=True)
class _Task:
    fn: BundleFunction
    target: pa.Schema
    adapter: Adapter
    fail_on_data_loss: bool

    def __call__(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from coalesce((None, batch) for batch in self._results(descriptors))

    def _results(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = open_bundles(descriptors, adapter=self.adapter, fail_on_data_loss=self.fail_on_data_loss)
        for ref, bundle in opened:
            result = self.fn(ref, bundle)
            if result is None:
                continue
            batches = [result] if isinstance(result, pa.RecordBatch) else result
            if isinstance(batches, pa.Table):
                batches = batches.to_batches()
            for batch in batches:
                yield conform(batch, self.target)


def _declared(schema: StructType | pa.Schema | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return StructType.fromDDL(schema)
    return from_arrow_schema(spark_schema(schema))
