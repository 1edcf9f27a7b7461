"""
Bytes that many holders share, under one cap.

A caller reserves bytes before it uses them, and releases them afterwards. If there are none left, the caller learns
which holder has most of them, immediately or after waiting. Waiting callers are served in the order in which they came,
so that small requests do not starve a large one.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError, UsageError

__all__ = ["ByteBudget"]


class ByteBudget:
    """
    At most `cap_bytes` are reserved at any time. Thread-safe.

    Args:
        what: the name of the cap, as errors show it.
        cap_bytes: the maximum that may be reserved together.
        clock: measures the timeouts of waiting callers.
    """

    def __init__(self, what: str, cap_bytes: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.what = what
        self.cap_bytes = cap_bytes
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._used = 0  # never more than cap_bytes; always the sum over _held
        self._taken: Counter[str] = Counter()  # holder → bytes; no zeros are kept
        self._queue: deque[object] = deque()  # one ticket per waiting thread; only the first may take bytes

    @property
    def used_bytes(self) -> int:
        """Bytes reserved now."""
        return self._used

    @property
    def free_bytes(self) -> int:
        """Bytes that could be reserved now."""
        return self.cap_bytes - self._used

    def holders(self) -> dict[str, int]:
        """Return holder → bytes, the largest first."""
        with self._changed:
            return dict(self._taken.most_common())

    def reserve(self, size: int, *, holder: str = "", timeout: float = 0.0) -> None:
        """
        Reserve *size* bytes for *holder*, waiting up to *timeout* seconds for others to release some.

        Raises:
            CapacityError: there was no space in time; nothing was reserved. The error names the largest holder.
            UsageError: *size* is negative or above the cap, so waiting could never help.
        """
        if not 0 <= size <= self.cap_bytes:
            raise UsageError(f"{self.what}: {size} bytes can never fit into a cap of {self.cap_bytes}")
        with self._changed:
            if self._queue or self._used + size > self.cap_bytes:
                self._wait_for_room(size, timeout)
            self._used += size
            if size:
                self._taken[holder] += size

    def _wait_for_room(self, size: int, timeout: float) -> None:
        ticket = object()
        self._queue.append(ticket)
        deadline = self._clock.monotonic() + timeout
        try:
            while self._queue[0] is not ticket or self._used + size > self.cap_bytes:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    largest = next(iter(self._taken.most_common(1)), ("", 0))[0]
                    raise CapacityError(self.what, held_by=largest or None)
                self._clock.wait(self._changed, left)
        finally:
            self._queue.remove(ticket)
            self._changed.notify_all()  # the next in line may fit, or is now the first

    def release(self, size: int, *, holder: str = "") -> None:
        """
        Release *size* bytes of *holder*.

        Raises:
            UsageError: *holder* does not have that many; nothing was released.
        """
        with self._changed:
            taken = self._taken.get(holder, 0)
            if not 0 <= size <= taken:
                raise UsageError(f"{self.what}: {holder or 'the holder'} returns {size} bytes but has {taken}")
            if size == taken:
                del self._taken[holder]
            else:
                self._taken[holder] -= size
            self._used -= size
            if self._queue:
                self._changed.notify_all()

    @contextmanager
    def reserving(self, size: int, *, holder: str = "", timeout: float = 0.0) -> Iterator[None]:
        """
        Reserve bytes for a block that may fail: they stay reserved if it succeeds, and are released if it raises.

        Raises:
            CapacityError: there was no space in time; nothing was reserved.
            UsageError: *size* can never fit.
        """
        self.reserve(size, holder=holder, timeout=timeout)
        try:
            yield
        except BaseException:
            self.release(size, holder=holder)
            raise
