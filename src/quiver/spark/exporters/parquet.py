"""
The Parquet exporter: a streaming query in which only descriptors travel.

Tasks open the bundles, decode them and write Parquet with pyarrow, next to the final location of the files. The driver
commits the batch (`parquet_commit.py`). The output directory has:

====================  =====================================================
``logs/``             a row per log record, of raw OTLP requests and of OTAP tables
``spans/``            a row per span
``metrics/``          a row per data point
``slots/<name>/``     any other slot, as it was stored
====================  =====================================================
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef, batch_bytes, schema_fingerprint
from quiver.errors import CorruptionError, UsageError
from quiver.otap import VIEWS, decode_groups, view_schema
from quiver.otap.stored import split_stored
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.bundle_query import fails_on_data_loss, start_bundle_query
from quiver.spark.bundles import open_bundles_at
from quiver.spark.cast import spark_schema
from quiver.spark.exporters.exported import exported_parts
from quiver.spark.exporters.output_files import begin_file, synced_bytes
from quiver.spark.exporters.parquet_commit import ExportCommitter, StagedFile, committed_individually, part_prefix
from quiver.spark.exporters.settings import check_file_mode, directory_mode
from quiver.spark.processors.bad_bundle_filter import ExportBatch
from quiver.store.reading.offsets import STORE_UNKNOWN
from quiver.store.reading.segments import store_identities, store_root
from quiver.store.segment.cast import cast_to_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from quiver.delivery.exporter_stats import ExporterStats

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


@dataclass
class _Table:
    """One file being written."""

    name: str
    part: str
    path: str
    writer: Any
    rows: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.waiting.append(batch)
        self.waiting_bytes += batch_bytes(batch)
        if self.waiting_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            # One row group for many small bundles, because each group costs readers time.
            self.writer.write_table(pa.Table.from_batches(self.waiting))
            self.waiting, self.waiting_bytes = [], 0


class PartWriter:
    """
    Runs in a task: takes descriptors, writes and syncs hidden Parquet files, returns their names. Can be pickled.

    Args:
        output: the output directory, which the task can reach by this path.
        prefix: the prefix of the hidden names of this batch.
        attempt: identifies this attempt at the batch.
        exported_through: per store directory, the position before which bundles are skipped: an earlier query exported
            them.
        compression: of Parquet: zstd, snappy, or none.
        adapter: names the slots.
        fail_on_data_loss: False skips missing or damaged bundles, with a warning.
        skip_undecodable: skip requests that cannot be decoded, with a warning. False if a `BadBundleFilter` must see
            them.
        file_mode: permission bits of the files; None leaves them to the umask.
        views: the tables of the signals to write; None for all, and for slots that belong to no signal.
    """

    def __init__(
        self,
        output: str,
        *,
        prefix: str,
        attempt: str,
        exported_through: Mapping[str, BundleRef],
        compression: str,
        adapter: Adapter = OTAP,
        fail_on_data_loss: bool = True,
        skip_undecodable: bool = False,
        file_mode: int | None = None,
        views: AbstractSet[str] | None = None,
    ) -> None:
        self._output = output
        self._views = views
        self._file_mode = file_mode
        self._prefix = prefix
        self._attempt = attempt
        self._exported_through = dict(exported_through)
        self._compression = compression
        self._adapter = adapter
        self._fail = fail_on_data_loss
        self._skip_undecodable = skip_undecodable

    def __call__(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Write the bundles that *descriptors* describe, and yield the synced files.

        Raises:
            DataLossError: a segment is missing.
            CorruptionError: a segment or a request cannot be read.
        """
        task = _task_name()
        tables: dict[tuple[str, bytes], _Table] = {}
        requests: dict[str, list[Any]] = {view: [] for view in VIEWS}
        through: dict[str, BundleRef] = {}
        waiting = 0
        try:
            for root, ref, bundle in self._bundles(descriptors):
                through[root] = max(through.get(root, ref), ref)
                shown, rest = self._wanted(*split_stored(bundle.batches))
                for slot, batch in rest.items():
                    self._slot(tables, task, slot, batch)
                for view, stored in shown.items():
                    requests[view].extend(stored)
                waiting += sum(batch_bytes(batch) for slot, batch in bundle.batches.items() if slot not in rest)
                if waiting >= _REQUESTS_BYTES_MAX:
                    self._decode(tables, task, requests)
                    waiting = 0
            self._decode(tables, task, requests)
            for table in tables.values():
                table.flush()
        finally:
            for table in tables.values():
                table.writer.close()
        if through:
            yield _results(tables.values(), through)

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

    def _decode(self, tables: dict[tuple[str, bytes], _Table], task: str, requests: dict[str, list[Any]]) -> None:
        for view, waiting in requests.items():
            if not waiting:
                continue
            table = self._table(tables, task, view, view_schema(view))
            for group in decode_groups(waiting, view):
                for index, reason in group.bad:
                    problem = CorruptionError(
                        self._output, 0, f"request {group.first + index} for {view} cannot be decoded: {reason}"
                    )
                    if not self._skip_undecodable:
                        raise problem
                    _log.warning("quiver.spark.request_skipped reason=%s", problem)
                table.add(group.batch)
            waiting.clear()

    def _slot(self, tables: dict[tuple[str, bytes], _Table], task: str, slot: int, batch: pa.RecordBatch) -> None:
        name = f"slots/{self._adapter.slots.get(slot, slot)}"
        # Parquet has fewer types than Arrow. Columns of other types are cast as for Spark.
        if any(_beyond_parquet(column.type) for column in batch.schema):
            batch = cast_to_schema(batch, spark_schema(batch.schema))
        self._table(tables, task, name, batch.schema).add(batch)

    def _table(self, tables: dict[tuple[str, bytes], _Table], task: str, name: str, schema: pa.Schema) -> _Table:
        key = (name, schema_fingerprint(schema))
        if key not in tables:
            part = f"{self._prefix}{self._attempt}-{task}-{len(tables)}.part"
            directory = f"{self._output}/{name}"
            REAL_FILES.make_dirs(directory, mode=directory_mode(self._file_mode))
            path = f"{directory}/{part}"
            begin_file(path, self._file_mode)
            writer = pq.ParquetWriter(path, schema, compression=self._compression)
            tables[key] = _Table(name, part, path, writer)
        return tables[key]


def _results(tables: Iterable[_Table], through: Mapping[str, BundleRef]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = []
    for table in tables:
        size_bytes = synced_bytes(table.path)
        rows.append({"table": table.name, "part": table.part, "rows": table.rows, "bytes": size_bytes})
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
        output: the output directory; created if missing.
        compression: of Parquet: zstd, snappy, or none.
        fail_on_data_loss: False skips missing or damaged bundles, with a warning.
        skip_undecodable: skip requests that cannot be decoded, with a warning. None means the opposite of
            *fail_on_data_loss*.
        file_mode: permission bits of the files, such as 0o640; None leaves them to the umask.
        stats: receives the delivered amounts.
        views: the tables of the signals to export; None for all, and for slots that belong to no signal.

    Raises:
        UsageError: the compression is unknown, or files could not be written with this mode.
    """

    def __init__(
        self,
        store_path: str,
        subscriber: str,
        output: str,
        *,
        compression: str = "zstd",
        fail_on_data_loss: bool = True,
        skip_undecodable: bool | None = None,
        file_mode: int | None = None,
        stats: ExporterStats | None = None,
        views: AbstractSet[str] | None = None,
    ) -> None:
        self._stats = stats
        self._views = views
        check_file_mode(file_mode)
        self._file_mode = file_mode
        if compression not in {"zstd", "snappy", "none"}:
            raise UsageError(f"compression: {compression!r} is not one of zstd, snappy, none")
        self._store_path = str(Path(store_path).absolute())
        self._subscriber = subscriber
        self._output = str(Path(output).absolute())
        self._compression = compression
        self._fail = fail_on_data_loss
        self._skip_undecodable = not fail_on_data_loss if skip_undecodable is None else skip_undecodable
        self._committer: ExportCommitter | None = None
        self._attempts = 0
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
        with committer.writing(batch_id):
            rows = self._written(batch, part_prefix(query_id, batch_id), exported_through)
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
            with committer.writing(0):
                rows = self._written(spark.createDataFrame(bundle), part_prefix(name, 0), {})
            committer.commit(0, _parts(rows), {})
            self._delivered(rows)

    def probe(self, spark: SparkSession, bundles: pa.Table, *, views: AbstractSet[str]) -> None:
        """Do nothing: there are no processors here."""

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""
        return committed_individually(REAL_FILES, self._output, names)

    def _written(self, batch: DataFrame, prefix: str, exported_through: Mapping[str, BundleRef]) -> list[Row]:
        self._attempts += 1
        task = PartWriter(
            self._output,
            prefix=prefix,
            attempt=f"{os.getpid()}a{self._attempts}",
            exported_through=exported_through,
            compression=self._compression,
            fail_on_data_loss=self._fail,
            skip_undecodable=self._skip_undecodable,
            file_mode=self._file_mode,
            views=self._views,
        )
        return batch.select("path", "segment", "index").mapInArrow(task, _RESULT_SCHEMA).collect()

    def _committer_of(self, query_id: str) -> ExportCommitter:
        committer = ExportCommitter(
            REAL_FILES,
            self._output,
            query_id=query_id,
            stores=self._stores.values(),
            subscriber=self._subscriber,
            file_mode=self._file_mode,
        )
        committer.recover()
        return committer


def _parts(rows: Iterable[Row]) -> list[StagedFile]:
    return [StagedFile(row["table"], row["part"], row["rows"], row["bytes"]) for row in rows if row["part"]]


def run_exporter(
    spark: SparkSession,
    store_path: str,
    subscriber: str,
    output: str,
    checkpoint: str,
    *,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    compression: str = "zstd",
    query_name: str | None = None,
    file_mode: int | None = None,
    around: Callable[[ExportBatch], ExportBatch] | None = None,
) -> StreamingQuery:
    """
    Start a query that exports a store to Parquet, as *subscriber*.

    Args:
        spark: a session, such as that of `quiver.spark.session()`.
        store_path: the store's directory; a writer may have it open.
        subscriber: at most one live query each. A new one starts at the earliest bundle.
        output: directory of the Parquet files.
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
