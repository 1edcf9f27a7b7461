"""Acknowledging up to a position except for bundles in the retry set, against a model, in both profiles."""

from hypothesis import given
from hypothesis import strategies as st

from quiver.bundle import BundleRef
from quiver.store.format.progress import decode_progress, encode_progress
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

COUNTS = (3, 1, 4, 2)
ALL = [BundleRef(seq, index) for seq, count in enumerate(COUNTS) for index in range(count)]
ENDS = [*ALL, BundleRef(len(COUNTS), 0), *(BundleRef(seq, count) for seq, count in enumerate(COUNTS))]
SEGMENTS = Segments(SegmentRef(seq, count) for seq, count in enumerate(COUNTS))


def restarted(state, profile):
    progress = state.to_progress(SEGMENTS, profile=profile, over_gaps=False)
    answer = decode_progress(memoryview(encode_progress(progress, profile=profile)))
    return SubscriberState.from_progress(answer.value)


def unresolved(state):
    return [ref for ref in ALL if state.unresolved(SegmentRef(ref.segment, COUNTS[ref.segment])) >> ref.index & 1]


@given(
    st.lists(st.tuples(st.sampled_from(ENDS), st.frozensets(st.sampled_from(ALL), max_size=4)), max_size=6),
    st.sampled_from(["spec", "otap"]),
)
def test_all_bundles_before_the_position_are_acknowledged_except_retried_ones(acks, profile):
    """A resolved bundle stays resolved if it is retried later; an ack after its retry resolves a bundle."""
    state, done = SubscriberState(), set()
    for position, held in acks:
        state.resolve_through(position, SEGMENTS, retries=held)
        done |= {ref for ref in ALL if ref < position and ref not in held}
        left = [ref for ref in ALL if ref not in done]
        assert unresolved(state) == left
        state = restarted(state, profile)
        assert unresolved(state) == left
        free = [ref for ref in left if ref not in held]
        assert state.position(SEGMENTS, retries=held) == (free[0] if free else BundleRef(len(COUNTS), 0))
        assert state.acked_through(position, SEGMENTS, retries=held) == (not free or free[0] >= position)


@given(st.sampled_from(ENDS), st.frozensets(st.sampled_from(ALL), min_size=1), st.integers(0, len(COUNTS) - 1))
def test_a_retry_in_an_unknown_segment_keeps_all_later_bundles_unresolved(position, held, unknown):
    """Its number of bundles is unknown, so nothing after it is resolved while one of its bundles is retried."""
    segments = Segments(ref for ref in SEGMENTS if ref.seq != unknown)
    state = SubscriberState()
    state.resolve_through(position, segments, retries=held)
    waits = any(ref.segment == unknown and ref < position for ref in held)
    resolved = [ref for ref in ALL if state.is_resolved(ref) and ref.segment != unknown]
    end = BundleRef(unknown, 0) if waits else position
    assert resolved == [ref for ref in ALL if ref < end and ref not in held and ref.segment != unknown]
