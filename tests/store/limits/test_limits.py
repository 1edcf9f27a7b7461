"""What a store does at its limits: the size cap, the caps of the log, age, headroom and grace, and in which order."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from quiver import CapacityError, Store
from quiver.observe import InMemoryObserver
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.format.names import DROP_LEDGER, RESERVE
from quiver.store.removal.drops import DropLedger
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import drain, ingest_until_full, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/limits"
SEGMENT = 4_000
CAP = 60_000
opened = partial(open_small, root=ROOT)
bundle_of = partial(numbered, size=200)
fill = partial(ingest_until_full, bundle_of=bundle_of)


def total(store: Store, name: str, **attributes: object) -> int:
    wanted = set(attributes.items())
    counts = store._observer.counts
    return sum(amount for (counted, seen), amount in counts.items() if counted == name and wanted <= set(seen))


def on_disk(fs: CrashFileSystem, path: str = ROOT) -> int:
    """Bytes of every file of the store, whoever wrote it."""
    try:
        names = fs.list_dir(path)
    except NotADirectoryError:
        return fs.stat(path).size_bytes
    return sum(on_disk(fs, f"{path}/{name}") for name in names)


# ── the size cap ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["backpressure", "drop_oldest"])
@pytest.mark.parametrize("durable", [False, True])
def test_the_cap_holds_for_everything_on_disk(fs: CrashFileSystem, policy: str, durable: bool) -> None:
    """Log with its zeros ahead, segments, progress, ledger and reserve: never more than the cap and one segment."""
    largest = 0
    with opened(fs, size_cap_bytes=CAP, size_cap_policy=policy) as store:
        store.register("s", start="earliest")
        for number in range(400):
            try:
                store.ingest(bundle_of(number), durable=durable)
            except CapacityError:
                drain(store, "s", 20)
            if number % 7 == 0:
                store.maintain()
            largest = max(largest, on_disk(fs))
    assert CAP // 2 < largest <= CAP + SEGMENT


def test_what_lies_beside_log_and_segments_counts(fs: CrashFileSystem) -> None:
    """A quarantine that nobody empties takes its share, and the refusal says so."""
    with opened(fs, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        plain, _ = fill(store)
    fs = CrashFileSystem()
    fs.make_dirs(f"{ROOT}/quarantine")
    fs.create(f"{ROOT}/quarantine/old.damaged").pwrite(b"x" * 20_000, 0)
    with opened(fs, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        less, full = fill(store)
        assert less < plain * 3 // 4
        assert "quarantine 20000" in full.what


def test_backpressure_deletes_nothing_unfinished(fs: CrashFileSystem) -> None:
    """Every bundle that was taken is still there, and the refusal names the slowest of those that hold it."""
    with opened(fs, size_cap_bytes=CAP) as store:
        store.register("slow", start="earliest")
        store.register("quick", start="earliest")
        number = 0
        for _ in range(4):
            number, full = fill(store, number)
            drain(store, "quick")
        assert full.held_by == "slow"
        assert "retention.size_cap" in full.what
        store.seal()
        assert drain(store, "slow") == list(range(number))
        assert total(store, "quiver.segment.dropped_total") == 0
        assert total(store, "quiver.ingest.throttle_total") >= 1
        store.ingest(bundle_of(number))


def test_without_a_subscriber_the_refusal_says_that_nobody_finishes_anything(fs: CrashFileSystem) -> None:
    with opened(fs, size_cap_bytes=CAP) as store:
        _, full = fill(store)
        assert full.held_by is None
        assert "no subscriber is registered" in full.what


def test_drop_oldest_gives_up_the_oldest_and_says_how_much_to_whom(fs: CrashFileSystem) -> None:
    """What is left is the newest without a gap; each subscriber is told what it lost, and no more."""
    with opened(fs, size_cap_bytes=CAP, size_cap_policy="drop_oldest") as store:
        store.register("idle", start="earliest")
        for number in range(60):
            store.ingest(bundle_of(number))
        early = drain(store, "busy", 20)
        for number in range(60, 400):
            store.ingest(bundle_of(number))
        store.seal()
        kept = drain(store, "idle")
        assert kept == list(range(kept[0], 400))
        lost = total(store, "quiver.subscriber.dropped_bundles_total", subscriber="idle", reason="size")
        assert lost == kept[0]
        assert drain(store, "busy") == kept
        busy = total(store, "quiver.subscriber.dropped_bundles_total", subscriber="busy", reason="size")
        assert busy == kept[0] - len(early) - early[0]
        assert total(store, "quiver.segment.dropped_total", reason="size") > 0
        assert total(store, "quiver.retention.size_emergency_total") > 0
        store.maintain()
        assert len(store.catalog) == 0
        assert not fs.exists(f"{ROOT}/{DROP_LEDGER}")


def test_finished_segments_go_before_unfinished_ones(fs: CrashFileSystem) -> None:
    """Under `drop_oldest`, too: nothing is given up while something that nobody wants is there, whatever its age."""
    with opened(fs, size_cap_bytes=CAP, size_cap_policy="drop_oldest", delete_grace_s=1e9) as store:
        for number in range(60):
            store.ingest(bundle_of(number))
        store.seal()
        half = len(store.catalog) // 2
        newest = [info.seq for info in store.catalog.segments()][half:]
        subscriber = store.register("s", start=newest[0])
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handle.ack()
        subscriber.rewind("earliest")
        store.maintain()
    with opened(fs, size_cap_bytes=CAP, size_cap_policy="drop_oldest", delete_grace_s=1e9) as store:
        subscriber = store.register("s")
        refs = []
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            refs.append(handle)
        for handle in refs:
            if handle.ref.segment in newest:
                handle.ack()
        first = store.catalog.segments()[0].seq
        before = len(store.catalog)
        number = 100
        while len(store.catalog) >= before:
            store.ingest(bundle_of(number))
            store.maintain()
            number += 1
            before = max(before, len(store.catalog))
        assert first in store.catalog
        assert newest[0] not in store.catalog
        assert total(store, "quiver.segment.dropped_total") == 0
        assert total(store, "quiver.gc.evictions_total", reason="size") >= 1


def test_early_finalizing_when_only_the_open_segment_can_make_room(fs: CrashFileSystem) -> None:
    """The open segment is far from full, but only it holds the log's room: it is sealed, and subscribers get it."""
    with opened(fs, segment_bytes_max=20_000, wal_rotate_bytes=20_000, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        for number in range(30):
            store.ingest(bundle_of(number, size=1_500))
            if number % 8 == 7:
                drain(store, "s")
                store.maintain()
        assert total(store, "quiver.ingest.throttle_total") == 0
        assert total(store, "quiver.segment.sealed_total") > 30 * 1_500 // 20_000


def test_waiting_for_room_lasts_until_the_deadline(fs: CrashFileSystem) -> None:
    """Not shorter, not longer; and a store without a timeout refuses at once."""
    clock = ManualClock()
    with opened(fs, clock, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        number, _ = fill(store)
        started = clock.monotonic()
        with pytest.raises(CapacityError):
            store.ingest(bundle_of(number))
        assert clock.monotonic() == started
        with pytest.raises(CapacityError, match="held by s"):
            store.ingest(bundle_of(number), timeout=3.0)
        assert 3.0 <= clock.monotonic() - started < 3.1


def test_room_that_comes_while_waiting_is_used(fs: CrashFileSystem) -> None:
    """A subscriber finishes while ingest waits: the bundle goes in."""
    with opened(fs, size_cap_bytes=CAP, delete_grace_s=1e9) as store:
        store.register("s", start="earliest")
        number, _ = fill(store)
        waits = []

        class Acking(ManualClock):
            def wait(self, condition, timeout):  # the store's lock is held here, as by any waiter
                waits.append(timeout)
                condition.release()
                try:
                    drain(store, "s")
                finally:
                    condition.acquire()
                return super().wait(condition, timeout)

        object.__setattr__(store._admission._context, "clock", Acking())
        store.ingest(bundle_of(number), timeout=3.0)
        assert len(waits) == 1


def test_a_cap_that_became_smaller_is_met(fs: CrashFileSystem) -> None:
    """With `drop_oldest` the first bundle makes room; with `backpressure` it waits for the subscribers."""
    with opened(fs, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        number, _ = fill(store)
    with opened(fs, size_cap_bytes=CAP // 2) as store, pytest.raises(CapacityError, match=r"size_cap \(30000"):
        store.ingest(bundle_of(number))
    with opened(fs, size_cap_bytes=CAP // 2, size_cap_policy="drop_oldest") as store:
        store.ingest(bundle_of(number))
        assert on_disk(fs) <= CAP // 2 + SEGMENT
        store.seal()
        assert drain(store, "s")[-1] == number


# ── the caps of the log, and of the number of segments ───────────────────────────────────────────────────


def test_rotated_files_are_counted_with_the_active_one(fs: CrashFileSystem) -> None:
    """`wal.max_rotated_files` is active and rotated files together, as the architecture document says."""
    with opened(fs, wal_files_max=3, wal_rotate_bytes=1_000, segment_bytes_max=1_000_000) as store:
        most = 0
        for number in range(100):
            store.ingest(bundle_of(number))
            names = [name for name in fs.list_dir(f"{ROOT}/wal") if not name.endswith(".cursor")]
            most = max(most, len(names))
        assert most == 3
        store.seal()
        assert drain(store, "s") == list(range(100))


def test_the_log_stays_below_its_cap_by_sealing_early(fs: CrashFileSystem) -> None:
    """A slot that is written rarely keeps no log: the open segment is sealed when the log needs its room."""
    with opened(fs, segment_bytes_max=1_000_000, wal_rotate_bytes=2_000, wal_bytes_max=9_000) as store:
        for number in range(200):
            store.ingest(bundle_of(number), durable=number % 3 == 0)
            assert store.stats()["wal_bytes"] <= 9_000
        store.seal()
        assert drain(store, "s") == list(range(200))


def test_the_number_of_segments_has_a_cap_too(fs: CrashFileSystem) -> None:
    """`retention.max_segments`: at it, one goes or ingest is refused, as for bytes."""
    with opened(fs, segments_max=5) as store:
        store.register("s", start="earliest")
        number, full = fill(store)
        assert "retention.max_segments (5)" in full.what
        assert len(store.catalog) <= 5
        store.ingest(bundle_of(number)) if drain(store, "s") else None
    with opened(fs, segments_max=5, size_cap_policy="drop_oldest") as store:
        for number in range(200):
            store.ingest(bundle_of(number))
            assert len(store.catalog) <= 5


def test_a_segment_takes_a_number_of_bundles(fs: CrashFileSystem) -> None:
    """`segment.max_bundle_count`: a progress file can speak of so many."""
    with opened(fs, segment_bundles_max=7) as store:
        for number in range(30):
            store.ingest(bundle_of(number, size=1))
        store.seal()
        assert [info.bundle_count for info in store.catalog.segments()] == [7, 7, 7, 7, 2]


# ── age, headroom, grace ─────────────────────────────────────────────────────────────────────────────────


def test_over_age_goes_wanted_or_not(fs: CrashFileSystem) -> None:
    """By the newest bundle of a segment; what is lost is counted, what was finished is not."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=100.0) as store:
        store.register("s", start="earliest")
        for number in range(20):
            store.ingest(bundle_of(number))
        store.seal()
        done = drain(store, "s", 4)
        store.maintain()
        clock.advance(99)
        assert store.maintain().segments_deleted == 0
        clock.advance(1)
        assert store.maintain().segments_deleted > 0
        assert len(store.catalog) == 0
        lost = total(store, "quiver.subscriber.dropped_bundles_total", subscriber="s", reason="age")
        assert lost == 20 - len(done)
        assert total(store, "quiver.subscriber.dropped_bundles_total") == lost


def test_the_open_segment_expires_too(fs: CrashFileSystem) -> None:
    """While every subscriber lags it waits for size; not longer than data may live."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=100.0) as store:
        store.register("s", start="earliest")
        for number in range(9):
            store.ingest(bundle_of(number))
            store.seal()
        store.ingest(bundle_of(9))
        clock.advance(100)
        store.maintain()
        assert store.stats()["open_bundles"] == 0
        store.maintain()
        assert len(store.catalog) == 0
        assert drain(store, "s") == []


def test_age_goes_on_over_a_restart(fs: CrashFileSystem) -> None:
    """It is that of the bundles, not that of the process; and what the log brings back is as old as it was."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=100.0) as store:
        store.ingest(bundle_of(0))
        store.seal()
        clock.advance(60)
        store.ingest(bundle_of(1))
        disk = fs.clone_after_kill()
    clock.advance(50)
    with opened(disk, clock, max_age_s=100.0) as store:
        store.maintain()
        store.seal()
        assert drain(store, "s") == [1]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_drop_is_counted_once_wherever_a_directory_sync_fails(goes_on: bool) -> None:
    """Also when the new ledger stands and only its name may not be durable; by this process or by the next."""
    for call in range(1, 40):
        clock, inner = ManualClock(), CrashFileSystem()
        disk = FaultFileSystem(inner)
        dropped = hit = 0
        with opened(disk, clock, max_age_s=100.0) as store:
            store.register("s", start="earliest")
            for number in range(3):
                store.ingest(bundle_of(number))
                store.seal()
            store.maintain()
            clock.advance(100)
            before = disk.calls["sync_dir"]
            disk.fail_on("sync_dir", call)
            with contextlib.suppress(OSError):
                store.maintain()
            hit = disk.calls["sync_dir"] - before >= call
            disk.heal()
            if goes_on:
                store.maintain()
            dropped = total(store, "quiver.segment.dropped_total", reason="age")
        with opened(inner.clone_after_crash(call) if goes_on else inner, clock, max_age_s=100.0) as store:
            store.maintain()
            dropped += total(store, "quiver.segment.dropped_total", reason="age")
            assert len(store.catalog) == 0
            assert drain(store, "s") == []
        assert dropped == 3, f"sync {call}"
        if not hit:
            break
    assert call > 3


def test_a_ledger_that_is_found_is_durable_before_anything_in_it_goes() -> None:
    """Also when whoever wrote it ended before the sync of its name: a power loss from there on leaves it."""
    inner = CrashFileSystem()
    inner.make_dirs(ROOT)
    disk = FaultFileSystem(inner, {"sync_dir": 1})
    entry = DroppedSegment(7, 3, 100, "age", 1)
    with pytest.raises(OSError, match="sync|Input/output"):
        DropLedger(disk, ROOT).add([entry])
    found = inner.clone_after_kill()
    assert DropLedger.load(found, ROOT, InMemoryObserver()).entries == [entry]
    for seed in range(20):
        assert DropLedger.load(found.clone_after_crash(seed), ROOT, InMemoryObserver()).entries == [entry]


@pytest.mark.parametrize("step_s", [-86_400, 86_400])
def test_a_clock_that_steps_expires_nothing_early(fs: CrashFileSystem, step_s: int) -> None:
    """Nor does it keep anything longer, or change the order: age is measured on the clock that does not step."""
    clock = ManualClock()
    with opened(fs, clock, max_age_s=100.0) as store:
        store.register("s", start="earliest")
        store.ingest(bundle_of(0))
        clock.set_wall_ns(clock.now_ns() + step_s * 10**9)
        store.ingest(bundle_of(1))
        store.seal()
        store.ingest(bundle_of(2))
        clock.set_wall_ns(clock.now_ns() + step_s * 10**9)
        store.maintain()
        store.seal()
        clock.advance(99)
        store.maintain()
        assert len(store.catalog) == 2
        assert drain(store, "s") == [0, 1, 2]
        clock.advance(1)
        store.maintain()
        assert len(store.catalog) == 0


def test_headroom_keeps_the_newest_finished_segments(fs: CrashFileSystem) -> None:
    """`retention.steady_state_headroom`: a small spool stays in healthy operation, and yields to the cap."""
    with opened(fs, steady_state_headroom_bytes=20_000, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        for number in range(300):
            store.ingest(bundle_of(number))
            if number % 10 == 9:
                drain(store, "s")
                store.maintain()
        store.seal()
        drain(store, "s")
        store.maintain()
        kept = [info.seq for info in store.catalog.segments()]
        assert kept[-1] == store.stats()["next_segment"] - 1
        assert 20_000 - 8_000 < store.catalog.bytes <= 20_000
        fill_to = 0
        while store.catalog.segments()[0].seq == kept[0]:
            store.ingest(bundle_of(1_000 + fill_to))
            fill_to += 1
        assert total(store, "quiver.gc.evictions_total", reason="size") >= 1


def test_grace_keeps_finished_segments_for_readers(fs: CrashFileSystem) -> None:
    """`retention.delete_grace`: a batch reader that listed a segment finds it, as long as the cap allows."""
    clock = ManualClock()
    with opened(fs, clock, delete_grace_s=60.0) as store:
        store.register("s", start="earliest")
        for number in range(20):
            store.ingest(bundle_of(number))
        store.seal()
        drain(store, "s")
        store.maintain()
        clock.advance(59)
        store.maintain()
        assert len(store.catalog) > 0
        clock.advance(1)
        store.maintain()
        assert len(store.catalog) == 0


def test_age_does_not_wait_for_grace_or_headroom(fs: CrashFileSystem) -> None:
    clock = ManualClock()
    with opened(fs, clock, delete_grace_s=1e9, steady_state_headroom_bytes=50_000, max_age_s=10.0) as store:
        store.register("s", start="earliest")
        store.ingest(bundle_of(0))
        store.seal()
        drain(store, "s")
        clock.advance(10)
        assert store.maintain().segments_deleted == 1
        assert total(store, "quiver.segment.dropped_total") == 0


def test_without_subscribers_only_age_and_the_cap_delete(fs: CrashFileSystem) -> None:
    """Nobody has seen the data, so nothing is finished."""
    clock = ManualClock()
    with opened(fs, clock) as store:
        for number in range(20):
            store.ingest(bundle_of(number))
        store.seal()
        clock.advance(1e6)
        assert store.maintain().segments_deleted == 0
    with opened(fs, clock, max_age_s=100.0) as store:
        assert store.maintain().segments_deleted > 0


def test_reclaim_frees_what_is_finished_and_nothing_else(fs: CrashFileSystem) -> None:
    """Grace or not, oldest first, as much as is asked for; what was acknowledged a moment ago counts."""
    with opened(fs, delete_grace_s=1e9) as store:
        store.register("s", start="earliest")
        for number in range(60):
            store.ingest(bundle_of(number))
        store.seal()
        before = len(store.catalog)
        drain(store, "s", 30)
        assert store.reclaim(1) > 0
        assert len(store.catalog) == before - 1
        store.reclaim(10**9)
        assert drain(store, "s")[0] == 30
        assert 1 < len(store.catalog) < before - 1


def test_the_reserve_counts_and_is_small(fs: CrashFileSystem) -> None:
    """What the store says it has on disk is what is there, with the blocks that it holds for a full disk."""
    with opened(fs) as store:
        store.register("s", start="earliest")
        for number in range(60):
            store.ingest(bundle_of(number), durable=True)
        store._cleanup.side.measure(now=True)
        assert 0 < fs.stat(f"{ROOT}/{RESERVE}").size_bytes <= SEGMENT // 32
        beside = sum(fs.stat(f"{ROOT}/{name}").size_bytes for name in ("quiver.sub.s.lock",))
        assert on_disk(fs) - beside <= store.disk_bytes <= on_disk(fs)
