"""A sealed segment that was removed manually is detected if that is certain; otherwise nothing is reported."""

import shutil

import pyarrow as pa
import pytest

import quiver
from quiver.clock import SYSTEM_CLOCK
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.offline.repair import repair
from quiver.store.reading.check import check_store
from quiver.store.snapshots.snapshot import restore, snapshot
from quiver.store.subscribers.orphaned_progress import find_missing

COUNTED = "quiver.subscriber.dropped_bundles_total"
SETTINGS = quiver.Settings(segment_bytes_max=1 << 20, delete_grace_s=0, steady_state_headroom_bytes=0)


def fill(store, *, segments=3, bundles=4):
    for _ in range(segments):
        for number in range(bundles):
            store.ingest(quiver.Bundle({"logs": pa.record_batch({"n": [number]})}))
        store.seal()


def take(subscriber, count):
    for _ in range(count):
        subscriber.next_bundle(timeout=0).ack()


@pytest.fixture
def begun(tmp_path):
    """A store of three segments with four bundles each; `slow` resolved one of the first segment."""
    root = tmp_path / "store"
    with quiver.open(root, SETTINGS, background=False) as store:
        slow = store.register("slow", start="earliest")
        fill(store)
        take(slow, 1)
    return root


def segment(root, number):
    return root / "segments" / f"{number:016d}.qseg"


def damaged(root):
    return [finding.path for finding in check_store(REAL_FILES, str(root)).findings if finding.damaged]


def test_a_missing_segment_is_reported_and_counted(begun):
    """`verify` names the file and its subscribers, and opening counts the bundles."""
    segment(begun, 0).unlink()
    (finding,) = [one for one in check_store(REAL_FILES, str(begun)).findings if one.damaged]
    assert finding.path == str(segment(begun, 0))
    assert "slow had 3 of its bundles pending" in finding.reason
    observer = InMemoryObserver()
    with quiver.open(begun, SETTINGS, background=False, observer=observer) as store:
        assert observer.total(COUNTED) == 3
        assert store.stats()["subscribers"]["slow"]["dropped_bundles"] == 3


def test_a_file_that_is_put_back_is_delivered(begun, tmp_path):
    """Its bundles are still pending: inspection and opening only report."""
    kept = tmp_path / "kept"
    shutil.move(segment(begun, 0), kept)
    with quiver.open(begun, SETTINGS, background=False):
        assert damaged(begun)
    shutil.move(kept, segment(begun, 0))
    assert damaged(begun) == []
    with quiver.open(begun, SETTINGS, background=False) as store:
        assert store.register("slow").lag().pending_bundles == 11


def test_the_report_ends_when_the_subscriber_continues(begun):
    segment(begun, 0).unlink()
    with quiver.open(begun, SETTINGS, background=False) as store:
        take(store.register("slow"), 1)
    observer = InMemoryObserver()
    with quiver.open(begun, SETTINGS, background=False, observer=observer):
        assert observer.total(COUNTED) == 0
    assert damaged(begun) == []


def test_repair_drops_a_missing_segment_once(begun):
    """For the subscriber that was inside it; a dry run changes nothing."""
    segment(begun, 0).unlink()
    repair(REAL_FILES, str(begun), clock=SYSTEM_CLOCK, dry_run=True)
    assert damaged(begun)
    report = repair(REAL_FILES, str(begun), clock=SYSTEM_CLOCK)
    (mend,) = report.repairs
    assert mend.path == str(segment(begun, 0))
    assert mend.lost == "3 of its bundles, which slow had pending"
    assert not report.damaged
    with quiver.open(begun, SETTINGS, background=False) as store:
        assert store.register("slow").lag().pending_bundles == 8


@pytest.mark.parametrize("how", ["finished", "dropped", "quarantined", "unregistered", "rewound", "late"])
def test_segments_that_the_store_deleted_are_not_reported(tmp_path, how):
    """The store records each deletion before it happens; and a number that no progress has begun proves nothing."""
    root = tmp_path / "store"
    settings = quiver.Settings(
        segment_bytes_max=1 << 20, delete_grace_s=0, steady_state_headroom_bytes=0, max_age_s=None
    )
    with quiver.open(root, settings, background=False) as store:
        slow = store.register("slow", start="earliest")
        fast = store.register("fast", start="earliest")
        fill(store)
        take(slow, 1)
        if how == "finished":
            take(fast, 12)
            take(slow, 11)
        elif how == "dropped":
            store.maintain()
            store._cleanup.drop_oldest(1)
        elif how == "quarantined":
            store.maintain()
        elif how == "unregistered":
            take(fast, 12)
            store.unregister("slow")
        else:
            take(fast, 12)
            take(slow, 11)
            store.maintain()
            fill(store)
            take(fast, 1) if how == "rewound" else store.register("third", start=0)
            if how == "rewound":
                fast.rewind("earliest")
        store.maintain()
        assert find_missing(REAL_FILES, str(root)) == []
    if how == "quarantined":
        segment(root, 0).chmod(0o600)
        segment(root, 0).write_bytes(segment(root, 0).read_bytes()[:-40])
    with quiver.open(root, settings, background=False) as store:
        store.maintain()
        assert find_missing(REAL_FILES, str(root)) == []
    assert find_missing(REAL_FILES, str(root)) == []
    assert not segment(root, 0).exists()


def test_a_snapshot_has_no_progress_of_missing_segments(begun, tmp_path):
    """Segments that were deleted or sealed during the snapshot are not missing in a store that is restored from it."""
    segment(begun, 0).unlink()
    snapshot(REAL_FILES, str(begun), str(tmp_path / "copy"), now_ns=0)
    restore(REAL_FILES, str(tmp_path / "copy"), str(tmp_path / "again"), identity=None)
    assert damaged(tmp_path / "again") == []


def test_a_backup_of_progress_may_contain_deleted_segments(tmp_path):
    """The previous generation had begun a segment that all subscribers have finished by now."""
    root = tmp_path / "store"
    settings = quiver.Settings(
        segment_bytes_max=1 << 20, delete_grace_s=0, steady_state_headroom_bytes=0, progress_damage="backup"
    )
    with quiver.open(root, settings, background=False) as store:
        slow = store.register("slow", start="earliest")
        fill(store)
        take(slow, 1)
        store.maintain()
        take(slow, 4)
        store.maintain()
        store.maintain()
    file = root / "quiver.sub.slow"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    observer = InMemoryObserver()
    with quiver.open(root, settings, background=False, observer=observer):
        assert observer.total(COUNTED) == 0
    assert damaged(root) == []
