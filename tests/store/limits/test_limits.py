"""The limits of a store and their order: the size cap, the caps of the log, age, headroom and grace period."""

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
    """Return the bytes of all files of the store."""
    try:
        names = fs.list_dir(path)
    except NotADirectoryError:
        return fs.stat(path).size_bytes
    return sum(on_disk(fs, f"{path}/{name}") for name in names)


# ── the size cap ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["backpressure", "drop_oldest"])
@pytest.mark.parametrize("durable", [False, True])
def test_the_cap_applies_to_all_files(fs: CrashFileSystem, policy: str, durable: bool) -> None:
    """Log with preallocated zeros, segments, progress, ledger and reserve: at most the cap and one segment."""
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


def test_files_besides_log_and_segments_count(fs: CrashFileSystem) -> None:
    """A quarantine uses its share, and the error mentions it."""
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
    """Every accepted bundle still exists, and the error names the slowest subscriber with pending bundles."""
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


def test_without_a_subscriber_the_error_mentions_that_no_bundle_can_finish(fs: CrashFileSystem) -> None:
    with opened(fs, size_cap_bytes=CAP) as store:
        _, full = fill(store)
        assert full.held_by is None
        assert "no subscriber is registered" in full.what


def test_drop_oldest_drops_the_oldest_and_counts_for_each_subscriber(fs: CrashFileSystem) -> None:
    """The newest bundles are left without a gap; each subscriber's count is exact."""
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
        assert len(store.internals.catalog) == 0
        assert not fs.exists(f"{ROOT}/{DROP_LEDGER}")


def test_finished_segments_are_deleted_before_unfinished_ones(fs: CrashFileSystem) -> None:
    """With `drop_oldest` too: nothing is dropped as long as a finished segment of any age exists."""
    with opened(fs, size_cap_bytes=CAP, size_cap_policy="drop_oldest", delete_grace_s=1e9) as store:
        for number in range(60):
            store.ingest(bundle_of(number))
        store.seal()
        half = len(store.internals.catalog) // 2
        newest = [info.seq for info in store.internals.catalog.segments()][half:]
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
        first = store.internals.catalog.segments()[0].seq
        before = len(store.internals.catalog)
        number = 100
        while len(store.internals.catalog) >= before:
            store.ingest(bundle_of(number))
            store.maintain()
            number += 1
            before = max(before, len(store.internals.catalog))
        assert first in store.internals.catalog
        assert newest[0] not in store.internals.catalog
        assert total(store, "quiver.segment.dropped_total") == 0
        assert total(store, "quiver.gc.evictions_total", reason="size") >= 1


def test_the_open_segment_is_sealed_early_to_free_the_log(fs: CrashFileSystem) -> None:
    """It is far from its size, but only its bundles are in the log: it is sealed, or dropped if it is resolved."""
    with opened(fs, segment_bytes_max=20_000, wal_rotate_bytes=20_000, size_cap_bytes=CAP) as store:
        store.register("s", start="earliest")
        for number in range(30):
            store.ingest(bundle_of(number, size=1_500))
            if number % 8 == 7:
                drain(store, "s")
                store.maintain()
        assert total(store, "quiver.ingest.throttle_total") == 0
        ended = total(store, "quiver.segment.sealed_total") + total(store, "quiver.segment.unwritten_total")
        assert ended >= 30 * 1_500 // 20_000


def test_ingest_waits_for_space_until_its_deadline(fs: CrashFileSystem) -> None:
    """Exactly; a store without a timeout refuses at once."""
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


def test_space_that_is_freed_during_the_wait_is_used(fs: CrashFileSystem) -> None:
    """A subscriber acknowledges while ingest waits, and the bundle is accepted."""
    with opened(fs, size_cap_bytes=CAP, delete_grace_s=1e9) as store:
        store.register("s", start="earliest")
        number, _ = fill(store)
        waits = []

        class Acking(ManualClock):
            def wait(self, condition, timeout):  # the store's lock is held here, as by any waiting call
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


def test_a_smaller_cap_applies_after_a_restart(fs: CrashFileSystem) -> None:
    """With `drop_oldest` the first bundle frees space; with `backpressure` it waits for the subscribers."""
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


def test_the_limit_of_log_files_counts_the_active_file(fs: CrashFileSystem) -> None:
    """`wal.max_rotated_files` limits active and rotated files together, as in the architecture document."""
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
    """A slot that is rarely written keeps no log: the open segment is sealed when the log needs its space."""
    with opened(fs, segment_bytes_max=1_000_000, wal_rotate_bytes=2_000, wal_bytes_max=9_000) as store:
        for number in range(200):
            store.ingest(bundle_of(number), durable=number % 3 == 0)
            assert store.stats()["wal_bytes"] <= 9_000
        store.seal()
        assert drain(store, "s") == list(range(200))


def test_the_number_of_segments_is_limited(fs: CrashFileSystem) -> None:
    """`retention.max_segments`: at the limit, one is deleted or ingest is refused, as for bytes."""
    with opened(fs, segments_max=5) as store:
        store.register("s", start="earliest")
        number, full = fill(store)
        assert "retention.max_segments (5)" in full.what
        assert len(store.internals.catalog) <= 5
        store.ingest(bundle_of(number)) if drain(store, "s") else None
    with opened(fs, segments_max=5, size_cap_policy="drop_oldest") as store:
        for number in range(200):
            store.ingest(bundle_of(number))
            assert len(store.internals.catalog) <= 5


def test_the_number_of_bundles_in_a_segment_is_limited(fs: CrashFileSystem) -> None:
    """`segment.max_bundle_count`: a progress file can store so many."""
    with opened(fs, segment_bundles_max=7) as store:
        for number in range(30):
            store.ingest(bundle_of(number, size=1))
        store.seal()
        assert [info.bundle_count for info in store.internals.catalog.segments()] == [7, 7, 7, 7, 2]


# ── age, headroom, grace ─────────────────────────────────────────────────────────────────────────────────


def test_segments_over_age_are_dropped_even_if_pending(fs: CrashFileSystem) -> None:
    """The age is that of the newest bundle; pending bundles are counted as lost, finished ones are not."""
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
        assert len(store.internals.catalog) == 0
        lost = total(store, "quiver.subscriber.dropped_bundles_total", subscriber="s", reason="age")
        assert lost == 20 - len(done)
        assert total(store, "quiver.subscriber.dropped_bundles_total") == lost


def test_the_open_segment_expires(fs: CrashFileSystem) -> None:
    """While every subscriber lags it waits for its size, but not longer than the maximum age."""
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
        assert len(store.internals.catalog) == 0
        assert drain(store, "s") == []


def test_age_continues_over_a_restart(fs: CrashFileSystem) -> None:
    """It is the age of the bundles, not of the process, also for bundles that are replayed from the log."""
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
def test_a_drop_is_counted_once_when_a_directory_sync_fails(goes_on: bool) -> None:
    """Also when the new ledger exists and only its name may not be durable; by this process or the next."""
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
            assert len(store.internals.catalog) == 0
            assert drain(store, "s") == []
        assert dropped == 3, f"sync {call}"
        if not hit:
            break
    assert call > 3


def test_a_ledger_is_synced_before_its_segments_are_deleted() -> None:
    """Also if the previous process ended before it synced the name: no later power loss removes it."""
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
def test_a_stepped_clock_does_not_change_when_segments_expire(fs: CrashFileSystem, step_s: int) -> None:
    """Neither early nor late, and in the same order: age uses the monotonic clock."""
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
        assert len(store.internals.catalog) == 2
        assert drain(store, "s") == [0, 1, 2]
        clock.advance(1)
        store.maintain()
        assert len(store.internals.catalog) == 0


def test_headroom_keeps_the_newest_finished_segments(fs: CrashFileSystem) -> None:
    """`retention.steady_state_headroom`: a small backlog stays in normal operation, and is deleted at the cap."""
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
        kept = [info.seq for info in store.internals.catalog.segments()]
        assert kept[-1] == store.stats()["next_segment"] - 1
        assert 20_000 - 8_000 < store.internals.catalog.bytes <= 20_000
        fill_to = 0
        while store.internals.catalog.segments()[0].seq == kept[0]:
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
        assert len(store.internals.catalog) > 0
        clock.advance(1)
        store.maintain()
        assert len(store.internals.catalog) == 0


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
    """No subscriber has seen the data, so no segment is finished."""
    clock = ManualClock()
    with opened(fs, clock) as store:
        for number in range(20):
            store.ingest(bundle_of(number))
        store.seal()
        clock.advance(1e6)
        assert store.maintain().segments_deleted == 0
    with opened(fs, clock, max_age_s=100.0) as store:
        assert store.maintain().segments_deleted > 0


def test_reclaim_deletes_only_finished_segments(fs: CrashFileSystem) -> None:
    """Despite the grace period, oldest first, up to the given size; recent acknowledgements count."""
    with opened(fs, delete_grace_s=1e9) as store:
        store.register("s", start="earliest")
        for number in range(60):
            store.ingest(bundle_of(number))
        store.seal()
        before = len(store.internals.catalog)
        drain(store, "s", 30)
        assert store.reclaim(1) > 0
        assert len(store.internals.catalog) == before - 1
        store.reclaim(10**9)
        assert drain(store, "s")[0] == 30
        assert 1 < len(store.internals.catalog) < before - 1


def test_the_reserve_counts_and_is_small(fs: CrashFileSystem) -> None:
    """The reported disk use equals the files, including the blocks that are reserved for a full disk."""
    with opened(fs) as store:
        store.register("s", start="earliest")
        for number in range(60):
            store.ingest(bundle_of(number), durable=True)
        store._cleanup.side.measure(now=True)
        assert 0 < fs.stat(f"{ROOT}/{RESERVE}").size_bytes <= SEGMENT // 32
        beside = sum(fs.stat(f"{ROOT}/{name}").size_bytes for name in ("quiver.sub.s.lock",))
        assert on_disk(fs) - beside <= store.disk_bytes <= on_disk(fs)
