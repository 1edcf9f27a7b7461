"""Bundles that an exporter could not deliver yet are never acknowledged. Does not use Spark."""

import pytest

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, DataLossError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.offsets import StreamOffset
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.subscribers.progress_store import load_progress
from quiver.store.subscribers.retry_set import RetrySet
from quiver.store.subscribers.state import SegmentRef, SubscriberState
from quiver.testing.clock import ManualClock


@pytest.fixture
def make(store):
    """Creates the source side of a query; each one that is created again is a restarted process."""
    made = []

    def subscriber():
        for old in made:
            old.release()
        parsed = parse_options({"path": store.root, "slot": "30", "subscriber": "exp"})
        segments = SegmentList(REAL_FILES, store.root, slots=frozenset({30}), fail_on_data_loss=True)
        made.append(StreamSubscriber(REAL_FILES, parsed, segments, parallelism=2, clock=ManualClock()))
        return made[-1]

    yield subscriber
    for old in made:
        old.release()


@pytest.fixture
def retries(store):
    """The exporter's retry set."""
    with RetrySet.open(REAL_FILES, store.root, "exp") as opened:
        yield opened


def at(segment, index):
    return StreamOffset("5c0f0000-0000-0000-0000-000000000001", BundleRef(segment, index)).to_json()


def hold(retries, *refs):
    for ref in refs:
        retries.failed(BundleRef(*ref), delay_s=1.0, reason="down")
    retries.save()


def release(retries, *refs):
    for ref in refs:
        assert retries.resolved(BundleRef(*ref))
    retries.save()


def pending(store, *counts):
    """The unresolved bundles in the progress file, for segments with this many bundles."""
    state = SubscriberState.from_progress(load_progress(REAL_FILES, store.root, "exp"))
    refs = (BundleRef(seq, index) for seq, count in enumerate(counts) for index in range(count))
    assert all(
        state.is_complete(SegmentRef(seq, n)) == (not state.pending_in(SegmentRef(seq, n)))
        for seq, n in enumerate(counts)
    )
    return [tuple(ref) for ref in refs if not state.is_resolved(ref)]


def test_bundles_in_the_retry_set_are_not_acknowledged(store, make, retries):
    """In the middle, at the front, across segments; they are acknowledged when they leave the set."""
    store.rows(3)
    store.rows(3)
    query = make()
    query.initial()
    hold(retries, (0, 0), (0, 2), (1, 1))
    query.commit(at(1, 2))
    assert pending(store, 3, 3) == [(0, 0), (0, 2), (1, 1), (1, 2)]
    release(retries, (0, 2))
    assert query.latest(at(1, 2), unlimited=False) == at(2, 0)
    assert pending(store, 3, 3) == [(0, 0), (1, 1), (1, 2)]
    release(retries, (0, 0), (1, 1))
    assert query.tail() == at(2, 0)
    query.commit(at(2, 0))
    assert pending(store, 3, 3) == []


def test_an_idle_query_acknowledges_delivered_bundles(store, make, retries):
    """Spark calls at every trigger, even without new data."""
    store.rows(3)
    query = make()
    query.initial()
    hold(retries, (0, 1))
    assert query.latest(at(1, 0), unlimited=False) == at(1, 0)
    assert pending(store, 3) == [(0, 1)]
    release(retries, (0, 1))
    assert query.latest(at(1, 0), unlimited=False) == at(1, 0)
    assert pending(store, 3) == []


def test_a_restart_without_a_checkpoint_continues_after_retried_bundles(store, make, retries):
    """Bundles in the retry set are delivered from it; acknowledged ones are not read again."""
    store.rows(3)
    store.rows(3)
    query = make()
    query.initial()
    hold(retries, (0, 1))
    query.commit(at(1, 1))
    assert make().initial() == at(1, 1)
    release(retries, (0, 1))
    assert make().initial() == at(0, 1), "killed before the ack: at least once"


def test_a_batch_that_was_not_committed_may_be_read_again(store, make, retries):
    """Even if its first bundles are in the set by now, across the end of a segment; but not acknowledged ones."""
    store.rows(2)
    store.rows(3)
    query = make()
    query.initial()
    query.commit(at(0, 1))
    hold(retries, (0, 1), (1, 0))
    again = make()
    assert again.initial() == at(0, 1)
    assert again.plan(at(0, 1), at(2, 0))
    with pytest.raises(DataLossError, match="is at 0:0"):
        again.plan(at(0, 0), at(2, 0))
    again.commit(at(2, 0))
    assert pending(store, 2, 3) == [(0, 1), (1, 0)]


def test_while_the_set_is_damaged_nothing_is_acknowledged(store, make):
    """The bundles in it are unknown then."""
    store.rows(3)
    query = make()
    query.initial()
    with open(f"{store.root}/quiver.retry.exp", "wb") as file:
        file.write(b"QUIVER\0R")
    with pytest.raises(CorruptionError):
        query.commit(at(0, 2))
    assert pending(store, 3) == [(0, 0), (0, 1), (0, 2)]
