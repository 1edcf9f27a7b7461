"""
Errors on their way to the caller's handler, which runs in a thread of its own and may take its time.

The inbox is bounded. When it is full the oldest error goes: numbers only grow, so the latest tells most.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from quiver.clock import Clock
from quiver.observe import Observer
from quiver.qwp.session import Policy, SenderError

__all__ = ["ErrorHandler", "ErrorInbox"]

ErrorHandler = Callable[[SenderError], None]
_log = logging.getLogger("quiver.qwp")
_LAST_WORDS_S = 1.0


def _log_error(error: SenderError) -> None:
    _log.log(logging.ERROR if error.applied_policy is Policy.HALT else logging.WARNING, "%s", error)


class ErrorInbox:
    """
    Takes errors without ever waiting, and calls the handler with each.

    Args:
        handler: the caller's; None logs them.
        capacity: how many may wait.
        clock: waits.
        observer: is told what was lost.
    """

    def __init__(self, handler: ErrorHandler | None, capacity: int, *, clock: Clock, observer: Observer) -> None:
        self._handler = handler
        self._capacity = capacity
        self._clock = clock
        self._observer = observer
        self._changed = threading.Condition()
        self._waiting: deque[SenderError] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.dropped = 0
        self.delivered = 0

    @property
    def has_told_caller(self) -> bool:
        """
        Say whether a handler of the caller's own was given an error.
        """
        return self._handler is not None and self.delivered > 0

    def offer(self, error: SenderError) -> None:
        """
        Put *error* in. Returns at once.
        """
        with self._changed:
            if self._closed:
                _log_error(error)
                return
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self.dropped += 1
                self._observer.count("quiver.qwp.errors_not_told_total")
            self._waiting.append(error)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="quiver-qwp-errors", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._clock.wait(self._changed, None)
                if not self._waiting:
                    return
                error = self._waiting.popleft()
            self._tell(error)
            self._observer.count("quiver.qwp.errors_told_total")
            with self._changed:
                self.delivered += 1
                self._changed.notify_all()

    def _tell(self, error: SenderError) -> None:
        if self._handler is None:
            _log_error(error)
            return
        try:
            self._handler(error)
        except Exception:  # noqa: BLE001
            # The caller's code: its failure must not end the thread, nor hide the error that it was given.
            _log.exception("the error handler failed on: %s", error)

    def close(self) -> None:
        """
        Deliver what waits and end the thread; a handler that takes more than a second is left to itself.
        """
        with self._changed:
            self._closed = True
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LAST_WORDS_S)
