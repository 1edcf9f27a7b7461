"""Losses that were reproduced on another engine with the same formats, each tested on a complete store."""

import pyarrow as pa
import pytest

from quiver.bundle import Bundle
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"


def _open(disk, profile):
    settings = Settings(format_profile=profile, delete_grace_s=0)
    return open_store(ROOT, settings, fs=disk, clock=ManualClock(), background=False)


def _ingest(store, count, first):
    for number in range(first, first + count):
        store.ingest(Bundle({60: pa.record_batch({"data": pa.array([b"%d" % number])})}))
    store.seal()


def _take_all(subscriber):
    taken = []
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        taken.append(int(handle.bundle[60].column(0)[0].as_py()))
        handle.ack()
    return taken


@pytest.mark.parametrize("end", ["close", "kill", "power cut"])
@pytest.mark.parametrize(("profile", "keeps_floor"), [("spec", True), ("spec", False), ("otap", True)])
def test_stale_progress_does_not_cover_new_segments(profile, end, keeps_floor):
    """
    Everything is delivered and deleted, and the store is opened again: bundles that are ingested then are delivered. No
    new segment gets an old number, even in an empty directory, and even if the floor file was lost (in the `otap`
    profile progress only names existing segments, so there the floor is needed).
    """
    disk = CrashFileSystem()
    store = _open(disk, profile)
    subscriber = store.register("a")
    _ingest(store, 5, 0)
    assert _take_all(subscriber) == [0, 1, 2, 3, 4]
    store.maintain()
    store.maintain()
    assert store.stats()["segments"] == 0
    if end == "close":
        store.close()
        disk = disk.clone_after_kill()
    else:
        disk = disk.clone_after_kill() if end == "kill" else disk.clone_after_crash(0)
    if not keeps_floor:
        disk.remove(f"{ROOT}/segments/quiver.segment.floor")

    again = _open(disk, profile)
    subscriber = again.register("a")
    again.maintain()
    _ingest(again, 5, 100)
    again.maintain()
    assert again.stats()["segments"] == 1
    assert _take_all(subscriber) == [100, 101, 102, 103, 104]
    again.close()
