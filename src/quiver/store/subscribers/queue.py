"""
The pending bundles of one subscriber, in the order of delivery. Pure: the time is an argument.

=================  ==========================================================================================
order              which bundle is delivered next
=================  ==========================================================================================
``oldest``         the oldest bundle (the default)
``newest``         the newest one; every fourth time the oldest, so that the backlog shrinks while new bundles arrive
``round_robin``    the oldest one of each segment in turn, so that all parts of a backlog make progress
=================  ==========================================================================================

The claimable bundles are a set of indices for each segment, so the cost of `take` does not depend on how many bundles
are claimed. A deferred bundle enters the set when its delay has passed, and does not delay others. A bundle that could
not be read is delivered again when nothing else is pending.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Literal, get_args

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailableError, UsageError
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState, Unsealed

__all__ = ["BACKFILL_EVERY", "ClaimableBitmap", "DeliveryQueue", "Order", "Place", "RunClaim", "check_order"]

Order = Literal["oldest", "newest", "round_robin"]

BACKFILL_EVERY = 4
"""Under `newest`, every n-th bundle is the oldest one."""

Place = tuple[int, int]
"""Segment and index. A `BundleRef` is one; a tuple takes a fraction of the time, and equals it."""

_STALE_MAX = 64
"""Deferrals that are claimed early leave their entry in the heap; beyond this many it is rebuilt."""

_WORD_BITS = 512
_WORD_BYTES = _WORD_BITS // 8

_ENDS: dict[str, int] = {"oldest": 0, "newest": -1}
"""Which of the segments with claimable bundles is next; `round_robin` has no entry."""


def check_order(order: str) -> Order:
    """
    Return *order* if it is a delivery order.

    Raises:
        UsageError: it is not; the message lists the valid values.
    """
    for known in get_args(Order):
        if order == known:
            return known
    raise UsageError(f"order={order!r} is not one of {', '.join(get_args(Order))}")


class ClaimableBitmap:
    """
    The bundles of one segment that may be claimed: a set of indices. Not thread-safe.

    The set is cut into words. A single integer of 65,536 bits would be copied at every step.

    Attributes:
        count: the number of indices in the set.
    """

    __slots__ = ("_end", "_high", "_low", "_next", "_words", "count")

    def __init__(self, bits: int) -> None:
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        self.count = bits.bit_count()
        self._words = [
            int.from_bytes(data[at : at + _WORD_BYTES], "little") for at in range(0, len(data), _WORD_BYTES)
        ] or [0]
        # All words below `_low` and above `_high` are zero.
        self._low = 0
        self._high = len(self._words) - 1
        # The lowest indices, if they were cut out of their word: from `_next` to `_end`, excluded.
        self._next = self._end = 0

    def add(self, index: int) -> None:
        """Add *index*."""
        self._put_back()
        at, bit = divmod(index, _WORD_BITS)
        words = self._words
        if at >= len(words):
            words.extend([0] * (at + 1 - len(words)))
        mask = 1 << bit
        if not words[at] & mask:
            words[at] |= mask
            self.count += 1
            self._low = min(self._low, at)
            self._high = max(self._high, at)

    def add_bits(self, bits: int) -> None:
        """Add the index of each bit of *bits* that is set."""
        self._put_back()
        words = self._words
        data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        words.extend([0] * (-(-len(data) // _WORD_BYTES) - len(words)))
        for start in range(0, len(data), _WORD_BYTES):
            new = int.from_bytes(data[start : start + _WORD_BYTES], "little")
            if new:
                at = start // _WORD_BYTES
                self.count += (new & ~words[at]).bit_count()
                words[at] |= new
                self._low = min(self._low, at)
                self._high = max(self._high, at)

    def discard(self, index: int) -> None:
        """Remove *index* if it is present."""
        self._put_back()
        at, bit = divmod(index, _WORD_BITS)
        if at < len(self._words) and self._words[at] >> bit & 1:
            self._words[at] ^= 1 << bit
            self.count -= 1

    def pop_first(self) -> int:
        """Remove and return the lowest index. The set must not be empty."""
        index = self._next
        if index == self._end:
            index = self._cut()
        self._next = index + 1
        self.count -= 1
        return index

    def pop_some(self, count: int) -> list[int]:
        """Remove and return up to *count* of the lowest indices, ascending."""
        wanted = min(count, self.count)
        found: list[int] = []
        while len(found) < wanted:
            first = self._next if self._next < self._end else self._cut()
            self._next = min(self._end, first + wanted - len(found))
            found.extend(range(first, self._next))
        self.count -= wanted
        return found

    def pop_run(self, count: int) -> tuple[int, int]:
        """Remove the lowest index and up to *count* consecutive ones; return the first and how many. Not if empty."""
        first = self.pop_first()
        length = 1
        while length < count:
            # A word ends here, or a gap follows.
            if self._next == self._end and (not self.count or self._cut() != first + length):
                break
            found = min(count - length, self._end - self._next)
            self._next += found
            self.count -= found
            length += found
        return first, length

    def pop_last_run(self, count: int) -> tuple[int, int]:
        """Remove the highest index and up to *count* consecutive ones; return the first and how many. Not if empty."""
        words = self._words
        first = self.pop_last()
        length = 1
        while length < count and first:
            at, bit = divmod(first - 1, _WORD_BITS)
            gaps = ~words[at] & ((2 << bit) - 1)
            found = min(bit + 1 - gaps.bit_length(), count - length)
            if not found:
                break
            words[at] ^= ((1 << found) - 1) << (bit + 1 - found)
            self.count -= found
            first -= found
            length += found
            if found <= bit:
                break
        return first, length

    def pop_last(self) -> int:
        """Remove and return the highest index. The set must not be empty."""
        self._put_back()
        words, at = self._words, self._high
        while not words[at]:
            at -= 1
        self._high = at
        bit = words[at].bit_length() - 1
        words[at] ^= 1 << bit
        self.count -= 1
        return at * _WORD_BITS + bit

    def _cut(self) -> int:
        """Cut the lowest index, and those that follow it without a gap, out of their word; return it. Not if empty."""
        words, at = self._words, self._low
        while not (word := words[at]):
            at += 1
        self._low = at
        first = (word & -word).bit_length() - 1
        ones = word >> first
        length = (~ones & (ones + 1)).bit_length() - 1
        words[at] = ones >> length << first + length
        self._next = at * _WORD_BITS + first
        self._end = self._next + length
        return self._next

    def _put_back(self) -> None:
        """Put what `_cut` has cut out, and is still in the set, back into its word."""
        if self._next < self._end:
            at, bit = divmod(self._next, _WORD_BITS)
            self._words[at] |= ((1 << self._end - self._next) - 1) << bit
            self._next = self._end


class RunClaim:
    """
    The claim on a run: consecutive bundles of one segment. Not thread-safe.

    Attributes:
        queue: the queue that has the claim.
        segment: the segment.
        first: the index of its first bundle.
        count: the number of its bundles.
        left: the bundles that are still claimed: bit n is set for bundle first + n.
        outcome: the latest decision about the run or a part of it; None before the first.
    """

    __slots__ = ("count", "first", "left", "outcome", "queue", "segment")

    def __init__(self, queue: DeliveryQueue, segment: int, first: int, count: int) -> None:
        self.queue = queue
        self.segment = segment
        self.first = first
        self.count = count
        self.left = (1 << count) - 1
        self.outcome: str | None = None

    def refs(self, bits: int) -> Iterator[BundleRef]:
        """Iterate over the bundles of *bits*, ascending."""
        while bits:
            lowest = bits & -bits
            bits ^= lowest
            yield BundleRef(self.segment, self.first + lowest.bit_length() - 1)

    def __contains__(self, place: Place) -> bool:
        at = place[1] - self.first
        return 0 <= at < self.count and bool(self.left >> at & 1)


class DeliveryQueue:
    """
    The claims of one subscriber, and the order of its pending bundles. Not thread-safe.

    A pending bundle is in exactly one of `_free`, `claimed`, `_runs`, `_delayed` and `_unreadable`. The set of a
    segment is created when it is first needed; until then none of its bundles is in the other four.
    """

    def __init__(self, state: SubscriberState, segments: Segments, *, order: Order = "oldest") -> None:
        self.order: Order = order
        """May be changed at any time; takes effect with the next `take`."""
        self.arrivals = 0
        """Incremented whenever a bundle becomes claimable, and only then."""
        self._state = state
        self._segments = segments
        self._free: dict[int, ClaimableBitmap] = {}
        # By number of an unsealed segment: how many of its bundles are in one of the collections.
        self._known: dict[int, int] = {}
        # Segments that may have a claimable bundle, ascending. A segment found to have none is removed.
        self._open = [segment.seq for segment in segments if not state.is_complete(segment)]
        self._taken = 0
        self._turn = -1
        self.claimed: set[Place] = set()
        """The bundles that are claimed one by one."""
        self.due: list[tuple[float, Place]] = []
        """A heap of deferrals, the next one first; some of them have ended. While it is empty, time has no effect."""
        self._runs: dict[int, list[RunClaim]] = {}
        self._delayed: dict[Place, float] = {}
        self._unreadable: dict[Place, None] = {}

    @property
    def claimed_count(self) -> int:
        """The number of claimed bundles."""
        return len(self.claimed) + sum(run.left.bit_count() for runs in self._runs.values() for run in runs)

    @property
    def deferred_count(self) -> int:
        """The number of deferred bundles."""
        return len(self._delayed)

    def is_claimed(self, place: Place) -> bool:
        """Return whether the bundle at *place* is claimed."""
        return place in self.claimed or any(place in run for run in self._runs.get(place[0], ()))

    def claimed_segments(self) -> set[int]:
        """Return the segments that have a claimed bundle."""
        return {segment for segment, _ in self.claimed} | self._runs.keys()

    def sealed(self, segment: SegmentRef) -> None:
        """Add a new segment, or what is new of one that was unsealed until now."""
        if segment.seq in self._known:
            self.arrived(segment)
            del self._known[segment.seq]
            return
        self._free.pop(segment.seq, None)
        if not self._state.is_complete(segment):
            self._list(segment.seq)
            self.arrivals += 1

    def arrived(self, segment: SegmentRef | Unsealed) -> None:
        """Add the bundles of the unsealed *segment* that are new since the last call."""
        seq, count = segment.seq, segment.bundle_count
        known = self._known.get(seq, 0)
        if count == known:
            return
        self._known[seq] = count
        new = ((1 << count) - (1 << known)) & ~self._state.bitmap_of(seq, count)
        free = self._free.get(seq)
        if free is None:
            free = self._free[seq] = ClaimableBitmap(0)
        if new:
            free.add_bits(new)
            self._list(seq)
            self.arrivals += 1

    def removed(self, seqs: Iterable[int]) -> None:
        """Remove deleted segments. Claims on their bundles last until they are settled."""
        for seq in seqs:
            self._free.pop(seq, None)
            self._known.pop(seq, None)
            self._unlist(seq)

    def withheld(self, seq: int) -> None:
        """Stop delivering segment *seq*: all of it was resolved without delivery."""
        if seq in self._segments:
            self._free[seq] = ClaimableBitmap(0)
            self._unlist(seq)

    def rewound(self, to: BundleRef) -> None:
        """Rebuild the queue after the state was rewound to *to*. Claims and deferrals are kept."""
        for seq in [seq for seq in self._free if seq >= to.segment]:
            if seq in self._known:
                self._free[seq] = ClaimableBitmap(self._in_unsealed(seq))
            else:
                del self._free[seq]
        incomplete = [
            segment.seq for segment in self._segments.between(to.segment) if not self._state.is_complete(segment)
        ]
        self._open = self._open[: bisect_left(self._open, to.segment)] + incomplete
        in_runs = (ref for runs in self._runs.values() for run in runs for ref in run.refs(run.left))
        for place in (*self.claimed, *in_runs, *self._delayed, *self._unreadable):
            if place[0] >= to.segment and self._segments.find(place[0]) is not None:
                self._withhold(place)
        for seq in sorted(self._known):
            if self._free[seq].count:
                self._list(seq)
        self.arrivals += 1

    def _in_unsealed(self, seq: int) -> int:
        """Return the known bundles of unsealed segment *seq* that are not resolved: bit n is set for bundle n."""
        known = self._known[seq]
        return (1 << known) - 1 & ~self._state.bitmap_of(seq, known)

    def has_free(self, now_s: float) -> bool:
        """Return whether `take` would return a bundle. Bundles that could not be read do not count."""
        self._ripen(now_s)
        return self._choose("oldest") is not None

    def take(self, now_s: float) -> Place | None:
        """Claim and return the next bundle at *now_s*, or None."""
        if self.due:
            self._ripen(now_s)
        order = self.order
        place: Place | None
        if order == "oldest" and self._open:  # the common case, as short as possible
            seq = self._open[0]
            free = self._free.get(seq)
            if free is not None and free.count > 1:
                self._taken += 1
                self._turn = seq
                place = seq, free.pop_first()
                self.claimed.add(place)
                return place
        if order == "newest" and self._taken % BACKFILL_EVERY == BACKFILL_EVERY - 1:
            order = "oldest"
        chosen = self._choose(order)
        if chosen is None:
            place = self._first_unreadable()
            if place is None:
                return None
        else:
            free = self._free[chosen]
            place = chosen, free.pop_last() if order == "newest" else free.pop_first()
            if not free.count:
                self._unlist(chosen)
            self._taken += 1
            self._turn = chosen
        self.claimed.add(place)
        return place

    def take_many(self, now_s: float, count: int) -> list[Place]:
        """Claim and return up to *count* bundles: those that *count* calls of `take` would return."""
        places: list[Place] = []
        if self.order == "oldest":
            if self.due:
                self._ripen(now_s)
            while len(places) < count and (seq := self._choose("oldest")) is not None:
                free = self._free[seq]
                places += zip(repeat(seq), free.pop_some(count - len(places)), strict=False)
                if not free.count:
                    self._unlist(seq)
                self._turn = seq
            self._taken += len(places)
            self.claimed.update(places)
        while len(places) < count and (place := self.take(now_s)) is not None:
            places.append(place)
        return places

    def take_run(self, now_s: float, count_max: int) -> RunClaim | None:
        """
        Claim and return the next run of up to *count_max* bundles at *now_s*, or None.

        It begins with the bundle that `take` would return; under `newest` it ends with that bundle. A bundle that could
        not be read is a run of its own.
        """
        if self.due:
            self._ripen(now_s)
        order = self.order
        if order == "newest" and self._taken % BACKFILL_EVERY == BACKFILL_EVERY - 1:
            order = "oldest"
        seq = self._choose(order)
        if seq is None:
            place = self._first_unreadable()
            if place is None:
                return None
            run = RunClaim(self, *place, 1)
        else:
            free = self._free[seq]
            pop = free.pop_last_run if order == "newest" else free.pop_run
            run = RunClaim(self, seq, *pop(count_max))
            if not free.count:
                self._unlist(seq)
            self._taken += 1
            self._turn = seq
        self._runs.setdefault(run.segment, []).append(run)
        return run

    def end_run(self, run: RunClaim, bits: int) -> None:
        """End the claim on *bits* of *run*, which are resolved."""
        run.left &= ~bits
        if not run.left:
            of_segment = self._runs.get(run.segment, [])
            if run in of_segment:
                of_segment.remove(run)
            if not of_segment:
                self._runs.pop(run.segment, None)

    def split(self, run: RunClaim, ref: BundleRef) -> None:
        """Take *ref*, which is claimed by *run*, out of it: from now on it is claimed like a single bundle."""
        self.end_run(run, 1 << ref.index - run.first)
        self.claimed.add(ref)

    def release_run(self, run: RunClaim, *, due_s: float | None = None) -> None:
        """Return what *run* still claims to the pending bundles: immediately, or at *due_s*."""
        refs = list(run.refs(run.left))
        self.end_run(run, run.left)
        for ref in refs:
            self.release(ref, due_s=due_s)

    def claim(self, ref: BundleRef) -> None:
        """
        Claim one bundle by its reference, whether it is pending, deferred or could not be read.

        Raises:
            BundleUnavailableError: the bundle does not exist, or is resolved or claimed.
        """
        segment = self._segments.find(ref.segment)
        if segment is None or not 0 <= ref.index < segment.bundle_count:
            raise BundleUnavailableError(f"there is no bundle {ref}")
        if ref.segment in self._segments.unsealed:
            self.arrived(segment)
        if self.is_claimed(ref):
            raise BundleUnavailableError(f"bundle {ref} is claimed already")
        if self._state.is_resolved(ref):
            raise BundleUnavailableError(f"bundle {ref} is resolved already")
        self._withhold(ref)
        self._delayed.pop(ref, None)
        self._unreadable.pop(ref, None)
        self.claimed.add(ref)

    def resolved(self, place: Place) -> None:
        """End the claim on the bundle at *place*, which is resolved."""
        self.claimed.discard(place)

    def release(self, place: Place, *, due_s: float | None = None) -> None:
        """Return the bundle at *place* to the pending ones: immediately, or at *due_s*."""
        self.claimed.discard(place)
        if due_s is None:
            self._give_back(place)
        else:
            self._delayed[place] = due_s
            heappush(self.due, (due_s, place))
            if len(self.due) > 2 * len(self._delayed) + _STALE_MAX:
                self.due = [(due, waiting) for waiting, due in self._delayed.items()]
                heapify(self.due)

    def release_unreadable(self, place: Place) -> None:
        """Return the bundle at *place* to the pending ones, to be delivered only when nothing else is pending."""
        self.claimed.discard(place)
        self._unreadable[place] = None

    def next_due_s(self) -> float | None:
        """Return when the next deferred bundle becomes claimable; None if none is deferred."""
        while self.due and self._delayed.get(self.due[0][1]) != self.due[0][0]:
            heappop(self.due)
        return self.due[0][0] if self.due else None

    def _ripen(self, now_s: float) -> None:
        while (due_s := self.next_due_s()) is not None and due_s <= now_s:
            _, place = heappop(self.due)
            del self._delayed[place]
            self._give_back(place)

    def _give_back(self, place: Place) -> None:
        # Its segment may have been deleted or dropped by policy.
        if self._is_pending(place):
            seq, index = place
            free = self._bits(seq)
            if free is not None:
                free.add(index)
                self._list(seq)
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

    def _bits(self, seq: int) -> ClaimableBitmap | None:
        free = self._free.get(seq)
        if free is None:
            segment = self._segments.get(seq)
            if segment is not None:
                free = self._free[seq] = ClaimableBitmap(self._state.unresolved(segment))
        return free

    def _withhold(self, place: Place) -> None:
        seq, index = place
        free = self._bits(seq)
        if free is not None:
            free.discard(index)
            if not free.count:
                self._unlist(seq)

    def _list(self, seq: int) -> None:
        at = bisect_left(self._open, seq)
        if at == len(self._open) or self._open[at] != seq:
            self._open.insert(at, seq)

    def _unlist(self, seq: int) -> None:
        at = bisect_left(self._open, seq)
        if at < len(self._open) and self._open[at] == seq:
            del self._open[at]

    def _is_pending(self, place: Place) -> bool:
        return self._segments.find(place[0]) is not None and not self._state.is_resolved(place)

    def _first_unreadable(self) -> Place | None:
        while self._unreadable:
            place = next(iter(self._unreadable))
            del self._unreadable[place]
            if self._is_pending(place):
                return place
        return None
