"""
The threads of a manager, shared by all its logs. Some flush, one does maintenance, one moves segments between tiers,
one imports what Spark sinks committed, one publishes the status of the logs.

Each queue holds a log at most once, so repeated requests cost nothing and memory is bounded by the number of logs.
Without threads `run_pending` does the same work in the caller's thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from quiver.aof.append.flush import FlushMetrics
from quiver.clock import Clock
from quiver.errors import QuiverError, StoreFailedError
from quiver.observe import Observer
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError

__all__ = ["MaintainedLog", "WorkerRequests", "Workers"]


_AWAITED = ("flush", "upkeep", "sinks")
"""The kinds of work that producers wait for."""

_RETRY_S = 5.0


class MaintainedLog(Protocol):
    """The work that the threads do for a log. `LogContext` implements it."""

    name: str

    def run_flush(self) -> None:
        """Sync what is written."""

    def run_maintenance(self) -> None:
        """Seal, make spares, retire old segments."""

    def run_tiers(self) -> None:
        """Pack, upload, evict."""

    def run_sinks(self) -> None:
        """Import what sinks committed."""

    def run_status(self) -> None:
        """Publish the status of the log."""

    def fail(self, reason: str) -> StoreFailedError:
        """Refuse every call from now on."""


class _WorkQueue:
    """Logs by due time. Threads take them one by one; no log is worked on twice at the same time."""

    def __init__(self, clock: Clock, work: Callable[[MaintainedLog], None]) -> None:
        self._clock = clock
        self._work = work
        self._changed = threading.Condition()
        self._due: dict[MaintainedLog, float] = {}
        self._running: set[MaintainedLog] = set()
        self._stopping = False

    def schedule(self, log: MaintainedLog, due_s: float) -> None:
        with self._changed:
            if due_s < self._due.get(log, float("inf")):
                self._due[log] = due_s
                self._changed.notify()

    def forget(self, log: MaintainedLog) -> None:
        """Remove *log*, and return when no thread works on it."""
        with self._changed:
            self._due.pop(log, None)
            while log in self._running:
                self._clock.wait(self._changed, None)
                self._due.pop(log, None)  # the work that ran may have scheduled itself again

    def take(self) -> MaintainedLog | None:
        """Return a log that is due, without waiting; None when none is."""
        with self._changed:
            ready = [(due, log) for log, due in self._due.items() if log not in self._running]
            first = min(ready, key=lambda one: one[0], default=None)
            if first is None or first[0] > self._clock.monotonic():
                return None
            del self._due[first[1]]
            self._running.add(first[1])
            return first[1]

    def work(self, log: MaintainedLog) -> None:
        try:
            self._work(log)
        finally:
            with self._changed:
                self._running.discard(log)
                self._changed.notify_all()

    def run_once(self) -> Finished | None:
        """Work on a log that is due, or wait for one: one iteration of a thread."""
        log = self.take()
        if log is not None:
            self.work(log)
            return None
        with self._changed:
            if self._stopping:
                return FINISHED
            dues = [due for waiting, due in self._due.items() if waiting not in self._running]
            left = min(dues) - self._clock.monotonic() if dues else None
            if left is None or left > 0:
                self._clock.wait(self._changed, left)
        return None

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()


class Workers:
    """
    The threads that work for all logs of a manager.

    Args:
        flush_threads: how many logs are flushed at the same time; 0 starts no threads at all.
    """

    def __init__(self, name: str, *, clock: Clock, observer: Observer, flush_threads: int) -> None:
        self.threaded = flush_threads > 0
        self._clock = clock
        self._observer = observer
        self._flush = _WorkQueue(clock, self._guarded("flush"))
        self._maintenance = _WorkQueue(clock, self._guarded("upkeep"))
        self._tiers = _WorkQueue(clock, self._guarded("tiers"))
        self._sinks = _WorkQueue(clock, self._guarded("sinks"))
        self._status = _WorkQueue(clock, self._guarded("status"))
        self._queues = (self._flush, self._maintenance, self._tiers, self._sinks, self._status)
        self._logs: set[MaintainedLog] = set()
        self._logs_guard = threading.Lock()
        self._died: WorkerDiedError | None = None
        self._threads = [self._worker(f"aof-flush {name} {number}", self._flush) for number in range(flush_threads)]
        if self.threaded:
            self._threads.append(self._worker(f"aof-maintenance {name}", self._maintenance))
            # A thread separate from maintenance: producers wait for a seal, but must never wait for a network.
            self._threads.append(self._worker(f"aof-tiers {name}", self._tiers))
            # A thread separate from all others: the import is a producer, which waits for any of them.
            self._threads.append(self._worker(f"aof-sinks {name}", self._sinks))
            # A thread separate from all others: it publishes their state even while they block.
            self._threads.append(self._worker(f"aof-status {name}", self._status))

    def _worker(self, name: str, queue: _WorkQueue) -> Worker:
        return Worker(name, queue.run_once, every=0.0, on_death=self._fail, clock=self._clock, observer=self._observer)

    def _fail(self, died: WorkerDiedError) -> None:
        """Make every log refuse its calls: a shared thread has ended. An error of one log does not end a thread."""
        with self._logs_guard:
            self._died = died
            logs = list(self._logs)
        for log in logs:
            log.fail(str(died))

    def _guarded(self, kind: str) -> Callable[[MaintainedLog], None]:
        def work(log: MaintainedLog) -> None:
            try:
                work_of = {
                    "flush": log.run_flush, "upkeep": log.run_maintenance, "tiers": log.run_tiers,
                    "sinks": log.run_sinks, "status": log.run_status,
                }  # fmt: skip
                work_of[kind]()
            except (QuiverError, OSError) as error:
                # The log knows and refuses the next call; this thread has no caller to raise to.
                self._observer.event(f"aof.{kind}", level=logging.ERROR, log=log.name, problem=str(error))

        def survived(log: MaintainedLog) -> None:
            try:
                work(log)
            except Exception as error:  # noqa: BLE001 - an observer's, an object store's, or a mistake of ours
                # Work may be half done, and no caller may wait for ever for a dead thread: the log refuses its next
                # call, and the other logs continue. Appends do not wait for tiers and status, so these are retried:
                # otherwise nothing would be uploaded before the next segment is sealed.
                problem = f"in the thread for {kind}: {error!r}"
                with contextlib.suppress(Exception):  # the observer may be what failed
                    if kind in _AWAITED:
                        log.fail(problem)
                    else:
                        if kind == "tiers":
                            self.schedule_tiers(log, _RETRY_S)
                        self._observer.event(f"aof.{kind}", level=logging.ERROR, log=log.name, problem=problem)

        # A caller that runs the work manually gets the error.
        return survived if self.threaded else work

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def add(self, log: MaintainedLog, *, sinks_after_s: float, status_after_s: float) -> None:
        """Work for *log* until `forget`. If a thread dies, or one has died already, the log refuses every call."""
        with self._logs_guard:
            self._logs.add(log)
            died = self._died
        if died is not None:
            log.fail(str(died))
        self.schedule_sinks(log, sinks_after_s)
        self.schedule_status(log, status_after_s)

    def schedule_flush(self, log: MaintainedLog, after_s: float) -> None:
        """Flush *log* in *after_s* seconds, or earlier if that is scheduled already."""
        self._flush.schedule(log, self._clock.monotonic() + after_s)

    def schedule_maintenance(self, log: MaintainedLog, after_s: float = 0.0) -> None:
        """Maintain *log* in *after_s* seconds, or earlier if that is scheduled already."""
        self._maintenance.schedule(log, self._clock.monotonic() + after_s)

    def schedule_tiers(self, log: MaintainedLog, after_s: float = 0.0) -> None:
        """Move the segments of *log* between tiers in *after_s* seconds, or earlier if that is scheduled already."""
        self._tiers.schedule(log, self._clock.monotonic() + after_s)

    def schedule_sinks(self, log: MaintainedLog, after_s: float = 0.0) -> None:
        """Import what sinks committed to *log* in *after_s* seconds, or earlier if that is scheduled already."""
        self._sinks.schedule(log, self._clock.monotonic() + after_s)

    def schedule_status(self, log: MaintainedLog, after_s: float) -> None:
        """Publish the status of *log* in *after_s* seconds; does nothing without threads."""
        if self.threaded:
            self._status.schedule(log, self._clock.monotonic() + after_s)

    def run_pending(self) -> None:
        """Do the work that is due now in this thread. For managers without threads; harmless in others."""
        for queue in self._queues:
            done: set[int] = set()
            while (log := queue.take()) is not None:
                queue.work(log)
                if id(log) in done:
                    break
                done.add(id(log))

    def forget(self, log: MaintainedLog) -> None:
        """Stop working for *log*; on return no thread works on it."""
        for queue in self._queues:
            queue.forget(log)
        with self._logs_guard:
            self._logs.discard(log)

    def stop(self) -> None:
        """End the threads and wait for them. Idempotent."""
        for queue in self._queues:
            queue.stop()
        for thread in self._threads:
            thread.stop()


class FlushedLog(MaintainedLog, Protocol):
    """A log that counts its flushes."""

    flush_metrics: FlushMetrics


class WorkerRequests:
    """
    Forwards the requests of a log's tail to the manager's threads.

    Args:
        interval_s: how long data may wait for its flush; 0 for no limit.
    """

    def __init__(self, log: FlushedLog, workers: Workers, observer: Observer, interval_s: float) -> None:
        self._log = log
        self._workers = workers
        self._observer = observer
        self._interval_s = interval_s

    def flush(self, *, now: bool) -> None:
        """Flush now, or when the flush interval has passed."""
        if now:
            self._log.flush_metrics.scheduled_watermark += 1
            self._workers.schedule_flush(self._log, 0.0)
        elif self._interval_s:
            self._log.flush_metrics.scheduled_interval += 1
            self._workers.schedule_flush(self._log, self._interval_s)

    def maintain(self) -> None:
        """Seal pending segments and make spares."""
        self._workers.schedule_maintenance(self._log)

    def record_latency(self, seconds: float) -> None:
        """Record the duration of a sampled append."""
        self._observer.record("aof_append_latency_seconds", seconds)
