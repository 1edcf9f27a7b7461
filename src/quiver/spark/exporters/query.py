"""
A streaming query that takes what a store holds through processors to an exporter, as one subscriber.

::

    bundles (descriptors) ─▶ spark/tables.py ─▶ processors/ ─▶ exporters/tables.py
                             a frame      each a function  each batch once,
                             a signal     of a frame       where that can be

Only descriptors cross from the source to the batch; rows are decoded in the tasks that process them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.bundle_query import fails_on_data_loss, start_bundle_query
from quiver.spark.exporters.settings import SparkExporterSettings
from quiver.spark.exporters.table_exporter import BatchOf, TableExporter
from quiver.spark.exporters.tables import ParquetTables, exporter_of
from quiver.spark.processors.bad_bundle_filter import ExportBatch
from quiver.spark.processors.chain import Step, process
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.tables import Descriptors, tables_of
from quiver.store.reading.segments import store_identities

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from quiver.delivery.exporter_stats import ExporterStats

__all__ = ["BATCH_BUNDLES_MAX", "TableBatches", "start_export"]

BATCH_BUNDLES_MAX = 2048
"""
Of a batch that goes through processors to an exporter which sets bundles aside. So many can be told apart by
`quiver.spark.processors.bisect`, also when one in fifty is bad; a backlog in one batch could not.
"""


class TableBatches:
    """
    Takes each batch of a `bundles` query through a chain of processors to an exporter. Pass it to ``foreachBatch``.

    Args:
        store_path: the store that the bundles come from.
        exporter: where they go.
        chain: the processors, in order.
        fail_on_data_loss: False passes over what is gone or damaged, with a warning.
        skip_undecodable: pass over what cannot be decoded, with a warning; as *fail_on_data_loss* has it when None.
        stats: takes what was delivered.
    """

    def __init__(
        self,
        store_path: str,
        exporter: TableExporter,
        *,
        chain: Sequence[Step] = (),
        fail_on_data_loss: bool = True,
        skip_undecodable: bool | None = None,
        stats: ExporterStats | None = None,
    ) -> None:
        self._stats = stats
        self._store_path = str(Path(store_path).absolute())
        self._exporter = exporter
        self._chain = tuple(chain)
        self._fail = fail_on_data_loss
        self._skip_undecodable = not fail_on_data_loss if skip_undecodable is None else skip_undecodable

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch. What the exporter has already is not computed again.

        Raises:
            CorruptionError: a bundle, or what the exporter noted, is not what was written.
            OSError: the disk refused; the query fails and goes on from here when it is started again.
        """
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self.export(batch, batch_id, query=query)

    def export(self, batch: DataFrame, batch_id: int, *, query: str) -> None:
        """
        Export one batch of *query*.

        Raises:
            CorruptionError: a bundle, or what the exporter noted, is not what was written.
            OSError: the disk refused.
        """
        identities = store_identities(REAL_FILES, self._store_path)
        stores = tuple(identities.values())
        which = BatchOf(query, batch_id, stores)
        if self._exporter.has(which):
            return
        exported = self._exporter.exported_through(which)
        before = {root: exported[store] for root, store in identities.items() if store in exported}
        descriptors = Descriptors.of(batch).behind(before)
        if not descriptors.table.num_rows:
            return
        which = BatchOf(query, batch_id, stores, descriptors.through(identities))
        self._deliver(self._processed(batch.sparkSession, descriptors), which)

    def _deliver(self, tables: dict[str, DataFrame], which: BatchOf) -> None:
        exported = self._exporter.export(tables, which)
        if self._stats is not None:
            self._stats.delivered(exported.rows, exported.size_bytes)

    def _processed(
        self, spark: SparkSession, descriptors: Descriptors, views: AbstractSet[str] = frozenset()
    ) -> dict[str, DataFrame]:
        """
        Return what the processors make of the bundles, and of *views* without rows where these have nothing of
        them.
        """
        # A batch that happens to have no spans is none that a query over logs and spans cannot work on.
        joined = [step.reads for step in self._chain if isinstance(step, SqlSettings) and len(step.reads) > 1]
        there = views | descriptors.views if joined else views
        also = frozenset(views).union(*(reads for reads in joined if not there.isdisjoint(reads)))
        tables = tables_of(
            spark, descriptors, also=also, fail_on_data_loss=self._fail, skip_undecodable=self._skip_undecodable
        )
        empty = {name: tables[name] for name in also & tables.keys() - descriptors.views} if also else {}
        processed = process(tables, self._chain)
        return {name: frame for name, frame in processed.items() if empty.get(name) is not frame}

    def probe(self, spark: SparkSession, bundles: pa.Table, *, views: AbstractSet[str]) -> None:
        """
        Compute what the processors make of *bundles*, and export nothing.

        Args:
            spark: where it runs.
            bundles: a row for each: path, segment, index, slots. There may be none.
            views: the tables that the processors are given in any case, those of the whole batch.

        Raises:
            Exception: whatever a processor raises.
        """
        for frame in self._processed(spark, Descriptors(bundles), views).values():
            frame.write.format("noop").mode("overwrite").save()

    def export_one(self, spark: SparkSession, bundle: pa.Table, name: str) -> None:
        """
        Export one bundle by itself, also behind what was exported before. As exactly once as a batch is.

        Args:
            spark: where it runs.
            bundle: the row for it.
            name: `quiver.spark.exporters.parquet_commit.individual_id` of the bundle.

        Raises:
            Exception: whatever a processor or the exporter raises.
        """
        which = BatchOf(name, 0, tuple(store_identities(REAL_FILES, self._store_path).values()))
        if not self._exporter.has(which):
            self._deliver(self._processed(spark, Descriptors(bundle)), which)

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return under which of *names* a bundle was exported by itself."""
        return self._exporter.exported_individually(names)


def start_export(
    spark: SparkSession,
    store_path: str,
    subscriber: str,
    exporter: TableExporter | SparkExporterSettings | ParquetTables,
    *,
    checkpoint: str,
    chain: Sequence[Step] = (),
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    query_name: str | None = None,
    around: Callable[[ExportBatch], ExportBatch] | None = None,
) -> StreamingQuery:
    """
    Start exporting a store, as *subscriber*; return the running query.

    Args:
        spark: a session, such as `quiver.spark.session()` gives.
        store_path: the store's directory, with cores or without; it may be in use by its writer.
        subscriber: one live query each. A new one starts at the earliest bundle.
        exporter: where the tables go, or the settings of one of ours.
        checkpoint: directory of the query's own notes.
        chain: processors between the two, in order.
        trigger: as `DataStreamWriter.trigger` takes it (default: 1 second), or ``{"availableNow": True}``.
        options: more options of the source: limits per trigger (`BATCH_BUNDLES_MAX` with *chain* and *around* where
            they do not say it), failOnDataLoss, startingOffsets.
        query_name: shown in logs and reports.
        around: wraps the export of a batch, such as `quiver.spark.processors.bad_bundle_filter.BadBundleFilter`.
            Without it, a bundle that cannot be decoded fails the query.

    Raises:
        UsageError: an option is unknown.
    """
    chosen = dict(options or {})
    if chain and around is not None:
        chosen.setdefault("maxBundlesPerTrigger", str(BATCH_BUNDLES_MAX))
    fail_on_data_loss = fails_on_data_loss(chosen)
    if isinstance(exporter, SparkExporterSettings | ParquetTables):
        exporter = exporter_of(exporter, subscriber=subscriber)
    batches = TableBatches(
        store_path,
        exporter,
        chain=chain,
        fail_on_data_loss=fail_on_data_loss,
        # What the policy of a sieve is for is not passed over here.
        skip_undecodable=not fail_on_data_loss and around is None,
    )
    return start_bundle_query(
        spark,
        store_path,
        subscriber,
        batches if around is None else around(batches),
        checkpoint=checkpoint,
        trigger=trigger,
        options=chosen,
        query_name=query_name,
    )
