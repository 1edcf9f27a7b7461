"""
The Parquet exporter: a streaming query in which only descriptors travel.

Tasks open the bundles, decode them and write Parquet with pyarrow, under names that readers do not see. The driver
commits the batch: on a disk as in `parquet_commit.py`, in a bucket as in `quiver.spark.lake.object_commit`. The output
has:

====================  =====================================================
``logs/``             a row per log record, of raw OTLP requests and of OTAP tables
``spans/``            a row per span
``metrics/``          a row per data point
``slots/<name>/``     any other slot, as it was stored
====================  =====================================================

With `partition_by`, the tables have partitions below them (`quiver.spark.lake.layout`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef, batch_bytes
from quiver.errors import CorruptionError, UsageError
from quiver.otap import VIEWS, decode_groups
from quiver.otap.stored import split_stored
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.bundle_query import fails_on_data_loss, start_bundle_query
from quiver.spark.bundles import open_bundles_at
from quiver.spark.cast import spark_schema
from quiver.spark.exporters.exported import exported_parts
from quiver.spark.exporters.parquet_commit import StagedFile
from quiver.spark.exporters.settings import check_file_mode
from quiver.spark.lake.layout import FileLayout
from quiver.spark.lake.output import BatchCommitter, LakeOutput, output_of
from quiver.spark.lake.part_files import PartFiles
from quiver.spark.processors.bad_bundle_filter import ExportBatch
from quiver.store.reading.offsets import STORE_UNKNOWN
from quiver.store.reading.segments import store_identities, store_root
from quiver.store.segment.cast import cast_to_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from quiver.delivery.exporter_stats import ExporterStats
    from quiver.spark.lake.staging import Staging

__all__ = ["ParquetExporter", "PartWriter", "run_exporter"]


_RESULT_SCHEMA = "table string, part string, rows bigint, bytes bigint, store string, segment bigint, `index` bigint"

_RESULT_ARROW = pa.schema(
    [
        ("table", pa.string()),
        ("part", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("store", pa.string()),
        ("segment", pa.int64()),
        ("index", pa.int64()),
    ]
)
"""A row per file, and for each store directory a row without a file, with the last bundle that the task read of it."""

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_REQUESTS_BYTES_MAX = 8 * 1024 * 1024

_log = logging.getLogger("quiver")


class PartWriter:
    """
    Runs in a task: takes descriptors, writes staged Parquet files, returns their names. Can be pickled.

    Args:
        staging: where the files are written.
        layout: how the rows are divided into files.
        exported_through: per store directory, the position before which bundles are skipped: an earlier query exported
            them.
        adapter: names the slots.
        fail_on_data_loss: False skips missing or damaged bundles, with a warning.
        skip_undecodable: skip requests that cannot be decoded, with a warning. False if a `BadBundleFilter` must see
            them.
        views: the tables of the signals to write; None for all, and for slots that belong to no signal.
    """

    def __init__(
        self,
        staging: Staging,
        layout: FileLayout,
        *,
        exported_through: Mapping[str, BundleRef],
        adapter: Adapter = OTAP,
        fail_on_data_loss: bool = True,
        skip_undecodable: bool = False,
        views: AbstractSet[str] | None = None,
    ) -> None:
        self._staging = staging
        self._layout = layout
        self._views = views
        self._exported_through = dict(exported_through)
        self._adapter = adapter
        self._fail = fail_on_data_loss
        self._skip_undecodable = skip_undecodable

    def __call__(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Write the bundles that *descriptors* describe, and yield the complete, durable files.

        Raises:
            DataLossError: a segment is missing.
            CorruptionError: a segment or a request cannot be read.
            UsageError: the rows cannot be divided as the layout demands.
        """
        files = PartFiles(self._staging, self._layout, _task_name())
        requests: dict[str, list[Any]] = {view: [] for view in VIEWS}
        through: dict[str, BundleRef] = {}
        waiting = 0
        try:
            for root, ref, bundle in self._bundles(descriptors):
                through[root] = max(through.get(root, ref), ref)
                shown, rest = self._wanted(*split_stored(bundle.batches))
                for slot, batch in rest.items():
                    self._slot(files, slot, batch)
                for view, stored in shown.items():
                    requests[view].extend(stored)
                waiting += sum(batch_bytes(batch) for slot, batch in bundle.batches.items() if slot not in rest)
                if waiting >= _REQUESTS_BYTES_MAX:
                    self._decode(files, requests)
                    waiting = 0
            self._decode(files, requests)
            parts = files.finish()
        finally:
            files.close()
        if through:
            yield _results(parts, through)

    def _wanted(
        self, shown: dict[str, Any], rest: dict[int, pa.RecordBatch]
    ) -> tuple[dict[str, Any], dict[int, pa.RecordBatch]]:
        """Return the tables and slots to write."""
        if self._views is None:
            return shown, rest
        return {view: stored for view, stored in shown.items() if view in self._views}, {}

    def _bundles(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, BundleRef, Bundle]]:
        for path, ref, bundle in open_bundles_at(descriptors, adapter=self._adapter, fail_on_data_loss=self._fail):
            root = store_root(path)
            if ref >= self._exported_through.get(root, BundleRef(0, 0)):
                yield root, ref, bundle

    def _decode(self, files: PartFiles, requests: dict[str, list[Any]]) -> None:
        for view, waiting in requests.items():
            if not waiting:
                continue
            for group in decode_groups(waiting, view):
                for index, reason in group.bad:
                    problem = CorruptionError(view, 0, f"request {group.first + index} cannot be decoded: {reason}")
                    if not self._skip_undecodable:
                        raise problem
                    _log.warning("quiver.spark.request_skipped reason=%s", problem)
                files.add(view, group.batch)
            waiting.clear()

    def _slot(self, files: PartFiles, slot: int, batch: pa.RecordBatch) -> None:
        name = f"slots/{self._adapter.slots.get(slot, slot)}"
        # Parquet has fewer types than Arrow. Columns of other types are cast as for Spark.
        if any(_beyond_parquet(column.type) for column in batch.schema):
            batch = cast_to_schema(batch, spark_schema(batch.schema))
        files.add(name, batch)


def _results(parts: Iterable[StagedFile], through: Mapping[str, BundleRef]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"table": part.table, "part": part.name, "rows": part.rows, "bytes": part.size_bytes} for part in parts
    ]
    rows += [{"store": root, "segment": ref.segment, "index": ref.index} for root, ref in through.items()]
    return pa.RecordBatch.from_pylist(rows, schema=_RESULT_ARROW)


def _beyond_parquet(kind: pa.DataType) -> bool:
    return bool(pa.types.is_run_end_encoded(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _task_name() -> str:
    """Return a name that identifies this task attempt within the batch, and sorts by partition."""
    from pyspark import TaskContext  # noqa: PLC0415 - there is a context in tasks only

    context = TaskContext.get()
    if context is None:
        return f"00000-p{os.getpid()}"
    return f"{context.partitionId():05}-{context.taskAttemptId()}"


class ParquetExporter:
    """
    Writes each batch of a `bundles` query as Parquet, exactly once. Pass it to ``foreachBatch``.

    Args:
        store_path: the store that the bundles come from.
        subscriber: the subscriber of the query.
        output: the output directory, which is created if missing, or an output such as that of
            `quiver.spark.lake.output.output_of`.
        compression: of Parquet: zstd, snappy, or none.
        fail_on_data_loss: False skips missing or damaged bundles, with a warning.
        skip_undecodable: skip requests that cannot be decoded, with a warning. None means the opposite of
            *fail_on_data_loss*.
        file_mode: permission bits of the files, such as 0o640; None leaves them to the umask.
        stats: receives the delivered amounts.
        views: the tables of the signals to export; None for all, and for slots that belong to no signal.
        layout: how the rows of a batch are divided into files; by default one file for each table and task.

    Raises:
        UsageError: the compression is unknown, or files could not be written with this mode.
    """

    def __init__(
        self,
        store_path: str,
        subscriber: str,
        output: str | LakeOutput,
        *,
        compression: str = "zstd",
        fail_on_data_loss: bool = True,
        skip_undecodable: bool | None = None,
        file_mode: int | None = None,
        stats: ExporterStats | None = None,
        views: AbstractSet[str] | None = None,
        layout: FileLayout | None = None,
    ) -> None:
        self._stats = stats
        self._views = views
        check_file_mode(file_mode)
        if compression not in {"zstd", "snappy", "none"}:
            raise UsageError(f"compression: {compression!r} is not one of zstd, snappy, none")
        self._store_path = str(Path(store_path).absolute())
        self._subscriber = subscriber
        self._output = output_of(output, file_mode=file_mode) if isinstance(output, str) else output
        self._layout = replace(layout or FileLayout(), compression=compression)
        self._fail = fail_on_data_loss
        self._skip_undecodable = not fail_on_data_loss if skip_undecodable is None else skip_undecodable
        self._committer: BatchCommitter | None = None
        self._stores: dict[str, str] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch. On return its files are visible and durable. A replayed batch is not exported again.

        Raises:
            CorruptionError: a commit record or a bundle is damaged.
            OSError: the disk refused. The query fails, and continues with this batch when it is restarted.
        """
        spark = batch.sparkSession
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        self.export(batch, batch_id, query_id=query_id)

    def export(self, batch: DataFrame, batch_id: int, *, query_id: str) -> tuple[str, ...]:
        """
        Export one batch of the query *query_id*. Return its files, relative to the output.

        Raises:
            CorruptionError: a commit record or a bundle is damaged.
            OSError: the disk refused.
            ObjectsUnavailableError: the object store does not answer. The next attempt continues.
        """
        self._stores = store_identities(REAL_FILES, self._store_path)
        if self._committer is None:
            self._committer = self._committer_of(query_id)
        committer = self._committer
        if committer.is_committed(batch_id):
            return ()
        exported_through = {
            root: committer.exported_through[store]
            for root, store in self._stores.items()
            if store in committer.exported_through
        }
        with committer.writing(batch_id) as prefix:
            rows = self._written(batch, self._output.staging(query_id, prefix), exported_through)
        through: dict[str, BundleRef] = {}
        for row in rows:
            if not row["part"]:
                store = self._stores.get(row["store"], STORE_UNKNOWN)
                reached = BundleRef(row["segment"], row["index"] + 1)
                through[store] = max(through.get(store, reached), reached)
        files = committer.commit(batch_id, _parts(rows), through)
        self._delivered(rows)
        return files

    def _delivered(self, rows: Sequence[Row]) -> None:
        if self._stats is not None and rows:  # no rows: an earlier query exported them
            exported = exported_parts(_parts(rows))
            self._stats.delivered(exported.rows, exported.size_bytes)

    def export_one(self, spark: SparkSession, bundle: pa.Table, name: str) -> None:
        """
        Export one bundle individually, exactly once, even if later bundles were exported before.

        Args:
            spark: the session for the job.
            bundle: its descriptor: path, segment, index.
            name: `quiver.spark.exporters.parquet_commit.individual_id` of the bundle.

        Raises:
            CorruptionError: a commit record or the bundle is damaged.
            OSError: the disk refused.
        """
        self._stores = store_identities(REAL_FILES, self._store_path)
        committer = self._committer_of(name)
        if not committer.is_committed(0):
            with committer.writing(0) as prefix:
                rows = self._written(spark.createDataFrame(bundle), self._output.staging(name, prefix), {})
            committer.commit(0, _parts(rows), {})
            self._delivered(rows)

    def probe(self, spark: SparkSession, bundles: pa.Table, *, views: AbstractSet[str]) -> None:
        """Do nothing: there are no processors here."""

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""
        return self._output.committed_individually(names)

    def _written(self, batch: DataFrame, staging: Staging, exported_through: Mapping[str, BundleRef]) -> list[Row]:
        task = PartWriter(
            staging,
            self._layout,
            exported_through=exported_through,
            fail_on_data_loss=self._fail,
            skip_undecodable=self._skip_undecodable,
            views=self._views,
        )
        return batch.select("path", "segment", "index").mapInArrow(task, _RESULT_SCHEMA).collect()

    def _committer_of(self, query_id: str) -> BatchCommitter:
        return self._output.committer(query_id, stores=self._stores.values(), subscriber=self._subscriber)


def _parts(rows: Iterable[Row]) -> list[StagedFile]:
    return [StagedFile(row["table"], row["part"], row["rows"], row["bytes"]) for row in rows if row["part"]]


def run_exporter(
    spark: SparkSession,
    store_path: str,
    subscriber: str,
    output: str | LakeOutput,
    checkpoint: str,
    *,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    compression: str = "zstd",
    query_name: str | None = None,
    file_mode: int | None = None,
    around: Callable[[ExportBatch], ExportBatch] | None = None,
    layout: FileLayout | None = None,
) -> StreamingQuery:
    """
    Start a query that exports a store to Parquet, as *subscriber*.

    Args:
        spark: a session, such as that of `quiver.spark.session()`.
        store_path: the store's directory; a writer may have it open.
        subscriber: at most one live query each. A new one starts at the earliest bundle.
        output: directory of the Parquet files, or an output such as that of `quiver.spark.lake.output.output_of`, which
            may be in a bucket.
        checkpoint: the directory of the query's checkpoint. Keep it: without it the query still exports nothing twice,
            but numbers its batches from 0 again.
        trigger: as for `DataStreamWriter.trigger`: ``{"processingTime": "500 milliseconds"}``, units in full
            (default: 1 second), or ``{"availableNow": True}``.
        options: more options of the source: limits per trigger, failOnDataLoss, startingOffsets.
        compression: of Parquet: zstd, snappy, or none.
        query_name: shown in logs and reports.
        file_mode: permission bits of the files, such as 0o640; None leaves them to the umask.
        around: wraps the export of a batch, such as `quiver.spark.processors.bad_bundle_filter.BadBundleFilter`.
            Without it, a bundle that cannot be decoded fails the query.
        layout: how the rows of a batch are divided into files; by default one file for each table and task.

    Raises:
        UsageError: an option or the compression is unknown.
    """
    chosen = dict(options or {})
    fail_on_data_loss = fails_on_data_loss(chosen)
    exporter = ParquetExporter(
        store_path,
        subscriber,
        output,
        compression=compression,
        fail_on_data_loss=fail_on_data_loss,
        # With a filter, its policy decides what happens to bundles that cannot be decoded.
        skip_undecodable=not fail_on_data_loss and around is None,
        file_mode=file_mode,
        layout=layout,
    )
    return start_bundle_query(
        spark,
        store_path,
        subscriber,
        exporter if around is None else around(exporter),
        checkpoint=checkpoint,
        trigger=trigger,
        options=chosen,
        query_name=query_name,
    )
