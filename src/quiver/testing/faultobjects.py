"""
An object tier that fails when told: the third put, every read from now on, the answer to a copy that was made.

It wraps any other and passes everything through but the calls that were chosen.
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
"""What can fail. Each is counted by itself."""

ObjectFault = Literal["fail", "lose_answer", "slow", "truncate", "repeat"]
"""
How a call goes wrong.

``fail``
    nothing happens, and the caller is told so.
``lose_answer``
    it happens, and the caller is told that it failed.
``slow``
    it happens after `slow_s` on the clock.
``truncate``
    what is read comes back short by half; what is written is cut off on the way and fails.
``repeat``
    it happens twice, as when a network delivers a request again; the caller gets the second answer.
"""

T = TypeVar("T")


class FaultObjects:
    """
    *inner*, with chosen calls going wrong. Thread-safe.

    Args:
        inner: the tier that does the work.
        clock: passes when a call is slow.
        slow_s: by this much.

    Attributes:
        calls: operation → calls so far; a clean run tells a loop how far to count.
        on_call: is told each operation and key before it happens; a crash test takes its copies here.
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
        Let the *call*-th further call of *operation* go wrong, and the *times* - 1 behind it.

        Raises:
            UsageError: an operation that does not exist, or a call before the first.
        """
        if operation not in OBJECT_OPERATIONS or call < 1 or times < 1:
            known = ", ".join(sorted(OBJECT_OPERATIONS))
            raise UsageError(f"cannot fail call {call} of {operation!r}, {times} times; operations are {known}")
        with self._guard:
            first = self.calls[operation] + call
            self._faults[operation] = (first, first + times, how)

    def heal(self) -> None:
        """Let nothing go wrong any more."""
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
            raise ObjectsUnavailableError(operation, key, "told to fail")
        if how == "slow" and self._clock is not None:
            waiting = threading.Condition()
            with waiting:
                self._clock.wait(waiting, self._slow_s)
        result = call()
        if how == "lose_answer":
            raise ObjectsUnavailableError(operation, key, "told to lose the answer")
        return call() if how == "repeat" else result

    def _short(self, operation: str, data: bytes) -> bytes:
        with self._guard:
            first, end, how = self._faults.get(operation, (0, 0, "fail"))
            is_chosen = how == "truncate" and first <= self.calls[operation] < end
        return data[: len(data) // 2] if is_chosen else data

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> ObjectInfo:
        """Make *key* hold exactly *data*, or go wrong."""
        return self._do("put", key, lambda: self._inner.put(key, data, if_absent=if_absent))

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        """Make *key* hold all of *parts*, or go wrong."""
        return self._do(
            "put_parts", key, lambda: self._inner.put_parts(key, parts, part_bytes=part_bytes, parallel=parallel)
        )

    def get(self, key: str, *, size_max: int) -> bytes:
        """Return the whole object, or go wrong."""
        return self._short("get", self._do("get", key, lambda: self._inner.get(key, size_max=size_max)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of the object, or go wrong."""
        return self._short("get_range", self._do("get_range", key, lambda: self._inner.get_range(key, start, length)))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return parts of the object, or go wrong."""
        found = self._do("get_ranges", key, lambda: self._inner.get_ranges(key, ranges))
        return [self._short("get_ranges", piece) for piece in found]

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of *key*, or go wrong."""
        return self._do("head", key, lambda: self._inner.head(key))

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below *prefix*, or go wrong."""
        return iter(self._do("list", prefix, lambda: list(self._inner.list_below(prefix, after=after))))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove *keys*, or go wrong."""
        every = list(keys)
        self._do("delete", every[0] if every else "", lambda: self._inner.delete(every))

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """Make *target* hold what *source* holds, or go wrong."""
        return self._do("copy", target, lambda: self._inner.copy(source, target, if_absent=if_absent))

    def close(self) -> None:
        """Close the tier inside. Never fails."""
        self._inner.close()
