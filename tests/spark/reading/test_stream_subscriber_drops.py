"""
A streaming query whose bundles a policy dropped: it reports and counts them once, and continues or stops. Does not use
Spark.
"""

import errno

import pytest

from quiver.bundle import BundleRef
from quiver.errors import DataLossError
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.cursor import encode_cursor
from quiver.store.format.drop_ledger import DroppedSegment, encode_drop_ledger
from quiver.store.reading.offsets import StreamOffset
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.subscribers.progress_store import load_progress
from quiver.testing.clock import ManualClock
from quiver.testing.faultfs import FaultFileSystem

LOST = "quiver.subscriber.dropped_bundles_total"


class Query:
    """The source side of a query, and its counts."""

    def __init__(self, store, fs=REAL_FILES, **options):
        parsed = parse_options({"path": store.root, "slot": "30", "subscriber": "exp", **options})
        segments = SegmentList(fs, store.root, slots=frozenset({30}), fail_on_data_loss=parsed.fail_on_data_loss)
        self.observer = InMemoryObserver()
        self.side = StreamSubscriber(fs, parsed, segments, parallelism=2, clock=ManualClock(), observer=self.observer)

    @property
    def lost(self):
        return self.observer.total(LOST)

    def read(self, start):
        """Take and acknowledge everything from *start*; return the segments and the new start."""
        end = self.side.latest(start, unlimited=True)
        spans = [span for spans in self.side.plan(start, end) for span in spans] if end != start else []
        if spans:
            self.side.commit(end)
        return [span.segment for span in spans], end


@pytest.fixture
def query(store):
    made = []

    def make(**options):
        made.append(Query(store, **options))
        return made[-1]

    yield make
    for one in made:
        one.side.release()


def at(segment, index=0, store="5c0f0000-0000-0000-0000-000000000001"):
    return StreamOffset(store, BundleRef(segment, index)).to_json()


def write(store, name, *entries):
    replacement = f"{store.root}/{name}.new"
    with open(replacement, "wb") as file:
        file.write(encode_drop_ledger(entries))
    REAL_FILES.rename(replacement, f"{store.root}/{name}")


def drop(store, name, seq, bundles=2):
    REAL_FILES.remove(f"{store.root}/segments/{seq:016}.qseg")
    write(store, name, DroppedSegment(seq, bundles, 100, "size", 0))


@pytest.mark.parametrize("name", ["quiver.drops", "quiver.evicted"])
def test_dropped_bundles_are_counted_and_skipped(store, query, name):
    """Whether the store recorded them, or another core whose record the store has not read yet."""
    for _ in range(3):
        store.rows(2)
    lenient = query(failOnDataLoss="false")
    start = lenient.side.initial()
    drop(store, name, 0)
    assert lenient.read(start) == ([1, 2], at(3))
    assert lenient.lost == 2
    assert lenient.read(at(3)) == ([], at(3))
    assert lenient.lost == 2


@pytest.mark.parametrize("name", ["quiver.drops", "quiver.evicted"])
def test_a_strict_query_stops_and_the_loss_is_durable_all_the_same(store, query, name):
    """Restarted with a new checkpoint, it continues after the loss, and does not count it again."""
    store.rows(2)
    store.rows(2)
    strict = query()
    start = strict.side.initial()
    drop(store, name, 0)
    with pytest.raises(DataLossError, match="policy dropped 2 bundles"):
        strict.side.latest(start, unlimited=True)
    strict.side.release()
    again = query()
    assert again.side.initial() == at(1)
    assert again.read(at(1)) == ([1], at(2))
    assert (strict.lost, again.lost) == (2, 0)


def test_bundles_that_the_log_may_restore_are_not_a_loss(store, query):
    """
    A segment that was never written is recorded first and dropped when the cursor has passed it. A crash in between
    restores its bundles, so a query must not count them or stop for them before.
    """
    store.rows(2)
    write(store, "quiver.drops", DroppedSegment(1, 3, 0, "size", 0, wal_position_end=500))
    strict = query()
    assert strict.read(strict.side.initial()) == ([0], at(1))
    REAL_FILES.make_dirs(f"{store.root}/wal")
    cursor = f"{store.root}/wal/quiver.wal.cursor"
    for position, is_lost in ((499, False), (500, True)):
        with open(cursor, "wb") as file:
            file.write(encode_cursor(position))
        if is_lost:
            with pytest.raises(DataLossError, match="policy dropped 3 bundles"):
                strict.side.latest(at(1), unlimited=True)
        else:
            assert strict.read(at(1)) == ([], at(1))
    assert strict.lost == 3


def test_a_failed_write_of_the_progress_is_retried(store, query):
    """The loss is counted once, and durable as soon as the disk accepts it."""
    store.rows(2)
    store.rows(2)
    fs = FaultFileSystem(REAL_FILES, error=errno.ENOSPC, path_part="quiver.sub.exp", forever=True)
    lenient = query(fs=fs, failOnDataLoss="false")
    start = lenient.side.initial()
    drop(store, "quiver.drops", 0)
    fs.fail_on("pwrite")
    with pytest.raises(OSError, match="No space"):
        lenient.side.latest(start, unlimited=True)
    fs.heal()
    lenient.side.latest(start, unlimited=True)
    assert load_progress(REAL_FILES, store.root, "exp").oldest_incomplete == 1
    assert lenient.lost == 2
