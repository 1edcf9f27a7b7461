"""The lag of one reader of a fleet in one node. No disk and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quiver.store.format.fleet.acks import AckedNode
from quiver.store.format.fleet.chain import Fork, Hole, check_chain
from quiver.store.format.fleet.names import InboxObject

__all__ = ["NodeLag", "lag_of"]


@dataclass(frozen=True, slots=True)
class NodeLag:
    """
    The segments of a node that a reader has not acknowledged.

    Attributes:
        position: the first segment that is not acknowledged; None if the reader has not acknowledged anything.
        segments: number of unacknowledged segments that can be read.
        size_bytes: their size.
        gone_segments: numbers that cannot be read any more, as the node recorded; some may never have been used.
        oldest_ns: when the oldest of the segments was uploaded, by the clock of the object store; None without one.
        problem: why later objects cannot be read; None if they can.
        unread_after_problem: number of those objects.
    """

    position: int | None
    segments: int = 0
    size_bytes: int = 0
    gone_segments: int = 0
    oldest_ns: int | None = None
    problem: str | None = None
    unread_after_problem: int = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left for this reader."""
        return not (self.segments or self.gone_segments or self.unread_after_problem)


def lag_of(objects: Sequence[tuple[InboxObject, int]], position: AckedNode | None) -> NodeLag:
    """
    Return the lag of a reader at *position* in a node.

    Args:
        objects: those of the node, each with the time of its upload.
        position: None if the reader has not acknowledged anything: it begins with the first object.
    """
    times: Mapping[InboxObject, int] = dict(objects)
    start = min((one.first for one in times), default=0) if position is None else position.position
    chain = check_chain(times, start)
    segments = [one for one in chain.objects if not one.is_gone]
    gone = sum(one.last - max(one.first, start) + 1 for one in chain.objects if one.is_gone)
    return NodeLag(
        position=None if position is None else position.position,
        segments=len(segments),
        size_bytes=sum(one.size_bytes for one in segments),
        gone_segments=gone,
        oldest_ns=min((times[one] for one in segments), default=None),
        problem=None if chain.problem is None else _described(chain.problem),
        unread_after_problem=0 if chain.problem is None else sum(one.last >= chain.end for one in times),
    )


def _described(problem: Fork | Hole) -> str:
    if isinstance(problem, Fork):
        crc32s = " and ".join(f"{crc32:08x}" for crc32 in problem.crc32s)
        return f"two stores with this identity uploaded segment {problem.number} (checksums {crc32s})"
    if problem.first == problem.last:
        return f"segment {problem.first} is missing"
    return f"segments {problem.first} to {problem.last} are missing"
