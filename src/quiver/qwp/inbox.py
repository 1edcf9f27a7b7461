"""
Delivery of errors to the caller's handler, which runs in its own thread and may be slow.

The inbox is bounded. When it is full, the oldest error is dropped: counters only grow, so the newest matters most.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable

from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.qwp.connection.session import Policy, SenderError

__all__ = ["ErrorHandler", "ErrorInbox"]

ErrorHandler = Callable[[SenderError], None]
_log = logging.getLogger("quiver.qwp")
_CLOSE_TIMEOUT_S = 1.0


def _log_error(error: SenderError) -> None:
    _log.log(logging.ERROR if error.applied_policy is Policy.HALT else logging.WARNING, "%s", error)


class ErrorInbox:
    """
    Accepts errors without blocking, and calls the handler with each.

    Args:
        handler: the caller's handler; None logs the errors.
        capacity: the maximum number of pending errors.
        clock: used to wait.
        observer: notified of dropped errors.
    """

    def __init__(self, handler: ErrorHandler | None, capacity: int, *, clock: Clock, observer: Observer) -> None:
        self._handler = handler
        self._capacity = capacity
        self._observer = observer
        self._changed = threading.Lock()
        self._waiting: deque[SenderError] = deque()
        self._closed = False
        self._worker = Worker(
            "quiver-qwp-errors", self._turn, every=None, on_death=self._fail, clock=clock, observer=observer
        )
        self.dropped = 0
        self.delivered = 0

    @property
    def has_notified_caller(self) -> bool:
        """Whether a handler of the caller has received an error."""
        return self._handler is not None and self.delivered > 0

    def offer(self, error: SenderError) -> None:
        """Add *error*. Returns immediately."""
        with self._changed:
            if self._closed or self._worker.died is not None:
                _log_error(error)
                return
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self.dropped += 1
                self._observer.count("quiver.qwp.errors_not_told_total")
            self._waiting.append(error)
        self._worker.start()
        self._worker.wake()

    def _turn(self) -> Finished | float:
        with self._changed:
            if not self._waiting:
                return FINISHED if self._closed else math.inf
            error = self._waiting.popleft()
        self._deliver(error)
        self._observer.count("quiver.qwp.errors_told_total")
        with self._changed:
            self.delivered += 1
        return 0.0

    def _fail(self, died: WorkerDiedError) -> None:
        """Log the pending errors, and every later one: the handler is no longer called."""
        with self._changed:
            waiting, self._waiting = self._waiting, deque()
        _log.error("the error handler is no longer called: %s", died)
        for error in waiting:
            _log_error(error)

    def _deliver(self, error: SenderError) -> None:
        if self._handler is None:
            _log_error(error)
            return
        try:
            self._handler(error)
        except Exception:  # noqa: BLE001
            # The caller's code: its exceptions must neither end the thread nor hide the error that it received.
            _log.exception("the error handler failed on: %s", error)

    def close(self) -> None:
        """Deliver the pending errors and end the thread. Does not wait longer than a second for a slow handler."""
        with self._changed:
            self._closed = True
        self._worker.wake()
        self._worker.join(_CLOSE_TIMEOUT_S)
