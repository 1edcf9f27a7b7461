"""
In which order one subscriber's pending bundles are handed out. Pure: the time is an argument.

=================  ==========================================================================================
order              what goes out next
=================  ==========================================================================================
``oldest``         the oldest bundle (the default)
``newest``         the newest one; each fourth time the oldest, so that the backlog goes on while new ones come
``round_robin``    the oldest one of each segment in turn: all ages of a backlog go on together
=================  ==========================================================================================

What may go out is a set of indices for each segment, so taking costs the same however many are claimed. A deferred
bundle is not in it until its time has come, and holds up nothing. One that could not be read comes again when
nothing else is pending.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Literal, get_args

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailableError, UsageError
from quiver.store.subscribers.claimable_bitmap import FreeBits
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

__all__ = ["BACKFILL_EVERY", "DeliveryQueue", "Order", "check_order"]

Order = Literal["oldest", "newest", "round_robin"]

BACKFILL_EVERY = 4
"""Under `newest`, one bundle in so many is the oldest one."""

_ref = partial(tuple.__new__, BundleRef)
"""`BundleRef(*pair)` for less: it is made for every bundle."""

_STALE_MAX = 64
"""Deferrals that were claimed early leave their time behind; beyond this many the heap is rebuilt."""


_ENDS: dict[str, int] = {"oldest": 0, "newest": -1}
"""Which of the segments with something free comes next, unless they take turns."""


def check_order(order: str) -> Order:
    """
    Return *order* when it is one.

    Raises:
        UsageError: it is not; the message names those there are.
    """
    for known in get_args(Order):
        if order == known:
            return known
    raise UsageError(f"order={order!r} is not one of {', '.join(get_args(Order))}")


class DeliveryQueue:
    """
    Claims and their order for one subscriber. Not thread-safe.

    A pending bundle is in exactly one place: `_free`, in `_claimed`, in `_delayed` or in `_unreadable`.
    The set of a segment is made when it is first looked at; until then nothing of it is anywhere else.
    """

    def __init__(self, state: SubscriberState, segments: Segments, *, order: Order = "oldest") -> None:
        self.order: Order = order
        """May be changed at any time; it counts from the next `take` on."""
        self.arrivals = 0
        """Grows whenever a bundle becomes free, and never otherwise."""
        self._state = state
        self._segments = segments
        self._free: dict[int, FreeBits] = {}
        # Segments that may have a free bundle, ascending; one that turns out to have none leaves the list.
        self._open = [segment.seq for segment in segments if not state.is_complete(segment)]
        self._taken = 0
        self._turn = -1
        self._claimed: set[BundleRef] = set()
        self._delayed: dict[BundleRef, float] = {}
        self._due: list[tuple[float, BundleRef]] = []
        self._unreadable: dict[BundleRef, None] = {}

    @property
    def claimed_count(self) -> int:
        """How many bundles are claimed now."""
        return len(self._claimed)

    @property
    def deferred_count(self) -> int:
        """How many bundles wait for their time."""
        return len(self._delayed)

    def is_claimed(self, ref: BundleRef) -> bool:
        """Say whether *ref* is claimed."""
        return ref in self._claimed

    def claimed_segments(self) -> set[int]:
        """Return the segments of which a bundle is claimed."""
        return {ref.segment for ref in self._claimed}

    def sealed(self, segment: SegmentRef) -> None:
        """Take note of a new segment."""
        self._free.pop(segment.seq, None)
        if not self._state.is_complete(segment):
            self._list(segment.seq)
            self.arrivals += 1

    def removed(self, seqs: Iterable[int]) -> None:
        """Forget segments that are gone. Claims on their bundles last until they are settled."""
        for seq in seqs:
            self._free.pop(seq, None)
            self._unlist(seq)

    def withheld(self, seq: int) -> None:
        """Take note that all of segment *seq* was resolved without being delivered."""
        if seq in self._segments:
            self._free[seq] = FreeBits(0)
            self._unlist(seq)

    def rewound(self, to: BundleRef) -> None:
        """Take note that the state was rewound to *to*. Claims and deferrals stay what they are."""
        for seq in [seq for seq in self._free if seq >= to.segment]:
            del self._free[seq]
        behind = [segment.seq for segment in self._segments.between(to.segment) if not self._state.is_complete(segment)]
        self._open = self._open[: bisect_left(self._open, to.segment)] + behind
        for ref in (*self._claimed, *self._delayed, *self._unreadable):
            if ref.segment >= to.segment and ref.segment in self._segments:
                self._withhold(ref)
        self.arrivals += 1

    def has_free(self, now_s: float) -> bool:
        """Say whether `take` would return a bundle that could be read so far."""
        self._ripen(now_s)
        return self._choose("oldest") is not None

    def take(self, now_s: float) -> BundleRef | None:
        """Claim and return the bundle whose turn it is at *now_s*, or None."""
        if self._due:
            self._ripen(now_s)
        order = self.order
        if order == "newest" and self._taken % BACKFILL_EVERY == BACKFILL_EVERY - 1:
            order = "oldest"
        seq = self._choose(order)
        if seq is None:
            ref = self._first_unreadable()
            if ref is None:
                return None
        else:
            free = self._free[seq]
            ref = _ref((seq, free.pop_last() if order == "newest" else free.pop_first()))
            if not free.count:
                self._unlist(seq)
            self._taken += 1
            self._turn = seq
        self._claimed.add(ref)
        return ref

    def take_many(self, now_s: float, count: int) -> list[BundleRef]:
        """
        Claim and return up to *count* bundles, those that as many calls of `take` would; empty when
        there are none.
        """
        refs: list[BundleRef] = []
        if self.order == "oldest":
            if self._due:
                self._ripen(now_s)
            while len(refs) < count and (seq := self._choose("oldest")) is not None:
                free = self._free[seq]
                refs += [_ref((seq, index)) for index in free.pop_some(count - len(refs))]
                if not free.count:
                    self._unlist(seq)
                self._turn = seq
            self._taken += len(refs)
            self._claimed.update(refs)
        while len(refs) < count and (ref := self.take(now_s)) is not None:
            refs.append(ref)
        return refs

    def claim(self, ref: BundleRef) -> None:
        """
        Claim *ref* itself, whether it is pending, deferred or was unreadable.

        Raises:
            BundleUnavailableError: there is no such bundle, or it is resolved or claimed.
        """
        segment = self._segments.get(ref.segment)
        if segment is None or not 0 <= ref.index < segment.bundle_count:
            raise BundleUnavailableError(f"there is no bundle {ref}")
        if ref in self._claimed:
            raise BundleUnavailableError(f"bundle {ref} is claimed already")
        if self._state.is_resolved(ref):
            raise BundleUnavailableError(f"bundle {ref} is resolved already")
        self._withhold(ref)
        self._delayed.pop(ref, None)
        self._unreadable.pop(ref, None)
        self._claimed.add(ref)

    def resolved(self, ref: BundleRef) -> None:
        """End the claim on *ref* for good; the state knows it as resolved."""
        self._claimed.discard(ref)

    def release(self, ref: BundleRef, *, due_s: float | None = None) -> None:
        """Give *ref* back: pending at once, or from *due_s* on."""
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
        """Give *ref* back, to come again only when nothing else is pending."""
        self._claimed.discard(ref)
        self._unreadable[ref] = None

    def next_due_s(self) -> float | None:
        """Return when the next deferred bundle becomes pending; None when none is deferred."""
        while self._due and self._delayed.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _ripen(self, now_s: float) -> None:
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            _, ref = heappop(self._due)
            del self._delayed[ref]
            self._give_back(ref)

    def _give_back(self, ref: BundleRef) -> None:
        # Its segment may be gone by now, or dropped by policy.
        if self._is_pending(ref):
            free = self._bits(ref.segment)
            if free is not None:
                free.add(ref.index)
                self._list(ref.segment)
            self.arrivals += 1

    def _choose(self, order: Order) -> int | None:
        while self._open:
            at = _ENDS.get(order)
            if at is None:
                at = bisect_right(self._open, self._turn) % len(self._open)
            seq = self._open[at]
            free = self._free.get(seq) or self._bits(seq)
            if free is not None and free.count:
                return seq
            del self._open[at]
        return None

    def _bits(self, seq: int) -> FreeBits | None:
        free = self._free.get(seq)
        if free is None:
            segment = self._segments.get(seq)
            if segment is not None:
                free = self._free[seq] = FreeBits(self._state.unresolved(segment))
        return free

    def _withhold(self, ref: BundleRef) -> None:
        free = self._bits(ref.segment)
        if free is not None:
            free.discard(ref.index)
            if not free.count:
                self._unlist(ref.segment)

    def _list(self, seq: int) -> None:
        at = bisect_left(self._open, seq)
        if at == len(self._open) or self._open[at] != seq:
            self._open.insert(at, seq)

    def _unlist(self, seq: int) -> None:
        at = bisect_left(self._open, seq)
        if at < len(self._open) and self._open[at] == seq:
            del self._open[at]

    def _is_pending(self, ref: BundleRef) -> bool:
        return ref.segment in self._segments and not self._state.is_resolved(ref)

    def _first_unreadable(self) -> BundleRef | None:
        while self._unreadable:
            ref = next(iter(self._unreadable))
            del self._unreadable[ref]
            if self._is_pending(ref):
                return ref
        return None
