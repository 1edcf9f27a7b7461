"""
Retrying the calls of any tier after transient failures.

A write whose answer was lost may have taken effect. Repeating it is harmless if it replaces the object; with
*if_absent* or *if_match* the second attempt finds the object of the first one, and must not mistake it for another's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TypeVar

from quiver.clock import Clock
from quiver.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, ObjectsUnavailableError
from quiver.objects.port import ObjectInfo, ObjectTier, Parts
from quiver.observe import Observer
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.file_system import Buffer

__all__ = ["TRIES_MAX", "RetryingObjects"]

TRIES_MAX = 5
"""With the default delays, about two seconds."""

_COMPARE_BYTES = 4 << 20

T = TypeVar("T")


class RetryingObjects:
    """
    Calls *inner* up to *tries_max* times. The last `ObjectsUnavailableError` is raised.

    Args:
        inner: the tier to call.
        clock: waits between attempts.
        observer: counts retries, as `quiver.objects.retries_total`.
        backoff: the delays.
        tries_max: the maximum number of attempts.
        random: shortens the delays randomly.
    """

    def __init__(
        self,
        inner: ObjectTier,
        *,
        clock: Clock,
        observer: Observer,
        backoff: Backoff | None = None,
        tries_max: int = TRIES_MAX,
        random: Random | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._observer = observer
        self._backoff = backoff or Backoff(first_s=0.2, cap_s=5.0)
        self._tries_max = tries_max
        self._random = random or Random()  # noqa: S311 - spreads waits, guards nothing
        self._waiting = threading.Condition()
        self._closed = False

    def __repr__(self) -> str:
        return f"RetryingObjects({self._inner!r})"

    def _tried(self, call: Callable[[int], T]) -> T:
        delays = self._backoff.delays(self._random)
        for number in range(1, self._tries_max):
            try:
                return call(number)
            except ObjectsUnavailableError as error:
                self._observer.count("quiver.objects.retries_total", operation=error.operation)
                with self._waiting:
                    if self._closed:
                        raise
                    self._clock.wait(self._waiting, next(delays))
        return call(self._tries_max)

    def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """
        Write *data* as the object *key*, durably on return.

        Raises:
            ObjectExistsError: with *if_absent*, when another caller wrote one.
            ObjectChangedError: with *if_match*, when another caller replaced or removed it.
        """

        def call(number: int) -> ObjectInfo:
            try:
                return self._inner.put(key, data, if_absent=if_absent, if_match=if_match)
            except (ObjectExistsError, ObjectChangedError):
                written = self._written(key, memoryview(data)) if number > 1 else None
                if written is None:
                    raise
                return written  # by an attempt whose answer was lost

        return self._tried(call)

    def _written(self, key: str, data: memoryview) -> ObjectInfo | None:
        try:
            info = self._inner.head(key)
            return info if info.size_bytes == data.nbytes and self._holds(key, data) else None
        except ObjectNotFoundError:
            return None

    def _holds(self, key: str, data: memoryview) -> bool:
        pieces = (data[at : at + _COMPARE_BYTES] for at in range(0, len(data), _COMPARE_BYTES))
        return all(
            self._inner.get_range(key, index * _COMPARE_BYTES, len(piece)) == piece
            for index, piece in enumerate(pieces)
        )

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        """Write *parts* as the object *key*; each attempt reads them from the start."""
        return self._tried(lambda _: self._inner.put_parts(key, parts, part_bytes=part_bytes, parallel=parallel))

    def get(self, key: str, *, size_max: int) -> bytes:
        """
        Return the complete object.

        Raises:
            ObjectNotFoundError: the object does not exist.
            UsageError: it is larger than *size_max*.
        """
        return self._tried(lambda _: self._inner.get(key, size_max=size_max))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """
        Return *length* bytes from *start*; fewer only at the object's end.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        return self._tried(lambda _: self._inner.get_range(key, start, length))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """
        Return one piece for each (start, length) of *ranges*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        return self._tried(lambda _: self._inner.get_ranges(key, ranges))

    def head(self, key: str) -> ObjectInfo:
        """
        Return the metadata of *key*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        return self._tried(lambda _: self._inner.head(key))

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below *prefix* and after the key *after*; an interrupted listing is restarted."""
        yield from self._tried(lambda _: list(self._inner.list_below(prefix, after=after)))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove *keys*, durably on return; missing ones are ignored."""
        every = list(keys)
        self._tried(lambda _: self._inner.delete(every))

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """
        Copy *source* to *target*.

        Raises:
            ObjectNotFoundError: *source* does not exist.
            ObjectExistsError: with *if_absent*, when another caller wrote one.
        """

        def call(number: int) -> ObjectInfo:
            try:
                return self._inner.copy(source, target, if_absent=if_absent)
            except ObjectExistsError:
                if number == 1 or not self._are_same(source, target):
                    raise
                return self._inner.head(target)  # written by an attempt whose answer was lost

        return self._tried(call)

    def _are_same(self, one: str, other: str) -> bool:
        size = self._inner.head(one).size_bytes
        return size == self._inner.head(other).size_bytes and all(
            self._inner.get_range(one, at, _COMPARE_BYTES) == self._inner.get_range(other, at, _COMPARE_BYTES)
            for at in range(0, size, _COMPARE_BYTES)
        )

    def close(self) -> None:
        """Close connections; calls that wait for a retry fail. Idempotent."""
        with self._waiting:
            self._closed = True
            self._waiting.notify_all()
        self._inner.close()
