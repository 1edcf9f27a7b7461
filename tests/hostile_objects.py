"""Objects that another writer put in the place of ours: bytes of any size, generated when they are read."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from quiver.errors import UsageError
from quiver.objects import ObjectInfo, ObjectTier

TEBIBYTE = 1 << 40

Change = Callable[[bytes, bytes], "bytes | Made"]
"""Our object and another of ours → the object that replaces it."""


@dataclasses.dataclass(frozen=True)
class Made:
    """An object of *size_bytes* whose bytes are *begin*, zeros and *end*; at most *gives* bytes are returned."""

    size_bytes: int
    begin: bytes = b""
    end: bytes = b""
    gives: int = 1 << 62

    def read(self, start: int, length: int) -> bytes:
        """Return a part of it."""
        length = max(0, min(length, self.size_bytes - start, self.gives))
        if length > 64 << 20:
            raise AssertionError(f"{length} bytes were asked for at once")
        data = bytearray(length)
        for at, piece in ((0, self.begin), (self.size_bytes - len(self.end), self.end)):
            first, last = max(at, start), min(at + len(piece), start + length)
            if first < last:
                data[first - start : last - start] = piece[first - at : last - at]
        return bytes(data)


def junk(size: int) -> bytes:
    """Return random bytes, the same ones each time."""
    return random.Random(size).randbytes(size)


CHANGES: dict[str, Change] = {
    "garbage": lambda own, _: junk(len(own)),
    "zeros": lambda own, _: bytes(len(own)),
    "empty": lambda _own, _: b"",
    "one byte": lambda own, _: own[:1],
    "truncated": lambda own, _: own[: len(own) // 2],
    "last byte missing": lambda own, _: own[:-1],
    "longer": lambda own, _: own + junk(100),
    "another of ours": lambda _, other: other,
    "twice": lambda own, _: own + own,
    "a tebibyte of zeros": lambda _own, _: Made(TEBIBYTE),
    "a tebibyte that begins as ours": lambda own, _: Made(TEBIBYTE, begin=own),
    "a tebibyte that ends as ours": lambda own, _: Made(TEBIBYTE, end=own),
    "shorter than it says": lambda own, _: Made(len(own), begin=own, gives=max(1, len(own) // 3)),
}
"""The objects that may be in the place of ours."""


class HostileObjects:
    """*inner*, with some of its objects replaced."""

    def __init__(self, inner: ObjectTier) -> None:
        self._inner = inner
        self.made: dict[str, Made] = {}
        self.close = inner.close

    def replace(self, key: str, other: str, change: Change) -> None:
        """Replace *key* with the result of *change*; *other* is another object of ours."""
        own, another = (self._inner.get(one, size_max=1 << 30) for one in (key, other))
        found = change(own, another)
        self.made[key] = found if isinstance(found, Made) else Made(len(found), begin=found)

    def heal(self) -> None:
        """Restore all objects."""
        self.made.clear()

    def _info(self, info: ObjectInfo) -> ObjectInfo:
        made = self.made.get(info.key)
        return (
            info if made is None else dataclasses.replace(info, size_bytes=made.size_bytes, etag=f"{made.size_bytes}")
        )

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self.made.pop(key, None)
        return self._inner.put(key, data, if_absent=if_absent)

    def put_parts(self, key: str, parts, *, part_bytes: int = 8 << 20, parallel: int = 4) -> ObjectInfo:
        self.made.pop(key, None)
        return self._inner.put_parts(key, parts, part_bytes=part_bytes, parallel=parallel)

    def get(self, key: str, *, size_max: int) -> bytes:
        made = self.made.get(key)
        if made is None:
            return self._inner.get(key, size_max=size_max)
        if made.size_bytes > size_max:
            raise UsageError(f"objects: {key} has {made.size_bytes} bytes, more than {size_max}")
        return made.read(0, made.size_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        made = self.made.get(key)
        return self._inner.get_range(key, start, length) if made is None else made.read(start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in ranges]

    def head(self, key: str) -> ObjectInfo:
        return self._info(self._inner.head(key))

    def list_below(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        return map(self._info, self._inner.list_below(prefix, after=after))

    def delete(self, keys: Iterable[str]) -> None:
        every = list(keys)
        for key in every:
            self.made.pop(key, None)
        self._inner.delete(every)

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> ObjectInfo:
        if source in self.made:
            self.made[target] = self.made[source]
        return self._inner.copy(source, target, if_absent=if_absent)


@contextmanager
def little_memory(bytes_max: int = 48 << 20) -> Iterator[None]:
    """Fail if more than that is in memory at any time within the block."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > bytes_max:
        raise AssertionError(f"{peak >> 20} MiB were in memory")
