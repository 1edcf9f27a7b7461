"""
A streaming query that takes what a store holds through processors to an exporter, as one subscriber.

::

    bundles (descriptors) ─▶ tables.py ─▶ processors.py ─▶ exporters.py
                             a frame      each a function  each batch once,
                             a signal     of a frame       where that can be

Only descriptors cross from the source to the batch; rows are decoded in the tasks that process them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver.primitives.real_files import REAL_FILES
from quiver.spark.bundle_query import fails_on_data_loss, start_bundle_query
from quiver.spark.exporter_settings import SparkExporterSettings
from quiver.spark.exporters import BatchOf, ParquetTables, TableExporter, exporter_of
from quiver.spark.poison import ExportBatch
from quiver.spark.processors import Step, process
from quiver.spark.segments import store_identities
from quiver.spark.tables import Descriptors, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["TableBatches", "start_export"]


class TableBatches:
    """
    Takes each batch of a `bundles` query through a chain of processors to an exporter. Pass it to ``foreachBatch``.

    Args:
        store_path: the store that the bundles come from.
        exporter: where they go.
        chain: the processors, in order.
        fail_on_data_loss: False passes over what is gone or damaged, with a warning.
        skip_undecodable: pass over what cannot be decoded, with a warning; as *fail_on_data_loss* has it when None.
    """

    def __init__(
        self,
        store_path: str,
        exporter: TableExporter,
        *,
        chain: Sequence[Step] = (),
        fail_on_data_loss: bool = True,
        skip_undecodable: bool | None = None,
    ) -> None:
        self._store_path = str(Path(store_path).absolute())
        self._exporter = exporter
        self._chain = tuple(chain)
        self._fail = fail_on_data_loss
        self._skip_undecodable = not fail_on_data_loss if skip_undecodable is None else skip_undecodable

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch. What the exporter has already is not computed again.

        Raises:
            Damaged: a bundle, or what the exporter noted, is not what was written.
            OSError: the disk refused; the query fails and goes on from here when it is started again.
        """
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self.export(batch, batch_id, query=query)

    def export(self, batch: DataFrame, batch_id: int, *, query: str) -> None:
        """
        Export one batch of *query*.

        Raises:
            Damaged: a bundle, or what the exporter noted, is not what was written.
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
        tables = tables_of(
            batch.sparkSession,
            descriptors,
            fail_on_data_loss=self._fail,
            skip_undecodable=self._skip_undecodable,
        )
        which = BatchOf(query, batch_id, stores, descriptors.through(identities))
        self._exporter.export(process(tables, self._chain), which)


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
        options: more options of the source: limits per trigger, failOnDataLoss, startingOffsets.
        query_name: shown in logs and reports.
        around: what stands around the export of a batch: `quiver.spark.poison.PoisonSieve`. Without one a bundle
            that cannot be decoded fails the query.

    Raises:
        WrongUse: an option is unknown.
    """
    chosen = dict(options or {})
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
