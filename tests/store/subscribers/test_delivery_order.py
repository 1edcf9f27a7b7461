"""
The order in which bundles go out, held against a model that sorts everything each time.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quiver.bundle import BundleRef
from quiver.errors import BundleUnavailable
from quiver.store.subscribers.delivery import DeliveryQueue
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState


class _DeliveryMachine(RuleBasedStateMachine):
    """
    Take, claim, resolve, release, defer, fail to read, seal, delete: the oldest free bundle goes out.
    """

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

    def _existing(self) -> list[BundleRef]:
        return [BundleRef(segment.seq, index) for segment in self.segments for index in range(segment.bundle_count)]

    def _expected(self) -> BundleRef | None:
        for ref in [ref for ref, due in self.delayed.items() if due <= self.now]:
            del self.delayed[ref]
        busy = self.resolved | self.claimed | set(self.delayed) | set(self.unreadable)
        free = [ref for ref in self._existing() if ref not in busy]
        if free:
            return free[0]
        existing = set(self._existing())
        again = [ref for ref in self.unreadable if ref in existing]
        return again[0] if again else None

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
            expected = self._expected()
            assert self.queue.take(self.now) == expected
            if expected is not None:
                if expected in self.unreadable:
                    self.unreadable.remove(expected)
                self.claimed.add(expected)

    @precondition(lambda self: self._existing())
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        ref = data.draw(st.sampled_from(self._existing()))
        if ref in self.claimed or ref in self.resolved:
            with pytest.raises(BundleUnavailable):
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
        # Nobody asks for these again: numbers are never given out twice.
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


def test_a_deferred_bundle_does_not_hold_up_newer_ones():
    queue, _ = _queue(3)
    first = queue.take(0.0)
    assert first == BundleRef(0, 0)
    queue.release(first, due_s=10.0)
    assert queue.take(0.0) == BundleRef(0, 1)
    assert queue.next_due_s() == 10.0
    assert queue.take(10.0) == BundleRef(0, 0)
    assert queue.take(10.0) == BundleRef(0, 2)


def test_deferring_without_end_does_not_grow_without_end():
    """A consumer that claims by name and defers again and again leaves no trail behind."""
    queue, _ = _queue(2)
    head = queue.take(0.0)
    assert head is not None
    queue.release(head, due_s=1e9)
    ref = BundleRef(0, 1)
    for turn in range(2_000):
        queue.claim(ref)
        queue.release(ref, due_s=1e9 + turn)
    assert len(queue._due) < 200
    for _ in range(2_000):
        queue.claim(ref)
        queue.release(ref)
    assert len(queue._returned) < 200


def test_taking_does_not_look_at_every_bundle_each_time():
    """With 20,000 claims open, each take looks at a handful of bundles."""
    queue, state = _queue(20_000)
    looked = 0
    real = state.is_resolved

    class Counting(SubscriberState):
        def is_resolved(self, ref):
            nonlocal looked
            looked += 1
            return real(ref)

    counting = Counting()
    queue = DeliveryQueue(counting, Segments([SegmentRef(0, 20_000)]))
    for _ in range(20_000):
        assert queue.take(0.0) is not None
    assert queue.take(0.0) is None
    assert looked <= 2 * 20_000
