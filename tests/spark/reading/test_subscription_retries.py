"""What an exporter could not deliver yet is never acknowledged, however far its query has come. No Spark here."""

import pytest

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, DataLossError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.offsets import StreamOffset
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.subscription import Subscription
from quiver.store.subscribers.progress_store import load_progress
from quiver.store.subscribers.retry_set import RetrySet
from quiver.store.subscribers.state import SegmentRef, SubscriberState
from quiver.testing.clock import ManualClock


@pytest.fixture
def make(store):
    """Makes the source side of a query; each one that is made again is a restarted process."""
    made = []

    def subscription():
        for old in made:
            old.release()
        parsed = parse_options({"path": store.root, "slot": "30", "subscriber": "exp"})
        segments = SegmentList(REAL_FILES, store.root, slots=frozenset({30}), fail_on_data_loss=True)
        made.append(Subscription(REAL_FILES, parsed, segments, parallelism=2, clock=ManualClock()))
        return made[-1]

    yield subscription
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
    """What the progress file calls unresolved, of segments with so many bundles."""
    state = SubscriberState.from_progress(load_progress(REAL_FILES, store.root, "exp"))
    refs = (BundleRef(seq, index) for seq, count in enumerate(counts) for index in range(count))
    assert all(
        state.is_complete(SegmentRef(seq, n)) == (not state.pending_in(SegmentRef(seq, n)))
        for seq, n in enumerate(counts)
    )
    return [tuple(ref) for ref in refs if not state.is_resolved(ref)]


def test_acks_leave_out_what_is_held(store, make, retries):
    """In the middle, in front, over segments; and bring it in when it has left the set, without a new batch."""
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


def test_an_idle_query_acks_what_was_delivered(store, make, retries):
    """Spark asks at every trigger, also when nothing is new."""
    store.rows(3)
    query = make()
    query.initial()
    hold(retries, (0, 1))
    assert query.latest(at(1, 0), unlimited=False) == at(1, 0)
    assert pending(store, 3) == [(0, 1)]
    release(retries, (0, 1))
    assert query.latest(at(1, 0), unlimited=False) == at(1, 0)
    assert pending(store, 3) == []


def test_a_restart_without_a_checkpoint_goes_on_behind_what_is_held(store, make, retries):
    """What is held is delivered from the set; all that was confirmed is not read again."""
    store.rows(3)
    store.rows(3)
    query = make()
    query.initial()
    hold(retries, (0, 1))
    query.commit(at(1, 1))
    assert make().initial() == at(1, 1)
    release(retries, (0, 1))
    assert make().initial() == at(0, 1), "killed before the ack: at least once"


def test_a_batch_that_was_not_committed_may_come_again(store, make, retries):
    """Also when its first bundles are in the set by now, over the end of a segment; but not what was confirmed."""
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
    """Nobody knows what it held."""
    store.rows(3)
    query = make()
    query.initial()
    with open(f"{store.root}/quiver.retry.exp", "wb") as file:
        file.write(b"QUIVER\0R")
    with pytest.raises(CorruptionError):
        query.commit(at(0, 2))
    assert pending(store, 3) == [(0, 0), (0, 1), (0, 2)]
