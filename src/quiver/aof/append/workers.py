"""
The threads of a manager, shared by all its logs: some flush, one does upkeep, one moves segments between tiers, one
appends what Spark sinks committed, one tells how the logs do. Bounded by the number of logs.

A log is noted at most once for each kind of work, so asking again costs nothing. Without threads the same work is done
by `run_pending`, in the caller.
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

__all__ = ["Worked", "Workers", "WorkersAsked"]


_WAITED_FOR = ("flush", "upkeep", "sinks")
"""What producers wait for."""

_AGAIN_S = 5.0


class Worked(Protocol):
    """What the threads do for a log."""

    name: str

    def run_flush(self) -> None:
        """Make durable what is written."""

    def run_maintenance(self) -> None:
        """Seal, make spares, retire."""

    def run_tiers(self) -> None:
        """Pack, upload, evict."""

    def run_sinks(self) -> None:
        """Append what sinks committed."""

    def run_status(self) -> None:
        """Tell those beside the process how the log does."""

    def fail(self, reason: str) -> StoreFailedError:
        """Refuse everything from now on."""


class _Lane:
    """Logs and when their turn is; threads that take them one by one, none twice at once."""

    def __init__(self, clock: Clock, work: Callable[[Worked], None]) -> None:
        self._clock = clock
        self._work = work
        self._changed = threading.Condition()
        self._due: dict[Worked, float] = {}
        self._running: set[Worked] = set()
        self._stopping = False

    def ask(self, log: Worked, due_s: float) -> None:
        with self._changed:
            if due_s < self._due.get(log, float("inf")):
                self._due[log] = due_s
                self._changed.notify()

    def forget(self, log: Worked) -> None:
        """Take *log* off, and return when nobody works on it any more."""
        with self._changed:
            self._due.pop(log, None)
            while log in self._running:
                self._clock.wait(self._changed, None)
                self._due.pop(log, None)  # what ran may have asked for itself again

    def take(self) -> Worked | None:
        """Return a log whose turn is now, without waiting."""
        with self._changed:
            ready = [(due, log) for log, due in self._due.items() if log not in self._running]
            first = min(ready, key=lambda one: one[0], default=None)
            if first is None or first[0] > self._clock.monotonic():
                return None
            del self._due[first[1]]
            self._running.add(first[1])
            return first[1]

    def do(self, log: Worked) -> None:
        try:
            self._work(log)
        finally:
            with self._changed:
                self._running.discard(log)
                self._changed.notify_all()

    def turn(self) -> Finished | None:
        """Do what is due, or wait for it: one turn of a thread."""
        log = self.take()
        if log is not None:
            self.do(log)
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
    Threads that flush and threads that do upkeep, for all logs that ask.

    Args:
        flush_threads: how many logs are flushed at the same time; 0 starts no thread at all.
    """

    def __init__(self, name: str, *, clock: Clock, observer: Observer, flush_threads: int) -> None:
        self.threaded = flush_threads > 0
        self._clock = clock
        self._observer = observer
        self._flush = _Lane(clock, self._guarded("flush"))
        self._upkeep = _Lane(clock, self._guarded("upkeep"))
        self._tiers = _Lane(clock, self._guarded("tiers"))
        self._sinks = _Lane(clock, self._guarded("sinks"))
        self._status = _Lane(clock, self._guarded("status"))
        self._lanes = (self._flush, self._upkeep, self._tiers, self._sinks, self._status)
        self._logs: set[Worked] = set()
        self._logs_guard = threading.Lock()
        self._died: WorkerDiedError | None = None
        self._threads = [self._worker(f"aof-flush {name} {number}", self._flush) for number in range(flush_threads)]
        if self.threaded:
            self._threads.append(self._worker(f"aof-upkeep {name}", self._upkeep))
            # Apart from upkeep: a producer waits for a seal, and never for a network.
            self._threads.append(self._worker(f"aof-tiers {name}", self._tiers))
            # Apart from all others: it is a producer, which waits for any of them.
            self._threads.append(self._worker(f"aof-sinks {name}", self._sinks))
            # Apart from all others: it tells of them while they stand still.
            self._threads.append(self._worker(f"aof-status {name}", self._status))

    def _worker(self, name: str, lane: _Lane) -> Worker:
        return Worker(name, lane.turn, every=0.0, on_death=self._fail, clock=self._clock, observer=self._observer)

    def _fail(self, died: WorkerDiedError) -> None:
        """
        Let every log refuse. What goes wrong with one log is survived: this is the end of a thread
        that all share.
        """
        with self._logs_guard:
            self._died = died
            logs = list(self._logs)
        for log in logs:
            log.fail(str(died))

    def _guarded(self, kind: str) -> Callable[[Worked], None]:
        def work(log: Worked) -> None:
            try:
                work_of = {
                    "flush": log.run_flush, "upkeep": log.run_maintenance, "tiers": log.run_tiers,
                    "sinks": log.run_sinks, "status": log.run_status,
                }  # fmt: skip
                work_of[kind]()
            except (QuiverError, OSError) as error:
                # The log knows and refuses whoever comes next; this thread has nobody to tell.
                self._observer.event(f"aof.{kind}", level=logging.ERROR, log=log.name, problem=str(error))

        def survived(log: Worked) -> None:
            try:
                work(log)
            except Exception as error:  # noqa: BLE001 - an observer's, an object store's, or a mistake of ours
                # Nobody knows what was left half done, and nobody may wait for ever for a thread that is gone: the log
                # refuses whoever comes next, and the others go on. Tiers and status are not what appends wait for, and
                # are tried again: else nothing would be uploaded before the next segment is sealed.
                problem = f"in the thread for {kind}: {error!r}"
                with contextlib.suppress(Exception):  # the observer may be what failed
                    if kind in _WAITED_FOR:
                        log.fail(problem)
                    else:
                        if kind == "tiers":
                            self.ask_tiers(log, _AGAIN_S)
                        self._observer.event(f"aof.{kind}", level=logging.ERROR, log=log.name, problem=problem)

        # A caller who does the work by hand is told what happened.
        return survived if self.threaded else work

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def add(self, log: Worked, *, sinks_after_s: float, status_after_s: float) -> None:
        """Begin to work for *log*, until `forget`. When a thread dies it refuses: at once when one has died already."""
        with self._logs_guard:
            self._logs.add(log)
            died = self._died
        if died is not None:
            log.fail(str(died))
        self.ask_sinks(log, sinks_after_s)
        self.ask_status(log, status_after_s)

    def ask_flush(self, log: Worked, after_s: float) -> None:
        """Flush *log* when *after_s* seconds have passed, or earlier if that was asked for."""
        self._flush.ask(log, self._clock.monotonic() + after_s)

    def ask_upkeep(self, log: Worked, after_s: float = 0.0) -> None:
        """Do the upkeep of *log* when *after_s* seconds have passed, or earlier if that was asked for."""
        self._upkeep.ask(log, self._clock.monotonic() + after_s)

    def ask_tiers(self, log: Worked, after_s: float = 0.0) -> None:
        """
        Move the segments of *log* between tiers when *after_s* seconds have passed, or earlier if that was asked
        for.
        """
        self._tiers.ask(log, self._clock.monotonic() + after_s)

    def ask_sinks(self, log: Worked, after_s: float = 0.0) -> None:
        """Append what sinks committed to *log* when *after_s* seconds have passed, or earlier if that was asked for."""
        self._sinks.ask(log, self._clock.monotonic() + after_s)

    def ask_status(self, log: Worked, after_s: float) -> None:
        """Tell how *log* does when *after_s* seconds have passed; never, when there are no threads."""
        if self.threaded:
            self._status.ask(log, self._clock.monotonic() + after_s)

    def run_pending(self) -> None:
        """Do in this thread what is due now. For managers without threads; beside them it only helps."""
        for lane in self._lanes:
            done: set[int] = set()
            while (log := lane.take()) is not None:
                lane.do(log)
                if id(log) in done:
                    break
                done.add(id(log))

    def forget(self, log: Worked) -> None:
        """Do nothing more for *log*; on return nobody works on it."""
        for lane in self._lanes:
            lane.forget(log)
        with self._logs_guard:
            self._logs.discard(log)

    def stop(self) -> None:
        """End the threads and wait for them. Idempotent."""
        for lane in self._lanes:
            lane.stop()
        for thread in self._threads:
            thread.stop()


class Flushed(Worked, Protocol):
    """A log that counts its flushes."""

    flush_metrics: FlushMetrics


class WorkersAsked:
    """
    What the tail of *log* asks for, as the manager's threads are asked.

    Args:
        interval_s: how long data may wait for its flush; 0: for ever.
    """

    def __init__(self, log: Flushed, workers: Workers, observer: Observer, interval_s: float) -> None:
        self._log = log
        self._workers = workers
        self._observer = observer
        self._interval_s = interval_s

    def flush(self, *, now: bool) -> None:
        """Flush at once, or when the flush interval has passed."""
        if now:
            self._log.flush_metrics.scheduled_watermark += 1
            self._workers.ask_flush(self._log, 0.0)
        elif self._interval_s:
            self._log.flush_metrics.scheduled_interval += 1
            self._workers.ask_flush(self._log, self._interval_s)

    def upkeep(self) -> None:
        """Seal what waits, and make spares."""
        self._workers.ask_upkeep(self._log)

    def took(self, seconds: float) -> None:
        """Take note how long one append took that was looked at."""
        self._observer.record("aof_append_latency_seconds", seconds)
