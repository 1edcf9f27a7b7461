"""The resolved bundles of a subscriber, compared with a simple model: a set of (segment, index)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailableError, UsageError
from quiver.primitives.scan import Frame
from quiver.store.format.progress import Progress, SegmentProgress, decode_progress, encode_progress
from quiver.store.subscribers.start import start_segment
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState


def _segments(*counts: tuple[int, int], next_seq: int = 0) -> Segments:
    return Segments((SegmentRef(seq, count) for seq, count in counts), next_seq=next_seq)


class _StateMachine(RuleBasedStateMachine):
    """Seal, resolve, delete finished segments, save and load in either profile: both always agree."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SubscriberState()
        self.segments = Segments()
        self.resolved: set[tuple[int, int]] = set()

    @initialize(first=st.integers(0, 3))
    def begin(self, first: int) -> None:
        self.state = SubscriberState(first)
        self.segments = Segments(next_seq=first)

    def _all(self) -> list[tuple[int, int]]:
        return [(segment.seq, index) for segment in self.segments for index in range(segment.bundle_count)]

    @rule(count=st.sampled_from([0, 1, 2, 3, 8, 9, 64, 65]), burnt=st.integers(0, 1))
    def seal(self, count: int, burnt: int) -> None:
        self.segments.add(SegmentRef(self.segments.next_seq + burnt, count))

    @precondition(lambda self: self._all())
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        seq, index = data.draw(st.sampled_from(self._all()))
        segment = self.segments.get(seq)
        assert segment is not None
        changed = self.state.resolve(BundleRef(seq, index), segment.bundle_count)
        assert changed == ((seq, index) not in self.resolved)
        self.resolved.add((seq, index))

    @precondition(lambda self: len(self.segments))
    @rule(data=st.data())
    def finish_segment(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(list(self.segments)))
        for index in range(segment.bundle_count):
            self.state.resolve(BundleRef(segment.seq, index), segment.bundle_count)
            self.resolved.add((segment.seq, index))

    @precondition(lambda self: len(self.segments))
    @rule(data=st.data(), index=st.integers(0, 70))
    def resolve_through(self, data: st.DataObject, index: int) -> None:
        seq = data.draw(st.sampled_from(list(self.segments))).seq
        self.state.resolve_through(BundleRef(seq, index), self.segments)
        self.resolved |= {place for place in self._all() if place < (seq, index)}
        assert self.state.acked_through(BundleRef(seq, 0), self.segments)

    @rule()
    def delete_finished(self) -> None:
        for segment in [segment for segment in self.segments if self.state.is_complete(segment)]:
            self.segments.discard(segment.seq)

    @precondition(lambda self: len(self.segments))
    @rule(data=st.data())
    def lose_segment(self, data: st.DataObject) -> None:
        self.segments.discard(data.draw(st.sampled_from(list(self.segments))).seq)

    @rule(over_gaps=st.booleans())
    def advance(self, over_gaps: bool) -> None:
        before = self.state.oldest_incomplete
        self.state.advance(self.segments, over_gaps=over_gaps)
        assert self.state.oldest_incomplete >= before
        assert self.state.oldest_incomplete <= max(before, self.segments.next_seq)

    @rule(profile=st.sampled_from(["spec", "otap"]), advance=st.booleans(), over_gaps=st.booleans(), data=st.data())
    def save_and_load(self, profile: str, advance: bool, over_gaps: bool, data: st.DataObject) -> None:
        known = self.segments
        if not over_gaps and len(known):
            # Another process may have missed one: the file must still be correct.
            hidden = data.draw(st.sampled_from(list(known))).seq
            known = Segments((ref for ref in known if ref.seq != hidden), next_seq=known.next_seq)
        if advance:
            self.state.advance(known, over_gaps=over_gaps)
        progress = self.state.to_progress(known, profile=profile, over_gaps=over_gaps)
        answer = decode_progress(memoryview(encode_progress(progress, profile=profile)))
        assert isinstance(answer, Frame)
        self.state = SubscriberState.from_progress(answer.value)

    @invariant()
    def agrees_with_the_model(self) -> None:
        pending = [place for place in self._all() if place not in self.resolved]
        for seq, index in self._all():
            assert self.state.is_resolved(BundleRef(seq, index)) == ((seq, index) in self.resolved)
        for segment in self.segments:
            done = all((segment.seq, index) in self.resolved for index in range(segment.bundle_count))
            assert self.state.is_complete(segment) == done
        assert self.state.pending_count(self.segments) == len(pending)
        position = self.state.position(self.segments)
        if pending:
            assert (position.segment, position.index) == pending[0]
        else:
            assert position.index == 0
            assert position.segment >= self.segments.next_seq

    @invariant()
    def a_segment_sealed_next_would_be_pending(self) -> None:
        assert not self.state.is_complete(SegmentRef(self.segments.next_seq, 1))


_StateMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestStateAgainstModel = _StateMachine.TestCase


def test_finished_segments_are_merged_once_all_older_ones_are_finished():
    """In the spec profile a complete entry is kept while an older segment is pending; then eight bytes replace it."""
    state, segments = SubscriberState(), _segments((0, 2), (1, 2), (2, 2))
    for seq in (1, 2):
        for index in (0, 1):
            state.resolve(BundleRef(seq, index), 2)
    state.resolve(BundleRef(0, 1), 2)
    state.advance(segments)
    assert state.to_progress(segments, profile="spec") == Progress(
        0, {0: SegmentProgress(2, 0b10), 1: SegmentProgress(2, 0b11), 2: SegmentProgress(2, 0b11)}
    )
    state.resolve(BundleRef(0, 0), 2)
    state.advance(segments)
    assert state.to_progress(segments, profile="spec") == Progress(3, {})


def test_the_otap_profile_keeps_complete_entries_while_the_file_exists():
    """Zero means nothing is incomplete; the entries of finished segments are removed with their files."""
    state, segments = SubscriberState(), _segments((4, 1), (5, 3))
    state.resolve_through(BundleRef(6, 0), segments)
    assert state.to_progress(segments, profile="otap") == Progress(
        0, {4: SegmentProgress(1, 1), 5: SegmentProgress(3, 0b111)}
    )
    segments.discard(4)
    assert state.to_progress(segments, profile="otap") == Progress(0, {5: SegmentProgress(3, 0b111)})
    segments.add(SegmentRef(6, 2))
    assert state.to_progress(segments, profile="otap").oldest_incomplete == 6


def test_segment_zero_can_be_the_oldest_incomplete_one():
    """0 was mistaken for "none yet" during development, and segment 0 would have counted as resolved."""
    state, segments = SubscriberState(), _segments((0, 2), (1, 2))
    assert state.to_progress(segments, profile="otap") == Progress(0, {})


def test_an_entry_with_another_bundle_count_is_ignored():
    """If a number was used twice, bundles of the other segment must not count as delivered."""
    state = SubscriberState.from_progress(Progress(9, {3: SegmentProgress(5, 0b11111)}))
    segment = SegmentRef(3, 4)
    assert not state.is_complete(segment)
    assert state.reconcile(segment)
    assert not state.reconcile(segment)
    assert not any(state.is_resolved(BundleRef(3, index)) for index in range(4))


def test_bits_beyond_the_last_bundle_are_ignored():
    state = SubscriberState.from_progress(Progress(0, {0: SegmentProgress(2, 0b1110)}))
    assert not state.is_complete(SegmentRef(0, 2))
    assert state.position(_segments((0, 2))) == BundleRef(0, 0)


def test_a_segment_too_large_for_an_entry_is_stored_only_when_finished():
    """An entry has at most 65,536 bundles; of a larger segment, only completion is stored."""
    segments = _segments((0, 65_537))
    state = SubscriberState()
    state.resolve(BundleRef(0, 0), 65_537)
    assert state.to_progress(segments, profile="spec") == Progress(0, {})
    state.resolve_through(BundleRef(0, 65_537), segments)
    assert state.to_progress(segments, profile="spec") == Progress(1, {})
    assert encode_progress(state.to_progress(segments, profile="otap"), profile="otap")


def test_a_missing_number_stops_an_owner_in_another_process():
    """Without the complete list, a missing number does not count as a deleted segment."""
    state, segments = SubscriberState(3), _segments((3, 1), (5, 1))
    state.resolve_through(BundleRef(3, 1), segments)
    state.resolve(BundleRef(5, 0), 1)
    state.advance(segments, over_gaps=False)
    assert state.oldest_incomplete == 4
    assert not state.is_complete(SegmentRef(4, 1))
    state.advance(segments)
    assert state.oldest_incomplete == 6


def test_a_bundle_that_cannot_exist_is_refused():
    with pytest.raises(BundleUnavailableError, match="no index 3"):
        SubscriberState().resolve(BundleRef(0, 3), 3)
    with pytest.raises(BundleUnavailableError):
        SubscriberState().resolve(BundleRef(0, -1), 3)


def test_a_new_subscriber_starts_at_the_given_position():
    """Latest, earliest, or a number; each with and without segments."""
    segments, none = _segments((4, 1), (6, 1), next_seq=9), Segments(next_seq=7)
    assert start_segment("latest", segments) == 9
    assert start_segment("earliest", segments) == 4
    assert start_segment(5, segments) == 5
    assert start_segment(9, segments) == 9
    assert start_segment("latest", none) == start_segment("earliest", none) == 7


@pytest.mark.parametrize("start", [10, -1, True, "newest", None, 1.5])
def test_invalid_start_positions_are_refused(start):
    with pytest.raises(UsageError):
        start_segment(start, Segments(next_seq=9))


def test_a_start_by_time_is_the_first_segment_that_reaches_it():
    """Times are compared to the nanosecond, in any zone; an unknown time matches."""
    moment = datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=UTC)
    nanoseconds = 1_714_564_800_000_001_000
    segments = Segments([SegmentRef(0, 1, nanoseconds - 1), SegmentRef(1, 1, nanoseconds), SegmentRef(2, 1, None)])
    assert start_segment(moment, segments) == 1
    assert start_segment(moment.astimezone(timezone(timedelta(hours=5))), segments) == 1
    assert start_segment(moment + timedelta(microseconds=1), segments) == 2
    segments.discard(2)
    assert start_segment(moment + timedelta(days=1), segments) == 3
    with pytest.raises(UsageError, match="time zone"):
        start_segment(moment.replace(tzinfo=None), segments)


def test_segments_stay_in_order_whatever_the_order_of_arrival():
    segments = _segments((5, 1), (2, 1), (9, 1))
    segments.add(SegmentRef(5, 7))
    assert [segment.seq for segment in segments] == [2, 5, 9]
    assert segments.get(5) == SegmentRef(5, 7)
    assert segments.at_or_after(3) == SegmentRef(5, 7)
    assert segments.at_or_after(10) is None
    segments.discard(2)
    segments.discard(2)
    assert len(segments) == 2
    assert segments.next_seq == 10
