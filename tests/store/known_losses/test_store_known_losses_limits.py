"""
Losses and surprises that another engine with the same formats has where something is full, old, late, or shared.

Each test says what the matter was there.
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
from store_rig import ROOT, drain, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")
opened = partial(open_small, segment_bytes_max=1_000, wal_rotate_bytes=2_000)


def fill(store: Store, numbers: range) -> None:
    for number in numbers:
        store.ingest(numbered(number))


def counted(store: Store, name: str) -> float:
    return store._observer.total(name)


# ── the log at its limits ───────────────────────────────────────────────────────────────────────────────


def test_a_log_at_its_cap_only_refuses(fs: CrashFileSystem) -> None:
    """It rotated by the target alone and refused at the cap; here what the cap would refuse seals the segment first."""
    with opened(fs, segment_bytes_max=1_000_000, wal_rotate_bytes=4_000, wal_bytes_max=8_000) as store:
        for number in range(200):
            store.ingest(numbered(number))
            assert store.stats()["wal_bytes"] <= 8_000
        assert len(store.catalog) > 3
        store.seal()
        assert drain(store) == list(range(200))


def test_one_log_file_more_than_the_limit_says(fs: CrashFileSystem) -> None:
    """Only rotated files were counted, so that there was always one more; the limit is for all of them."""
    most = 0
    with opened(fs, segment_bytes_max=1_000_000, wal_rotate_bytes=1, wal_files_max=3) as store:
        for number in range(40):
            store.ingest(numbered(number))
            names = [name for name in fs.list_dir(f"{ROOT}/wal") if not name.endswith(("cursor", "next"))]
            most = max(most, len(names))
        store.seal()
        assert drain(store) == list(range(40))
    assert most == 3


def test_the_tail_of_a_burst_waits_for_the_next_ingest_to_be_synced(tmp_path) -> None:
    """The flush interval was looked at by ingest only: three bundles, two idle seconds, and no sync."""
    with open_store(tmp_path, Settings(wal_flush_interval_s=0.001, segment_open_s_max=3600)) as store:
        fill(store, range(3))
        written = store.stats()["wal_position"]
        moment = threading.Event()
        for _ in range(2_000):
            if store.stats()["wal_synced_position"] >= written:
                break
            moment.wait(0.005)
        assert store.stats()["wal_synced_position"] >= written


def test_callers_at_the_same_time_are_told_of_errors_that_are_none(tmp_path) -> None:
    """Positions of two that ingest at once passed each other, and one was told that its stored bundle had failed."""
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


def test_what_expired_while_nobody_ran_comes_back_from_the_log(fs: CrashFileSystem) -> None:
    """Upstream #1980: an old log was replayed as if it were new, and its data lived for another whole age."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=100.0, segment_bytes_max=1_000_000) as store:
        store.register("s", start="earliest")
        fill(store, range(5))
        left = fs.clone_after_kill()
    later = ManualClock(now_ns=clock.now_ns() + 101 * 10**9)
    with opened(left, later, max_age_s=100.0) as store:
        store.seal()
        store.maintain()
        assert not len(store.catalog)
        assert drain(store) == []
        assert counted(store, "quiver.subscriber.dropped_bundles_total") == 5


def test_expiry_counts_what_was_delivered_as_lost(fs: CrashFileSystem) -> None:
    """Upstream #3892: every bundle of an expired segment counted as lost, acknowledged or not."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=10.0, segment_bytes_max=1_000_000) as store:
        store.register("s", start="earliest")
        fill(store, range(8))
        store.seal()
        assert drain(store, most=6) == [0, 1, 2, 3, 4, 5]
        clock.advance(11.0)
        store.maintain()
        assert not len(store.catalog)
        assert counted(store, "quiver.subscriber.dropped_bundles_total") == 2


def test_age_is_not_looked_at(fs: CrashFileSystem) -> None:
    """Upstream #1960: the setting was read and nothing followed from it; a dead consumer held its data for ever."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=10.0) as store:
        store.register("dead", start="earliest")
        fill(store, range(30))
        store.seal()
        clock.advance(9.0)
        store.maintain()
        assert len(store.catalog)
        clock.advance(2.0)
        store.maintain()
        assert not len(store.catalog)


# ── the cap ─────────────────────────────────────────────────────────────────────────────────────────────


def test_drop_oldest_cannot_drop_what_was_not_sealed(fs: CrashFileSystem) -> None:
    """Only sealed segments were ever dropped: a disk too full to seal the first one refused everything for ever."""
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
