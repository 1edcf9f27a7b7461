"""Deleting in another core's directory: what may go, who takes note, what a crash leaves, who is passed over."""

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

BEHIND = f"{ROOT}/core_0"
"""The directory in which the others evict."""


def finished(rig: Rig, store: MultiCoreStore, core: int = 0, bundles: int = 40, first: int = 0) -> None:
    """Bundles in *core* that everybody has acknowledged, durably, and that are on disk for their grace period."""
    fill(store, core, bundles, first=first)
    drain(store, "one")
    rig.tick(store)


def push(store: MultiCoreStore, core: int, first: int = 10_000) -> int:
    """Put bundles into *core* until it is full; how many."""
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


def test_a_hot_core_takes_what_an_idle_one_has_finished(rig: Rig) -> None:
    """Its finished segments go before their grace period is over, oldest first; the newest stays, for its number."""
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
        # Minimal: it says something once for every few bundles, not more often.
        assert figures[1]["claim_writes"] < 3 * count
        rig.tick(store)
        assert record(rig.fs) is None
        assert store.stats()["cores"][0]["segments"] == len(left)
        assert used(rig) <= CAP_BYTES + 2 * SEGMENT_BYTES
        store.core(1).seal()
        assert len(drain(store, "one")) == count
        fill(store, 0, 1)
        assert drain(store, "one") == [0]


def test_a_stopped_process_is_no_hindrance(rig: Rig) -> None:
    """The owner of the finished segments does nothing at all meanwhile; when it goes on it takes note, and works."""
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


def test_a_killed_process_is_no_hindrance(rig: Rig) -> None:
    """Nobody has its directory open: the others free what it had finished, and its next start finds all in order."""
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


def test_what_somebody_still_wants_stays(rig: Rig) -> None:
    """With `backpressure` nothing goes that one subscriber has not resolved durably; the hot core is refused."""
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


def test_what_is_only_acknowledged_in_memory_stays(rig: Rig) -> None:
    """Until the progress file says so a restart would deliver it once more."""
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


def test_without_a_subscriber_nothing_is_finished(rig: Rig) -> None:
    """Nobody has seen the data. One whose progress file is damaged has not either."""
    evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
    with rig.open(cores=2) as store:
        fill(store, 0, 10)
        assert evictor.evict([0], 10**9) == {0: 0}
        finished(rig, store, bundles=10, first=10)
        path = f"{BEHIND}/quiver.sub.one"
        good = rig.fs.read_all(path, size_max=10_000)
        rig.fs.open_write(path).pwrite(b"\xff" * 20, 8)
        assert evictor.evict([0], 10**9) == {0: 0}
        rig.fs.open_write(path).pwrite(good, 0)
        assert evictor.evict([0], 10**9)[0] > 0
        assert len(rig.segments(0)) == 1


def test_oldest_first_over_all_cores(rig: Rig) -> None:
    """Whose segments go is not a matter of whose they are, but of how old they are; a core's own order is kept."""
    with rig.open(cores=3) as store:
        for turn in range(10):
            for core in (0, 1):
                fill(store, core, 3, first=turn * 10)
                rig.clock.advance(1)
        drain(store, "one")
        rig.tick(store)
        evictor = Evictor(rig.fs, ROOT, 2, clock=rig.clock, observer=rig.observer)
        one = rig.fs.stat(f"{BEHIND}/segments/{rig.segments(0)[0]}").size_bytes
        freed = evictor.evict([0, 1], 10 * one)
        assert freed[0] == freed[1] == 5 * one
        assert [len(rig.segments(core)) for core in (0, 1)] == [5, 5]
        rig.tick(store)


def test_a_directory_that_somebody_else_works_in_is_passed_over(rig: Rig) -> None:
    """Nobody waits for the lock: the rest gives what it can, and the owner takes note later."""
    with rig.open(cores=3) as store:
        finished(rig, store, 0, 20)
        finished(rig, store, 1, 20, first=100)
        evictor = Evictor(rig.fs, ROOT, 2, clock=rig.clock, observer=rig.observer)
        claim = take_claim(rig.fs, BEHIND, who="a test")
        assert claim is not None
        freed = evictor.evict([0, 1, 2], 10**9)
        assert set(freed) == {1}
        assert freed[1] > 0
        claim.release()
        assert evictor.evict([0], 10**9)[0] > 0
        claim = take_claim(rig.fs, BEHIND, who="a test")
        assert claim is not None
        rig.tick(store)
        assert record(rig.fs) == []
        claim.release()
        rig.tick(store)
        assert record(rig.fs) is None


def test_a_directory_that_cannot_be_read_does_not_stop_the_others(rig: Rig) -> None:
    """A broken one is reported, a missing or an empty one is nothing; room comes from the rest."""
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


def test_whoever_lacks_room_evicts(rig: Rig) -> None:
    """The work is nobody's in particular: of two hot cores both free what two idle ones have finished."""
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
    """A segment that goes between the listing and the look at it is no error."""
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


# ---- segments that are given up


def hog(rig: Rig) -> MultiCoreStore:
    """Core 0 has nearly all of the cap, unresolved; core 1 has nothing."""
    store = rig.open(cores=2)
    store.register("one", start="earliest")
    store.register("two", start="earliest")
    push(store, 0, first=0)
    store.core(0).seal()
    rig.tick(store)
    return store


def test_drop_oldest_takes_from_who_has_more_than_its_part() -> None:
    """A core below its even part gives up nothing of its own while another is above; subscribers are told."""
    rig = Rig(size_cap_policy="drop_oldest")
    with hog(rig) as store:
        lost_before = rig.observer.total("quiver.subscriber.dropped_bundles_total")
        before = rig.segments(0)
        for number in range(10_000, 10_030):
            store.ingest(numbered(number), core=1)
        gone = [int(name.split(".")[0]) for name in before if name not in rig.segments(0)]
        assert gone
        assert gone == sorted(gone)
        assert record(rig.fs) == gone
        assert store.stats()["cores"][1]["dropped_elsewhere"] == len(gone)
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


def test_a_core_above_its_part_gives_up_its_own() -> None:
    """Under `drop_oldest` a hot core takes nothing unresolved from one that has less than it."""
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


def test_with_backpressure_nothing_is_given_up(rig: Rig) -> None:
    """The cold core waits for the subscribers of the hot one, but for the one segment that it always has."""
    with hog(rig) as store:
        before = rig.segments(0)
        with pytest.raises(CapacityError):
            for number in range(100):
                store.ingest(numbered(number), core=1)
        assert rig.segments(0) == before
        assert rig.observer.total("quiver.subscriber.dropped_bundles_total") == 0


def test_the_owner_was_dead_when_its_bundles_were_given_up() -> None:
    """Its next start counts them for each subscriber before any is served; none of them leaves a gap."""
    rig = Rig(size_cap_policy="drop_oldest")
    hog(rig)
    rig.fs = rig.fs.clone_after_kill()
    with rig.open(cores=2, core=1) as cold:
        for number in range(10_000, 10_030):
            cold.ingest(numbered(number))
    gone = record(rig.fs)
    assert gone
    before = rig.observer.total("quiver.subscriber.dropped_bundles_total")
    with rig.open(cores=2, core=0) as owner:
        assert rig.observer.total("quiver.subscriber.dropped_bundles_total") > before
        assert record(rig.fs) is None
        subscriber = owner.register("one", start="earliest")
        handle = subscriber.next_bundle(timeout=0)
        assert handle is not None
        assert handle.ref.segment == gone[-1] + 1
        handle.defer()
        drain(owner, "one")
        owner.maintain()
        assert owner.stats()["subscribers"]["one"]["pending_bundles"] == 0


def test_a_handle_on_what_was_given_up(rig: Rig) -> None:
    """Who holds the bundle keeps it; an acknowledgement comes too late, and hurts nothing."""
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


def test_what_the_record_has_no_room_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead core's record may fill up; nothing is given up without being named."""
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


# ---- the record


@pytest.mark.parametrize("content", [b"", b"garbage", encode_drop_ledger([])[:-1], b"\xff" * 4096])
def test_a_damaged_record(rig: Rig, content: bytes) -> None:
    """A copy is kept, it is reported, and the owner goes by the files that are there."""
    with rig.open(cores=2) as store:
        finished(rig, store)
        evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
        assert evictor.evict([0], 3 * 4_000)[0] > 0
        rig.fs.create_or_truncate(f"{BEHIND}/{EVICTED}").pwrite(content, 0)
        assert read_record(rig.fs, BEHIND, rig.observer) == ()
        assert rig.observer.total("quiver.recovery.damaged_files_total") == 1
        rig.tick(store)
        assert record(rig.fs) is None
        assert store.stats()["cores"][0]["segments"] == len(rig.segments(0))
        assert len(rig.fs.list_dir(f"{BEHIND}/quarantine")) == 1


def test_a_record_of_a_crash_before_anything_went(rig: Rig) -> None:
    """Finished segments that still exist are kept; those that were given up go, because they were counted."""
    with rig.open(cores=2) as store:
        finished(rig, store)
        before = rig.segments(0)
        rig.fs.create(f"{BEHIND}/{EVICTED}").pwrite(encode_drop_ledger([]), 0)
        rig.tick(store)
        assert rig.segments(0) == before
        assert record(rig.fs) is None
        assert not rig.fs.exists(f"{BEHIND}/{EVICT_LOCK}") or take_claim(rig.fs, BEHIND, who="a test")


@pytest.mark.parametrize("policy", ["backpressure", "drop_oldest"])
def test_a_crash_at_every_step_of_an_eviction(policy: str) -> None:
    """Whatever the disk has: all cores open, each bundle is delivered unless acknowledged or counted as given up."""
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
        # The finished ones and a few more.
        sizes = [rig.fs.stat(f"{BEHIND}/segments/{name}").size_bytes for name in rig.segments(0)]
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
            # What the crash came after was counted before it: an entry of the ledger, or in the progress file.
            missing = set(range(80)) - acked - set(got)
            assert missing == set() or policy == "drop_oldest"
            # What is given up is the oldest, whole segments of it, and nothing behind it.
            assert missing == set(range(40, 40 + len(missing)))
            again.tick(store)
            assert store.stats()["subscribers"]["one"]["pending_bundles"] == 0
            assert record(again.fs) is None
            # A new bundle gets a number that nobody has seen.
            fill(store, 0, 1, first=500)
            assert drain(store, "one") == [500]


# ---- the account of what was given up


class Said(InMemoryObserver):
    """Remembers which segments were said to be dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        if name == "quiver.segment.drop":
            self.dropped.append(int(attributes["segment"]))


def drop_rig(fs: CrashFileSystem | None = None, clock: ManualClock | None = None) -> tuple[Rig, Said]:
    rig = Rig(fs, clock, size_cap_policy="drop_oldest")
    rig.observer = said = Said()
    return rig, said


def given_up(rig: Rig) -> tuple[MultiCoreStore, MultiCoreStore, list[int]]:
    """Two processes: the owner of core 0, of which the other gave up segments that it has not taken note of."""
    owner, cold = rig.open(cores=2, core=0), rig.open(cores=2, core=1)
    owner.register("one", start="earliest")
    fill(owner, 0, 120)
    rig.tick(owner, cold)
    for number in range(10_000, 10_030):
        cold.ingest(numbered(number))
    gone = record(rig.fs)
    assert gone
    return owner, cold, gone


def test_what_others_gave_up_is_counted_once() -> None:
    """Not by who gave it up and by its owner: a double count would make two losses of one."""
    rig, said = drop_rig()
    owner, cold, gone = given_up(rig)
    before = rig.observer.total("quiver.segment.dropped_total")
    rig.tick(owner)
    assert rig.observer.total("quiver.segment.dropped_total") == before + len(gone)
    rig.tick(owner)
    assert len(said.dropped) == len(set(said.dropped))
    assert set(gone) <= set(said.dropped)
    owner.close()
    cold.close()


@pytest.mark.parametrize("subscribed", [True, False])
def test_an_owner_that_dies_while_it_takes_note_counts_no_loss_twice(subscribed: bool) -> None:
    """At any step of it: its next life counts what it did not, for segments as for each subscriber's bundles."""
    rig, said = drop_rig()
    owner, cold, gone = given_up(rig)
    if not subscribed:
        owner.unregister("one")
    lost = 0 if not subscribed else owner.stats()["subscribers"]["one"]["pending_bundles"]
    states: list[tuple[CrashFileSystem, list[int], int]] = []
    own, told = len(said.dropped), said.total("quiver.subscriber.dropped_bundles_total")

    def on_step(_op: str, _path: str) -> None:
        counted = said.total("quiver.subscriber.dropped_bundles_total") - told
        states.append((rig.fs.clone_after_kill(), said.dropped[own:], counted))

    rig.fs.on_step = on_step
    rig.tick(owner)
    rig.fs.on_step = None
    lost -= 0 if not subscribed else owner.stats()["subscribers"]["one"]["pending_bundles"]
    behind = 0
    for fs, seen, counted in states:
        again, then = drop_rig(fs, rig.clock)
        with again.open(cores=2, core=0) as store:
            again.tick(store)
            both = seen + then.dropped
            assert len(both) == len(set(both))
            behind += both != gone
            assert both in ([], gone)
            bundles = counted + then.total("quiver.subscriber.dropped_bundles_total")
            assert bundles in (0, lost)
            assert record(again.fs) is None
    # Only a death between the ledger's new name and the count behind it: that one is in nobody's count.
    assert behind <= 1
    assert len(states) > 5
    owner.close()
    cold.close()


def test_a_full_ledger_keeps_the_record_for_who_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query in another process has seen neither: were the record thrown away, its gap could not fill."""
    rig, _ = drop_rig()
    owner, cold, gone = given_up(rig)
    segments = Segments([SegmentRef(seq, 1) for seq in (*gone, gone[-1] + 1)])
    create_if_missing(rig.fs, BEHIND, "query", start=gone[0], segments=segments, profile="spec")
    query = SubscriberFile(rig.fs, BEHIND, "query")
    query.acquire()
    monkeypatch.setattr("quiver.store.removal.drops.DROP_ENTRIES_MAX", len(gone) - 1)
    rig.tick(owner)
    assert record(rig.fs) == gone
    assert owner.stats()["segments"] == len(rig.segments(0))
    monkeypatch.undo()
    rig.tick(owner)
    assert record(rig.fs) is None
    answer = decode_drop_ledger(memoryview(rig.fs.read_all(f"{BEHIND}/quiver.drops", size_max=DROP_LEDGER_BYTES_MAX)))
    assert isinstance(answer, Frame)
    assert set(gone) <= {entry.seq for entry in answer.value}
    query.release()
    owner.close()
    cold.close()


@pytest.mark.parametrize("asked", ["rewind", "register"])
def test_nothing_is_promised_that_another_core_is_deleting(rig: Rig, asked: str) -> None:
    """
    The other chose by the progress that it read. Whoever asks again for what is finished waits until it is done, and
    then gets all that he was promised.
    """
    with rig.open(cores=2) as store:
        finished(rig, store)
        own = store.core(0)
        evictor = Evictor(rig.fs, ROOT, 1, clock=rig.clock, observer=rig.observer)
        refused = []

        def on_step(op: str, path: str) -> None:
            if not path.startswith(f"{BEHIND}/segments/") or op != "remove":
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
