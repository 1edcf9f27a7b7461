"""
Complete bundles inside Spark tasks: only descriptors travel, and Arrow types stay as they were stored.

::

    bundles = spark.read.format("quiver").option("path", "buffer/").option("mode", "bundles").load()
    counts = map_bundles(bundles, lambda ref, bundle: bundle["logs"].select(["id"]), "id bigint")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
from quiver.errors import UsageError
from quiver.spark.cast import spark_schema
from quiver.spark.spark_features import from_arrow_schema, to_arrow_schema
from quiver.spark.store.read_partition import open_checked
from quiver.store.segment.cast import cast_to_schema, coalesce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BundleFunction", "map_bundles", "open_bundles", "open_bundles_at", "unpacked"]

BundleFunction = Callable[[BundleRef, Bundle], pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch] | None]
"""Takes a reference and its bundle; returns rows, or None for none. Runs in a task, so it must pickle."""


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
        df: a frame of mode `bundles`, batch or streaming, filtered or not, with the columns `path`, `segment` and
            `index`. Or a frame of mode `ipc` in which the rows of each bundle are adjacent: then the tasks need no
            access to the store.
        fn: called once per bundle, in order within a task, with ``(ref, bundle)``.
        schema: of the result: Spark's, Arrow's, or as in ``"id bigint, name string"``. The rows that *fn* returns
            are cast to it by name: missing columns are null, undeclared ones are dropped.
        adapter: the slot table for names of slots.
        fail_on_data_loss: False skips bundles that are missing or damaged, with a warning.
    """
    declared = _declared(schema)
    task = _Task(fn, to_arrow_schema(declared), adapter, fail_on_data_loss)
    names = ("segment", "index", "slot", "ingested_at", "ipc") if "ipc" in df.columns else ("path", "segment", "index")
    return df.select(*names).mapInArrow(task, declared)


def open_bundles(
    descriptors: Iterable[pa.RecordBatch], *, adapter: Adapter = OTAP, fail_on_data_loss: bool = True
) -> Iterator[tuple[BundleRef, Bundle]]:
    """
    Yield the bundles that *descriptors* describe, in their order.

    Each segment is opened once if its descriptors are adjacent.

    Raises:
        DataLossError: a segment is missing.
        CorruptionError: a segment is damaged.
    """
    opened = open_bundles_at(descriptors, adapter=adapter, fail_on_data_loss=fail_on_data_loss)
    return ((ref, bundle) for _, ref, bundle in opened)


def open_bundles_at(
    descriptors: Iterable[pa.RecordBatch], *, adapter: Adapter = OTAP, fail_on_data_loss: bool = True
) -> Iterator[tuple[str, BundleRef, Bundle]]:
    """
    Yield the bundles with the paths of their segments, because each core numbers its segments separately.

    Raises:
        DataLossError: a segment is missing.
        CorruptionError: a segment is damaged.
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
                path,
                BundleRef(segment, index),
                Bundle(reader.bundle(index), ingested_at_ns=ingested_at_ns, adapter=adapter),
            )


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[BundleRef, int | None, dict[int, pa.RecordBatch]]]:
    """
    Yield the bundles in rows of mode `ipc`: reference, time of ingestion in nanoseconds, slot → batch.

    The rows of a bundle must be adjacent. Their contents are checked completely, because they may come from anywhere.

    Raises:
        UsageError: a column of mode `ipc` is missing, or a row does not contain an Arrow stream of one batch.
    """
    slots: dict[int, pa.RecordBatch] = {}
    of: tuple[BundleRef, int | None] | None = None
    for batch in batches:
        missing = {"segment", "index", "slot", "ipc"} - set(batch.schema.names)
        if missing:
            raise UsageError(f"columns of mode ipc are missing: {', '.join(sorted(missing))}")
        times = (
            batch.column("ingested_at").cast(pa.int64()).to_pylist() if "ingested_at" in batch.schema.names else None
        )
        columns = (batch.column(name).to_pylist() for name in ("segment", "index", "slot", "ipc"))
        for row, (segment, index, slot, data) in enumerate(zip(*columns, strict=True)):
            time_us = times[row] if times is not None else None
            here = BundleRef(segment, index), None if time_us is None else time_us * 1000
            # The last bundle of one core may be followed by a bundle of another core with the same reference.
            if of is not None and (of != here or slot in slots):
                yield (*of, dict(sorted(slots.items())))
                slots = {}
            of = here
            slots[slot] = _only_batch(data)
    if of is not None:
        yield (*of, dict(sorted(slots.items())))


def _only_batch(data: bytes) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise UsageError(f"a row of mode ipc does not contain an Arrow stream of one batch: {error}") from error
    return batch


@dataclass(frozen=True)
class _Task:
    fn: BundleFunction
    target: pa.Schema
    adapter: Adapter
    fail_on_data_loss: bool

    def __call__(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from coalesce((None, batch) for batch in self._results(descriptors))

    def _bundles(self, rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[BundleRef, Bundle]]:
        batches = iter(rows)
        first = next(batches, None)
        if first is None:
            return
        every = chain([first], batches)
        if "ipc" in first.schema.names:
            for ref, ingested_at_ns, slots in unpacked(every):
                yield ref, Bundle(slots, ingested_at_ns=ingested_at_ns, adapter=self.adapter)
            return
        yield from open_bundles(every, adapter=self.adapter, fail_on_data_loss=self.fail_on_data_loss)

    def _results(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ref, bundle in self._bundles(descriptors):
            result = self.fn(ref, bundle)
            if result is None:
                continue
            batches = [result] if isinstance(result, pa.RecordBatch) else result
            if isinstance(batches, pa.Table):
                batches = batches.to_batches()
            for batch in batches:
                yield cast_to_schema(batch, self.target)


def _declared(schema: StructType | pa.Schema | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    if isinstance(schema, str):
        return StructType.fromDDL(schema)
    return from_arrow_schema(spark_schema(schema))
