"""
The two threads of an open store: one syncs the log and writes zeros ahead of it, one runs maintenance.

There are two because they must not wait for each other: writing a segment can take longer than the flush interval, and
a power loss in that time may cost no more than the interval. With ``background=False`` the caller does the same work
by calling `maintain()`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from quiver.clock import Clock
from quiver.errors import InvariantError, QuiverError, StoreClosedError, StoreFailedError
from quiver.observe import Observer
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError

__all__ = ["Background"]


class Background:
    """
    Runs *flush* an interval after `mark_dirty`, *fill* after `ask_zeros`, and *maintain* each interval or when woken.

    After *maintain*, *rest_s* may return a longer time: nothing is to be done meanwhile unless `end_rest` is called.
    Without a log *flush* is None, and `mark_dirty` and `ask_zeros` are not called. *on_death* is called when a thread
    died: callers depend on its work, so the store must refuse theirs.
    """

    def __init__(
        self,
        *,
        name: str,
        flush: Callable[[], None] | None,
        fill: Callable[[], None],
        maintain: Callable[[], object],
        rest_s: Callable[[], float | None] = lambda: None,
        flush_interval_s: float,
        maintain_interval_s: float,
        on_death: Callable[[WorkerDiedError], object],
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._flush: Callable[[], None] = flush or (lambda: None)
        self._fill = fill
        self._maintain = maintain
        self._rest_s = rest_s
        self._maintain_interval_s = maintain_interval_s
        self._is_resting = False
        self._flush_interval_s = flush_interval_s
        self._clock = clock
        self._observer = observer
        self._marks = threading.Lock()
        self._zeros_wanted = False
        self._flush_due_s = 0.0
        self.dirty = False
        # Daemons: a program that forgets to close must still be able to end; what it ingested is in the log.
        self._maintainer = Worker(
            f"quiver-maintain {name}", self._maintain_turn, every=maintain_interval_s, on_death=on_death, clock=clock,
            observer=observer,
        )  # fmt: skip
        self._workers = [self._maintainer]
        self._log = Worker(
            f"quiver-log {name}", self._log_turn, every=None, on_death=on_death, clock=clock, observer=observer
        )
        if flush is not None:
            self._workers.append(self._log)

    def start(self) -> None:
        """Start the threads."""
        for worker in self._workers:
            worker.start()

    def mark_dirty(self) -> None:
        """Request a flush within the interval. Called once per interval, not once per bundle."""
        with self._marks:
            self.dirty = True
            self._flush_due_s = self._clock.monotonic() + self._flush_interval_s
        self._log.wake(self._flush_interval_s)

    def ask_zeros(self) -> None:
        """Request zeros ahead of the tail of the log, so that the next syncs are cheaper."""
        with self._marks:
            self._zeros_wanted = True
        self._log.wake()

    def wake(self) -> None:
        """Request a maintenance pass now."""
        self._maintainer.wake()

    def end_rest(self) -> None:
        """Request a maintenance pass within the interval. Call it after each change that the pass must find."""
        if self._is_resting:
            self._is_resting = False
            self._maintainer.wake(self._maintain_interval_s)

    def stop(self) -> None:
        """Stop both threads and wait for them. Idempotent."""
        for worker in self._workers:
            worker.stop()

    def _log_turn(self) -> float | Finished | None:
        with self._marks:
            wants_zeros, self._zeros_wanted = self._zeros_wanted, False
        if wants_zeros and not self._run(self._fill, "quiver.wal.fill"):
            return FINISHED
        with self._marks:
            left_s = self._flush_due_s - self._clock.monotonic()
            if not self.dirty or left_s > 0:
                return left_s if self.dirty else None
            # Reset before the flush reads the end of the log: later entries mark it again.
            self.dirty = False
        return None if self._run(self._flush, "quiver.wal.flush") else FINISHED

    def _maintain_turn(self) -> float | Finished | None:
        # Before the pass looks: a change that it does not find comes later, and ends the rest.
        self._is_resting = True
        if not self._run(self._maintain, "quiver.engine.tick"):
            return FINISHED
        rest_s = self._rest_s()
        if rest_s is not None and rest_s > self._maintain_interval_s:
            return rest_s
        self._is_resting = False
        return None

    def _run(self, work: Callable[[], object], event: str) -> bool:
        try:
            work()
        except StoreClosedError:
            return False
        except InvariantError:
            raise  # this thread ends, and the store refuses everything from now on
        except (QuiverError, OSError) as error:
            # The failure has poisoned the store, so the next caller gets the error. This thread can only report it.
            self._observer.event(event, level=logging.ERROR, problem=str(error))
            return not isinstance(error, StoreFailedError)
        return True
