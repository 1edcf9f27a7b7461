"""
The Spark process: one driver, and a streaming query for each exporter.

It reads the files of the store while the ingest process has it open, and needs nothing else from that process. If the
query of an exporter fails, only that query is restarted, with backoff. On a stop, sealed data is still written within a
deadline, in the order of the flow: a reader of a buffer continues until the writers of that buffer have ended.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.exporter_stats import ExporterStats
from quiver.errors import DeliveryHaltedError, QuiverError, UsageError
from quiver.observe import InMemoryObserver
from quiver.pipeline.counts import CountsWritten
from quiver.pipeline.processes.child import SPARK_READY, ChildContext, child_main, reload_log_level, write_ready
from quiver.pipeline.queries import QueryPlan, RunningQuery, plan_queries, spark_settings, start_query
from quiver.pipeline.replay import QueryReplay
from quiver.primitives.disk.real_files import REAL_FILES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quiver.observe import Observer

__all__ = ["export"]

LOOK_S = 0.25
STARTS_AT_ONCE = 2
"""Spark gives the Python process of a new query 10 s to start. On a slow machine, a dozen that start together
would delay each other until all of them fail, again and again."""
STARTING_S = 15.0
"""A query that takes longer to start hangs for another reason, and no longer delays the others."""
STOP_S = 10.0
CLOSE_S = 6.0
HEALTHY_S = 30.0
TRIGGER_AWAITED_S = 5.0
"""On a stop, a query with a longer trigger interval is not waited for; it runs one more batch instead."""

_log = logging.getLogger("quiver.pipeline")


class _Export:
    """One exporter and its query, which may be waiting for a restart."""

    def __init__(self, spark: SparkSession, plan: QueryPlan, observer: Observer | None = None) -> None:
        self.name = plan.name
        self._observer = observer
        self.stats = ExporterStats(plan.name, observer, roots=plan.stores)
        self._spark = spark
        self._plan = plan
        self._running: RunningQuery | None = None
        self._backoff = plan.route.config.policy().backoff
        self._delays = self._new_delays()
        self._started_at = 0.0
        self._start_at = SYSTEM_CLOCK.monotonic()
        self._is_halted = False
        self._is_up = False
        self._replay: QueryReplay | None = None
        self.is_drained = threading.Event()
        self.before: list[_Export] = []
        """The exporters that write to the buffer that this one reads."""

    def _new_delays(self) -> Iterator[float]:
        return self._backoff.delays(Random())  # noqa: S311 - jitter, not a secret

    @property
    def is_starting(self) -> bool:
        """Whether the Python process of its query has not started yet."""
        if self._running is None or self._is_up or SYSTEM_CLOCK.monotonic() >= self._started_at + STARTING_S:
            return False
        query = self._running.query
        self._is_up = query.isActive and not query.status["message"].startswith("Initializing")
        return query.isActive and not self._is_up

    def look(self, *, may_start: bool = True) -> None:
        """
        Start the query if it is due and *may_start* allows it; clean up after a query that has died. Leave a halted
        exporter alone.
        """
        now = SYSTEM_CLOCK.monotonic()
        if self._is_halted:
            return
        if self._running is not None and not self._running.query.isActive:
            error = self._running.query.exception()
            self._bury()
            if DeliveryHaltedError.__name__ in str(error):
                self._halt(error)
                return
            self._start_again_later(now, error)
        elif self._running is not None and self._running.bundle_filter.failed is not None:
            failed = self._running.bundle_filter.failed
            self.stop()
            self._start_again_later(now, failed)
        elif self._running is not None and self._running.bundle_filter.halted is not None:
            halted = self._running.bundle_filter.halted
            self.stop()
            self._halt(halted)
            return
        if may_start and self._running is None and now >= self._start_at:
            try:
                self._start(now)
            except Exception as problem:  # noqa: BLE001 - the edge: Spark and a user's processor raise many kinds
                # An exporter that cannot start does not stop the others.
                delay_s = next(self._delays)
                self._start_at = now + delay_s
                self._failed(problem)
                _log.error("%s cannot start, retries in %.1f s: %s", self.name, delay_s, _in_short(problem))
                _log.info("%s, in full: %s", self.name, problem)

    def _start_again_later(self, now: float, error: object) -> None:
        if now - self._started_at >= HEALTHY_S:
            self._delays = self._new_delays()
        delay_s = next(self._delays)
        self._failed(error)
        _log.error("%s failed, starts again in %.1f s: %s", self.name, delay_s, _in_short(error))
        _log.info("%s, in full: %s", self.name, error)
        self._start_at = now + delay_s

    def _failed(self, error: object) -> None:
        from quiver.spark.exporters.exported import failure_type  # noqa: PLC0415 - an extra

        text = _in_short(error)
        self.stats.failed(failure_type(text), text)

    def save_report(self, *, is_last: bool = False) -> None:
        """Write the report of the last attempts, if it is due."""
        # A full disk delays the report; no exporter need stop for that.
        with contextlib.suppress(OSError):
            self.stats.save(is_last=is_last)

    def _halt(self, why: object) -> None:
        # The policy asks for it: another start would fail on the same bundle.
        self._is_halted = True
        _log.error("%s halted until the pipeline is restarted: %s", self.name, why)

    def _bury(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _start(self, now: float) -> None:
        self._running = start_query(self._spark, self._plan, self._observer, stats=self.stats)
        self._is_up = False
        self._started_at = now
        self._replay_dead_letters()
        _log.info("%s runs: %s → %s", self.name, self._plan.store_path, self._plan.route.config.destination)

    def _replay_dead_letters(self) -> None:
        config = self._plan.route.config
        is_wanted = config.policy().on_exhausted == "dead_letter" and config.dead_letter_policy().replay == "auto"
        if is_wanted and self._replay is None:
            observer = self._observer or InMemoryObserver()
            try:
                self._replay = QueryReplay(self._spark, self._plan, self._works, observer, stats=self.stats)
            except Exception as problem:  # noqa: BLE001 - the edge: the query runs, and must not be started twice
                _log.error("%s replays no dead letters: %s", self.name, _in_short(problem))

    def _works(self) -> bool:
        """Return whether the query is running, and neither starting nor failing."""
        running = self._running
        return running is not None and self._is_up and not self._is_halted and running.query.isActive

    def _stop_replay(self) -> None:
        if self._replay is not None:
            self._replay.stop()

    def leads_to(self, other: _Export) -> bool:
        """Return whether it writes to the buffer that *other* reads."""
        route = self._plan.route
        return route.into is not None and str(Path(route.config.destination).absolute()) == other._plan.store_path

    def drain(self, deadline: float) -> None:
        """
        Wait until all data sealed by now is written, and all that others write to its buffer meanwhile. Return early if
        the query fails, and at about *deadline*.
        """
        self._stop_replay()
        try:
            for one in self.before:
                one.is_drained.wait(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
            if self._running is not None and self._running.query.isActive:
                self._take_all(self._running, deadline)
            if self._plan.route.into is not None:
                _await_taken_over(self._plan.route.config.destination, deadline)
        except Exception as error:  # noqa: BLE001 - the edge: Spark raises many kinds, and unwritten data stays in the store
            _log.warning("%s was not drained: %s", self.name, error)
        finally:
            self.is_drained.set()

    def _take_all(self, running: RunningQuery, deadline: float) -> None:
        if getattr(self._plan.route.config, "trigger", 0.0) <= TRIGGER_AWAITED_S:
            running.query.processAllAvailable()
            return
        # Spark sleeps until the next trigger, which may be hours away, and cannot be woken.
        self.stop(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
        self._running = start_query(self._spark, self._plan, self._observer, stats=self.stats, once=True)
        self._running.query.awaitTermination(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))

    def stop(self, timeout: float = STOP_S) -> None:
        """Stop the query between two batches if one ends within *timeout* seconds, otherwise interrupt it."""
        from quiver.spark.bundle_query import stop_query  # noqa: PLC0415 - an extra

        self._stop_replay()
        if self._running is not None:
            try:
                stop_query(self._running.query, timeout=timeout)
            except Exception as error:  # noqa: BLE001 - the edge: Spark raises many kinds, also when it ends meanwhile
                _log.info("%s was cut short: %s", self.name, error)
        self._bury()


def linked(exports: list[_Export]) -> list[_Export]:
    """Return *exports*, each linked to the exporters that write to the buffer that it reads."""
    for one in exports:
        one.before = [other for other in exports if other.leads_to(one)]
    return exports


def look_at_all(exports: Sequence[_Export]) -> None:
    """Poll each of *exports*. Limit the number of queries that start at the same time; the others wait."""
    starting = sum(one.is_starting for one in exports)
    for one in exports:
        was_starting = one.is_starting
        one.look(may_start=starting < STARTS_AT_ONCE)
        starting += one.is_starting - was_starting


def _in_short(error: Any) -> str:
    from quiver.spark.exporters.spark_errors import describe_error  # noqa: PLC0415 - an extra

    return describe_error(error)


def export(context: ChildContext) -> None:
    """
    Run every exporter's query until asked to stop.

    Raises:
        UsageError: no Java was found, the installed PySpark is too old, or a jar is missing.
        QuiverError: Spark does not start, or has ended; a restart starts it again.
        OSError: Spark's temporary directory was deleted; a restart creates a new one.
    """
    from quiver.spark.java import find_java_home  # noqa: PLC0415 - an extra
    from quiver.spark.spark_features import EXPORTERS, require  # noqa: PLC0415
    from quiver.spark.spark_session import has_stopped, session  # noqa: PLC0415

    require(EXPORTERS)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # A failure of a batch is logged once, with its exporter.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    pipeline = context.pipeline
    pipeline.spark.check_files()
    plans = plan_queries(pipeline, context.run_dir, cores=context.cores)
    try:
        find_java_home()
    except QuiverError as error:
        raise UsageError(str(error)) from error
    name = f"quiver {Path(pipeline.source).name}"
    spark = session(app_name=name, config=spark_settings(pipeline), temp_dir=context.temp_dir)
    context.watchdog.hear_signals()
    if not _await_registration(context, plans):
        spark.stop()
        return
    counts = CountsWritten(context.run_dir, os.getpid())
    exports = linked([_Export(spark, plan, counts.observer) for plan in plans])
    look_at_all(exports)
    write_ready(context.run_dir, SPARK_READY, {"exporters": [one.name for one in exports]})
    # A configuration may list several; Spark leaves out those that it could not create.
    temp_dirs = [place for place in map(Path, (spark.conf.get("spark.local.dir") or "/").split(",")) if place.exists()]
    while not context.watchdog.wait(LOOK_S):
        if context.watchdog.reload_requested():
            reload_log_level(context)
        for temp_dir in temp_dirs:
            if not temp_dir.exists():
                # Another program cleaned up temporary files. Spark could start nothing any more.
                raise FileNotFoundError(errno.ENOENT, "Spark's temporary directory was deleted", str(temp_dir))
        if has_stopped(spark):
            # The cluster ended the application. Its queries could only fail; a new process gets a new application.
            raise QuiverError("Spark has ended the application of this pipeline: see the log of the cluster's master")
        look_at_all(exports)
        _write(counts)
        for one in exports:
            one.save_report()
    for one in exports:
        one.look()  # an exporter that was waiting to start has data to write, too
    drain_s = context.watchdog.left_s(context.drain_s)
    _log.info("stopping: writing sealed data for at most %.0f s", drain_s)
    _drain(exports, drain_s)
    _at_once("stop", exports, _Export.stop, STOP_S + CLOSE_S)
    _write(counts)
    for one in exports:
        one.save_report(is_last=True)
    spark.stop()
    _log.info("stopped")


def _write(counts: CountsWritten) -> None:
    # A full disk delays the metrics; no exporter need stop for that.
    with contextlib.suppress(OSError):
        counts.write()


def _await_registration(context: ChildContext, plans: Sequence[QueryPlan]) -> bool:
    """Wait until the ingest process has registered the exporter of every query; return False if asked to stop first."""
    waiting = [path for plan in plans for path in plan.registrations]
    while waiting:
        waiting = [path for path in waiting if not os.path.exists(path)]  # noqa: PTH110
        if waiting and context.watchdog.wait(LOOK_S):
            return False
    return True


def _drain(exports: list[_Export], drain_s: float) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + drain_s
    for one in _at_once("drain", exports, lambda one: one.drain(deadline), drain_s):
        _log.warning("%s still had data to write; it continues at the next start", one.name)


def _await_taken_over(path: str, deadline: float) -> None:
    """Wait until the store at *path* has imported all committed batches."""
    from quiver.spark.store.sink_stage import sink_root  # noqa: PLC0415 - an extra
    from quiver.store.staged_import import awaits_import  # noqa: PLC0415

    pause = threading.Event()
    root = sink_root(REAL_FILES, path)
    while awaits_import(REAL_FILES, root) and SYSTEM_CLOCK.monotonic() < deadline:
        pause.wait(LOOK_S)


def _at_once(what: str, exports: list[_Export], do: Callable[[_Export], None], most_s: float) -> list[_Export]:
    """Call *do* for all exports concurrently; return those for which it took longer than *most_s* seconds."""
    deadline = SYSTEM_CLOCK.monotonic() + most_s
    threads = [threading.Thread(target=do, args=(one,), name=f"{what}-{one.name}", daemon=True) for one in exports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
    return [one for one, thread in zip(exports, threads, strict=True) if thread.is_alive()]


if __name__ == "__main__":
    sys.exit(child_main(export))
