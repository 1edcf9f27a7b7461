"""
The resolved bundles of one subscriber, and the sealed segments of a store. Pure: no I/O, no clock, no threads.

A bundle is resolved when it was acknowledged or rejected; the state does not distinguish the two. All methods below
keep the rule that defines a progress file::

    segment below oldest_incomplete, no entry    every bundle is resolved
    segment at or above it, no entry             no bundle is resolved
    an entry, for any segment                    its bits mark the resolved bundles

So the entry of a finished segment may be removed only when all older segments are finished, too; then
`oldest_incomplete` moves past it and expresses the same in eight bytes. And `oldest_incomplete` may never pass a
number that a segment could still get: otherwise a segment sealed after a restart would appear delivered before any
subscriber saw it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailableError
from quiver.settings import Profile
from quiver.store.format.progress import Progress, SegmentProgress
from quiver.store.segment.info import SegmentInfo

__all__ = [
    "ENTRY_BUNDLES_MAX",
    "SEGMENT_SEQ_MAX",
    "SegmentRef",
    "Segments",
    "SubscriberState",
    "Unsealed",
]

ENTRY_BUNDLES_MAX = 65_536
"""A progress entry has at most 1,024 words of 64 bits. Larger segments are resolved completely or not at all."""

SEGMENT_SEQ_MAX = 2**63 - 1
"""No store gets this far: a progress file with a higher segment number is invalid."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """
    A sealed segment: its number, its bundles, when the newest and the oldest of them were ingested (None: unknown),
    and the bytes of its file (0: unknown).
    """

    seq: int
    bundle_count: int
    ingested_max_ns: int | None = None
    ingested_min_ns: int | None = None
    size_bytes: int = 0

    @classmethod
    def of(cls, info: SegmentInfo) -> SegmentRef:
        """Return the reference to the segment that *info* describes."""
        return cls(info.seq, info.bundle_count, info.ingested_max_ns, info.ingested_min_ns, info.size_bytes)


class Unsealed(Protocol):
    """A segment whose bundles are delivered although its file is not written yet."""

    @property
    def seq(self) -> int:
        """The number that it has."""
        ...

    @property
    def bundle_count(self) -> int:
        """The number of its bundles so far."""
        ...


class Segments:
    """
    The sealed segments that exist, ascending, and the number the next one will get.

    Attributes:
        unsealed: by number: segments that are delivered before their files are written. They are not among those that
            the methods return, except for `find`.
    """

    __slots__ = ("_order", "_refs", "next_seq", "unsealed")

    def __init__(self, refs: Iterable[SegmentRef] = (), *, next_seq: int = 0) -> None:
        self._refs: dict[int, SegmentRef] = {}
        self._order: list[int] = []
        self.unsealed: dict[int, Unsealed] = {}
        self.next_seq = next_seq
        """Above all numbers in use. A value that is too low is harmless, one that is too high would lose data."""
        for ref in refs:
            self.add(ref)

    def add(self, ref: SegmentRef) -> None:
        """Add *ref*, replacing a segment with the same number."""
        if ref.seq not in self._refs:
            if self._order and ref.seq < self._order[-1]:
                insort(self._order, ref.seq)
            else:
                self._order.append(ref.seq)
        self._refs[ref.seq] = ref
        self.next_seq = max(self.next_seq, ref.seq + 1)

    def discard(self, seq: int) -> None:
        """Remove segment *seq*, whose file was deleted."""
        if self._refs.pop(seq, None) is not None:
            del self._order[bisect_left(self._order, seq)]

    def get(self, seq: int) -> SegmentRef | None:
        """Return segment *seq*, or None if it does not exist."""
        return self._refs.get(seq)

    def find(self, seq: int) -> SegmentRef | Unsealed | None:
        """Return segment *seq*, sealed or not, or None if it does not exist."""
        return self._refs.get(seq) or self.unsealed.get(seq)

    def at_or_after(self, seq: int) -> SegmentRef | None:
        """Return the first segment numbered *seq* or higher."""
        index = bisect_left(self._order, seq)
        return self._refs[self._order[index]] if index < len(self._order) else None

    def between(self, first: int, last: int | None = None) -> list[SegmentRef]:
        """Return the segments from *first* to *last* inclusive, ascending; without *last*, all from *first* on."""
        end = len(self._order) if last is None else bisect_right(self._order, last)
        return [self._refs[seq] for seq in self._order[bisect_left(self._order, first) : end]]

    def missing(self, first: int) -> tuple[range, ...]:
        """Return the numbers from *first* up to `next_seq` that have no segment, as ascending ranges."""
        gaps: list[range] = []
        for seq in (*(segment.seq for segment in self.between(first)), self.next_seq):
            if seq > first:
                gaps.append(range(first, seq))
            first = seq + 1
        return tuple(gaps)

    def __contains__(self, seq: int) -> bool:
        return seq in self._refs

    def __iter__(self) -> Iterator[SegmentRef]:
        return (self._refs[seq] for seq in self._order)

    def __len__(self) -> int:
        return len(self._order)


class _Marks:
    """Which bundles of one segment are resolved."""

    __slots__ = ("bits", "bundle_count", "resolved_count")

    def __init__(self, bundle_count: int, bitmap: int = 0) -> None:
        bitmap &= (1 << bundle_count) - 1
        self.bundle_count = bundle_count
        self.bits = bytearray(bitmap.to_bytes((bundle_count + 7) // 8, "little"))
        self.resolved_count = bitmap.bit_count()

    def grow(self, bundle_count: int) -> None:
        self.bits.extend(bytes((bundle_count + 7) // 8 - len(self.bits)))
        self.bundle_count = bundle_count

    @property
    def bitmap(self) -> int:
        return int.from_bytes(self.bits, "little")

    @property
    def is_full(self) -> bool:
        return self.resolved_count == self.bundle_count

    def __contains__(self, index: int) -> bool:
        return index < self.bundle_count and bool(self.bits[index >> 3] >> (index & 7) & 1)


class SubscriberState:
    """The resolved bundles of one subscriber. One owner at a time; not thread-safe."""

    __slots__ = ("_entries", "oldest_incomplete")

    def __init__(self, oldest_incomplete: int = 0) -> None:
        self.oldest_incomplete = oldest_incomplete
        self._entries: dict[int, _Marks] = {}

    @classmethod
    def from_progress(cls, progress: Progress) -> SubscriberState:
        """Return the state a progress file describes."""
        state = cls(progress.oldest_incomplete)
        for seq, entry in progress.entries.items():
            state._entries[seq] = _Marks(entry.bundle_count, entry.bitmap)
        return state

    def to_progress(
        self,
        segments: Segments,
        *,
        profile: Profile,
        over_gaps: bool = True,
        dropped: Iterable[SegmentRef] = (),
    ) -> Progress:
        """
        Return the content of the progress file.

        `spec` writes entries for unfinished segments, and for finished ones only while an older one is unfinished.
        `otap` adds a full entry for each finished segment that exists, because its other reader uses the entries
        alone, and writes 0 if nothing is incomplete.

        Args:
            segments: the segments that exist.
            profile: the file format.
            over_gaps: *segments* is complete, as for `advance`. Otherwise `otap` keeps the number, because nothing
                else marks a finished segment that is not in *segments*.
            dropped: segments that policy dropped and that the drop ledger still lists. Under `otap` they keep a full
                entry: without it the loss would be counted again after each restart.
        """
        entries = {
            seq: SegmentProgress(marks.bundle_count, marks.bitmap)
            for seq, marks in sorted(self._entries.items())
            if marks.bundle_count <= ENTRY_BUNDLES_MAX
            and seq not in segments.unsealed
            and (profile == "spec" or not over_gaps or seq in segments)
        }
        if profile == "spec":
            return Progress(self.oldest_incomplete, entries)
        incomplete: int | None = None
        for segment in segments:
            if not self.is_complete(segment):
                incomplete = segment.seq if incomplete is None else incomplete
            elif segment.bundle_count <= ENTRY_BUNDLES_MAX:
                full = (1 << segment.bundle_count) - 1
                entries[segment.seq] = SegmentProgress(segment.bundle_count, full)
            else:
                over_gaps = False
        for segment in dropped:
            if segment.bundle_count <= ENTRY_BUNDLES_MAX and self.is_complete(segment):
                entries[segment.seq] = SegmentProgress(segment.bundle_count, (1 << segment.bundle_count) - 1)
        oldest = (incomplete or 0) if over_gaps else self.oldest_incomplete
        return Progress(oldest, dict(sorted(entries.items())))

    @property
    def named_max(self) -> int:
        """The highest segment number in this state, -1 if there is none: new segments must lie above it."""
        return max(self.oldest_incomplete - 1, max(self._entries, default=-1))

    def mentions(self, seq: int) -> bool:
        """Return whether removing segment *seq* changes the content of the progress file."""
        return seq in self._entries or seq >= self.oldest_incomplete

    def reconcile(self, segment: SegmentRef) -> bool:
        """
        Check the entry of *segment* against its actual bundle count; return whether they differed.

        If a number were used twice, the bundles of another segment would appear delivered. So an entry that does not
        match is cleared: its bundles are delivered again rather than skipped.
        """
        marks = self._entries.get(segment.seq)
        if marks is None or marks.bundle_count == segment.bundle_count:
            return False
        self._entries[segment.seq] = _Marks(segment.bundle_count)
        return True

    def resolve(self, place: tuple[int, int], bundle_count: int) -> bool:
        """
        Mark the bundle at *place*, its segment and index, as resolved; return False if it already was.

        The segment has *bundle_count* bundles.

        An unsealed segment may have more bundles than at the last call.

        Raises:
            BundleUnavailableError: the segment has no such bundle.
        """
        segment, index = place
        if not 0 <= index < bundle_count:
            raise BundleUnavailableError(f"segment {segment} has {bundle_count} bundles, no index {index}")
        marks = self._entries.get(segment)
        if marks is None:
            if segment < self.oldest_incomplete:
                return False
            marks = self._entries[segment] = _Marks(bundle_count)
        elif marks.bundle_count < bundle_count:
            marks.grow(bundle_count)
        bits, at, mask = marks.bits, index >> 3, 1 << (index & 7)
        if bits[at] & mask:
            return False
        bits[at] |= mask
        marks.resolved_count += 1
        return True

    def resolve_run(self, segment: int, first: int, bits: int, bundle_count: int) -> int:
        """
        Mark bundles of *segment*, with *bundle_count* bundles, as resolved: bit n of *bits* is bundle first + n.

        Return those of *bits* that were not resolved before.

        Raises:
            BundleUnavailableError: the segment has no such bundle.
        """
        if first < 0 or first + bits.bit_length() > bundle_count:
            reason = f"segment {segment} has {bundle_count} bundles, no index {first + bits.bit_length() - 1}"
            raise BundleUnavailableError(reason)
        marks = self._entries.get(segment)
        if marks is None:
            if segment < self.oldest_incomplete:
                return 0
            marks = self._entries[segment] = _Marks(bundle_count)
        elif marks.bundle_count < bundle_count:
            marks.grow(bundle_count)
        # Only the bytes of the run: a segment has up to 8 KiB of marks.
        at, shift = first >> 3, first & 7
        end = min(at + (shift + bits.bit_length() + 7 >> 3), len(marks.bits))
        before = int.from_bytes(marks.bits[at:end], "little")
        new = bits << shift & ~before
        marks.bits[at:end] = (before | new).to_bytes(end - at, "little")
        marks.resolved_count += new.bit_count()
        return new >> shift

    def sealed(self, segment: SegmentRef) -> bool:
        """Take note that the file of *segment* was written; return whether bundles of it were resolved before."""
        marks = self._entries.get(segment.seq)
        if marks is not None and marks.bundle_count < segment.bundle_count:
            marks.grow(segment.bundle_count)
        return marks is not None

    def forget(self, seq: int) -> None:
        """Remove the entry of segment *seq*, which has no file and never gets one."""
        self._entries.pop(seq, None)

    def bitmap_of(self, seq: int, bundle_count: int) -> int:
        """Return the resolved bundles of segment *seq* among the first *bundle_count*: bit n is set for bundle n."""
        marks = self._entries.get(seq)
        everything = (1 << bundle_count) - 1
        if marks is None:
            return everything if seq < self.oldest_incomplete else 0
        return marks.bitmap & everything

    def resolve_all(self, segment: SegmentRef) -> int:
        """Mark every bundle of *segment*, which may be deleted already, as resolved; return how many were not."""
        marks = self._entries.get(segment.seq)
        if marks is None:
            if segment.seq < self.oldest_incomplete:
                return 0
            resolved = 0
        else:
            resolved = marks.resolved_count if marks.bundle_count == segment.bundle_count else 0
        self._entries[segment.seq] = _Marks(segment.bundle_count, (1 << segment.bundle_count) - 1)
        return segment.bundle_count - resolved

    def is_resolved(self, place: tuple[int, int]) -> bool:
        """Return whether the bundle at *place*, a segment and an index, is resolved."""
        segment, index = place
        marks = self._entries.get(segment)
        return segment < self.oldest_incomplete if marks is None else index in marks

    def unresolved(self, segment: SegmentRef | Unsealed) -> int:
        """Return which bundles of *segment* are not resolved: bit n is set for bundle n."""
        return (1 << segment.bundle_count) - 1 & ~self.bitmap_of(segment.seq, segment.bundle_count)

    def is_complete(self, segment: SegmentRef) -> bool:
        """Return whether every bundle of *segment* is resolved."""
        marks = self._entries.get(segment.seq)
        if marks is None:
            return segment.seq < self.oldest_incomplete or segment.bundle_count == 0
        return marks.is_full and marks.bundle_count == segment.bundle_count

    def has_begun(self, seq: int) -> bool:
        """Return whether segment *seq* has an entry with unresolved bundles, whether or not the segment is known."""
        marks = self._entries.get(seq)
        return marks is not None and not marks.is_full

    def pending_count(self, segments: Segments) -> int:
        """Return how many bundles of *segments* are not resolved."""
        return sum(left for _, left in self.pending_of(segments))

    def pending_of(self, segments: Segments) -> Iterator[tuple[SegmentRef, int]]:
        """Iterate, ascending, over those of *segments* that are not finished, with how many bundles they have left."""
        below = (segments.get(seq) for seq in sorted(seq for seq in self._entries if seq < self.oldest_incomplete))
        for segment in (*below, *segments.between(self.oldest_incomplete)):
            left = 0 if segment is None else self.pending_in(segment)
            if segment is not None and left:
                yield segment, left

    def pending_in(self, segment: SegmentRef) -> int:
        """Return how many bundles of *segment* are not resolved."""
        marks = self._entries.get(segment.seq)
        if marks is not None:
            return marks.bundle_count - marks.resolved_count
        return segment.bundle_count if segment.seq >= self.oldest_incomplete else 0

    def complete_of(self, segments: Segments) -> Iterator[SegmentRef]:
        """Iterate over those of *segments* that are complete, ascending. The cost does not grow with the backlog."""
        above = sorted(seq for seq, marks in self._entries.items() if seq >= self.oldest_incomplete and marks.is_full)
        candidates = (*segments.between(0, self.oldest_incomplete - 1), *(segments.get(seq) for seq in above))
        return (segment for segment in candidates if segment is not None and self.is_complete(segment))

    def advance(self, segments: Segments, *, over_gaps: bool = True) -> None:
        """
        Move `oldest_incomplete` to the oldest unfinished segment, or to the next number if all are finished.

        Entries without information are removed: finished ones below it, and those of deleted segments.
        `oldest_incomplete` never moves back: segments below it without an entry would become unresolved.

        Args:
            segments: the segments that exist.
            over_gaps: *segments* is complete, so a missing number is a deleted segment. Otherwise
                `oldest_incomplete` stops at the first missing number without a full entry.
        """
        segment = segments.at_or_after(self.oldest_incomplete)
        while True:
            if segment is None or segment.seq != self.oldest_incomplete:
                # Dropped by policy: the entry outlives the segment until all subscribers have resolved it.
                marks = self._entries.get(self.oldest_incomplete)
                if marks is not None and marks.is_full and self.oldest_incomplete not in segments.unsealed:
                    self.oldest_incomplete += 1
                    continue
            if segment is None or not self.is_complete(segment):
                break
            if not over_gaps and segment.seq != self.oldest_incomplete:
                break
            self.oldest_incomplete = segment.seq + 1
            segment = segments.at_or_after(segment.seq + 1)
        if over_gaps:
            reached = segments.next_seq if segment is None else segment.seq
            self.oldest_incomplete = max(self.oldest_incomplete, reached)
        spent = [
            seq
            for seq, marks in self._entries.items()
            if seq < self.oldest_incomplete and (marks.is_full or (over_gaps and seq not in segments))
        ]
        for seq in spent:
            del self._entries[seq]

    def position(self, segments: Segments, *, retries: Collection[BundleRef] = ()) -> BundleRef:
        """
        Return the first unresolved bundle, which is where an in-order reader continues.

        Everything strictly before it is resolved or in *retries*. If nothing is left: index 0 of the next segment.
        """
        masks = _masks(retries)
        below = (segments.get(seq) for seq in sorted(seq for seq in self._entries if seq < self.oldest_incomplete))
        for segment in below:
            left = 0 if segment is None else self.unresolved(segment) & ~masks.get(segment.seq, 0)
            if segment is not None and left:
                return BundleRef(segment.seq, _lowest(left))
        segment = segments.at_or_after(self.oldest_incomplete)
        while segment is not None:
            if not self.is_complete(segment):
                left = self.unresolved(segment) & ~masks.get(segment.seq, 0)
                if left:
                    return BundleRef(segment.seq, _lowest(left))
            segment = segments.at_or_after(segment.seq + 1)
        return BundleRef(max(self.oldest_incomplete, segments.next_seq), 0)

    def acked_through(self, position: BundleRef, segments: Segments, *, retries: Collection[BundleRef] = ()) -> bool:
        """Return whether everything strictly before *position* is resolved or in *retries*."""
        return self.position(segments, retries=retries) >= position

    def resolve_through(self, position: BundleRef, segments: Segments, *, retries: Collection[BundleRef] = ()) -> None:
        """
        Mark everything strictly before *position* as resolved, except *retries*. Nothing is ever unmarked.

        A position after the last bundle of a segment is the same as index 0 of the next.
        """
        position, kept = self._kept(position, segments, retries)
        for seq in [seq for seq in self._entries if seq < position.segment]:
            del self._entries[seq]
        self.oldest_incomplete = max(self.oldest_incomplete, position.segment)
        segment = segments.get(position.segment)
        if segment is not None and position.index > 0 and position.segment not in kept:
            self._resolve_first(segment, min(position.index, segment.bundle_count))
        self._entries.update(kept)
        self.advance(segments, over_gaps=False)

    def _kept(
        self, position: BundleRef, segments: Segments, retries: Collection[BundleRef]
    ) -> tuple[BundleRef, dict[int, _Marks]]:
        """Return the entries that keep *retries* pending, and the position up to which all others may be resolved."""
        kept: dict[int, _Marks] = {}
        waiting = (ref for ref in retries if ref < position and not self.is_resolved(ref))
        for seq, mask in sorted(_masks(waiting).items()):
            marks, segment = self._entries.get(seq), segments.get(seq)
            if marks is None and segment is None:
                # Its bundle count is unknown, so it cannot have an entry: nothing after it may be resolved.
                return BundleRef(seq, 0), kept
            count = segment.bundle_count if segment is not None else marks.bundle_count if marks is not None else 0
            done = (1 << count) - 1
            if seq == position.segment:
                done = (0 if marks is None else marks.bitmap) | (1 << min(position.index, count)) - 1
            kept[seq] = _Marks(count, done & ~mask)
        return position, kept

    def rewind(self, to: BundleRef, segments: Segments) -> int:
        """
        Unmark *to* and all later bundles that exist; return how many are pending again.

        This is the only way back. Bundles before *to* and entries of deleted segments are not changed. *segments* must
        be complete, as for `advance`, also for the next save.
        """
        later = segments.between(to.segment)
        pending = sum(map(self.pending_in, later))
        first = segments.get(to.segment)
        kept = 0 if first is None else ~self.unresolved(first) & ((1 << min(to.index, first.bundle_count)) - 1)
        for segment in later:
            self._entries.pop(segment.seq, None)
        if first is not None and kept:
            self._entries[first.seq] = _Marks(first.bundle_count, kept)
        if later:
            self.oldest_incomplete = min(self.oldest_incomplete, later[0].seq)
        return sum(map(self.pending_in, later)) - pending + self._rewind_unsealed(to, segments)

    def _rewind_unsealed(self, to: BundleRef, segments: Segments) -> int:
        count = 0
        for seq in [seq for seq in segments.unsealed if seq >= to.segment]:
            marks = self._entries.pop(seq, None)
            if marks is not None:
                kept = marks.bitmap & (1 << to.index) - 1 if seq == to.segment else 0
                count += marks.resolved_count - kept.bit_count()
                if kept:
                    self._entries[seq] = _Marks(marks.bundle_count, kept)
        return count

    def _resolve_first(self, segment: SegmentRef, count: int) -> None:
        marks = self._entries.get(segment.seq)
        if marks is None:
            if segment.seq < self.oldest_incomplete:
                return
            marks = _Marks(segment.bundle_count)
        self._entries[segment.seq] = _Marks(segment.bundle_count, marks.bitmap | (1 << count) - 1)


def _masks(refs: Iterable[BundleRef]) -> dict[int, int]:
    """Return a bit mask for each segment of *refs*: bit n is set for bundle n."""
    masks: dict[int, int] = {}
    for segment, index in refs:
        masks[segment] = masks.get(segment, 0) | 1 << index
    return masks


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
