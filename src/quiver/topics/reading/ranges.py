"""
Which messages a batch includes, and how they are divided into tasks. Pure.

A topic is planned in `Stretch`es: ranges of messages that are cheap to start reading at, because an index or an earlier
read has the position of the first one. The size of a single message is the average of its stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

__all__ = ["PARTITION_BYTES_MIN", "Stretch", "TopicLimits", "pack_stretches", "reach", "shared_limits"]

PARTITION_BYTES_MIN = 16 * 1024 * 1024
"""Below this size a second task costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """
    The messages from *start* (inclusive) to *stop* (exclusive) of one topic.

    Attributes:
        mark: number of the log file, offset and position of a frame at or before *start*, if one is known.
    """

    topic: str
    start: int
    stop: int
    size_bytes: int
    mark: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """
    The maximum size of one batch: the first limit reached ends it. At least one message is taken of each topic that
    has any.
    """

    offsets_max: int | None = None
    bytes_max: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing limits a batch."""
        return self.offsets_max is None and self.bytes_max is None


def shared_limits(limits: TopicLimits, waiting: Mapping[str, int]) -> dict[str, TopicLimits]:
    """Divide *limits* between topics in proportion to their waiting messages; each gets at least one."""
    total = sum(waiting.values())

    def share(limit: int | None, count: int) -> int | None:
        return None if limit is None else max(1, limit * count // total)

    return {
        topic: TopicLimits(share(limits.offsets_max, count), share(limits.bytes_max, count))
        for topic, count in waiting.items()
        if count > 0
    }


def reach(stretches: Iterable[Stretch], start: int, limits: TopicLimits) -> int:
    """Return the end of a batch that starts at *start*. Stretches are ascending; consumed only as far as needed."""
    count = 0
    size = 0.0
    at = start
    for one in stretches:
        first = max(one.start, start)
        if first >= one.stop:
            continue
        each = one.size_bytes / (one.stop - one.start)
        room = one.stop - first
        if limits.offsets_max is not None:
            room = min(room, limits.offsets_max - count)
        if limits.bytes_max is not None and each > 0:
            room = min(room, math.floor((limits.bytes_max - size) / each))
        if room <= 0:
            return at if count else first + 1
        count += room
        size += room * each
        at = first + room
        if at < one.stop:
            return at
    return at


def pack_stretches(
    stretches: Sequence[Stretch], *, parallelism: int, partitions_min: int = 0
) -> list[tuple[Stretch, ...]]:
    """
    Divide *stretches* into tasks of about equal bytes, keeping their order.

    They are divided at their starts, and inside only if *partitions_min* cannot be reached otherwise. Adjacent
    stretches of one task are joined.
    """
    pieces = [one for one in stretches if one.start < one.stop]
    messages = sum(one.stop - one.start for one in pieces)
    if not messages:
        return []
    total = sum(one.size_bytes for one in pieces)
    wanted = max(1, min(messages, max(min(parallelism, -(-total // PARTITION_BYTES_MIN)), partitions_min)))
    if len(pieces) < min(wanted, partitions_min):
        pieces = [cut for one in pieces for cut in _cut(one, -(-wanted * (one.stop - one.start) // messages))]
    weight = sum(_weight(one) for one in pieces)
    packed: list[list[Stretch]] = [[]]
    done = 0
    for index, one in enumerate(pieces):
        left = len(pieces) - index
        missing = wanted - len(packed)
        if packed[-1] and missing and (done * wanted >= weight * len(packed) or left <= missing):
            packed.append([])
        packed[-1].append(one)
        done += _weight(one)
    return [tuple(_joined(part)) for part in packed]


def _weight(one: Stretch) -> int:
    return one.size_bytes + (one.stop - one.start)


def _cut(one: Stretch, count: int) -> list[Stretch]:
    length = one.stop - one.start
    count = min(count, length)
    places = [one.start + length * at // count for at in range(count + 1)]
    return [
        replace(one, start=start, stop=stop, size_bytes=one.size_bytes * (stop - start) // length)
        for start, stop in pairwise(places)
    ]


def _joined(part: Iterable[Stretch]) -> list[Stretch]:
    found: list[Stretch] = []
    for one in part:
        last = found[-1] if found else None
        if last is not None and last.topic == one.topic and last.stop == one.start:
            found[-1] = replace(last, stop=one.stop, size_bytes=last.size_bytes + one.size_bytes)
        else:
            found.append(one)
    return found
