"""
The Spark process: one driver, and a streaming query for each exporter.

It reads the store's files beside the ingest process and needs nothing else of it. An exporter whose query fails is
started again alone, with backoff; the others go on. Down: what is sealed is still written, within a deadline.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import QuiverError, WrongUse
from quiver.pipeline.child import SPARK_READY, ChildContext, child_main, write_ready
from quiver.pipeline.plugins import ParquetExporterConfig
from quiver.primitives.backoff import Backoff
from quiver.store.format.names import progress_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["export"]

LOOK_S = 0.25
DRAIN_S = 25.0
STOP_S = 10.0
HEALTHY_S = 30.0

_log = logging.getLogger("quiver.pipeline")


class _Export:
    """
    One exporter and its query, which may be between two lives.
    """

    def __init__(
        self, spark: SparkSession, store_path: str, name: str, config: ParquetExporterConfig, *, may_lose: bool
    ) -> None:
        self.name = name
        self._spark = spark
        self._store_path = store_path
        self._config = config
        self._may_lose = may_lose
        self._query: Any = None
        self._delays = self._new_delays()
        self._started_at = 0.0
        self._start_at = SYSTEM_CLOCK.monotonic()

    @staticmethod
    def _new_delays() -> Iterator[float]:
        return Backoff(first_s=1.0, cap_s=30.0).delays(Random())  # noqa: S311 - jitter, not a secret

    def look(self) -> None:
        """
        Start the query when it is due; bury it when it has died.
        """
        now = SYSTEM_CLOCK.monotonic()
        if self._query is not None and not self._query.isActive:
            if now - self._started_at >= HEALTHY_S:
                self._delays = self._new_delays()
            delay_s = next(self._delays)
            _log.error("%s failed, starts again in %.1f s: %s", self.name, delay_s, self._query.exception())
            self._query = None
            self._start_at = now + delay_s
        if self._query is None and now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        from quiver.spark.exporter_parquet import run_exporter  # noqa: PLC0415 - an extra

        config = self._config
        Path(config.path).mkdir(parents=True, exist_ok=True)
        self._query = run_exporter(
            self._spark,
            str(Path(self._store_path).absolute()),
            self.name,
            str(Path(config.path).absolute()),
            str(Path(config.checkpoint_path).absolute()),
            trigger={"processingTime": f"{max(round(config.trigger * 1000), 1)} milliseconds"},
            options={"failOnDataLoss": "false"} if self._may_lose else None,
            compression=config.compression,
            query_name=self.name,
        )
        self._started_at = now
        _log.info("%s runs: %s → %s", self.name, self._store_path, config.path)

    def drain(self) -> None:
        """
        Return when all that was sealed by now is written, or the query has failed.
        """
        try:
            if self._query is not None and self._query.isActive:
                self._query.processAllAvailable()
        except Exception as error:  # noqa: BLE001 - the edge: Spark raises many kinds, and what is not written stays in the store
            _log.warning("%s was not drained: %s", self.name, error)

    def stop(self) -> None:
        """
        Stop the query between two batches where possible.
        """
        from quiver.spark.exporter_parquet import stop_query  # noqa: PLC0415 - an extra

        if self._query is not None:
            stop_query(self._query, timeout_s=STOP_S)


def export(context: ChildContext) -> None:
    """
    Run every exporter's query until asked to stop.

    Raises:
        WrongUse: no Java was found, or an exporter cannot run as it is configured.
    """
    from quiver.spark import session  # noqa: PLC0415 - an extra
    from quiver.spark.java import find_java_home  # noqa: PLC0415

    logging.getLogger("py4j").setLevel(logging.WARNING)
    pipeline = context.pipeline
    store_path = pipeline.persistence.path
    try:
        find_java_home()
    except QuiverError as error:
        raise WrongUse(str(error)) from error
    spark = session(app_name=f"quiver {Path(pipeline.source).name}")
    context.lifeline.hear_signals()
    if not _await_registration(context, store_path):
        spark.stop()
        return
    settings = pipeline.persistence.settings
    # Whoever allows the store to drop what is not exported yet does not want the export to stop for it.
    may_lose = settings.size_cap_policy == "drop_oldest" or settings.max_age_s is not None
    exports = [_Export(spark, store_path, name, config, may_lose=may_lose) for name, config in pipeline.queries]
    for one in exports:
        one.look()
    write_ready(context.run_dir, SPARK_READY, {"exporters": [one.name for one in exports]})
    while not context.lifeline.wait(LOOK_S):
        for one in exports:
            one.look()
    _log.info("stopping: writing what is sealed, for at most %.0f s", DRAIN_S)
    _drain(exports)
    for one in exports:
        one.stop()
    spark.stop()
    _log.info("stopped")


def _await_registration(context: ChildContext, store_path: str) -> bool:
    """
    Wait until the ingest process has registered every query's exporter; False when asked to stop before that.
    """
    waiting = [f"{store_path}/{progress_name(name)}" for name, _ in context.pipeline.queries]
    while waiting:
        waiting = [path for path in waiting if not os.path.exists(path)]  # noqa: PTH110
        if waiting and context.lifeline.wait(LOOK_S):
            return False
    return True


def _drain(exports: list[_Export]) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + DRAIN_S
    threads = [threading.Thread(target=one.drain, name=f"drain-{one.name}", daemon=True) for one in exports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
        if thread.is_alive():
            _log.warning("%s still had something to write; it goes on at the next start", thread.name)


if __name__ == "__main__":
    sys.exit(child_main(export))
