"""
The positions that a fleet subscriber acknowledged in a node: whether to accept one, and how it becomes progress.

Segments are deleted because of an accepted position, so a wrong one would lose data. The object may be old, may come
from a reader that was replaced, or may acknowledge the segments of another store with the same identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quiver.bundle import BundleRef
from quiver.store.context import StoreContext
from quiver.store.format.fleet.acks import AckedNode
from quiver.store.subscribers.state import SubscriberState

__all__ = ["AckVerdict", "judge_ack", "own_subscribers", "resolve_through"]


@dataclass(frozen=True, slots=True)
class AckVerdict:
    """
    The decision about a position.

    Attributes:
        kind: `accept` it; `early`: accept it when the segments below it are verified; `other`: it acknowledges the
            segments of another store with the same identity.
        reason: for a report; empty if it is accepted.
    """

    kind: Literal["accept", "early", "other"]
    reason: str = ""


def judge_ack(context: StoreContext, found: AckedNode) -> AckVerdict:
    """Return whether this node may delete everything below the position *found*."""
    with context.lock:
        next_number = context.sealing.next_seq
    if found.position > next_number:
        return AckVerdict(
            "other", f"position {found.position} is acknowledged, and the next segment here is {next_number}"
        )
    if found.segment is not None:
        number, crc32 = found.segment
        entry = context.cold.get(number)
        if entry is not None and entry.crc32 != crc32:
            return AckVerdict(
                "other", f"segment {number} was read with checksum {crc32:08x}; here it has {entry.crc32:08x}"
            )
    waiting = (info.seq for info in context.catalog.local_segments() if not context.cold.is_verified(info.seq))
    first = min((seq for seq in waiting if seq < found.position), default=None)
    if first is not None:
        return AckVerdict("early", f"position {found.position} is acknowledged before segment {first} was uploaded")
    return AckVerdict("accept")


def own_subscribers(context: StoreContext, names: tuple[str, ...]) -> None:
    """
    Register the fleet subscribers *names* and take their locks.

    On return each one exists durably, so nothing is deleted before it has acknowledged it. A new one begins with the
    oldest segment of the store.

    Raises:
        DirectoryInUseError: another process owns one of them.
        CorruptionError: a progress file is damaged, and the policy is `fail`.
        OSError: the disk refused.
    """
    for name in names:
        record = context.subscribers.register(name, "earliest")
        with context.subscribers.table.files_lock:
            if record.file is None:
                record.acquire()


def resolve_through(context: StoreContext, name: str, position: int) -> int:
    """
    Resolve everything below segment *position* for the fleet subscriber *name*, durably; return how many bundles.

    Raises:
        UnknownSubscriberError: it was unregistered.
        OSError: the disk refused; the next maintenance pass writes it.
    """
    table = context.subscribers.table
    to = BundleRef(position, 0)
    bundles = 0

    def change(state: SubscriberState) -> bool:
        nonlocal bundles
        if state.acked_through(to, table.segments):
            return False
        bundles = sum(left for segment, left in state.pending_of(table.segments) if segment.seq < position)
        state.resolve_through(to, table.segments)
        record.acked_uncounted += bundles
        table.condition.notify_all()
        return True

    context.place.require()
    with table.files_lock:
        with table.condition:
            table.require_open()
            record = table.find(name)
        record.edit(change)
    record.count_acked()
    return bundles
