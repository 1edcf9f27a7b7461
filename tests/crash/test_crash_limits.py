"""A crash at every step of a drop leaves no subscriber with a permanent gap, and each loss is counted once."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable

import limits_rig as rig
import pytest

from quiver.observe import InMemoryObserver
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

Work = Callable[[tuple[int, ...]], rig.Run]


def at_the_cap(seeds: tuple[int, ...]) -> rig.Run:
    """The oldest segments are dropped when a bundle needs their space."""
    run = rig.Run(dataclasses.replace(rig.SETTINGS, segment_bytes_max=1_000, size_cap_bytes=24_000), seeds)
    run.open()
    run.ingest(10)
    run.read(6)
    run.ingest(2)
    with run.watched():
        run.ingest(4)
        run.read(2)
        run.ingest(4)
        run.store.maintain()
    return run


def over_age(seeds: tuple[int, ...]) -> rig.Run:
    """Several are deleted together, some finished, some partly resolved, some unresolved."""
    run = rig.Run(dataclasses.replace(rig.SETTINGS, size_cap_bytes=None, max_age_s=100.0), seeds)
    run.open()
    run.ingest(30)
    run.read(17)
    run.clock.advance(60)
    run.ingest(20)
    run.clock.advance(60)
    with run.watched():
        run.store.maintain()
        run.got["query"] += run.query.look(run.store)
        run.store.maintain()
    return run


def on_a_full_disk(seeds: tuple[int, ...]) -> rig.Run:
    """Only a segment without a file can be dropped."""
    disk = CrashFileSystem()
    full = FaultFileSystem(disk, error=errno.ENOSPC, path_part="/segments/000", forever=True)
    run = rig.Run(dataclasses.replace(rig.SETTINGS, size_cap_bytes=None), seeds, fs=disk, faults=full)
    run.open()
    run.ingest(5)
    run.read(5)
    full.fail_on("pwrite")
    with run.watched():
        run.ingest(14)
    full.heal()
    assert run.observer.total("quiver.retention.size_emergency_total") > 1
    return run


def check_all(work: Work, seeds: tuple[int, ...], *, query_lives: bool) -> None:
    run = work(seeds)
    assert len(run.states) > 40
    assert any(state.counted["sleeps"] for state in run.states)
    for state in run.states:
        uncounted = rig.check(state, run.settings, query_lives=query_lives)
        # The drop was durable, and the process that would have counted it has died.
        assert all(0 <= number <= state.in_ledger for number in uncounted.values()), (state.label, uncounted)
        if state.label.startswith("kill, after"):
            assert set(uncounted.values()) == {0}, (state.label, uncounted)


@pytest.mark.parametrize("query_lives", [True, False])
@pytest.mark.parametrize("work", [at_the_cap, over_age, on_a_full_disk])
def test_a_crash_at_every_step_of_a_drop(work: Work, query_lives: bool) -> None:
    """
    After any crash every subscriber gets the rest, space is freed, the ledger becomes empty, and nothing is counted
    twice. The subscriber of another process applies the drops itself, or the store does if that process has ended.
    """
    check_all(work, (1,), query_lives=query_lives)


def test_nothing_is_dropped_that_the_log_would_restore() -> None:
    """
    The cursor cannot be written, so the oldest segments are still in the log, and dropping them would free no space.
    Ingest is refused until it can be written; after a crash meanwhile every bundle exists, once.
    """
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=errno.ENOSPC, path_part="cursor.tmp", forever=True)
    settings = dataclasses.replace(rig.SETTINGS, size_cap_bytes=20_000)
    store = rig.opened(fs, settings=settings)
    store.register("sleeps", start="earliest")
    fs.fail_on("pwrite")
    number = 0
    while rig.refused(store, number) is None:
        number += 1
    assert number > 5
    again = rig.opened(disk.clone_after_crash(0), settings=settings)
    again.seal()
    assert rig.drain(again, "sleeps") == list(range(number))
    fs.heal()
    for later in range(number, number + 60):
        store.ingest(rig.bundle_of(later))
    store.seal()
    left = rig.drain(store, "sleeps")
    assert left == list(range(left[0], number + 60))
    assert left[0] == rig.counted(store._observer, "sleeps") > 0
    store.close()


@pytest.mark.parametrize("operation", ["pwrite", "sync_dir"])
def test_a_drop_without_its_cursor_loses_nothing(operation: str) -> None:
    """
    A segment that did not fit on the disk should be dropped, but the cursor did not fit either. The next write of the
    cursor must not complete the drop: the bundles are only in the log, and they were not counted as lost.
    """
    disk = CrashFileSystem()
    segments = FaultFileSystem(disk, {"pwrite": 1}, error=errno.ENOSPC, path_part="/segments/000", forever=True)
    part = "cursor.tmp" if operation == "pwrite" else "/wal"
    fs = FaultFileSystem(segments, error=errno.ENOSPC, path_part=part, forever=True)
    settings = dataclasses.replace(rig.SETTINGS, size_cap_bytes=None, wal_rotate_bytes=20_000, wal_bytes_max=40_000)
    store = rig.opened(fs, settings=settings)
    store.register("sleeps", start="earliest")
    fs.fail_on(operation)
    number = 0
    while rig.refused(store, number) is None:
        number += 1
    assert number > 5
    assert rig.counted(store._observer, "sleeps") == 0
    killed = disk.clone_after_kill()
    fs.heal()
    for _ in range(3):
        store.maintain()
    for state in (killed, disk.clone_after_kill()):
        observer = InMemoryObserver()
        again = rig.opened(state, settings=settings, observer=observer)
        again.seal()
        got = rig.drain(again, "sleeps")
        lost = rig.counted(observer, "sleeps")
        assert got == list(range(lost, number)), "bundles are missing that were not counted"
        assert lost == 0 or operation == "sync_dir"
    segments.heal()
    store.seal()
    assert rig.drain(store, "sleeps") == list(range(number))
    store.maintain()
    assert not disk.exists(f"{rig.ROOT}/quiver.drops")
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("query_lives", [True, False])
@pytest.mark.parametrize("work", [at_the_cap, over_age, on_a_full_disk])
def test_a_power_loss_at_every_step_of_a_drop_by_many_seeds(work: Work, query_lives: bool) -> None:
    """As above, with more outcomes of a power loss for names, lengths and blocks."""
    check_all(work, tuple(range(10)), query_lives=query_lives)
