"""
Eviction in another core's directory: which segments may be deleted, how the owner detects it, and
what a crash leaves.
"""

from __future__ import annotations

import errno
import logging

import pytest
from core_rig import CAP_BYTES, ROOT, SEGMENT_BYTES, Rig, fill, numbered

from quiver import CapacityError, DirectoryInUseError
from quiver.observe import InMemoryObserver, Value
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.store import recovery
from quiver.store.cores.claims import Evictor, read_record, take_claim
from quiver.store.cores.store import MultiCoreStore
from quiver.store.format.cores import EVICT_LOCK, EVICTED
from quiver.store.format.drop_ledger import DROP_LEDGER_BYTES_MAX, decode_drop_ledger, encode_drop_ledger
from quiver.store.segment.info import SegmentInfo
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing
from quiver.store.subscribers.state import SegmentRef, Segments
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import drain, number_of

CORE_0 = f"{ROOT}/core_0"
"""Return the directory in which the other cores evict."""


def finished(rig: Rig, store: MultiCoreStore, core: int = 0, bundles: int = 40, first: int = 0) -> None:
    """Bundles in *core* that all subscribers have acknowledged durably, and whose files exist for the grace period."""
    fill(store, core, bundles, first=first)
    drain(store, "one")
    rig.tick(store)


def push(store: MultiCoreStore, core: int, first: int = 10_000) -> int:
    """Ingest into *core* until it is full; return the number of bundles."""
    for number in range(first, first + 1_000):
        try:
            store.ingest(numbered(number), core=core)
        except CapacityError:
            return number - first
    return 1_000


def record(fs: CrashFileSystem, core: int = 0) -> list[int] | None:
    path = f"{ROOT}/core_{core}/{EVICTED}"
    if not fs.exists(path):
        return None
    answer = decode_drop_ledger(memoryview(fs.read_all(path, size_max=DROP_LEDGER_BYTES_MAX)))
    assert isinstance(answer, Frame)
    return [entry.seq for entry in answer.value]


def used(rig: Rig) -> int:
    total = 0
    for name in rig.fs.list_dir(ROOT):
        for inner in ("segments", "wal", "."):
            directory = f"{ROOT}/{name}/{inner}".removesuffix("/.")
            for one in rig.fs.list_dir(directory):
                total += 0 if one in {"segments", "wal"} else rig.fs.stat(f"{directory}/{one}").size_bytes
    return total


# ---- finished segments


def test_a_full_core_evicts_finished_segments_of_an_idle_one(rig: Rig) -> None:
    """Before the end of their grace period, oldest first; the newest is kept for its number."""
    with rig.open(cores=2) as store:
        finished(rig, store, bundles=100)
        before = rig.segments(0)
        count = push(store, 1)
        left = rig.segments(0)
        assert left == before[-len(left) :]
        assert len(left) < len(before) // 4
        assert record(rig.fs) == []
        figures = store.stats()["cores"]
        assert figures[1]["evicted_elsewhere"] == len(before) - len(left)
        assert figures[1]["dropped_elsewhere"] == figures[0]["evicted_elsewhere"] == 0
        # The event is logged for groups of bundles, not for each one.
        assert figures[1]["claim_writes"] < 3 * count
        rig.tick(store)
        assert record(rig.fs) is None
        assert store.stats()["cores"][0]["segments"] == len(left)
        assert used(rig) <= CAP_BYTES + 2 * SEGMENT_BYTES
        store.core(1).seal()
        assert len(drain(store, "one")) == count
        fill(store, 0, 1)
        assert drain(store, "one") == [0]


def test_finished_segments_of_a_stopped_process_are_evicted(rig: Rig) -> None:
    """Their owner does nothing meanwhile; when it continues, it detects the eviction and works normally."""
    owner, hot = rig.open(cores=2, core=0), rig.open(cores=2, core=1)
    finished(rig, owner, bundles=100)
    rig.tick(hot)
    assert push(hot, 1) > 50
    assert rig.observer.counts["quiver.gc.evictions_total", (("reason", "size"),)] > 10
    rig.tick(owner)
    assert record(rig.fs) is None
    assert owner.stats()["segments"] == len(rig.segments(0))
    assert fill(owner, 0, 2, first=500) == drain(owner, "one")
    owner.close()
    hot.close()


def test_finished_segments_of_a_killed_process_are_evicted(rig: Rig) -> None:
    """No process has its directory open. The next start of the core succeeds."""
    owner = rig.open(cores=2, core=0)
    finished(rig, owner, bundles=100)
    fill(owner, 0, 3, first=900)
    rig.fs = rig.fs.clone_after_kill()
    with rig.open(cores=2, core=1) as hot:
        assert push(hot, 1) > 50
        assert record(rig.fs) == []
    with rig.open(cores=2, core=0) as again:
        assert record(rig.fs) is None
        assert drain(again, "one") == [900, 901, 902]


def test_with_backpressure_pending_segments_are_not_evicted(rig: Rig) -> None:
    """A segment stays until every subscriber has resolved it durably; the full core refuses."""
    with rig.open(cores=2) as store:
        store.register("two", start="earliest")
        finished(rig, store, bundles=60)
        before = rig.segments(0)
        push(store, 1)
        rig.clock.advance(1)
        with pytest.raises(CapacityError):
            store.ingest(numbered(0), core=1)
        assert rig.segments(0) == before
        assert drain(store, "two")[:60]
        rig.tick(store)
        store.ingest(numbered(0), core=1)


def test_segments_whose_progress_is_not_durable_are_not_evicted(rig: Rig) -> None:
    """After a restart they would be delivered again."""
    with rig.open(cores=2) as store:
        fill(store, 0, 40)
        drain(store, "one")
        before = rig.segments(0)
        push(store, 1)
        assert rig.segments(0) == before
        rig.tick(store)
        rig.clock.advance(1)
        store.ingest(numbered(0), core=1)
        assert len(rig.segments(0)) < len(before)


def test_without_subscribers_no_segment_is_evicted(rig: Rig) -> None:
    """No subscriber has seen the data. The same applies if the only progress file is damaged."""
    evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
    with rig.open(cores=2) as store:
        fill(store, 0, 10)
        assert evictor.evict([0], 10**9) == {0: 0}
        finished(rig, store, bundles=10, first=10)
        path = f"{CORE_0}/quiver.sub.one"
        good = rig.fs.read_all(path, size_max=10_000)
        rig.fs.open_write(path).pwrite(b"\xff" * 20, 8)
        assert evictor.evict([0], 10**9) == {0: 0}
        rig.fs.open_write(path).pwrite(good, 0)
        assert evictor.evict([0], 10**9)[0] > 0
        assert len(rig.segments(0)) == 1


def test_the_oldest_segments_of_all_cores_are_evicted_first(rig: Rig) -> None:
    """The age decides, not the core; within a core, order is preserved."""
    with rig.open(cores=3) as store:
        for turn in range(10):
            for core in (0, 1):
                fill(store, core, 3, first=turn * 10)
                rig.clock.advance(1)
        drain(store, "one")
        rig.tick(store)
        evictor = Evictor(rig.fs, ROOT, 2, clock=rig.clock, observer=rig.observer)
        one = rig.fs.stat(f"{CORE_0}/segments/{rig.segments(0)[0]}").size_bytes
        freed = evictor.evict([0, 1], 10 * one)
        assert freed[0] == freed[1] == 5 * one
        assert [len(rig.segments(core)) for core in (0, 1)] == [5, 5]
        rig.tick(store)


def test_a_directory_that_is_locked_for_eviction_is_skipped(rig: Rig) -> None:
    """Eviction does not wait for the lock. The other directories are used, and the owner detects the eviction later."""
    with rig.open(cores=3) as store:
        finished(rig, store, 0, 20)
        finished(rig, store, 1, 20, first=100)
        evictor = Evictor(rig.fs, ROOT, 2, clock=rig.clock, observer=rig.observer)
        claim = take_claim(rig.fs, CORE_0, who="a test")
        assert claim is not None
        freed = evictor.evict([0, 1, 2], 10**9)
        assert set(freed) == {1}
        assert freed[1] > 0
        claim.release()
        assert evictor.evict([0], 10**9)[0] > 0
        claim = take_claim(rig.fs, CORE_0, who="a test")
        assert claim is not None
        rig.tick(store)
        assert record(rig.fs) == []
        claim.release()
        rig.tick(store)
        assert record(rig.fs) is None


def test_an_unreadable_directory_does_not_prevent_eviction_in_others(rig: Rig) -> None:
    """A damaged one is reported; a missing or empty one is ignored."""
    with rig.open(cores=3) as store:
        finished(rig, store, 0, 20)
        finished(rig, store, 1, 20, first=100)
        rig.fs.make_dirs(f"{ROOT}/core_7")
        for op in ("list", "stat", "open", "sync_dir", "pwrite", "rename", "remove"):
            broken = FaultFileSystem(rig.fs, {op: 1}, error=errno.EIO, path_part="core_0", forever=True)
            evictor = Evictor(broken, ROOT, 2, clock=rig.clock, observer=rig.observer)
            freed = evictor.evict([0, 1, 7, 9], 20_000)
            assert freed.get(0, 0) == 0
            if op in {"list", "stat", "open"}:
                assert freed[1] > 0
            fill(store, 1, 10, first=1_000)
            drain(store, "one")
            rig.tick(store)
        assert len(rig.segments(0)) > 1


def test_every_full_core_evicts(rig: Rig) -> None:
    """Two full cores both free the finished segments of two idle ones."""
    with rig.open(cores=4) as store:
        for core in (0, 1):
            finished(rig, store, core, bundles=45, first=core * 100)
        for number in range(400):
            for core in (2, 3):
                try:
                    store.ingest(numbered(number), core=core)
                except CapacityError:
                    continue
            rig.clock.advance(0.01)
        figures = store.stats()["cores"]
        assert figures[2]["evicted_elsewhere"] > 2
        assert figures[3]["evicted_elsewhere"] > 2
        assert len(rig.segments(0)) + len(rig.segments(1)) < 6
        rig.tick(store)


def test_a_core_is_opened_while_another_evicts_in_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is deleted between the listing and its inspection is not an error."""
    with rig.open(cores=2, core=0) as store:
        finished(rig, store)
    before = rig.segments(0)
    evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
    look = recovery.read_info

    def meanwhile(fs: FileSystem, path: str) -> SegmentInfo:
        monkeypatch.setattr(recovery, "read_info", look)
        assert evictor.evict([0], 10**9)[0] > 0
        return look(fs, path)

    monkeypatch.setattr(recovery, "read_info", meanwhile)
    with rig.open(cores=2, core=0) as store:
        assert rig.segments(0) == before[-1:]
        assert store.stats()["segments"] == 1
        assert record(rig.fs) is None
        assert fill(store, 0, 1, first=700) == drain(store, "one")


# ---- dropped segments


def hog(rig: Rig) -> MultiCoreStore:
    """Core 0 has nearly all of the cap with pending bundles; core 1 has nothing."""
    store = rig.open(cores=2)
    store.register("one", start="earliest")
    store.register("two", start="earliest")
    push(store, 0, first=0)
    store.core(0).seal()
    rig.tick(store)
    return store


def test_drop_oldest_drops_from_cores_above_their_share() -> None:
    """A core below its share drops none of its own segments meanwhile; subscribers are notified."""
    rig = Rig(size_cap_policy="drop_oldest")
    with hog(rig) as store:
        lost_before = rig.observer.total("quiver.subscriber.dropped_bundles_total")
        before = rig.segments(0)
        for number in range(10_000, 10_030):
            store.ingest(numbered(number), core=1)
        removed = [int(name.split(".")[0]) for name in before if name not in rig.segments(0)]
        assert removed
        assert removed == sorted(removed)
        assert record(rig.fs) == removed
        assert store.stats()["cores"][1]["dropped_elsewhere"] == len(removed)
        rig.tick(store)
        assert record(rig.fs) is None
        lost = rig.observer.total("quiver.subscriber.dropped_bundles_total") - lost_before
        assert lost > 0
        assert lost % 2 == 0
        store.core(1).seal()
        got = drain(store, "one")
        assert set(range(10_000, 10_030)) <= set(got)
        figures = store.stats()["subscribers"]
        assert figures["one"]["pending_bundles"] == 0
        assert used(rig) <= CAP_BYTES + 2 * SEGMENT_BYTES


def test_a_core_above_its_share_drops_its_own_segments() -> None:
    """With `drop_oldest` a full core drops no pending segments of a core that has fewer bytes."""
    rig = Rig(size_cap_policy="drop_oldest")
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        fill(store, 1, 6)
        before = rig.segments(1)
        for number in range(200):
            store.ingest(numbered(100 + number), core=0)
        assert rig.segments(1) == before
        assert store.stats()["cores"][0]["dropped_elsewhere"] == 0
        store.seal()
        rig.tick(store)
        assert set(range(6)) <= set(drain(store, "one"))


def test_with_backpressure_no_core_drops_anything(rig: Rig) -> None:
    """The idle core waits for the subscribers of the full one, except for the one segment that it always has."""
    with hog(rig) as store:
        before = rig.segments(0)
        with pytest.raises(CapacityError):
            for number in range(100):
                store.ingest(numbered(number), core=1)
        assert rig.segments(0) == before
        assert rig.observer.total("quiver.subscriber.dropped_bundles_total") == 0


def test_drops_from_a_dead_core_are_counted_at_its_next_start() -> None:
    """For each subscriber, before it gets a bundle; no progress has a gap."""
    rig = Rig(size_cap_policy="drop_oldest")
    hog(rig)
    rig.fs = rig.fs.clone_after_kill()
    with rig.open(cores=2, core=1) as cold:
        for number in range(10_000, 10_030):
            cold.ingest(numbered(number))
    removed = record(rig.fs)
    assert removed
    before = rig.observer.total("quiver.subscriber.dropped_bundles_total")
    with rig.open(cores=2, core=0) as owner:
        assert rig.observer.total("quiver.subscriber.dropped_bundles_total") > before
        assert record(rig.fs) is None
        subscriber = owner.register("one", start="earliest")
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        assert handle.ref.segment == removed[-1] + 1
        handle.nack()
        drain(owner, "one")
        owner.maintain()
        assert owner.stats()["subscribers"]["one"]["pending_bundles"] == 0


def test_a_handle_of_a_dropped_bundle_stays_readable(rig: Rig) -> None:
    """A late acknowledgement is ignored."""
    rig = Rig(size_cap_policy="drop_oldest")
    with hog(rig) as store:
        subscriber = store.register("one", start="earliest")
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        bundle = handle.bundle
        for number in range(10_000, 10_030):
            store.ingest(numbered(number), core=1)
        assert record(rig.fs)
        rig.tick(store)
        assert number_of(bundle) == number_of(handle.bundle)
        drain(store, "one")
        rig.tick(store)
        assert store.stats()["subscribers"]["one"]["pending_bundles"] <= 1


def test_segments_that_do_not_fit_the_eviction_record_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a dead core may be full; a segment is only dropped after it was recorded."""
    monkeypatch.setattr("quiver.store.cores.claims.DROP_ENTRIES_MAX", 2)
    rig = Rig(size_cap_policy="drop_oldest")
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        fill(store, 0, 60)
        before = rig.segments(0)
        evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
        for _ in range(2):
            evictor.evict([0], 10**9, drop_from=[0])
            assert rig.segments(0) == before[2:]
            assert record(rig.fs) == [0, 1]
        rig.tick(store)


# ---- the eviction record


@pytest.mark.parametrize(
    "content", [b"", b"garbage", encode_drop_ledger([])[:-1], b"\xff" * 4096], ids=["empty", "garbage", "short", "long"]
)
def test_a_damaged_eviction_record_is_reported_and_ignored(rig: Rig, content: bytes) -> None:
    """A copy is kept, and the owner relies on the existing files."""
    with rig.open(cores=2) as store:
        finished(rig, store)
        evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
        assert evictor.evict([0], 3 * 4_000)[0] > 0
        rig.fs.create_or_truncate(f"{CORE_0}/{EVICTED}").pwrite(content, 0)
        assert read_record(rig.fs, CORE_0, rig.observer) == ()
        assert rig.observer.total("quiver.recovery.damaged_files_total") == 1
        rig.tick(store)
        assert record(rig.fs) is None
        assert store.stats()["cores"][0]["segments"] == len(rig.segments(0))
        assert len(rig.fs.list_dir(f"{CORE_0}/quarantine")) == 1


def test_after_a_crash_before_any_deletion_only_dropped_segments_are_deleted(rig: Rig) -> None:
    """Finished segments that still exist are kept; dropped ones are deleted, because they were counted."""
    with rig.open(cores=2) as store:
        finished(rig, store)
        before = rig.segments(0)
        rig.fs.create(f"{CORE_0}/{EVICTED}").pwrite(encode_drop_ledger([]), 0)
        rig.tick(store)
        assert rig.segments(0) == before
        assert record(rig.fs) is None
        assert not rig.fs.exists(f"{CORE_0}/{EVICT_LOCK}") or take_claim(rig.fs, CORE_0, who="a test")


@pytest.mark.parametrize("policy", ["backpressure", "drop_oldest"])
def test_a_crash_at_every_step_of_an_eviction(policy: str) -> None:
    """
    On any state of the disk, all cores open, and each bundle is delivered unless it was acknowledged or counted as
    dropped.
    """
    rig = Rig(size_cap_policy=policy)
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        acked = set()
        for turn in range(4):
            fill(store, 0, 20, first=turn * 20)
            if turn < 2:
                acked |= set(drain(store, "one"))
        rig.tick(store)
        evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
        clones: list[CrashFileSystem] = []

        def on_step(_op: str, _path: str) -> None:
            clones.append(rig.fs.clone_after_crash(len(clones)))
            if len(clones) % 3 == 0:
                clones.append(rig.fs.clone_after_kill())

        rig.fs.on_step = on_step
        greedy = [0] if policy == "drop_oldest" else []
        # The finished segments and a few more.
        sizes = [rig.fs.stat(f"{CORE_0}/segments/{name}").size_bytes for name in rig.segments(0)]
        evictor.evict([0], sum(sizes) * 6 // 10, drop_from=greedy)
        if greedy:
            assert evictor.dropped
        rig.tick(store)
        rig.fs.on_step = None
    assert len(clones) > 15
    for clone in clones:
        again = Rig(clone, rig.clock, size_cap_policy=policy)
        with again.open(cores=2) as store:
            got = drain(store, "one")
            assert not acked & set(got)
            # Drops are counted before the crash: in the ledger or in the progress file.
            missing = set(range(80)) - acked - set(got)
            assert missing == set() or policy == "drop_oldest"
            # Only the oldest complete segments are dropped.
            assert missing == set(range(40, 40 + len(missing)))
            again.tick(store)
            assert store.stats()["subscribers"]["one"]["pending_bundles"] == 0
            assert record(again.fs) is None
            # A new bundle gets an unused number.
            fill(store, 0, 1, first=500)
            assert drain(store, "one") == [500]


# ---- counting drops


class Said(InMemoryObserver):
    """Records which segments were reported as dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        if name == "quiver.segment.drop":
            self.dropped.append(int(attributes["segment"]))


def drop_rig(fs: CrashFileSystem | None = None, clock: ManualClock | None = None) -> tuple[Rig, Said]:
    rig = Rig(fs, clock, size_cap_policy="drop_oldest")
    rig.observer = reported = Said()
    return rig, reported


def given_up(rig: Rig) -> tuple[MultiCoreStore, MultiCoreStore, list[int]]:
    """Two processes: the owner of core 0, and another that dropped segments of core 0 without the owner's knowledge."""
    owner, cold = rig.open(cores=2, core=0), rig.open(cores=2, core=1)
    owner.register("one", start="earliest")
    fill(owner, 0, 120)
    rig.tick(owner, cold)
    for number in range(10_000, 10_030):
        cold.ingest(numbered(number))
    removed = record(rig.fs)
    assert removed
    return owner, cold, removed


def test_drops_by_another_core_are_counted_once() -> None:
    """Not both by the process that drops and by the owner."""
    rig, reported = drop_rig()
    owner, cold, removed = given_up(rig)
    before = rig.observer.total("quiver.segment.dropped_total")
    rig.tick(owner)
    assert rig.observer.total("quiver.segment.dropped_total") == before + len(removed)
    rig.tick(owner)
    assert len(reported.dropped) == len(set(reported.dropped))
    assert set(removed) <= set(reported.dropped)
    owner.close()
    cold.close()


@pytest.mark.parametrize("subscribed", [True, False])
def test_an_owner_that_crashes_while_it_counts_drops_counts_none_twice(subscribed: bool) -> None:
    """At any step: the next start counts only what was not counted, in segments and in bundles of each subscriber."""
    rig, observer = drop_rig()
    owner, cold, removed = given_up(rig)
    if not subscribed:
        owner.unregister("one")
    lost = 0 if not subscribed else owner.stats()["subscribers"]["one"]["pending_bundles"]
    states: list[tuple[CrashFileSystem, list[int], int]] = []
    own, reported = len(observer.dropped), observer.total("quiver.subscriber.dropped_bundles_total")

    def on_step(_op: str, _path: str) -> None:
        counted = observer.total("quiver.subscriber.dropped_bundles_total") - reported
        states.append((rig.fs.clone_after_kill(), observer.dropped[own:], counted))

    rig.fs.on_step = on_step
    rig.tick(owner)
    rig.fs.on_step = None
    lost -= 0 if not subscribed else owner.stats()["subscribers"]["one"]["pending_bundles"]
    after = 0
    for fs, seen, counted in states:
        again, then = drop_rig(fs, rig.clock)
        with again.open(cores=2, core=0) as store:
            again.tick(store)
            both = seen + then.dropped
            assert len(both) == len(set(both))
            after += both != removed
            assert both in ([], removed)
            bundles = counted + then.total("quiver.subscriber.dropped_bundles_total")
            assert bundles in (0, lost)
            assert record(again.fs) is None
    # Except a crash between the rename of the ledger and the count after it: that drop is not counted.
    assert after <= 1
    assert len(states) > 5
    owner.close()
    cold.close()


def test_a_full_ledger_keeps_the_eviction_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query in another process has read neither. Without the record, the gap in its progress would stay."""
    rig, _ = drop_rig()
    owner, cold, removed = given_up(rig)
    segments = Segments([SegmentRef(seq, 1) for seq in (*removed, removed[-1] + 1)])
    create_if_missing(rig.fs, CORE_0, "query", start=removed[0], segments=segments, profile="spec")
    query = SubscriberFile(rig.fs, CORE_0, "query")
    query.acquire()
    monkeypatch.setattr("quiver.store.removal.drops.DROP_ENTRIES_MAX", len(removed) - 1)
    rig.tick(owner)
    assert record(rig.fs) == removed
    assert owner.stats()["segments"] == len(rig.segments(0))
    monkeypatch.undo()
    rig.tick(owner)
    assert record(rig.fs) is None
    answer = decode_drop_ledger(memoryview(rig.fs.read_all(f"{CORE_0}/quiver.drops", size_max=DROP_LEDGER_BYTES_MAX)))
    assert isinstance(answer, Frame)
    assert set(removed) <= {entry.seq for entry in answer.value}
    query.release()
    owner.close()
    cold.close()


@pytest.mark.parametrize("asked", ["rewind", "register"])
def test_a_rewind_waits_for_a_deletion_by_another_core(rig: Rig, asked: str) -> None:
    """
    The other core chose by the progress that it read. A rewind waits until the deletion is complete, and then
    returns exactly the bundles that it reported.
    """
    with rig.open(cores=2) as store:
        finished(rig, store)
        own = store.core(0)
        evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
        refused = []

        def on_step(op: str, path: str) -> None:
            if not path.startswith(f"{CORE_0}/segments/") or op != "remove":
                return
            rig.fs.on_step = None
            with pytest.raises(DirectoryInUseError):
                ask()
            refused.append(path)

        def ask() -> int:
            if asked == "rewind":
                return own.rewind("one", "earliest").bundles
            own.register("two", start="earliest")
            return own.lag("two").pending_bundles

        rig.fs.on_step = on_step
        assert evictor.evict([0], 3 * SEGMENT_BYTES)[0] > 0
        assert refused
        rig.tick(store)
        promised = ask()
        assert promised > 0
        evictor.evict([0], 10**9)
        rig.tick(store)
        assert len(drain(store, "one" if asked == "rewind" else "two")) == promised
