"""
The child's side of supervision: stop when asked, reload when asked, and never outlive the supervisor.

SIGTERM asks this child to drain and exit. Before that, SIGUSR1 announces to all children that the pipeline stops:
receivers accept no more data, and the drain time starts for all children.

The supervisor holds the other end of the child's standard input. When the supervisor dies, of any signal, the kernel
closes that end. The child then reads end-of-file and stops; if it cannot stop in time, it exits immediately.
"""

from __future__ import annotations

import os
import queue
import signal
import threading

from quiver.clock import SYSTEM_CLOCK, Clock

__all__ = ["EXIT_WRONG_USE", "ParentWatchdog"]

EXIT_WRONG_USE = 2
"""The exit code of a child that a restart cannot help."""


class ParentWatchdog:
    """
    Waits for SIGTERM, SIGINT, SIGUSR1, SIGHUP or the end of standard input. Create it in the main thread.

    Args:
        deadline_s: the time limit to stop after the supervisor has died, in seconds.
        stdin_fd: the pipe to the supervisor; None for a process without one.
        clock: measures the drain time.

    Attributes:
        is_closing: whether the pipeline or this child is stopping: no more data may be accepted.
    """

    def __init__(self, *, deadline_s: float, stdin_fd: int | None = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        # A signal handler may put into a SimpleQueue, but must not set an Event: its lock is not reentrant.
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._clock = clock
        self._stop_requested_at: float | None = None
        self._is_orphan = False
        self._stopping = False
        self._reload = False
        self.is_closing = False
        self._deadline_s = deadline_s
        self._stdin_fd = -1 if stdin_fd is None else stdin_fd
        self.hear_signals()
        # The supervisor blocks SIGHUP until this handler exists; a pending signal is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        if stdin_fd is not None:
            threading.Thread(target=self._watch, name="quiver-watchdog", daemon=True).start()

    def hear_signals(self) -> None:
        """
        Install handlers for SIGTERM, SIGINT, SIGUSR1 and SIGHUP. Call it again after a library such as Spark's has
        installed its own.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self._end("stop"))
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._end("close"))
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._requests.put("reload"))

    def _end(self, how: str) -> None:
        if self._stop_requested_at is None:
            self._stop_requested_at = self._clock.monotonic()
        self._requests.put(how)

    def wait(self, timeout: float) -> bool:
        """
        Wait up to *timeout* seconds. Return True if the child was asked to stop, now or earlier; return False
        immediately if it was asked to reload, or when the stop of the pipeline is announced.
        """
        if not self._stopping:
            try:
                requested = self._requests.get(timeout=timeout)
            except queue.Empty:
                return False
            self._stopping = requested == "stop"
            self.is_closing = self.is_closing or requested != "reload"
            self._reload = self._reload or requested == "reload"
        return self._stopping

    def left_s(self, drain_s: float) -> float:
        """
        Return the rest of *drain_s* seconds, which started when the stop was announced. Without a supervisor, the
        result leaves enough time for an orderly exit.
        """
        if self._is_orphan:
            drain_s = min(drain_s, self._deadline_s / 2)
        now = self._clock.monotonic()
        return max((now if self._stop_requested_at is None else self._stop_requested_at) + drain_s - now, 0.0)

    def reload_requested(self) -> bool:
        """Return whether a reload was requested since the last call."""
        requested, self._reload = self._reload, False
        return requested

    def _watch(self) -> None:
        # os.read, not sys.stdin: a thread blocked inside a buffered reader makes the interpreter's exit abort.
        while os.read(self._stdin_fd, 1):
            pass
        self._is_orphan = True
        self._end("stop")
        threading.Event().wait(self._deadline_s)
        os._exit(1)
