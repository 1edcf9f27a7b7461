"""
Removes what a node that does not come back left in the bucket, for `quiver fleet retire`.

Only objects that every reader has acknowledged are removed, and the record of the node is removed last: after a crash,
the same call continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from quiver.errors import UsageError
from quiver.objects.port import ObjectTier
from quiver.store.format.fleet.names import REJECTED_FOLDER, key_of, node_key, parse_rejected_key
from quiver.store.reading.fleet.lag import lag_of
from quiver.store.reading.fleet.survey import survey

__all__ = ["RetiredNode", "retire_node"]


@dataclass(frozen=True, slots=True)
class RetiredNode:
    """
    The objects that were removed.

    Attributes:
        identity: of the node.
        name: its name, or its identity.
        segments: number of its acknowledged segments and records of gone segments that were removed.
        others: number of other objects that were removed, such as copies of damaged ones and their records.
        waiting_segments: segments on its disk that it had not uploaded when it wrote its last record.
    """

    identity: str
    name: str
    segments: int
    others: int
    waiting_segments: int


def retire_node(
    tier: ObjectTier, identity: str, *, now_ns: int, silent_s: float, without: Collection[str] = (), dry_run: bool
) -> RetiredNode:
    """
    Remove all objects of the node *identity*.

    If it starts again, it writes its record again and continues its chain; nothing is lost.

    Args:
        tier: the objects of the fleet.
        identity: of the node.
        now_ns: the current time.
        silent_s: for how long a node that was not stopped must not have written its record.
        without: readers that need not have acknowledged its segments. They lose what they have not read.
        dry_run: remove nothing.

    Raises:
        UsageError: it may be running, or a reader has not acknowledged all of its segments. Nothing was removed.
        ObjectsUnavailableError, AccessDeniedError: the bucket cannot be used. Some objects may have been removed.
    """
    found = survey(tier, identity=identity)
    node = found.nodes.get(identity)
    if node is None:
        raise UsageError(f"the bucket has nothing of node {identity}")
    if not (node.record is not None and node.record.state == "stopped") and not node.is_silent(now_ns, silent_s):
        seen_s = node.seen_s(now_ns) or 0.0
        raise UsageError(
            f"node {node.name} wrote its record {seen_s:.0f} s ago, and may be running: close its store, or wait until "
            f"it was silent for {silent_s:.0f} s"
        )
    readers = [reader for reader in found.readers_of(node) if reader.subscriber not in without]
    if not readers and node.objects and not without:
        raise UsageError(f"node {node.name} has objects that no reader has acknowledged")
    for reader in readers:
        lag = lag_of(node.objects, reader.nodes.get(identity))
        if not lag.is_done:
            left = lag.segments + lag.gone_segments + lag.unread_after_problem
            raise UsageError(
                f"reader {reader.subscriber} has not acknowledged {left} segments of node {node.name}: let it read "
                f"them, or give --without {reader.subscriber} if it does not need them"
            )
    others = [*node.others, *_records_of_rejected(tier, identity)]
    if not dry_run:
        tier.delete([*(key_of(identity, one) for one, _ in node.objects), *others])
        tier.delete([node_key(identity)])
    waiting = 0 if node.record is None else node.record.waiting_segments
    return RetiredNode(identity, node.name, len(node.objects), len(others), waiting)


def _records_of_rejected(tier: ObjectTier, identity: str) -> Iterator[str]:
    for info in tier.list_below(REJECTED_FOLDER):
        parsed = parse_rejected_key(info.key)
        if parsed is not None and parsed[1] == identity:
            yield info.key
