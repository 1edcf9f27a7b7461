"""
A streaming query that passes the data of a store through processors to an exporter, as one subscriber.

::

    bundles (descriptors) ─▶ spark/tables.py ─▶ processors/ ─▶ exporters/tables.py
                             a frame      each a function  each batch once,
                             per signal   of a frame       if possible

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
from quiver.spark.exporters.table_exporter import BatchOf, TableExporter, ViewExporter
from quiver.spark.exporters.tables import ParquetTables, exporter_of
from quiver.spark.processors.bad_bundle_filter import ExportBatch
from quiver.spark.processors.chain import Step, process
from quiver.spark.processors.settings import SqlSettings
from quiver.spark.tables import Descriptors, tables_of, view_inputs
from quiver.store.reading.segments import store_identities

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from quiver.delivery.exporter_stats import ExporterStats

__all__ = ["BATCH_BUNDLES_MAX", "TableBatches", "start_export"]

BATCH_BUNDLES_MAX = 2048
"""
The size of a batch for an exporter with processors and a `BadBundleFilter`. `quiver.spark.processors.bisect` can
search that many bundles even if one in fifty is bad. It could not search a backlog in one batch.
"""


class TableBatches:
    """
    Passes each batch of a `bundles` query through processors to an exporter. Pass it to ``foreachBatch``.

    Args:
        store_path: the store that the bundles come from.
        exporter: the destination.
        chain: the processors, in order.
        fail_on_data_loss: False skips missing or damaged bundles, with a warning.
        skip_undecodable: skip requests that cannot be decoded, with a warning. None means the opposite of
            *fail_on_data_loss*.
        stats: receives the delivered amounts.
        views: the tables of the signals to export; None for all.
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
        views: AbstractSet[str] | None = None,
    ) -> None:
        self._stats = stats
        self._store_path = str(Path(store_path).absolute())
        self._exporter = exporter
        self._chain = tuple(chain)
        self._reading: dict[str, Any] = {
            "only": views,
            "fail_on_data_loss": fail_on_data_loss,
            "skip_undecodable": not fail_on_data_loss if skip_undecodable is None else skip_undecodable,
        }

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch, unless the exporter already has it.

        Raises:
            CorruptionError: a bundle, or a record of the exporter, is damaged.
            OSError: the disk refused. The query fails, and continues with this batch when it is restarted.
        """
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self.export(batch, batch_id, query=query)

    def export(self, batch: DataFrame, batch_id: int, *, query: str) -> None:
        """
        Export one batch of *query*.

        Raises:
            CorruptionError: a bundle, or a record of the exporter, is damaged.
            OSError: the disk refused.
        """
        identities = store_identities(REAL_FILES, self._store_path)
        stores = tuple(identities.values())
        which = BatchOf(query, batch_id, stores)
        if self._exporter.has(which):
            return
        exported = self._exporter.exported_through(which)
        before = {root: exported[store] for root, store in identities.items() if store in exported}
        descriptors = Descriptors.of(batch).after(before)
        if not descriptors.table.num_rows:
            return
        which = BatchOf(query, batch_id, stores, descriptors.through(identities))
        self._deliver(batch.sparkSession, descriptors, which)

    def _deliver(self, spark: SparkSession, descriptors: Descriptors, which: BatchOf) -> None:
        if not self._chain and isinstance(self._exporter, ViewExporter):
            # Rows that no processor needs never enter the JVM.
            exported = self._exporter.export_views(view_inputs(spark, descriptors, **self._reading), which)
        else:
            exported = self._exporter.export(self._processed(spark, descriptors), which)
        if self._stats is not None:
            self._stats.delivered(exported.rows, exported.size_bytes)

    def _processed(
        self, spark: SparkSession, descriptors: Descriptors, views: AbstractSet[str] = frozenset()
    ) -> dict[str, DataFrame]:
        """Return the result of the processors on the bundles. They also get *views* that have no rows."""
        # A query over logs and spans must also work on a batch that has no spans.
        joined = [step.reads for step in self._chain if isinstance(step, SqlSettings) and len(step.reads) > 1]
        there = views | descriptors.views if joined else views
        also = frozenset(views).union(*(reads for reads in joined if not there.isdisjoint(reads)))
        tables = tables_of(spark, descriptors, also=also, **self._reading)
        empty = {name: tables[name] for name in also & tables.keys() - descriptors.views} if also else {}
        processed = process(tables, self._chain)
        return {name: frame for name, frame in processed.items() if empty.get(name) is not frame}

    def probe(self, spark: SparkSession, bundles: pa.Table, *, views: AbstractSet[str]) -> None:
        """
        Run the processors on *bundles*, and export nothing.

        Args:
            spark: the session for the job.
            bundles: their descriptors: path, segment, index, slots. There may be none.
            views: the tables that the processors always get, which are those of the complete batch.

        Raises:
            Exception: any error of a processor.
        """
        for frame in self._processed(spark, Descriptors(bundles), views).values():
            frame.write.format("noop").mode("overwrite").save()

    def export_one(self, spark: SparkSession, bundle: pa.Table, name: str) -> None:
        """
        Export one bundle individually, even if later bundles were exported before. Gives the same guarantee as a batch.

        Args:
            spark: the session for the job.
            bundle: its descriptor.
            name: `quiver.spark.exporters.parquet_commit.individual_id` of the bundle.

        Raises:
            Exception: any error of a processor or the exporter.
        """
        which = BatchOf(name, 0, tuple(store_identities(REAL_FILES, self._store_path).values()))
        if not self._exporter.has(which):
            self._deliver(spark, Descriptors(bundle), which)

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""
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
    Start a query that exports a store, as *subscriber*.

    Args:
        spark: a session, such as that of `quiver.spark.session()`.
        store_path: the store's directory, with one core or several; a writer may have it open.
        subscriber: at most one live query each. A new one starts at the earliest bundle.
        exporter: the destination of the tables, or the settings of a built-in exporter.
        checkpoint: the directory of the query's checkpoint.
        chain: the processors, in order.
        trigger: as for `DataStreamWriter.trigger` (default: 1 second), or ``{"availableNow": True}``.
        options: more options of the source: limits per trigger (default with *chain* and *around*:
            `BATCH_BUNDLES_MAX`), failOnDataLoss, startingOffsets.
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
        # With a filter, its policy decides what happens to bundles that cannot be decoded.
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
