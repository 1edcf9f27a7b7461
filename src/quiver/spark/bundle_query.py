"""Start and stop the streaming query of an exporter, over the descriptors of bundles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.lazy_names import renamed_keyword
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.formats import register
from quiver.spark.spark_features import EXPORTERS, require
from quiver.store.reading.checkpoint import is_local, repair_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["fails_on_data_loss", "start_bundle_query", "stop_query"]


def fails_on_data_loss(options: Mapping[str, str]) -> bool:
    """Return the value of the source's option failOnDataLoss, which defaults to True."""
    return str(options.get("failOnDataLoss", "true")).lower() == "true"


def start_bundle_query(
    spark: SparkSession,
    store_path: str,
    subscriber: str,
    each: Callable[[DataFrame, int], None],
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None,
    options: Mapping[str, str],
    query_name: str | None = None,
) -> StreamingQuery:
    """
    Start a query that passes each batch of descriptors to *each*, as *subscriber*.

    Args:
        spark: a session; the sources are registered with it.
        store_path: the store's directory; a writer may have it open.
        subscriber: at most one live query each. A new one starts at the earliest bundle.
        each: called with a frame of mode `bundles` and the batch's number.
        checkpoint: the directory of the query's checkpoint. On a local disk it is synced, and repaired after a power
            loss.
        trigger: as for `DataStreamWriter.trigger`; None means one second.
        options: more options of the source.
        query_name: shown in logs and reports.

    Raises:
        UsageError: an option is unknown, or the installed PySpark is too old for exporters.
    """
    require(EXPORTERS)
    register(spark)
    if is_local(checkpoint):
        repair_checkpoint(REAL_FILES, checkpoint)
        options = {"checkpoint": checkpoint, **options}
    reader = spark.readStream.format("quiver").option("path", str(Path(store_path).absolute()))
    reader = reader.option("mode", "bundles").option("subscriber", subscriber).options(**options)
    writer = reader.load().writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    return writer.trigger(**({"processingTime": "1 second"} if trigger is None else dict(trigger))).start()


@renamed_keyword("timeout_s", "timeout")
def stop_query(query: StreamingQuery, *, timeout: float = 30.0, clock: Clock = SYSTEM_CLOCK) -> bool:
    """
    Stop *query*, between two batches if possible. Return whether no batch was interrupted.

    An interrupted batch is written again after a restart: nothing is lost or duplicated.
    """
    deadline = clock.monotonic() + timeout
    condition = threading.Condition()
    idle = not query.isActive
    while not idle and clock.monotonic() < deadline:
        idle = not query.isActive or not query.status["isTriggerActive"]
        if not idle:
            with condition:
                clock.wait(condition, 0.05)
    query.stop()
    return idle
