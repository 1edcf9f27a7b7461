"""Segments that are delivered before their file is written: whether all have resolved them, and what ends them."""

from __future__ import annotations

from quiver.store.subscribers.claims import Claims
from quiver.store.subscribers.records import SubscriberTable
from quiver.store.subscribers.state import SegmentRef, Unsealed

__all__ = ["UnsealedProgress"]


class UnsealedProgress:
    """The progress of all subscribers in unsealed segments. Thread-safe."""

    def __init__(self, table: SubscriberTable, claims: Claims) -> None:
        self._table = table
        self._claims = claims
        self._condition = table.condition

    def is_wanted(self) -> bool:
        """Return whether this process has registered a subscriber."""
        with self._condition:
            return any(record.is_registered for record in self._table.records.values())

    def are_all_owned(self) -> bool:
        """Return whether there are subscribers, and this process owns all of them."""
        with self._condition:
            return self._are_all_owned()

    def _are_all_owned(self) -> bool:
        records = self._table.records.values()
        return bool(records) and all(record.file is not None for record in records)

    def is_resolved(self, segment: Unsealed) -> bool:
        """Return whether this process owns all subscribers, and they have resolved every bundle of *segment*."""
        with self._condition:
            self._claims.return_dropped()
            return self._are_all_owned() and not any(
                record.state.unresolved(segment) for record in self._table.records.values()
            )

    def remove_resolved(self, seq: int) -> None:
        """Remove a segment that every subscriber has resolved, and that never gets a file."""
        table = self._table
        with self._condition:
            table.segments.next_seq = max(table.segments.next_seq, seq + 1)
            for record in table.records.values():
                record.state.forget(seq)
            for early in table.early.values():
                early.pop(seq, None)
            self._remove(seq)

    def remove_dropped(self, segment: SegmentRef) -> None:
        """Remove a segment that policy dropped. The progress files are about to have it as resolved."""
        with self._condition:
            for record in self._table.records.values():
                record.state.sealed(segment)  # so that those that were resolved before do not count as lost
            self._remove(segment.seq)

    def _remove(self, seq: int) -> None:
        if self._table.segments.unsealed.pop(seq, None) is not None:
            for record in self._table.records.values():
                if record.queue is not None:
                    record.queue.removed([seq])
            self._condition.notify_all()
