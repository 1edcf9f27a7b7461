"""The order of delivery, compared with a model that sorts all bundles each time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailableError, UsageError
from quiver.store.subscribers.queue import BACKFILL_EVERY, DeliveryQueue, Order, check_order
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState


class _DeliveryMachine(RuleBasedStateMachine):
    """Claim, resolve, release, defer, fail to read, seal, delete, drop and rewind, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.state = SubscriberState()
        self.segments = Segments()
        self.queue = DeliveryQueue(self.state, self.segments)
        self.resolved: set[BundleRef] = set()
        self.claimed: set[BundleRef] = set()
        self.delayed: dict[BundleRef, float] = {}
        self.unreadable: list[BundleRef] = []
        self.used: set[int] = set()
        self.taken = 0
        self.last = -1

    def _existing(self) -> list[BundleRef]:
        return [BundleRef(segment.seq, index) for segment in self.segments for index in range(segment.bundle_count)]

    def _free(self) -> list[BundleRef]:
        for ref in [ref for ref, due in self.delayed.items() if due <= self.now]:
            del self.delayed[ref]
        busy = self.resolved | self.claimed | set(self.delayed) | set(self.unreadable)
        return [ref for ref in self._existing() if ref not in busy]

    def _expected(self) -> BundleRef | None:
        free = self._free()
        if not free:
            pending = set(self._existing()) - self.resolved
            return next((ref for ref in self.unreadable if ref in pending), None)
        if self.queue.order == "newest" and self.taken % BACKFILL_EVERY != BACKFILL_EVERY - 1:
            return free[-1]
        if self.queue.order == "round_robin":
            return next((ref for ref in free if ref.segment > self.last), free[0])
        return free[0]

    @rule(order=st.sampled_from(["oldest", "newest", "round_robin"]))
    def change_the_order(self, order: Order) -> None:
        self.queue.order = order

    @precondition(lambda self: self._existing())
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from(self._existing()))
        back = {ref for ref in self.resolved if ref >= to and ref in self._existing()}
        assert self.state.rewind(to, self.segments) == len(back)
        self.queue.rewound(to)
        self.resolved -= back

    @precondition(lambda self: len(self.segments))
    @rule(data=st.data())
    def drop_by_policy(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(list(self.segments)))
        refs = {BundleRef(segment.seq, index) for index in range(segment.bundle_count)}
        assert self.state.resolve_all(segment) == len(refs - self.resolved)
        self.queue.withheld(segment.seq)
        self.resolved |= refs

    @invariant()
    def it_is_known_whether_anything_is_free(self) -> None:
        assert self.queue.has_free(self.now) == bool(self._free())

    @rule(count=st.integers(0, 4))
    def seal(self, count: int) -> None:
        segment = SegmentRef(self.segments.next_seq, count)
        self.used.add(segment.seq)
        self.segments.add(segment)
        self.queue.sealed(segment)

    @rule(gap=st.integers(1, 2), count=st.integers(1, 3))
    def seal_late(self, gap: int, count: int) -> None:
        seq = self.segments.next_seq - gap
        if seq >= 0 and seq not in self.used:
            self.used.add(seq)
            segment = SegmentRef(seq, count)
            self.segments.add(segment)
            self.queue.sealed(segment)

    @rule()
    def burn_a_number(self) -> None:
        self.segments.next_seq += 1

    @rule(times=st.integers(1, 4))
    def take(self, times: int) -> None:
        for _ in range(times):
            expected = self._take_of_the_model()
            assert self.queue.take(self.now) == expected

    @rule(count=st.integers(1, 7))
    def take_many(self, count: int) -> None:
        """A batch has the bundles that single deliveries would have."""
        expected = [self._take_of_the_model() for _ in range(count)]
        assert self.queue.take_many(self.now, count) == [ref for ref in expected if ref is not None]

    def _take_of_the_model(self) -> BundleRef | None:
        was_free = self._free()
        expected = self._expected()
        if expected is not None:
            if was_free:
                self.taken += 1
                self.last = expected.segment
            if expected in self.unreadable:
                self.unreadable = self.unreadable[self.unreadable.index(expected) + 1 :]
            self.claimed.add(expected)
        elif not was_free:
            self.unreadable.clear()  # all of them are resolved, or their segments deleted
        return expected

    @precondition(lambda self: self._existing())
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(self._existing()))
        if ref in self.claimed or ref in self.resolved:
            with pytest.raises(BundleUnavailableError):
                self.queue.claim(ref)
            return
        self.queue.claim(ref)
        self.claimed.add(ref)
        self.delayed.pop(ref, None)
        if ref in self.unreadable:
            self.unreadable.remove(ref)

    def _draw_claimed(self, data: st.DataObject) -> BundleRef:
        ref = data.draw(st.sampled_from(sorted(self.claimed)))
        self.claimed.remove(ref)
        return ref

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        ref = self._draw_claimed(data)
        segment = self.segments.get(ref.segment)
        if segment is not None:
            self.state.resolve(ref, segment.bundle_count)
            self.resolved.add(ref)
        self.queue.resolved(ref)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.queue.release(self._draw_claimed(data))

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def defer(self, data: st.DataObject, seconds: float) -> None:
        ref = self._draw_claimed(data)
        self.delayed[ref] = self.now + seconds
        self.queue.release(ref, due_s=self.now + seconds)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def fail_to_read(self, data: st.DataObject) -> None:
        ref = self._draw_claimed(data)
        self.unreadable.append(ref)
        self.queue.release_unreadable(ref)

    @precondition(lambda self: len(self.segments))
    @rule(data=st.data())
    def delete_segment(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(list(self.segments))).seq
        self.segments.discard(seq)
        self.queue.removed([seq])
        # These are not claimed again: numbers are never reused.
        self.unreadable = [ref for ref in self.unreadable if ref.segment != seq]

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def claims_agree(self) -> None:
        assert self.queue.claimed_count == len(self.claimed)

    @invariant()
    def the_next_due_time_is_known(self) -> None:
        assert self.queue.next_due_s() == min(self.delayed.values(), default=None)


_DeliveryMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestDeliveryAgainstModel = _DeliveryMachine.TestCase


def _queue(*counts: int) -> tuple[DeliveryQueue, SubscriberState]:
    segments = Segments(SegmentRef(seq, count) for seq, count in enumerate(counts))
    state = SubscriberState()
    return DeliveryQueue(state, segments), state


def test_a_deferred_bundle_does_not_delay_newer_ones():
    queue, _ = _queue(3)
    first = queue.take(0.0)
    assert first == BundleRef(0, 0)
    queue.release(first, due_s=10.0)
    assert queue.take(0.0) == BundleRef(0, 1)
    assert queue.next_due_s() == 10.0
    assert queue.take(10.0) == BundleRef(0, 0)
    assert queue.take(10.0) == BundleRef(0, 2)


def test_endless_deferrals_use_bounded_memory():
    """A consumer that repeatedly claims by reference and defers leaves no state."""
    queue, _ = _queue(2)
    head = queue.take(0.0)
    assert head is not None
    queue.release(head, due_s=1e9)
    ref = BundleRef(0, 1)
    for turn in range(2_000):
        queue.claim(ref)
        queue.release(ref, due_s=1e9 + turn)
    assert len(queue.due) < 200


def test_a_delivery_does_not_inspect_every_bundle():
    """With 20,000 open claims, the resolved bundles are looked up once per segment, not once per bundle."""
    looked = 0

    class Counting(SubscriberState):
        def unresolved(self, segment):
            nonlocal looked
            looked += 1
            return super().unresolved(segment)

        is_resolved = None

    for order in ("oldest", "newest", "round_robin"):
        looked = 0
        queue = DeliveryQueue(Counting(), Segments([SegmentRef(0, 20_000), SegmentRef(1, 1)]), order=order)
        for _ in range(20_001):
            assert queue.take(0.0) is not None
        assert queue.take(0.0) is None
        assert looked == 2


def test_newest_first_delivers_every_fourth_bundle_from_the_oldest():
    """So that a backlog shrinks even if new bundles arrive faster than they are processed."""
    queue, _ = _queue(3, 3, 3)
    queue.order = "newest"
    order = [str(BundleRef(*queue.take(0.0))) for _ in range(9)]
    assert order == ["2:2", "2:1", "2:0", "0:0", "1:2", "1:1", "1:0", "0:1", "0:2"]


def test_round_robin_delivers_one_bundle_of_each_segment_in_turn():
    queue, _ = _queue(3, 1, 2)
    queue.order = "round_robin"
    order = [queue.take(0.0) for _ in range(6)]
    assert [str(BundleRef(*place)) for place in order] == ["0:0", "1:0", "2:0", "0:1", "2:1", "0:2"]


def test_an_unknown_order_is_refused_with_a_list_of_the_known_ones():
    with pytest.raises(UsageError, match="'fifo' is not one of oldest, newest, round_robin"):
        check_order("fifo")
    assert check_order("newest") == "newest"


def test_a_dropped_bundle_is_not_delivered_after_its_return():
    """It was claimed or deferred when policy dropped its segment, or when the segment was deleted."""
    queue, state = _queue(2, 1)
    claimed, deferred = queue.take(0.0), queue.take(0.0)
    queue.release(deferred, due_s=5.0)
    state.resolve_all(SegmentRef(0, 2))
    queue.withheld(0)
    queue.release(claimed)
    assert queue.take(9.0) == BundleRef(1, 0)
    assert queue.take(9.0) is None
