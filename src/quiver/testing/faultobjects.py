"""
An object tier that fails on demand: the third put, every read from now on, the answer to a successful copy.

It wraps any other tier and passes all calls through except the selected ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from quiver.clock import Clock
from quiver.errors import ObjectsUnavailableError, UsageError
from quiver.objects.port import ObjectInfo, ObjectTier, Parts
from quiver.primitives.disk.file_system import Buffer

__all__ = ["OBJECT_OPERATIONS", "FaultObjects", "ObjectFault"]

OBJECT_OPERATIONS = frozenset({"put", "put_parts", "get", "get_range", "get_ranges", "head", "list", "delete", "copy"})
"""The operations that can fail. Each is counted separately."""

ObjectFault = Literal["fail", "lose_answer", "slow", "truncate", "repeat"]
"""
How a call fails.

``fail``
    it has no effect and raises.
``lose_answer``
    it succeeds but raises.
``slow``
    it succeeds after `slow_s` on the clock.
``truncate``
    a read returns half of the bytes; a write fails.
``repeat``
    it runs twice, as when a network repeats a request; the caller gets the second answer.
"""

T = TypeVar("T")


class FaultObjects:
    """
    Wraps *inner* and makes selected calls fail. Thread-safe.

    Args:
        inner: the tier that does the work.
        clock: advances during a slow call.
        slow_s: the duration of a slow call.

    Attributes:
        calls: operation → number of calls; a run without faults shows how far a loop must count.
        on_call: called with each operation and key before it runs; a crash test can take its copies here.
    """

    def __init__(self, inner: ObjectTier, *, clock: Clock | None = None, slow_s: float = 60.0) -> None:
        self._inner = inner
        self._clock = clock
        self._slow_s = slow_s
        self.calls: Counter[str] = Counter()
        self.on_call: Callable[[str, str], None] = lambda _operation, _key: None
        self._guard = threading.Lock()
        self._faults: dict[str, tuple[int, int, ObjectFault]] = {}

    def fail_on(self, operation: str, call: int = 1, *, times: int = 1, how: ObjectFault = "fail") -> None:
        """
        Make the *call*-th further call of *operation* fail, and the *times* - 1 calls after it.

        Raises:
            UsageError: the operation is unknown, or *call* or *times* is below 1.
        """
        if operation not in OBJECT_OPERATIONS or call < 1 or times < 1:
            known = ", ".join(sorted(OBJECT_OPERATIONS))
            raise UsageError(f"cannot fail call {call} of {operation!r}, {times} times; operations are {known}")
        with self._guard:
            first = self.calls[operation] + call
            self._faults[operation] = (first, first + times, how)

    def heal(self) -> None:
        """Stop all failures."""
        with self._guard:
            self._faults.clear()

    def _do(self, operation: str, key: str, call: Callable[[], T]) -> T:
        with self._guard:
            self.calls[operation] += 1
            number = self.calls[operation]
            first, end, how = self._faults.get(operation, (0, 0, "fail"))
        self.on_call(operation, key)
        if not first <= number < end:
            return call()
        if how == "fail" or (how == "truncate" and operation not in {"get", "get_range", "get_ranges"}):
            raise ObjectsUnavailableError(operation, key, "injected failure")
        if how == "slow" and self._clock is not None:
            waiting = threading.Condition()
            with waiting:
                self._clock.wait(waiting, self._slow_s)
        result = call()
        if how == "lose_answer":
            raise ObjectsUnavailableError(operation, key, "injected loss of the answer")
        return call() if how == "repeat" else result

    def _short(self, operation: str, data: bytes) -> bytes:
        with self._guard:
            first, end, how = self._faults.get(operation, (0, 0, "fail"))
            is_chosen = how == "truncate" and first <= self.calls[operation] < end
        return data[: len(data) // 2] if is_chosen else data

    def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """Store *data* as *key*, or fail."""
        return self._do("put", key, lambda: self._inner.put(key, data, if_absent=if_absent, if_match=if_match))

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        """Store all of *parts* as *key*, or fail."""
        return self._do(
            "put_parts", key, lambda: self._inner.put_parts(key, parts, part_bytes=part_bytes, parallel=parallel)
        )

    def get(self, key: str, *, size_max: int) -> bytes:
        """Return the complete object, or fail."""
        return self._short("get", self._do("get", key, lambda: self._inner.get(key, size_max=size_max)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a range of the object, or fail."""
        return self._short("get_range", self._do("get_range", key, lambda: self._inner.get_range(key, start, length)))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return ranges of the object, or fail."""
        found = self._do("get_ranges", key, lambda: self._inner.get_ranges(key, ranges))
        return [self._short("get_ranges", piece) for piece in found]

    def head(self, key: str) -> ObjectInfo:
        """Return the description of *key*, or fail."""
        return self._do("head", key, lambda: self._inner.head(key))

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below *prefix*, or fail."""
        return iter(self._do("list", prefix, lambda: list(self._inner.list_below(prefix, after=after))))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete *keys*, or fail."""
        every = list(keys)
        self._do("delete", every[0] if every else "", lambda: self._inner.delete(every))

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """Copy *source* to *target*, or fail."""
        return self._do("copy", target, lambda: self._inner.copy(source, target, if_absent=if_absent))

    def close(self) -> None:
        """Close the inner tier. Never fails."""
        self._inner.close()
