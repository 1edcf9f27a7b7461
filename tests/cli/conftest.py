"""
A small store on a real disk: sealed segments, a log with a rotated file, two subscribers.
"""

import shutil

import pyarrow as pa
import pytest

import quiver


def bundle(first):
    rows = pa.record_batch({"n": pa.array(range(first, first + 20)), "s": pa.array([f"row {n}" for n in range(20)])})
    return quiver.Bundle({"logs": rows})


@pytest.fixture(scope="session")
def made_store(tmp_path_factory):
    """The directory of a store as a crash leaves it: what is not sealed is in the log only."""
    live = tmp_path_factory.mktemp("made") / "live"
    settings = quiver.Settings(segment_bytes_max=4000, wal_rotate_bytes=2000, wal_bytes_max=100_000)
    with quiver.open(live, settings, background=False) as store:
        fast = store.register("fast", start="earliest")
        store.register("slow", start="earliest")
        for n in range(12):
            store.ingest(bundle(20 * n), durable=True)
        store.flush()
        for _ in range(5):
            fast.next_bundle(timeout=0).ack()
        store.maintain()
        for n in range(12, 15):
            store.ingest(bundle(20 * n), durable=True)
        left = live.with_name("left")
        shutil.copytree(live, left)
    return left


@pytest.fixture
def make_bundle():
    """First number → a bundle of twenty rows."""
    return bundle


@pytest.fixture
def store_dir(made_store, tmp_path):
    """A copy to damage."""
    copy = tmp_path / "store"
    shutil.copytree(made_store, copy)
    return copy
