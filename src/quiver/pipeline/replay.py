"""
Replay of dead letters of exporters on Spark, through the processors that the pipeline file has now.

::

    dead letter ─▶ a temporary store ─▶ the exporter, as a single bundle ─▶ deleted by the caller

The bundle has the name under which the exporter would have exported it individually. So a dead letter whose export may
already have succeeded is not exported twice, if the destination can recognize repeats.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.dead_letter_replay import DeadLetterReplay
from quiver.delivery.dead_letters import DeadLetter, DeadLetters
from quiver.delivery.policy import Delivered, Outcome, Permanent, Transient
from quiver.errors import QuiverError, UsageError
from quiver.pipeline.model import Pipeline
from quiver.pipeline.queries import QueryPlan, export_of, plan_queries, spark_settings
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import Worker
from quiver.store.opening import open_store
from quiver.store.reading.listing import find_segments

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from quiver.delivery.exporter_stats import ExporterStats
    from quiver.observe import Observer
    from quiver.spark.exporters.retry_queue import BundleExport

__all__ = ["DeadLetterExport", "QueryReplay"]

LOOK_S = 1.0

_log = logging.getLogger("quiver.pipeline")

_HOLDER = "replay"
"""The subscriber of the temporary store: without one, the store might free its data."""


class DeadLetterExport:
    """
    Exports dead letters as the exporter *name* of *pipeline* does. A context manager that starts a Spark session if
    none is active.

    Args:
        pipeline: a validated pipeline.
        name: the name of an exporter that is a query of the Spark process.

    Raises:
        UsageError: there is no such exporter, or it cannot be created.
        QuiverError: Java is missing.
    """

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

        from quiver.spark import session  # noqa: PLC0415

        plans = {plan.name: plan for plan in plan_queries(pipeline, Path())}
        if name not in plans:
            raise UsageError(
                f"{pipeline.source} has no exporter {name} on Spark; there are: {', '.join(plans) or 'none'}"
            )
        self._name = name
        self._export = export_of(plans[name])
        logging.getLogger("py4j").setLevel(logging.WARNING)
        self._is_own = SparkSession.getActiveSession() is None
        self._spark = session(app_name=f"quiver replay {name}", config=spark_settings(pipeline))

    def deliver(self, root: str, letter: DeadLetter) -> Outcome:
        """Export one dead letter of the store at *root* and return the outcome."""
        return _exported(self._spark, self._export, self._name, root, letter)

    def close(self) -> None:
        """Stop the Spark session if this object started it. Idempotent."""
        if self._is_own:
            self._spark.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class QueryReplay:
    """
    Replays the dead letters of an exporter on Spark automatically, in a thread of the Spark process: those whose
    attempts processors exhausted, with the processors that the process started with.

    Args:
        spark: the session of the query, from which this object creates its own.
        plan: the query.
        may_continue: returns whether the query works.
        observer: receives counts and events.
        stats: counts deliveries.
        background: replay in a thread; without it the caller calls `look`.

    Raises:
        UsageError: the exporter cannot be created.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: QueryPlan,
        may_continue: Callable[[], bool],
        observer: Observer,
        *,
        stats: ExporterStats | None = None,
        background: bool = True,
    ) -> None:
        # A separate session: its temporary views belong to one bundle.
        self._spark = spark.newSession()
        self._export = export_of(plan, stats)
        self._name = plan.subscriber
        self._may_go_on = may_continue
        self._replays: list[tuple[DeadLetters, DeadLetterReplay]] = []
        for root in plan.stores:
            letters = plan.letters(root, plan.subscriber, observer=observer)
            deliver = partial(_exported, self._spark, self._export, self._name, root)
            random = Random()  # noqa: S311 - jitter, not a secret
            replay = DeadLetterReplay(plan.name, letters, deliver, random=random, clock=SYSTEM_CLOCK, observer=observer)
            self._replays.append((letters, replay))
        self._worker = Worker(
            f"quiver-replay {plan.name}",
            self.look,
            every=LOOK_S,
            on_death=lambda died: _log.error("%s replays no more dead letters: %s", plan.name, died),
            clock=SYSTEM_CLOCK,
            observer=observer,
        )
        if background:
            self._worker.start()

    def look(self) -> None:
        """Replay the dead letters that are due."""
        for letters, replay in self._replays:
            try:
                replay.run(lambda: self._may_go_on() and not self._worker.is_stopping)
            finally:
                # The query may add dead letters at the same time.
                with contextlib.suppress(QuiverError, OSError):
                    letters.close()

    def stop(self) -> None:
        """Stop replaying without waiting for a dead letter that is being exported. Idempotent."""
        self._worker.stop(0.0)


def _exported(spark: SparkSession, export: BundleExport, subscriber: str, root: str, letter: DeadLetter) -> Outcome:
    from quiver.spark.exporters.retry_queue import individual_names, undecodable  # noqa: PLC0415 - an extra
    from quiver.spark.exporters.spark_errors import describe_error, is_environment_error  # noqa: PLC0415 - an extra
    from quiver.spark.tables import Descriptors  # noqa: PLC0415

    if not letter.bundle.slots:
        return Permanent("EMPTY", "the bundle could not be read when it was given up")
    reason = undecodable(letter.bundle)
    if reason is not None:
        return Permanent("UNDECODABLE", reason)
    (name,) = individual_names(subscriber, [(root, letter.ref)])
    with tempfile.TemporaryDirectory(prefix="quiver-replay-") as place:
        row = _sealed(place, letter.bundle)
        try:
            export.export_one(spark, row, name)
        except Exception as failure:  # noqa: BLE001 - the edge: Spark, processors and sinks raise many kinds
            try:
                export.probe(spark, row, views=Descriptors(row).views)
            except Exception as error:  # noqa: BLE001 - the same edge
                if not is_environment_error(error):
                    return Permanent("PROCESSOR", describe_error(error))
            return Transient(type(failure).__name__, describe_error(failure))
    return Delivered()


def _sealed(place: str, bundle: Bundle) -> pa.Table:
    """Seal *bundle* as the only one of a store at *place*; return its descriptor."""
    from quiver.spark.exporters.retry_queue import descriptor_of  # noqa: PLC0415 - an extra

    with open_store(place, adapter=bundle.adapter, background=False) as store:
        store.register(_HOLDER, start="earliest")
        store.activate()
        store.ingest(Bundle(dict(bundle.batches), adapter=bundle.adapter))
        store.seal()
    (info,) = find_segments(REAL_FILES, place).infos
    return descriptor_of(place, BundleRef(info.seq, 0), bundle)
