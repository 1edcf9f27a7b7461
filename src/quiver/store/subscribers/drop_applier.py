"""
Resolve the segments that policy dropped, for every subscriber that still needed them.

The store's drop ledger names these segments durably before any of their files is deleted. This module resolves them in
every progress file that this process may write; the owners of the other files read the ledger themselves. All of it can
be repeated, so after a crash at any point no subscriber waits for a bundle that can never come.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from quiver.errors import CorruptionError, UnknownSubscriberError
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.subscribers.records import SubscriberRecord, SubscriberTable
from quiver.store.subscribers.state import SegmentRef, SubscriberState

__all__ = ["DropApplier"]


class DropApplier:
    """
    The dropped segments in the ledger: those that still exist, or that some subscriber has not resolved durably.
    Thread-safe.
    """

    def __init__(self, table: SubscriberTable) -> None:
        self._table = table
        self._folded: set[int] = set()
        """Those that were resolved for all subscribers in reach: a missing number is not a loss any more."""

    def apply(self, entries: Sequence[DroppedSegment]) -> dict[str, int]:
        """
        Resolve *entries* for every subscriber that no other process owns; durable on return.

        The owner of any other subscriber applies the ledger itself. Repeating the call changes and counts nothing.
        It must be repeated while the ledger has entries: the other process may have ended before it applied them.

        Returns:
            How many bundles each subscriber lost by this call; subscribers without losses are left out.

        Raises:
            OSError: a progress file could not be written. Bundles that are resolved stay resolved; call again.
        """
        table = self._table
        lost: dict[str, int] = {}
        failure: OSError | None = None
        with table.files_lock:
            with table.condition:
                table.dropped.update((entry.seq, _segment_of(entry)) for entry in entries)
            for record in table.listed():
                with table.condition:
                    if all(
                        self._is_settled_for(record, _segment_of(entry), is_new=entry.seq not in self._folded)
                        for entry in entries
                    ):
                        continue
                was_owned = record.file is not None
                by_reason: Counter[str] = Counter()
                try:
                    record.edit(partial(self._resolve, record, entries, by_reason))
                except OSError as error:
                    failure = failure or error
                    if not was_owned and not self._is_in_file(record, entries):
                        continue  # nothing was kept
                except (CorruptionError, UnknownSubscriberError):
                    continue  # reported where it was found, or removed; the ledger keeps the entry for the next call
                for reason, bundles in by_reason.items():
                    table.count_dropped(record.id, bundles, reason=reason)
                if by_reason.total():
                    lost[record.id] = by_reason.total()
        if failure is not None:
            raise failure
        self._folded = self._folded.intersection(table.dropped).union(entry.seq for entry in entries)
        return lost

    def _is_in_file(self, record: SubscriberRecord, entries: Sequence[DroppedSegment]) -> bool:
        """
        Return whether the file has *entries* resolved although replacing it failed.

        Then they are counted now: the next call would find nothing to count.
        """
        with contextlib.suppress(OSError):
            record.reload()
        with self._table.condition:
            return all(record.is_durably_complete(_segment_of(entry)) for entry in entries)

    def _resolve(
        self,
        record: SubscriberRecord,
        entries: Sequence[DroppedSegment],
        by_reason: Counter[str],
        state: SubscriberState,
    ) -> bool:
        for entry in entries:
            segment = _segment_of(entry)
            self._table.audit_dropped(record.id, state, segment, reason=entry.reason)
            by_reason[entry.reason] += state.resolve_all(segment)
            if record.queue is not None:
                record.queue.withheld(entry.seq)
        return True

    def resolve_again(self, state: SubscriberState) -> None:
        """
        Resolve the dropped segments in a *state* that was rewound: they cannot be delivered, and are not counted again.

        Under the condition.
        """
        for segment in self._table.dropped.values():
            state.resolve_all(segment)

    def is_settled(self, entry: DroppedSegment) -> bool:
        """
        Return whether every subscriber's file has *entry* resolved.

        For subscribers of other processes, as of the last `Subscribers.refresh`.
        """
        with self._table.condition:
            return all(self._is_settled_for(record, _segment_of(entry)) for record in self._table.records.values())

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget entries that were durably removed from the ledger: they are settled, and their files are deleted."""
        with self._table.condition:
            for seq in seqs:
                self._table.dropped.pop(seq, None)

    def _is_settled_for(self, record: SubscriberRecord, segment: SegmentRef, *, is_new: bool = False) -> bool:
        if record.is_durably_complete(segment):
            return True
        if is_new:
            return False  # a segment that was never written to disk is a loss all the same
        if record.durable is None or record.durable.has_begun(segment.seq):
            return False  # inherited from another process that had not applied it: it is not counted yet
        # For this process a number without a segment means a deleted segment, so its file need not list it.
        return record.file is not None and segment.seq not in self._table.segments


def _segment_of(entry: DroppedSegment) -> SegmentRef:
    return SegmentRef(entry.seq, entry.bundle_count)
