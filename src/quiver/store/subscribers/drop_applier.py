"""
What policy gave up, resolved for everybody whom it takes something from.

The store's drop ledger says durably which segments those are, before anything of them goes. Here they become
resolved in every progress file that this process may write; the owners of the others read the ledger themselves.
Nobody is left waiting for a bundle that can never come, whatever crashes when: all of it can be done again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from quiver.errors import CorruptionError, UnknownSubscriberError
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.subscribers.records import Membership, Shared
from quiver.store.subscribers.state import SegmentRef, SubscriberState
from quiver.store.subscribers.table import Members

__all__ = ["Drops"]


class Drops:
    """
    The dropped segments that the ledger names: they are not gone yet, or not every subscriber's progress has them
    resolved.
    """

    def __init__(self, shared: Shared, members: Members) -> None:
        self._shared = shared
        self._members = members
        self._folded: set[int] = set()
        """Those that were resolved for everybody in reach: from then on a number without a segment is no loss."""

    def fold(self, entries: Sequence[DroppedSegment]) -> dict[str, int]:
        """Resolve *entries* for everybody; see `Registry.fold_drops`."""
        shared = self._shared
        lost: dict[str, int] = {}
        failure: OSError | None = None
        with shared.files_lock:
            with shared.condition:
                shared.dropped.update((entry.seq, _segment_of(entry)) for entry in entries)
            for member in self._members.listed():
                with shared.condition:
                    if all(
                        self._is_settled_for(member, _segment_of(entry), is_new=entry.seq not in self._folded)
                        for entry in entries
                    ):
                        continue
                was_owned = member.file is not None
                by_reason: Counter[str] = Counter()
                try:
                    member.edit(partial(self._resolve, member, entries, by_reason))
                except OSError as error:
                    failure = failure or error
                    if not was_owned and not self._says(member, entries):
                        continue  # nothing of it was kept
                except (CorruptionError, UnknownSubscriberError):
                    continue  # reported where it was found, or gone; the ledger keeps the entry for the next time
                for reason, bundles in by_reason.items():
                    shared.count_dropped(member.id, bundles, reason=reason)
                if by_reason.total():
                    lost[member.id] = by_reason.total()
        if failure is not None:
            raise failure
        self._folded = self._folded.intersection(shared.dropped).union(entry.seq for entry in entries)
        return lost

    def _says(self, member: Membership, entries: Sequence[DroppedSegment]) -> bool:
        """
        Say whether the file has them resolved although it could not be replaced for certain: the next look would find
        nothing to count.
        """
        with contextlib.suppress(OSError):
            member.reload()
        with self._shared.condition:
            return all(member.is_durably_complete(_segment_of(entry)) for entry in entries)

    def _resolve(
        self, member: Membership, entries: Sequence[DroppedSegment], by_reason: Counter[str], state: SubscriberState
    ) -> bool:
        for entry in entries:
            segment = _segment_of(entry)
            self._shared.audit_dropped(member.id, state, segment, reason=entry.reason)
            by_reason[entry.reason] += state.resolve_all(segment)
            if member.queue is not None:
                member.queue.withheld(entry.seq)
        return True

    # ── under the condition ──────────────────────────────────────────────────────────────────────────

    def resolve_again(self, state: SubscriberState) -> None:
        """
        Resolve what was dropped in a *state* that went back before it: it cannot come again, and is not counted
        again.
        """
        for segment in self._shared.dropped.values():
            state.resolve_all(segment)

    def is_settled(self, entry: DroppedSegment) -> bool:
        """Say whether every subscriber's file has it resolved."""
        return all(self._is_settled_for(member, _segment_of(entry)) for member in self._members.all())

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget entries that the ledger does not name any more: they are settled, and their files are gone."""
        for seq in seqs:
            self._shared.dropped.pop(seq, None)

    def _is_settled_for(self, member: Membership, segment: SegmentRef, *, is_new: bool = False) -> bool:
        if member.is_durably_complete(segment):
            return True
        if is_new:
            return False  # it may never have been a segment, and yet be a loss
        if member.durable is None or member.durable.has_begun(segment.seq):
            return False  # taken over from another process, which had not taken note: nobody has counted it
        # To this process a number without a segment is one that is gone: its file need not say more.
        return member.file is not None and segment.seq not in self._shared.segments


def _segment_of(entry: DroppedSegment) -> SegmentRef:
    return SegmentRef(entry.seq, entry.bundle_count)
