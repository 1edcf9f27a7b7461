"""A checkpoint is newer than the copy from which its store was restored: no new bundle is skipped. No Spark."""

import shutil

import pyarrow as pa
import pytest

import quiver
from quiver.errors import DataLossError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.store_files import StoreFiles
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.snapshots.snapshot import restore, snapshot
from quiver.testing.clock import ManualClock

NOW_NS = 1_800_000_000_000_000_000
SETTINGS = quiver.Settings(delete_grace_s=0.0)


def fill(root, first, count):
    """Write one segment for each number."""
    with quiver.open(root, SETTINGS, background=False) as store:
        store.register("exp", start="earliest")
        for n in range(first, first + count):
            store.ingest(quiver.Bundle({30: pa.record_batch({"n": pa.array([n], pa.int64())})}))
            store.seal()
        store.maintain()


class Query:
    """The source side of a streaming query; its checkpoint outlives its processes."""

    def __init__(self, root):
        self.root = str(root)
        self.checkpoint = None

    def run(self, **options):
        """Read and commit all data, and return the segments that were read."""
        parsed = parse_options({"path": self.root, "slot": "30", "subscriber": "exp", **options})
        segments = SegmentList(REAL_FILES, self.root, slots=None, fail_on_data_loss=parsed.fail_on_data_loss)
        source = StreamSubscriber(REAL_FILES, parsed, segments, parallelism=1, clock=ManualClock())
        try:
            start = source.initial() if self.checkpoint is None else self.checkpoint
            end = source.latest(start, unlimited=True)
            read = [span.segment for spans in source.plan(start, end) for span in spans]
            source.commit(end)
        finally:
            source.release()
        self.checkpoint = end
        return read


def lost(tmp_path):
    """Three segments are read and copied, five more are read, then the store is lost."""
    root, copy = tmp_path / "buffer", tmp_path / "copy"
    query = Query(root)
    fill(root, 0, 3)
    assert query.run() == [0, 1, 2]
    snapshot(REAL_FILES, str(root), str(copy), now_ns=NOW_NS)
    fill(root, 3, 5)
    assert query.run() == [3, 4, 5, 6, 7]
    shutil.rmtree(root)
    return root, copy, query


def test_new_bundles_are_not_skipped(tmp_path):
    """The restored store continues above all numbers of the lost one, and the query skips the gap."""
    root, copy, query = lost(tmp_path)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=ManualClock(now_ns=NOW_NS))
    assert query.run() == [], "there is no new data, and the gap is not a loss"
    fill(root, 100, 6)
    first = NOW_NS // 1000
    assert query.run() == list(range(first, first + 6))
    fill(root, 200, 1)
    assert query.run() == [first + 6]


def test_a_copy_restored_twice_uses_different_numbers(tmp_path):
    """The second restored store does not reuse the numbers of the first."""
    root, copy, query = lost(tmp_path)
    clock = ManualClock(now_ns=NOW_NS)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=clock)
    fill(root, 100, 6)
    assert len(query.run()) == 6
    shutil.rmtree(root)
    clock.advance(1.0)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=clock)
    fill(root, 100, 2)
    assert len(query.run()) == 2


def test_a_clock_that_was_set_back_is_detected(tmp_path):
    """The second store's numbers are below those of the first: the query fails instead of skipping bundles."""
    root, copy, query = lost(tmp_path)
    clock = ManualClock(now_ns=NOW_NS)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=clock)
    fill(root, 100, 6)
    assert len(query.run()) == 6
    shutil.rmtree(root)
    clock.set_wall_ns(NOW_NS - 86_400 * 10**9)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=clock)
    fill(root, 100, 2)
    with pytest.raises(DataLossError, match="ahead of the store"):
        query.run()


def test_a_clock_that_was_never_set_does_not_matter(tmp_path):
    """The restored store adds a large number to those of the copy."""
    root, copy, query = lost(tmp_path)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=ManualClock(now_ns=0))
    fill(root, 100, 2)
    assert len(query.run()) == 2


def test_a_store_copied_by_hand_is_detected(tmp_path):
    """Its numbers start below the checkpoint again: the query fails instead of skipping bundles."""
    root, copy, query = lost(tmp_path)
    shutil.copytree(copy, root)
    (root / "quiver.snapshot").unlink()
    fill(root, 100, 2)
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(DataLossError, match="ahead of the store"):
            query.run(**options)


def test_a_checkpoint_older_than_the_copy_is_refused(tmp_path):
    """The gap only excuses missing numbers within it."""
    root, copy, query = lost(tmp_path)
    query.checkpoint = query.checkpoint | {"seq": 1}
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=ManualClock(now_ns=NOW_NS))
    fill(root, 100, 1)
    with pytest.raises(DataLossError, match="older than the progress"):
        query.run()


def test_deleting_old_segments_does_not_lower_the_lowest_free_number(tmp_path):
    """The first segments to be deleted are those of the copy, whose numbers are lower."""
    root, copy, _ = lost(tmp_path)
    restore(REAL_FILES, str(copy), str(root), identity=None, clock=ManualClock(now_ns=NOW_NS))
    with quiver.open(root, SETTINGS, background=False) as store:
        store.register("exp", start="earliest")
        assert store.maintain().segments_deleted == 3
    floor = StoreFiles(REAL_FILES, str(root)).floor()
    assert (floor.value, floor.skipped) == (NOW_NS // 1000, range(3, NOW_NS // 1000))
    fill(root, 100, 1)
    assert StoreFiles(REAL_FILES, str(root)).floor().skipped == range(3, NOW_NS // 1000)


def test_a_new_identity_does_not_skip_numbers(tmp_path):
    """No checkpoint refers to its numbers."""
    root, copy, _ = lost(tmp_path)
    restore(REAL_FILES, str(copy), str(root), identity="33333333-3333-4333-8333-333333333333")
    assert StoreFiles(REAL_FILES, str(root)).floor().value == 3
