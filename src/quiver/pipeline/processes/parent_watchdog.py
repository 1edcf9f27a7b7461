"""
A child's side of being supervised: stop when asked, read the file again when asked, and never outlive the supervisor.

SIGTERM asks this child alone to drain and end. Before that, SIGUSR1 tells all children that the pipeline stops: whoever
takes something in takes nothing more, and the time to drain begins for all of them.

The supervisor holds the other end of the child's standard input. When the supervisor dies, by whatever signal, the
kernel closes that end, the child reads the end of the file and stops; when it cannot stop in time it exits hard.
"""

from __future__ import annotations

import os
import queue
import signal
import threading

from quiver.clock import SYSTEM_CLOCK, Clock

__all__ = ["EXIT_WRONG_USE", "Lifeline"]

EXIT_WRONG_USE = 2
"""A child that exits with this cannot be helped by a restart."""


class Lifeline:
    """
    Waits for SIGTERM, SIGINT, SIGUSR1, SIGHUP or the end of standard input. Make it in the main thread.

    Args:
        deadline_s: seconds a child has to stop once its supervisor is gone.
        stdin_fd: the pipe to the supervisor.
        clock: measures the time to drain.

    Attributes:
        is_closing: whether the pipeline, or this child alone, is to stop: nothing more is to be taken in.
    """

    def __init__(self, *, deadline_s: float, stdin_fd: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        # A SimpleQueue may be filled from a signal handler; an Event may not: its lock is not reentrant.
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._clock = clock
        self._told_at: float | None = None
        self._is_orphan = False
        self._stopping = False
        self._reload = False
        self.is_closing = False
        self._deadline_s = deadline_s
        self._stdin_fd = stdin_fd
        self.hear_signals()
        # Held back by the supervisor until there is somebody to hear it: what came meanwhile comes now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        threading.Thread(target=self._watch, name="quiver-lifeline", daemon=True).start()

    def hear_signals(self) -> None:
        """
        Take SIGTERM, SIGINT, SIGUSR1, SIGHUP. Call it again after a library (Spark's) has put in handlers of its
        own.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self._end("stop"))
        signal.signal(signal.SIGUSR1, lambda _number, _frame: self._end("close"))
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._asked.put("reload"))

    def _end(self, how: str) -> None:
        if self._told_at is None:
            self._told_at = self._clock.monotonic()
        self._asked.put(how)

    def wait(self, timeout_s: float) -> bool:
        """
        Wait up to *timeout_s*; True when the child was asked to stop, now or earlier. False at once when it was asked
        to reload, or told that the pipeline stops.
        """
        if not self._stopping:
            try:
                asked = self._asked.get(timeout=timeout_s)
            except queue.Empty:
                return False
            self._stopping = asked == "stop"
            self.is_closing = self.is_closing or asked != "reload"
            self._reload = self._reload or asked == "reload"
        return self._stopping

    def left_s(self, drain_s: float) -> float:
        """
        Return how much is left of *drain_s* seconds, which began when the child was first told of the end. Without a
        supervisor they are no more than leave time to end in order.
        """
        if self._is_orphan:
            drain_s = min(drain_s, self._deadline_s / 2)
        now = self._clock.monotonic()
        return max((now if self._told_at is None else self._told_at) + drain_s - now, 0.0)

    def reload_asked(self) -> bool:
        """Say whether the child was asked to read its file again since this was last asked."""
        asked, self._reload = self._reload, False
        return asked

    def _watch(self) -> None:
        # os.read, not sys.stdin: a thread blocked inside a buffered reader makes the interpreter's exit abort.
        while os.read(self._stdin_fd, 1):
            pass
        self._is_orphan = True
        self._end("stop")
        threading.Event().wait(self._deadline_s)
        os._exit(1)
