"""
Retries of calls that raised `WouldBlockError`: they wait for the named cause, in a thread or as a future of an event
loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quiver.aof.append.notify import KINDS, Notifier, deadline_of, in_loop
from quiver.aof.append.workers import Workers
from quiver.clock import Clock
from quiver.errors import QuiverError, WouldBlockError
from quiver.observe import Observer

__all__ = ["BlockedCalls"]

_PASSING = frozenset({"admission", "rollover", "flush", "tail"})
"""Kinds that end without the caller's help while it appends; others are raised to the caller."""

_POLL_S = 1.0
"""Without threads a waiting call tries again after this time, as maintenance does."""

T = TypeVar("T")


@dataclass(slots=True)
class _Line:
    """The queued attempts of one event loop, and whether the first of them waits for a signal."""

    entries: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = field(default_factory=deque)
    is_waiting: bool = False


class BlockedCalls:
    """Retries the blocked calls of one log. Thread-safe."""

    def __init__(self, notifier: Notifier, workers: Workers, *, clock: Clock, observer: Observer) -> None:
        self._notifier = notifier
        self._workers = workers
        self._clock = clock
        self._observer = observer
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        self._guard = threading.Lock()

    def retry(self, attempt: Callable[[], T], timeout: float | None) -> T:
        """
        Call *attempt* until it no longer blocks, and return its result.

        Raises:
            WouldBlockError: it blocked for *timeout* seconds, or for a reason that the caller must resolve.
            UsageError: *timeout* is not a number.
        """
        deadline = deadline_of(self._clock, timeout)
        began = self._clock.monotonic()
        kind = refused = ""
        while True:
            seen = {one: self._notifier.generation(one) for one in _PASSING}
            try:
                answer = attempt()
            except WouldBlockError as blocked:
                if blocked.kind not in _PASSING:
                    raise
                kind = blocked.kind
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise
            else:
                if kind:
                    waited_s = self._clock.monotonic() - began
                    self._observer.record("aof_admission_latency_seconds", waited_s, kind=kind)
                return answer
            if not self._workers.threaded:
                self._workers.run_pending()
                if refused == kind:
                    # The work that just ran signals even when it failed. Do not wake up for that signal again.
                    seen[kind] = self._notifier.generation(kind)
                    left = _POLL_S if left is None else min(left, _POLL_S)
            refused = kind
            self._notifier.wait(kind, seen[kind], left)

    def in_order(self, attempt: Callable[[], T]) -> asyncio.Future[T]:
        """
        Return a future of the running event loop with the result of *attempt*, once it no longer blocks.

        The attempt runs in the loop's thread, after all earlier attempts of this loop. If the future is cancelled
        first, the attempt never runs.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._guard:
            for other in [one for one in self._lines if one.is_closed()]:
                del self._lines[other]  # its futures can never be done
            line = self._lines.setdefault(loop, _Line())
        line.entries.append((attempt, future))
        if not line.is_waiting:
            self._advance(loop, line)
        return future

    def _advance(self, loop: asyncio.AbstractEventLoop, line: _Line) -> None:
        line.is_waiting = False
        while line.entries:
            attempt, future = line.entries[0]
            if not future.done():
                seen = {kind: self._notifier.generation(kind) for kind in _PASSING}
                try:
                    future.set_result(attempt())
                except WouldBlockError as blocked:
                    if blocked.kind in _PASSING:
                        line.is_waiting = True
                        advance = in_loop(loop, lambda: self._advance(loop, line))
                        self._notifier.call_once(blocked.kind, seen[blocked.kind], advance)
                        return
                    future.set_exception(blocked)
                except Exception as error:  # noqa: BLE001 - the error belongs to this future
                    future.set_exception(error)
            line.entries.popleft()
        with self._guard:
            self._lines.pop(loop, None)

    def future(self, attempt: Callable[[], T], *, passing: frozenset[str] = _PASSING) -> asyncio.Future[T]:
        """
        Return a future of the running event loop with the result of *attempt*, once it no longer blocks.

        The attempt runs in the loop's thread, as cancelling does: after the future is cancelled, it never runs again.
        Its errors go to the future, and so does a `WouldBlockError` of a kind that is not in *passing*.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def again() -> None:
            if future.done():
                return
            seen = {kind: self._notifier.generation(kind) for kind in KINDS}
            try:
                future.set_result(attempt())
            except WouldBlockError as blocked:
                if blocked.kind in passing:
                    self._notifier.call_once(blocked.kind, seen[blocked.kind], in_loop(loop, again))
                else:
                    future.set_exception(blocked)
            except (QuiverError, OSError) as error:
                future.set_exception(error)

        again()
        return future
