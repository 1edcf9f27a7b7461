"""
Losses at limits of size, age and time that are known of another engine with the same formats.

Each test describes the error.
"""

from __future__ import annotations

import errno
import threading
from functools import partial

import pytest

from quiver import CapacityError, Settings, Store
from quiver import open as open_store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import ROOT, drain, fill, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")
opened = partial(open_small, segment_bytes_max=1_000, wal_rotate_bytes=2_000)


def counted(store: Store, name: str) -> float:
    return store._observer.total(name)


# ── the log at its limits ───────────────────────────────────────────────────────────────────────────────


def test_a_log_at_its_cap_seals_the_open_segment(fs: CrashFileSystem) -> None:
    """It rotated only by the target and refused at the cap; here the segment is sealed first."""
    with opened(fs, segment_bytes_max=1_000_000, wal_rotate_bytes=4_000, wal_bytes_max=8_000) as store:
        for number in range(200):
            store.ingest(numbered(number))
            assert store.stats()["wal_bytes"] <= 8_000
        assert len(store.internals.catalog) > 3
        store.seal()
        assert drain(store) == list(range(200))


def test_the_limit_of_log_files_includes_the_active_one(fs: CrashFileSystem) -> None:
    """Only rotated files were counted, so there was always one more."""
    most = 0
    with opened(fs, segment_bytes_max=1_000_000, wal_rotate_bytes=1, wal_files_max=3) as store:
        for number in range(40):
            store.ingest(numbered(number))
            names = [name for name in fs.list_dir(f"{ROOT}/wal") if not name.endswith(("cursor", "next"))]
            most = max(most, len(names))
        store.seal()
        assert drain(store) == list(range(40))
    assert most == 3


def test_maintenance_syncs_the_tail_of_a_burst(tmp_path) -> None:
    """Only ingest checked the flush interval: after three bundles and two idle seconds there was no sync."""
    with open_store(tmp_path, Settings(wal_flush_interval_s=0.001, segment_open_s_max=3600)) as store:
        fill(store, range(3))
        written = store.stats()["wal_position"]
        moment = threading.Event()
        for _ in range(2_000):
            if store.stats()["wal_synced_position"] >= written:
                break
            moment.wait(0.005)
        assert store.stats()["wal_synced_position"] >= written


def test_concurrent_callers_get_no_false_errors(tmp_path) -> None:
    """Positions of two concurrent calls crossed, and one got an error for a bundle that was stored."""
    failures: list[BaseException] = []

    def ingest(first: int) -> None:
        try:
            for number in range(first, first + 50):
                store.ingest(numbered(number), durable=number % 10 == 0)
        except BaseException as failure:
            failures.append(failure)

    with open_store(tmp_path, Settings(segment_bytes_max=5_000, wal_rotate_bytes=9_000)) as store:
        threads = [threading.Thread(target=ingest, args=(1_000 * turn,)) for turn in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.seal()
        got = drain(store)
    assert not failures
    assert sorted(got) == [1_000 * turn + number for turn in range(4) for number in range(50)]


# ── expiry ──────────────────────────────────────────────────────────────────────────────────────────────


def test_bundles_that_expired_while_the_store_was_closed_are_not_replayed(fs: CrashFileSystem) -> None:
    """Upstream #1980: an old log was replayed as new, and its data was kept for another full age."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=100.0, segment_bytes_max=1_000_000) as store:
        store.register("s", start="earliest")
        fill(store, range(5))
        left = fs.clone_after_kill()
    later = ManualClock(now_ns=clock.now_ns() + 101 * 10**9)
    with opened(left, later, max_age_s=100.0) as store:
        store.seal()
        store.maintain()
        assert not len(store.internals.catalog)
        assert drain(store) == []
        assert counted(store, "quiver.subscriber.dropped_bundles_total") == 5


def test_expiry_does_not_count_delivered_bundles_as_lost(fs: CrashFileSystem) -> None:
    """Upstream #3892: every bundle of an expired segment counted as lost, acknowledged or not."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=10.0, segment_bytes_max=1_000_000) as store:
        store.register("s", start="earliest")
        fill(store, range(8))
        store.seal()
        assert drain(store, most=6) == [0, 1, 2, 3, 4, 5]
        clock.advance(11.0)
        store.maintain()
        assert not len(store.internals.catalog)
        assert counted(store, "quiver.subscriber.dropped_bundles_total") == 2


def test_segments_over_age_are_dropped(fs: CrashFileSystem) -> None:
    """Upstream #1960: the setting had no effect; an inactive consumer kept its data forever."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=10.0) as store:
        store.register("dead", start="earliest")
        fill(store, range(30))
        store.seal()
        clock.advance(9.0)
        store.maintain()
        assert len(store.internals.catalog)
        clock.advance(2.0)
        store.maintain()
        assert not len(store.internals.catalog)


# ── the cap ─────────────────────────────────────────────────────────────────────────────────────────────


def test_drop_oldest_drops_a_segment_that_cannot_be_sealed(fs: CrashFileSystem) -> None:
    """Only sealed segments were dropped: a disk too full to seal the first one refused everything forever."""
    faults = FaultFileSystem(fs, error=errno.ENOSPC, path_part="segments/", forever=True)
    caps = {"size_cap_bytes": 100_000, "size_cap_policy": "drop_oldest", "segment_bytes_max": 10_000}
    with opened(faults, **caps) as store:
        store.register("s", start="earliest")
        faults.fail_on("create")
        accepted = []
        for number in range(300):
            try:
                store.ingest(numbered(number))
            except CapacityError:
                continue
            accepted.append(number)
        assert accepted[-1] > 290
        faults.heal()
        store.maintain()
        store.seal()
        got = drain(store)
        assert got == accepted[-len(got) :]
        assert len(accepted) - len(got) == counted(store, "quiver.subscriber.dropped_bundles_total") > 0
