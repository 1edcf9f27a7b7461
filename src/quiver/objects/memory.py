"""Objects in a dictionary: for tests and experiments. They end with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, UsageError
from quiver.objects.port import ObjectInfo, Parts, check_key, check_prefix, check_range
from quiver.primitives.disk.file_system import Buffer

__all__ = ["MemoryObjects"]


class MemoryObjects:
    """
    An `ObjectTier` in memory.

    Args:
        clock: gives objects their times.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._writes = 0

    def clone(self) -> MemoryObjects:
        """Return an independent copy of this tier."""
        other = MemoryObjects(clock=self._clock)
        with self._guard:
            other._objects = dict(self._objects)
            other._writes = self._writes
        return other

    def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo:
        """
        Write *data* as the object *key*.

        Raises:
            ObjectExistsError: with *if_absent*, when there is one already.
            ObjectChangedError: with *if_match*, when the object has another etag or does not exist.
        """
        check_key(key)
        kept = bytes(data)
        with self._guard:
            if if_absent and key in self._objects:
                raise ObjectExistsError(key)
            if if_match is not None and (key not in self._objects or self._objects[key][1].etag != if_match):
                raise ObjectChangedError(key)
            self._writes += 1
            info = ObjectInfo(key, len(kept), f'"{self._writes}"', self._clock.now_ns())
            self._objects[key] = (kept, info)
            return info

    def put_parts(self, key: str, parts: Parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:  # noqa: ARG002
        """Write *parts*, concatenated, as the object *key*."""
        return self.put(key, b"".join(parts()))

    def _find(self, key: str) -> tuple[bytes, ObjectInfo]:
        found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectNotFoundError(key)
        return found

    def get(self, key: str, *, size_max: int) -> bytes:
        """
        Return the complete object.

        Raises:
            ObjectNotFoundError: the object does not exist.
            UsageError: it is larger than *size_max*.
        """
        data, _ = self._find(key)
        if len(data) > size_max:
            raise UsageError(f"objects: {key} has {len(data)} bytes, more than {size_max}")
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """
        Return *length* bytes from *start*; fewer only at the object's end.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        check_range(start, length)
        return self._find(key)[0][start : start + length]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """
        Return one piece for each (start, length) of *ranges*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        return [self.get_range(key, start, length) for start, length in ranges]

    def head(self, key: str) -> ObjectInfo:
        """
        Return the metadata of *key*.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """
        return self._find(key)[1]

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below *prefix* and after the key *after*, in the order of their keys."""
        folder = check_prefix(prefix)
        start = f"{folder}/" if folder else ""
        with self._guard:
            infos = [info for _, info in self._objects.values()]
        found = (info for info in infos if info.key.startswith(start) and info.key > after)
        return iter(sorted(found, key=lambda info: info.key))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove *keys*; missing ones are ignored."""
        checked = [check_key(key) for key in keys]
        with self._guard:
            for key in checked:
                self._objects.pop(key, None)

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        """
        Copy *source* to *target*.

        Raises:
            ObjectNotFoundError: *source* does not exist.
            ObjectExistsError: with *if_absent*, when there is a *target* already.
        """
        return self.put(target, self._find(source)[0], if_absent=if_absent)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
