"""
A background thread: named, woken or on an interval, stopped in order, and never dead silently.

Every owner defines what happens when its thread dies of an unexpected error. A log then refuses all further
work: data that is accepted and never synced is worse than an error.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from enum import Enum
from typing import Final

from quiver.clock import Clock
from quiver.observe import Observer

__all__ = ["FINISHED", "Finished", "Work", "Worker", "WorkerDiedError"]


class Finished(Enum):
    """The type of `FINISHED`."""

    FINISHED = "finished"


FINISHED: Final = Finished.FINISHED
"""Returned by work that is complete: the thread ends."""


class WorkerDiedError(Exception):
    """A background thread was ended by an unexpected error, which is the cause of this one."""


Work = Callable[[], float | Finished | None]
"""One turn. Returns the seconds until the next turn is due, None for the worker's interval, or `FINISHED`."""


class Worker:
    """
    Calls *work*, turn after turn, in a daemon thread between `start` and `stop`. Without `start` the owner calls it.

    A daemon thread, because a program that forgets to close must still be able to end: no work may rely on finishing.

    Args:
        name: of the thread; events and metrics use the part before the first space.
        work: one turn. It handles the errors that it expects; any other error ends the thread.
        every: seconds between turns, and before the first one. None: only when woken. 0: work waits by itself during
            its turn, and ends with `FINISHED`.
        on_death: called in the ending thread, with the reason. The owner must fail loudly from then on.
        clock, observer: the clock, and the receiver of the count and report of the death.

    Attributes:
        died: why the thread ended; None while it is alive, and after a regular end.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        every: float | None,
        on_death: Callable[[WorkerDiedError], object],
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.name = name
        self.died: WorkerDiedError | None = None
        self._work = work
        self._every = math.inf if every is None else every
        self._on_death = on_death
        self._clock = clock
        self._observer = observer
        self._condition = threading.Condition()
        self._due_s = math.inf
        self._stopping = False
        self._thread: threading.Thread | None = None

    # ── for the owner ────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the thread. Does nothing if it was started before, or after `stop`."""
        with self._condition:
            if self._thread is not None or self._stopping:
                return
            self._schedule(self._every)
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def wake(self, after_s: float = 0.0) -> None:
        """
        Start the next turn in *after_s* seconds, unless it is due earlier. A turn that is running now
        does not count.
        """
        with self._condition:
            self._schedule(after_s)
            self._condition.notify_all()

    def stop(self, timeout: float | None = None) -> bool:
        """
        Start no further turn, and wait at most *timeout* seconds for the running one; return whether it has ended.

        Idempotent. When called within a turn, it does not wait.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        return self.join(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds until the thread has ended; return whether it has."""
        thread = self._thread
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout)
        return not thread.is_alive()

    @property
    def is_started(self) -> bool:
        """Whether there is a thread, dead or alive."""
        return self._thread is not None

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def run_once(self) -> float | Finished | None:
        """Run one turn in the calling thread, which gets its errors: for owners without a thread, and for tests."""
        return self._work()

    # ── for the work ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def pause(self, timeout: float) -> bool:
        """Wait within a turn; return whether `stop` was called before or meanwhile."""
        with self._condition:
            if not self._stopping:
                self._clock.wait(self._condition, timeout)
            return self._stopping

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while self._wait_for_turn():
                delay_s = self._work()
                if isinstance(delay_s, Finished):
                    return
                with self._condition:
                    self._schedule(self._every if delay_s is None else delay_s)
        except BaseException as error:
            died = WorkerDiedError(f"the thread {self.name} ended by {type(error).__name__}: {error}")
            died.__cause__ = error
            self.died = died
            try:
                self._on_death(died)
            finally:
                self._report(died)
            raise  # to `threading.excepthook`, which prints the traceback

    def _schedule(self, after_s: float) -> None:
        self._due_s = min(self._due_s, self._clock.monotonic() + after_s)

    def _wait_for_turn(self) -> bool:
        with self._condition:
            while not self._stopping and (left_s := self._due_s - self._clock.monotonic()) > 0:
                self._clock.wait(self._condition, None if math.isinf(left_s) else left_s)
            self._due_s = math.inf  # before the turn starts: a wake-up from now on requests another one
            return not self._stopping

    def _report(self, died: WorkerDiedError) -> None:
        kind = self.name.partition(" ")[0]  # without the path of the log: a metric has few values of an attribute
        self._observer.count("quiver.worker.deaths_total", worker=kind)
        self._observer.event("quiver.worker.died", level=logging.ERROR, worker=self.name, problem=str(died))
