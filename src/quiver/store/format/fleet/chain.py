"""
The chain of a node: its objects in the order of their segment numbers, without a missing number.

A node uploads its segments oldest first, and a number that it will never upload gets a record of `gone.py`. So a
missing number below an existing one is a loss, and two different segments with one number are the work of two stores
with the same identity. In both cases, everything before that number is valid, and nothing after it may be read.

A listing is not a snapshot: an object that was created while the listing ran may be missing, although a later one is
in it. List again before reporting a hole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quiver.store.format.fleet.names import InboxObject

__all__ = ["Chain", "Fork", "Hole", "check_chain"]


@dataclass(frozen=True, slots=True)
class Hole:
    """
    Segments *first* to *last* are neither in the listing nor recorded as gone, and a later object exists.

    Attributes:
        first: the first missing number.
        last: the last missing number.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Fork:
    """
    Different segments have the same number: two stores with the same identity wrote them.

    Attributes:
        number: of the segments.
        crc32s: their checksums, ascending.
    """

    number: int
    crc32s: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """
    The objects of a node that can be read.

    Attributes:
        start: the position where the chain starts: the number of the first segment that was not read before.
        objects: in order. The first one may be a record of segments that are gone which begins before `start`.
        problem: why the chain ends although there are later objects; None if it ends with the last one.
    """

    start: int
    objects: tuple[InboxObject, ...]
    problem: Hole | Fork | None = None

    @property
    def end(self) -> int:
        """The position after the chain: the number of the next segment."""
        return self.objects[-1].last + 1 if self.objects else self.start


def check_chain(found: Iterable[InboxObject], position: int) -> Chain:
    """
    Return the chain of one node, from *position* on.

    Objects with lower numbers are ignored: they were read, and their node has not removed them yet. A segment that is
    still there is read although it is recorded as gone; its node may remove it at any moment.

    Args:
        found: the objects in a listing of the node, in any order.
        position: the number of the first segment that was not read before.
    """
    rest = sorted({one for one in found if one.last >= position}, key=lambda one: (one.first, one.crc32 or 0))
    objects: list[InboxObject] = []
    gone: InboxObject | None = None
    end, at = position, 0
    while True:
        segments: list[InboxObject] = []
        while at < len(rest) and rest[at].first <= end:
            one = rest[at]
            at += 1
            if not one.is_gone:
                if one.first == end:
                    segments.append(one)
            elif gone is None or one.last > gone.last:
                gone = one
        if len(segments) == 1:
            objects.append(segments[0])
        elif gone is not None and gone.last >= end:
            objects.append(gone)
        elif segments:
            crc32s = tuple(one.crc32 for one in segments if one.crc32 is not None)
            return Chain(position, tuple(objects), Fork(end, crc32s))
        elif at < len(rest):
            return Chain(position, tuple(objects), Hole(end, rest[at].first - 1))
        else:
            return Chain(position, tuple(objects))
        end = objects[-1].last + 1
