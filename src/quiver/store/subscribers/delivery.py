"""
In which order one subscriber's pending bundles are handed out. Pure: the time is an argument.

Oldest first. A cursor walks over segments and bundles once; whatever comes back behind it (dropped handles,
deferrals whose time has come) waits in a heap, so taking a bundle costs O(log n) however many are claimed.
A deferred bundle holds up nothing: newer ones go out while it waits. A bundle that could not be read comes
again when nothing else is pending.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailable
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

__all__ = ["DeliveryQueue"]

_STALE_MAX = 64
"""Deferrals that were claimed early leave their time behind; beyond this many the heap is rebuilt."""


class DeliveryQueue:
    """
    Claims and their order for one subscriber. Not thread-safe.

    A pending bundle is in exactly one place: at or behind the cursor, in `_returned`, in `_delayed` or in
    `_unreadable`. The heaps may also hold entries that are no longer true; they are passed over.
    """

    def __init__(self, state: SubscriberState, segments: Segments) -> None:
        self._state = state
        self._segments = segments
        self._seq = 0
        self._index = 0
        self._claimed: set[BundleRef] = set()
        self._returned: list[BundleRef] = []
        self._in_returned: set[BundleRef] = set()
        self._delayed: dict[BundleRef, float] = {}
        self._due: list[tuple[float, BundleRef]] = []
        self._unreadable: dict[BundleRef, None] = {}

    @property
    def claimed_count(self) -> int:
        """
        How many bundles are claimed now.
        """
        return len(self._claimed)

    def is_claimed(self, ref: BundleRef) -> bool:
        """
        Say whether *ref* is claimed.
        """
        return ref in self._claimed

    def sealed(self, segment: SegmentRef) -> None:
        """
        Take note of a new segment; one below the cursor is not missed.
        """
        if segment.seq < self._seq:
            self._seq, self._index = segment.seq, 0

    def take(self, now_s: float) -> BundleRef | None:
        """
        Claim and return the oldest bundle that may go out at *now_s*, or None.
        """
        self._ripen(now_s)
        ahead = self._seek()
        while self._returned and not self._is_free(self._returned[0]):
            self._pop_returned()
        if self._returned and (ahead is None or self._returned[0] <= ahead):
            ref = self._pop_returned()
        elif ahead is not None:
            ref = ahead
            self._index += 1
        else:
            again = self._first_unreadable()
            if again is None:
                return None
            ref = again
        self._claimed.add(ref)
        return ref

    def claim(self, ref: BundleRef) -> None:
        """
        Claim *ref* itself, whether it is pending, deferred or was unreadable.

        Raises:
            BundleUnavailable: there is no such bundle, or it is resolved or claimed.
        """
        segment = self._segments.get(ref.segment)
        if segment is None or not 0 <= ref.index < segment.bundle_count:
            raise BundleUnavailable(f"there is no bundle {ref}")
        if ref in self._claimed:
            raise BundleUnavailable(f"bundle {ref} is claimed already")
        if self._state.is_resolved(ref):
            raise BundleUnavailable(f"bundle {ref} is resolved already")
        self._delayed.pop(ref, None)
        self._unreadable.pop(ref, None)
        self._claimed.add(ref)

    def resolved(self, ref: BundleRef) -> None:
        """
        End the claim on *ref* for good; the state knows it as resolved.
        """
        self._claimed.discard(ref)

    def release(self, ref: BundleRef, *, due_s: float | None = None) -> None:
        """
        Give *ref* back: pending at once, or from *due_s* on.
        """
        self._claimed.discard(ref)
        if due_s is None:
            self._give_back(ref)
        else:
            self._delayed[ref] = due_s
            heappush(self._due, (due_s, ref))
            if len(self._due) > 2 * len(self._delayed) + _STALE_MAX:
                self._due = [(due, waiting) for waiting, due in self._delayed.items()]
                heapify(self._due)

    def release_unreadable(self, ref: BundleRef) -> None:
        """
        Give *ref* back, to come again only when nothing else is pending.
        """
        self._claimed.discard(ref)
        self._unreadable[ref] = None

    def next_due_s(self) -> float | None:
        """
        Return when the next deferred bundle becomes pending; None when none is deferred.
        """
        while self._due and self._delayed.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _ripen(self, now_s: float) -> None:
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            _, ref = heappop(self._due)
            del self._delayed[ref]
            self._give_back(ref)

    def _give_back(self, ref: BundleRef) -> None:
        # At or behind the cursor it will be met anyway.
        behind = (ref.segment, ref.index) < (self._seq, self._index)
        if behind and ref not in self._in_returned:
            self._in_returned.add(ref)
            heappush(self._returned, ref)

    def _pop_returned(self) -> BundleRef:
        ref = heappop(self._returned)
        self._in_returned.discard(ref)
        return ref

    def _seek(self) -> BundleRef | None:
        segment = self._segments.at_or_after(self._seq)
        while segment is not None:
            if segment.seq != self._seq:
                self._seq, self._index = segment.seq, 0
            if not self._state.is_complete(segment):
                while self._index < segment.bundle_count:
                    ref = BundleRef(segment.seq, self._index)
                    if self._is_free(ref):
                        return ref
                    self._index += 1
            segment = self._segments.at_or_after(segment.seq + 1)
        return None

    def _is_free(self, ref: BundleRef) -> bool:
        return not (
            ref in self._claimed
            or ref in self._delayed
            or ref in self._unreadable
            or self._state.is_resolved(ref)
            or ref.segment not in self._segments
        )

    def _first_unreadable(self) -> BundleRef | None:
        while self._unreadable:
            ref = next(iter(self._unreadable))
            del self._unreadable[ref]
            if self._is_free(ref):
                return ref
        return None
