"""A streaming query as a subscriber: durability and refusals. Does not use Spark."""

import os
import pathlib

import pytest
from stores import StoreMaker

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, DataLossError, DirectoryInUseError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.listing import drop, rewind
from quiver.store.reading.offsets import StreamOffset
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.subscribers.progress_store import SubscriberFile, find_subscribers
from quiver.store.subscribers.state import SegmentRef
from quiver.testing.clock import ManualClock


@pytest.fixture
def make(store):
    """Creates the source side of a query; each one that is created again is a restarted process."""
    made = []

    def subscriber(**options):
        for old in made:
            old.release()
        parsed = parse_options({"path": store.root, "slot": "30", "subscriber": "exp", **options})
        segments = SegmentList(
            REAL_FILES, store.root, slots=frozenset({30}), fail_on_data_loss=parsed.fail_on_data_loss
        )
        made.append(StreamSubscriber(REAL_FILES, parsed, segments, parallelism=2, clock=ManualClock()))
        return made[-1]

    yield subscriber
    for old in made:
        old.release()


def at(segment, index, store="5c0f0000-0000-0000-0000-000000000001"):
    return StreamOffset(store, BundleRef(segment, index)).to_json()


def bundles_of(plan):
    return [(span.segment, index) for spans in plan for span in spans for index in range(span.start, span.stop)]


def progress_of(store):
    with SubscriberFile(REAL_FILES, store.root, "exp") as file:
        file.know([SegmentRef(0, 4)])
        return file.position()


def test_the_first_offset_is_durable_and_stays(store, make):
    """Every later call, in this process or the next, returns the same, even if data arrives in between."""
    store.rows(2)
    first = make()
    assert first.initial() == at(0, 0)
    assert find_subscribers(REAL_FILES, store.root) == ["exp"]
    store.rows(2)
    assert first.initial() == at(0, 0)
    assert make().initial() == at(0, 0)


@pytest.mark.parametrize(
    ("starting", "expected"),
    [("earliest", at(0, 0)), ("latest", at(2, 0)), ('{"seq":1,"idx":2}', at(1, 2)), ('{"seq":1,"idx":3}', at(2, 0))],
)
def test_a_new_subscriber_starts_at_the_configured_position(store, make, starting, expected):
    """The option applies only to a new subscriber."""
    store.rows(3)
    store.rows(3)
    assert make(startingOffsets=starting).initial() == expected
    assert make(startingOffsets="earliest").initial() == expected


def test_latest_in_an_empty_store_sees_all_that_comes(store, make):
    """Nothing is skipped in an empty store."""
    query = make(startingOffsets="latest")
    start = query.initial()
    store.rows(2)
    assert query.latest(start, unlimited=False) == at(1, 0)
    assert bundles_of(query.plan(start, at(1, 0))) == [(0, 0), (0, 1)]


def test_a_start_beyond_the_store_is_refused(store, make):
    """A number that no segment can have yet is an error."""
    store.rows(1)
    with pytest.raises(UsageError, match="9"):
        make(startingOffsets='{"seq":9}').initial()


def test_without_new_data_the_text_of_the_offset_is_the_same(store, make):
    """Spark runs a batch for any change of the text; the store's name in it does not change either."""
    store.rows(1)
    query = make()
    start = query.initial()
    end = query.latest(start, unlimited=False)
    assert query.latest(end, unlimited=False) == end
    assert query.latest(at(1, 0, "unknown"), unlimited=False) == at(1, 0, "unknown")
    assert query.tail() == end


def test_limits_cut_batches_between_bundles(store, make):
    """A read of all available data has no limits."""
    store.rows(3)
    store.rows(3)
    query = make(maxBundlesPerTrigger="2")
    start = query.initial()
    seen = []
    while (end := query.latest(start, unlimited=False)) != start:
        seen.append(bundles_of(query.plan(start, end)))
        assert seen[-1] == bundles_of(query.plan(start, end))
        start = end
    assert seen == [[(0, 0), (0, 1)], [(0, 2), (1, 0)], [(1, 1), (1, 2)]]
    assert make(maxBundlesPerTrigger="2").latest(start, unlimited=True) == start


def test_rows_and_bytes_are_limits_too(store, make):
    """Ten rows per bundle: 25 rows are two bundles; one byte is still one."""
    store.rows(4)
    make().initial()
    assert make(maxRowsPerTrigger="25").latest(at(0, 0), unlimited=False) == at(0, 2)
    assert make(maxBytesPerTrigger="1").latest(at(0, 0), unlimited=False) == at(0, 1)
    assert make(maxBytesPerTrigger="1").latest(at(0, 0), unlimited=True) == at(1, 0)


def test_acks_come_from_the_start_of_the_next_batch_and_from_commit(store, make):
    """Both are on disk on return, and both only move forward."""
    store.rows(4)
    query = make()
    query.initial()
    assert query.acked == BundleRef(0, 0)
    query.latest(at(0, 2), unlimited=False)
    query.release()
    assert str(progress_of(store)) == "0:2"
    query.commit(at(0, 3))
    query.commit(at(0, 3))
    query.release()
    assert str(progress_of(store)) == "0:3"
    assert make().initial() == at(0, 3)


def test_a_whole_segment_is_confirmed_by_the_next_position(store, make):
    """BundleRef 1:0 confirms all of segment 0, whose file may then be deleted."""
    path = store.rows(4)
    store.rows(1)
    query = make()
    query.initial()
    query.latest(at(1, 0), unlimited=False)
    pathlib.Path(path).unlink()
    assert query.latest(at(1, 0), unlimited=False) == at(2, 0)
    assert bundles_of(query.plan(at(1, 0), at(2, 0))) == [(1, 0)]
    assert make().initial() == at(1, 0)


def test_a_checkpoint_older_than_the_progress_is_refused_with_both_positions(store, make):
    """Bundles after its position may be deleted."""
    store.rows(4)
    query = make()
    query.initial()
    query.commit(at(0, 3))
    for call in (
        lambda: query.latest(at(0, 1), unlimited=False),
        lambda: query.plan(at(0, 1), at(0, 4)),
        lambda: query.commit(at(0, 1)),
    ):
        with pytest.raises(DataLossError, match=r"is at 0:1, but exp has confirmed everything before 0:3"):
            call()
    lenient = make(failOnDataLoss="false")
    assert lenient.latest(at(0, 1), unlimited=False) == at(1, 0)
    assert bundles_of(lenient.plan(at(0, 1), at(1, 0))) == [(0, 3)]


def test_a_rewound_query_needs_a_new_checkpoint(store, make):
    """With its old one it continues at the position in it, and acknowledges the rewound bundles again."""
    store.rows(4)
    query = make()
    query.initial()
    query.commit(at(0, 3))
    query.release()
    assert rewind(REAL_FILES, store.root, "exp", "earliest").bundles_again == 3
    again = make()
    assert again.initial() == at(0, 0)
    again.latest(at(0, 3), unlimited=False)
    assert again.acked == BundleRef(0, 3)


def test_a_subscriber_that_was_dropped_and_registered_again_needs_a_new_checkpoint(store, make):
    """Bundles after the position in the old one may be deleted."""
    old = store.rows(2)
    query = make()
    query.initial()
    query.release()
    drop(REAL_FILES, store.root, "exp")
    os.unlink(old)
    store.rows(2)
    query = make()
    assert query.initial() == at(1, 0)
    with pytest.raises(DataLossError, match="start with a new checkpoint"):
        query.latest(at(0, 0), unlimited=False)


def test_a_missing_segment_is_reported(store, make):
    """Seen by this process, referred to by an end, or moved to quarantine: each is known to be missing."""
    paths = [store.rows(2) for _ in range(4)]
    query = make()
    start = query.initial()
    end = query.latest(start, unlimited=False)
    pathlib.Path(paths[1]).unlink()
    with pytest.raises(DataLossError, match=r"segment 1, between the unread positions 0:0 and 4:0"):
        query.plan(start, end)
    with pytest.raises(DataLossError, match=r"segment 1,"):
        make().plan(start, at(1, 1))
    with pytest.raises(DataLossError, match=r"segment 1,"):
        make().plan(at(0, 1), at(2, 0))
    pathlib.Path(store.root, "quarantine").mkdir()
    pathlib.Path(paths[2]).rename(paths[2].replace("segments", "quarantine"))
    with pytest.raises(DataLossError, match=r"segment 2,"):
        make().plan(start, end)
    lenient = make(failOnDataLoss="false")
    assert bundles_of(lenient.plan(start, end)) == [(0, 0), (0, 1), (3, 0), (3, 1)]


class _DeletedWhenOpened:
    """The files of a store whose oldest segment is deleted between its listing and its opening."""

    def __init__(self, store):
        self.path = f"{store.root}/segments/0000000000000000.qseg"

    def map_read(self, path):
        if path == self.path:
            pathlib.Path(path).unlink(missing_ok=True)
        return REAL_FILES.map_read(path)

    def __getattr__(self, name):
        return getattr(REAL_FILES, name)


def test_a_segment_deleted_while_a_new_subscriber_registers_is_not_a_loss(store):
    """All others had finished it, and the new subscriber did not exist yet."""
    store.rows(2)
    store.rows(2)
    fs = _DeletedWhenOpened(store)
    parsed = parse_options({"path": store.root, "slot": "30", "subscriber": "exp"})
    segments = SegmentList(fs, store.root, slots=frozenset({30}), fail_on_data_loss=True)
    made = StreamSubscriber(fs, parsed, segments, parallelism=2, clock=ManualClock())
    assert made.initial() == at(1, 0)
    made.release()


def test_a_number_that_never_existed_is_not_a_loss(store, make):
    """Numbers may have gaps."""
    store.rows(1)
    store.next_segment = 5
    store.rows(1)
    query = make()
    start = query.initial()
    assert query.latest(start, unlimited=False) == at(6, 0)
    assert bundles_of(query.plan(start, at(6, 0))) == [(0, 0), (5, 0)]


def test_another_store_at_the_same_path_is_refused(store, make):
    """Its numbers would refer to other bundles."""
    store.rows(1)
    query = make()
    query.initial()
    with pytest.raises(DataLossError, match="belongs to store other"):
        query.latest(at(0, 0, "other"), unlimited=False)
    pathlib.Path(store.root, "quiver.id").unlink()
    assert make().latest(at(0, 0, "other"), unlimited=False) == at(1, 0, "unknown")


def test_available_now_ends_at_the_data_from_its_start(store, make):
    """Data that arrives during the run waits for the next one."""
    store.rows(2)
    query = make(maxBundlesPerTrigger="1")
    start = query.initial()
    query.available_now()
    store.rows(2)
    start = query.latest(start, unlimited=False)
    start = query.latest(start, unlimited=False)
    assert start == at(1, 0)
    assert query.latest(start, unlimited=False) == start
    assert query.tail() == at(2, 0)


def test_two_queries_cannot_share_a_subscriber(store, make):
    """The second one is refused after a wait; the error names the holder."""
    store.rows(1)
    first = make()
    first.initial()
    parsed = parse_options({"path": store.root, "slot": "30", "subscriber": "exp"})
    segments = SegmentList(REAL_FILES, store.root, slots=None, fail_on_data_loss=True)
    clock = ManualClock()
    second = StreamSubscriber(REAL_FILES, parsed, segments, parallelism=1, clock=clock)
    with pytest.raises(DirectoryInUseError, match=str(os.getpid())):
        second.initial()
    assert 2.0 <= clock.monotonic() < 3.0
    first.release()
    assert second.initial() == at(0, 0)
    second.release()


def test_an_unregistered_subscriber_with_a_checkpoint_is_refused(store, make):
    """Its data may be deleted; continuing needs an option."""
    store.rows(3)
    query = make()
    query.initial()
    query.commit(at(0, 1))
    query.release()
    pathlib.Path(store.root, "quiver.sub.exp").unlink()
    with pytest.raises(DataLossError, match="no longer registered"):
        make().latest(at(0, 1), unlimited=False)
    assert make(failOnDataLoss="false").latest(at(0, 1), unlimited=False) == at(1, 0)
    assert make().initial() == at(0, 1)


def test_damaged_progress_is_created_again(store, make):
    """No bundle is skipped; the checkpoint acknowledges its position again."""
    store.rows(3)
    query = make()
    query.initial()
    query.commit(at(0, 2))
    query.release()
    path = pathlib.Path(store.root, "quiver.sub.exp")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    again = make()
    assert again.initial() == at(0, 0)
    assert again.latest(at(0, 2), unlimited=False) == at(1, 0)
    assert again.acked == BundleRef(0, 2)


def test_a_stream_needs_a_name_and_a_store(store, tmp_path):
    """Both errors have an example."""
    segments = SegmentList(REAL_FILES, store.root, slots=None, fail_on_data_loss=True)
    with pytest.raises(UsageError, match="subscriber"):
        StreamSubscriber(REAL_FILES, parse_options({"path": store.root, "slot": "30"}), segments, parallelism=1)
    with pytest.raises(UsageError, match=r"a/b"):
        StreamSubscriber(
            REAL_FILES, parse_options({"path": store.root, "slot": "30", "subscriber": "a/b"}), segments, parallelism=1
        )
    with pytest.raises(UsageError, match="not the directory of a store"):
        SegmentList(REAL_FILES, str(tmp_path), slots=None, fail_on_data_loss=True)


def test_a_damaged_segment_stops_the_plan_or_is_skipped(store, make):
    """Depending on the option."""
    store.rows(1)
    path = store.rows(1)
    store.rows(1)
    pathlib.Path(path).chmod(0o600)
    os.truncate(path, 20)
    query = make()
    start = at(0, 0)
    with pytest.raises(CorruptionError):
        query.initial()
    lenient = make(failOnDataLoss="false", maxBundlesPerTrigger="5")
    assert lenient.initial() == start
    assert bundles_of(lenient.plan(start, lenient.latest(start, unlimited=False))) == [(0, 0), (2, 0)]


def test_listing_costs_one_stat_while_nothing_changes(store):
    """A directory that has not changed is not listed again; a changed one is."""

    class Counting:
        def __init__(self):
            self.calls = []

        def __getattr__(self, name):
            self.calls.append(name)
            return getattr(REAL_FILES, name)

    store.rows(1)
    fs, clock = Counting(), ManualClock()
    clock.advance(0)
    os.utime(f"{store.root}/segments", ns=(clock.now_ns() - 10**9,) * 2)
    segments = SegmentList(fs, store.root, slots=None, fail_on_data_loss=True, clock=clock)
    assert list(segments.numbers()) == [0]
    fs.calls.clear()
    assert list(segments.numbers()) == [0]
    assert fs.calls == ["stat"]
    StoreMaker(pathlib.Path(store.root)).next_segment = 1
    store.rows(1)
    assert list(segments.numbers()) == [0, 1]
    fs.calls.clear()
    segments.numbers()
    assert "list_dir" in fs.calls, "a directory that was just changed may change again"
