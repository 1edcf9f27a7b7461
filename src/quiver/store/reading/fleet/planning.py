"""
The objects of one batch: whole segments, shared between the nodes. Pure.

The next object is always one of the node that has the fewest bytes in the batch so far, so a node with the backlog of a
week gets no more than the others as long as they have data. If a batch is too small for all nodes, the next one begins
with other nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from quiver.store.format.fleet.names import InboxObject

__all__ = ["BATCH_OBJECTS_MAX", "OBJECT_COST_BYTES_MIN", "share"]

BATCH_OBJECTS_MAX = 500_000
"""Half of what a batch can have, so that its object stays below 20 MB."""

OBJECT_COST_BYTES_MIN = 16 * 1024
"""A smaller object counts as this much, because a request costs about as much time: a node with a million tiny objects
must not make a batch of them."""

_STEP = 2_654_435_761
"""A prime: successive batches begin with each of the nodes once, for any number of nodes, before one is first again."""


def share(
    chains: Mapping[str, Sequence[InboxObject]],
    *,
    bytes_max: int | None,
    turn: int,
    objects_max: int = BATCH_OBJECTS_MAX,
    cost_bytes_min: int = OBJECT_COST_BYTES_MIN,
) -> dict[str, tuple[InboxObject, ...]]:
    """
    Return the objects of a batch, by node: of each chain the beginning. There is at least one if any chain has one.

    Args:
        chains: the objects that can be read, in order, by node.
        bytes_max: the size of the batch; None for no limit. Only its first object may exceed it.
        turn: the number of the batch, which decides which nodes come first.
        objects_max: the number of objects.
        cost_bytes_min: the size that smaller objects count as.
    """
    order = sorted(identity for identity, objects in chains.items() if objects)
    if not order:
        return {}
    first = turn * _STEP % len(order)
    order = order[first:] + order[:first]
    # By bytes, then by the order of this batch.
    waiting = [(0, place) for place in range(len(order))]
    taken = [0] * len(order)
    size = count = 0
    while waiting and count < objects_max:
        bytes_of, place = heapq.heappop(waiting)
        objects = chains[order[place]]
        cost = max(objects[taken[place]].size_bytes, cost_bytes_min)
        if bytes_max is not None and count and size + cost > bytes_max:
            continue  # this node waits for the next batch; smaller objects of others may still fit
        taken[place] += 1
        size += cost
        count += 1
        if taken[place] < len(objects):
            heapq.heappush(waiting, (bytes_of + cost, place))
    return {order[place]: tuple(chains[order[place]][:number]) for place, number in enumerate(taken) if number}
