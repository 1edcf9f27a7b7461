"""
The two threads of an open store: one tends the log (flush interval, zeros ahead), one seals and maintains.

They are two because they must not wait for each other: writing a segment can take longer than the flush
interval, and a power loss in that time may cost no more than the interval. Whoever opens a store with
``background=False`` drives the same work by hand through `maintain()`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from quiver.clock import Clock
from quiver.errors import QuiverError, StoreClosed, StoreFailed
from quiver.observe import Observer

__all__ = ["Background"]


class Background:
    """
    Runs *flush* an interval after `mark_dirty`, *fill* after `ask_zeros`, and *maintain* each tick or when woken.

    Without a log *flush* is None, and nobody marks or asks. A thread that ends by an error that nobody foresaw calls
    *on_death* with it first: whoever waits for its work must be told.
    """

    def __init__(
        self,
        *,
        name: str,
        flush: Callable[[], None] | None,
        fill: Callable[[], None],
        maintain: Callable[[], object],
        flush_interval_s: float,
        maintain_interval_s: float,
        clock: Clock,
        observer: Observer,
        on_death: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._flush: Callable[[], None] = lambda: None
        self._fill = fill
        self._maintain = maintain
        self._on_death = on_death
        self._flush_interval_s = flush_interval_s
        self._maintain_interval_s = maintain_interval_s
        self._clock = clock
        self._observer = observer
        self._condition = threading.Condition()
        self._wanted = False
        self._stopping = False
        self._log_wake = threading.Condition()
        self._zeros_wanted = False
        self.dirty = False
        self._threads = [self._thread(self._run_maintain, f"quiver-maintain {name}")]
        if flush is not None:
            self._flush = flush
            self._threads.append(self._thread(self._run_log, f"quiver-log {name}"))

    def _thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        def until_told() -> None:
            try:
                run()
            except BaseException as error:
                self._on_death(error)
                raise

        # A daemon: a program that forgets to close must still be able to end; what it ingested is in the log.
        return threading.Thread(target=until_told, name=name, daemon=True)

    def start(self) -> None:
        """
        Start the threads.
        """
        for thread in self._threads:
            thread.start()

    def mark_dirty(self) -> None:
        """
        Say that something was logged and is not synced. Called once per interval, not once per bundle.
        """
        with self._log_wake:
            self.dirty = True
            self._log_wake.notify()

    def ask_zeros(self) -> None:
        """
        Ask for zeros ahead of the log's tail, so that the next syncs are cheaper.
        """
        with self._log_wake:
            self._zeros_wanted = True
            self._log_wake.notify()

    def wake(self) -> None:
        """
        Ask for a maintenance pass now.
        """
        with self._condition:
            self._wanted = True
            self._condition.notify()

    def stop(self) -> None:
        """
        Stop both threads and wait for them. Idempotent.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        with self._log_wake:
            self._log_wake.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _run_log(self) -> None:
        while True:
            with self._log_wake:
                while not (self.dirty or self._zeros_wanted or self._stopping):
                    self._clock.wait(self._log_wake, None)
                if self._stopping:
                    return
                if self._zeros_wanted:
                    self._zeros_wanted = False
                    work, event = self._fill, "quiver.wal.fill"
                else:
                    self._clock.wait(self._log_wake, self._flush_interval_s)
                    # Before the flush looks at how far the log is written: what comes later marks it again.
                    self.dirty = False
                    work, event = self._flush, "quiver.wal.flush"
            if not self._run(work, event):
                return

    def _run_maintain(self) -> None:
        while True:
            with self._condition:
                if not self._wanted and not self._stopping:
                    self._clock.wait(self._condition, self._maintain_interval_s)
                if self._stopping:
                    return
                self._wanted = False
            if not self._run(self._maintain, "quiver.engine.tick"):
                return

    def _run(self, work: Callable[[], object], event: str) -> bool:
        try:
            work()
        except StoreClosed:
            return False
        except (QuiverError, OSError) as error:
            # The store is poisoned by whatever raised; the next caller is told. This thread has nobody to tell.
            self._observer.event(event, level=logging.ERROR, problem=str(error))
            return not isinstance(error, StoreFailed)
        return True
