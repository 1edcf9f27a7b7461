"""A few numbers for each object of a topic, packed: a summary without the index."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator
from typing import NamedTuple, get_args

from quiver.topics.format.descriptor import ObjectCompression, ObjectDescriptor, object_id, parse_object_id

__all__ = ["ObjectSpan", "ObjectSpans"]

_COMPRESSIONS: tuple[ObjectCompression, ...] = get_args(ObjectCompression)


class ObjectSpan(NamedTuple):
    """One object: its name, its messages, its bytes, and its creation time (seconds since the Unix epoch)."""

    object_id: str
    start_offset: int
    end_offset: int
    size: int
    created_at: int
    compression: ObjectCompression

    def without_index(self) -> ObjectDescriptor:
        """Return a descriptor without an index."""
        return ObjectDescriptor(
            self.object_id, self.start_offset, self.end_offset, self.size, None, self.created_at,
            compression=self.compression,
        )  # fmt: skip


class ObjectSpans:
    """
    The objects that a reader needs, by first offset. Not thread-safe.

    An object is omitted if another one has all of its offsets. A writer creates such objects when it loses its position
    and repeats an upload.
    """

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")
        self._sizes = array("Q")
        self._created = array("Q")
        self._compressions = bytearray()
        self._names: dict[int, str] = {}  # of objects whose names this version would build differently

    def add(self, one: ObjectDescriptor) -> bool:
        """Add an object and return True; return False if it begins before the last one."""
        if not one.completed or parse_object_id(one.object_id) is None:
            return True
        if self._starts and one.start_offset <= self._starts[-1]:
            return False
        if self._ends and one.end_offset <= self._ends[-1]:
            return True
        self._starts.append(one.start_offset)
        self._ends.append(one.end_offset)
        self._sizes.append(one.size)
        self._created.append(one.created_at)
        self._compressions.append(_COMPRESSIONS.index(one.compression))
        if one.object_id != object_id(one.start_offset, one.end_offset, one.compression):
            self._names[one.start_offset] = one.object_id
        return True

    def without(self, starts: set[int]) -> ObjectSpans:
        """Return the objects that do not begin at any of *starts*."""
        left = ObjectSpans()
        for one in self:
            if one.start_offset not in starts:
                left.add(one.without_index())
        return left

    def at_or_after(self, offset: int) -> ObjectSpan | None:
        """Return the object that has *offset*, or the next one after it; None if there is none."""
        at = bisect.bisect_right(self._starts, offset) - 1
        if at < 0 or self._ends[at] < offset:
            at += 1
        return self[at] if at < len(self._starts) else None

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, at: int) -> ObjectSpan:
        start, end = self._starts[at], self._ends[at]
        compression = _COMPRESSIONS[self._compressions[at]]
        name = self._names.get(start) or object_id(start, end, compression)
        return ObjectSpan(name, start, end, self._sizes[at], self._created[at], compression)

    def __iter__(self) -> Iterator[ObjectSpan]:
        return (self[at] for at in range(len(self._starts)))
