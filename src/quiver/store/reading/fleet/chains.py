"""
Which objects of a node can be read, and what was lost in between.

A loss stops its own node only: nothing after it is read or acknowledged, and all other nodes continue. If the reader
tolerates losses, it counts them and continues with the node, too. A fork always stops its node: only an operator can
decide which of the two stores is the right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver.counted import counted
from quiver.errors import CorruptionError
from quiver.objects.port import ObjectTier
from quiver.store.format.fleet.chain import Fork, check_chain
from quiver.store.format.fleet.names import InboxObject
from quiver.store.reading.fleet.inbox import list_node
from quiver.store.reading.fleet.segments import read_gone

__all__ = ["ChainReader", "Loss", "NodeChain", "Stop"]

_LOSSES_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class Loss:
    """
    Segments of a node that cannot be read.

    Attributes:
        identity: of the node.
        first, last: their numbers.
        reason: that of the `.gone` record; `missing`: there is no record.
        bundles: how many; None if that is unknown.
    """

    identity: str
    first: int
    last: int
    reason: str
    bundles: int | None

    def __str__(self) -> str:
        amount = "an unknown number of bundles" if self.bundles is None else counted(self.bundles, "bundle")
        return f"segments {self.first} to {self.last} are lost ({self.reason}, {amount})"


@dataclass(frozen=True, slots=True)
class Stop:
    """
    Why no more is read of a node.

    Attributes:
        identity: of the node.
        number: of the first segment that is not read.
        reason: for people.
    """

    identity: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeChain:
    """The objects of a node that can be read, in order; `stop` is set if there are later ones that cannot."""

    objects: tuple[InboxObject, ...]
    stop: Stop | None = None


class ChainReader:
    """
    Reads the chains of nodes. Not thread-safe.

    Args:
        tier: the objects of the fleet.
        stops_at_loss: whether a loss stops its node.
        tolerated: identities whose losses are tolerated all the same.
    """

    def __init__(self, tier: ObjectTier, *, stops_at_loss: bool, tolerated: frozenset[str] = frozenset()) -> None:
        self._tier = tier
        self._stops_at_loss = stops_at_loss
        self._tolerated = tolerated
        self._losses: dict[tuple[str, int, int], Loss | None] = {}

    def is_strict(self, identity: str) -> bool:
        """Return whether a loss stops the node *identity*."""
        return self._stops_at_loss and identity not in self._tolerated

    def start(self, identity: str, found: Sequence[InboxObject]) -> int:
        """
        Return the position at which a reader begins that has not read anything of the node: its first object.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        first = min(one.first for one in found)
        if first > 0:
            # The listing may have been older than an object that was listed later.
            first = min((one.first for one in list_node(self._tier, identity)), default=first)
        return first

    def read(self, identity: str, found: Sequence[InboxObject], position: int) -> NodeChain:
        """
        Return the objects that can be read from *position* on.

        Missing segments that are tolerated are in the chain as one object without bytes, which is gone.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        objects: list[InboxObject] = []
        at = position
        is_fresh = False
        while True:
            chain = check_chain(found, at)
            if chain.problem is not None and not is_fresh:
                found, is_fresh = list_node(self._tier, identity, position=at), True
                continue
            objects += chain.objects
            if chain.problem is None:
                return self._until_loss(identity, objects, position)
            if isinstance(chain.problem, Fork):
                stop = Stop(
                    identity,
                    chain.problem.number,
                    f"two stores with this identity uploaded segment {chain.problem.number}: a cloned or restored disk",
                )
                before = self._until_loss(identity, objects, position)
                return before if before.stop is not None else NodeChain(before.objects, stop)
            hole = InboxObject(chain.problem.first, chain.problem.last, None, 0)
            objects.append(hole)
            at = hole.last + 1

    def _until_loss(self, identity: str, objects: list[InboxObject], position: int) -> NodeChain:
        if self.is_strict(identity):
            for place, one in enumerate(objects):
                loss = self.loss(identity, one, position)
                if loss is not None:
                    return NodeChain(tuple(objects[:place]), Stop(identity, max(one.first, position), str(loss)))
        return NodeChain(tuple(objects))

    def loss(self, identity: str, found: InboxObject, position: int) -> Loss | None:
        """
        Return what a reader at *position* loses by *found*; None if nothing: it is a segment, or was never used.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        if not found.is_gone:
            return None
        key = (identity, max(found.first, position), found.last)
        if key not in self._losses:
            if len(self._losses) >= _LOSSES_CACHED:
                self._losses.clear()
            self._losses[key] = self._loss(identity, found, key[1])
        return self._losses[key]

    def _loss(self, identity: str, found: InboxObject, first: int) -> Loss | None:
        if not found.size_bytes:
            return Loss(identity, first, found.last, "missing", None)
        try:
            gone = read_gone(self._tier, identity, found)
        except CorruptionError:
            return Loss(identity, first, found.last, "unknown: its record cannot be read", None)
        if gone.reason == "unused":
            return None
        return Loss(identity, first, found.last, gone.reason, gone.bundles_from(first))
