"""Several cores as one store: ingest, delivery, errors, and removed cores."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from core_rig import CAP_BYTES, ROOT, SEGMENT_BYTES, Rig, fill, numbered

import quiver
from quiver import (
    BundleRef,
    CapacityError,
    DirectoryInUseError,
    SettingsError,
    StoreClosedError,
    UnknownSubscriberError,
    UsageError,
)
from quiver.delivery.dead_letters import DeadLetters, open_dead_letters, read_dead_letters
from quiver.store.cores.store import MultiCoreStore
from store_rig import drain, number_of


def test_bundles_rotate_over_the_cores_and_a_subscriber_gets_all(rig: Rig) -> None:
    """Every core has its own directory and numbers; a subscriber gets each bundle once, with its core."""
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        receipts = [store.ingest(numbered(number)) for number in range(9)]
        assert [receipt.core for receipt in receipts] == [0, 1, 2] * 3
        assert [receipt.sequence for receipt in receipts] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        store.seal()
        assert subscriber.lag().pending_bundles == 9
        got = {}
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            with handle:
                got[handle.core, handle.ref.index] = number_of(handle.bundle)
                handle.ack()
                assert handle.outcome == "acked"
        assert got == {(number % 3, number // 3): number for number in range(9)}
        assert subscriber.lag().is_drained
    assert [name for name in rig.fs.list_dir(ROOT) if name.startswith("core_")] == ["core_0", "core_1", "core_2"]


def test_bundles_are_delivered_and_acknowledged_in_batches(rig: Rig) -> None:
    """A batch is from one core. `ack_all` refuses a returned bundle and acknowledges all others."""
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        for number in range(9):
            store.ingest(numbered(number))
        store.seal()
        with pytest.raises(UsageError, match="at least one"):
            subscriber.next_bundles(0, timeout=0)
        batches = [subscriber.next_bundles(2, timeout=0) for _ in range(6)]
        assert [len(batch) for batch in batches] == [2, 2, 2, 1, 1, 1]
        assert all(len({handle.core for handle in batch}) == 1 for batch in batches)
        assert subscriber.next_bundles(2, timeout=0) == []
        handles = [handle for batch in batches for handle in batch]
        handles[4].nack()
        with pytest.raises(quiver.BundleUnavailableError, match="deferred"):
            subscriber.ack_all(handles)
        assert subscriber.lag().pending_bundles == 1
        subscriber.ack_all(subscriber.next_bundles(2, timeout=0))
        assert subscriber.lag().is_drained


def test_runs_are_taken_of_one_core_at_a_time(rig: Rig) -> None:
    """A run belongs to one core; parts of it are acknowledged, rejected, returned and split off."""
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        for number in range(12):
            store.ingest(numbered(number))
        store.seal()
        with pytest.raises(UsageError, match="at least one"):
            subscriber.next_run(0, timeout=0)
        runs = [subscriber.next_run(timeout=0) for _ in range(3)]
        assert sorted((run.core, run.segment, run.first, run.last, len(run)) for run in runs) == [
            (core, 0, 0, 3, 4) for core in range(3)
        ]
        assert subscriber.next_run(timeout=0) is None
        for run in runs:
            assert [number_of(bundle) for _, bundle in run] == [run.core + 3 * place for place in range(4)]
        first, second, third = runs
        first.ack(through=2)
        second.reject("no such table", position=1)
        with second.split(3) as handle:
            assert handle.core == second.core
            handle.ack()
        second.nack(1.0, position=0)
        assert subscriber.lag().pending_bundles == 12 - 3 - 2
        with third:
            assert third.unreadable == ()
            assert repr(third).startswith(f"CoreRun(core {third.core}")
        first.nack()
        second.ack()
        rig.clock.advance(1.0)
        left = 0
        while (run := subscriber.next_run(timeout=0)) is not None:
            left += len(run)
            run.ack()
        assert left == 1 + 1 + 4
        assert subscriber.lag().is_drained


def test_the_order_of_delivery_applies_in_every_core(rig: Rig) -> None:
    """Newest first in each, also in one that is opened later; an unknown order is refused."""
    with rig.open() as store:
        subscriber = store.register("one", start="earliest", order="newest")
        for number in range(6):
            store.ingest(numbered(number))
            if number == 2:
                store.seal()
        store.seal()
        got = [number_of(handle.bundle) for handle in subscriber.next_bundles(2, timeout=0)]
        assert got[0] > got[1]
        with pytest.raises(UsageError):
            store.register("two", order="best")


def test_unregister_returns_the_number_of_lost_bundles(rig: Rig) -> None:
    """As the sum over the cores."""
    with rig.open() as store:
        store.register("one", start="earliest")
        for number in range(5):
            store.ingest(numbered(number))
        store.seal()
        assert store.unregister("one") == 5


def test_callbacks_and_rewinds_apply_to_all_cores(rig: Rig) -> None:
    """A callback is called for bundles of any core until it is stopped; a rewind returns all of them."""
    heard = threading.Semaphore(0)
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        end = subscriber.on_bundle(heard.release)
        for core in range(3):
            store.ingest(numbered(core))
            store.seal()
            assert heard.acquire(timeout=30)
            assert len(subscriber.next_bundles(1, timeout=0)) == 1
        end()
        subscriber.release()
        for handle in iter(lambda: subscriber.next_bundle(timeout=0), None):
            handle.ack()
        assert subscriber.lag().is_drained
        back = subscriber.rewind("earliest")
        assert {core: found.bundles for core, found in back.items()} == {0: 1, 1: 1, 2: 1}
        assert subscriber.lag().pending_bundles == 3
        with pytest.raises(UsageError, match="in one core"):
            subscriber.rewind(0)


def test_order_is_preserved_within_a_core(rig: Rig) -> None:
    """Bundles that a producer ingests into one core are delivered in order."""
    with rig.open() as store:
        store.register("one", start="earliest")
        fill(store, 1, 10)
        assert drain(store, "one") == list(range(10))


def test_progress_survives_a_restart(rig: Rig) -> None:
    """After a restart a subscriber gets its unacknowledged bundles from each core."""
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        for number in range(6):
            store.ingest(numbered(number))
        store.seal()
        for _ in range(4):
            handle = subscriber.next_bundle(timeout=0)
            assert handle is not None
            handle.ack()
    with rig.open() as store:
        assert sorted(drain(store, "one")) == [4, 5]


def test_handles_of_cores_support_every_operation(rig: Rig) -> None:
    """Reject, defer, claim by reference and return: each applies in the core of the bundle."""
    with rig.open(cores=2) as store:
        subscriber = store.register("one", start="earliest")
        fill(store, 0, 1, first=0)
        fill(store, 1, 3, first=10)
        first = subscriber.claim(BundleRef(0, 1), core=1)
        assert number_of(first.bundle) == 11
        first.nack(5)
        second = subscriber.claim(BundleRef(0, 2), core=1)
        second.reject("not wanted")
        with pytest.raises(quiver.BundleUnavailableError):
            subscriber.claim(BundleRef(0, 2), core=1)
        assert sorted(drain(store, "one")) == [0, 10]
        rig.clock.advance(6)
        assert drain(store, "one") == [11]
        with pytest.raises(UnknownSubscriberError, match="core 7"):
            subscriber.claim(BundleRef(0, 0), core=7)
        assert subscriber.part(1).id == "one"
        subscriber.release()


def test_a_waiting_subscriber_wakes_when_any_core_seals(rig: Rig) -> None:
    """Otherwise the timeout applies."""
    with rig.open(cores=2) as store:
        subscriber = store.register("one", start="earliest")
        before = rig.clock.monotonic()
        assert subscriber.next_bundle(timeout=1) is None
        assert rig.clock.monotonic() - before == pytest.approx(1, abs=0.05)
        fill(store, 1, 1)
        assert subscriber.next_bundle(timeout=1) is not None


def test_unregistering_is_final_in_every_core(rig: Rig) -> None:
    """No progress of the subscriber is left; a second call is refused."""
    with rig.open(cores=2) as store:
        store.register("one")
        store.unregister("one")
        with pytest.raises(UnknownSubscriberError):
            store.unregister("one")
        assert store.stats()["subscribers"] == {}
    assert not [name for core in (0, 1) for name in rig.fs.list_dir(f"{ROOT}/core_{core}") if "quiver.sub" in name]


def test_invalid_arguments_are_refused_with_a_reason(rig: Rig) -> None:
    """Wrong numbers, a segment number as a start, and a directory of the other kind."""
    for wrong in (
        {"cores": 0},
        {"cores": 2, "core": 2},
        {"cores": 2, "core": -1},
        {"cores": 2, "core": "1"},
        {"cores": 5000},
    ):
        with pytest.raises(UsageError):
            rig.open(**wrong)
    with pytest.raises(UsageError, match="needs cores"):
        quiver.open(ROOT, fs=rig.fs, core=1)
    with rig.open(cores=2) as store:
        with pytest.raises(UsageError, match="each core counts its own"):
            store.register("one", start=0)
        with pytest.raises(UsageError, match="core=5"):
            store.ingest(numbered(0), core=5)
    with pytest.raises(UsageError, match="has 2 cores; open it with cores=2"):
        quiver.open(ROOT, fs=rig.fs, background=False)


def test_a_single_store_is_not_opened_as_cores(rig: Rig) -> None:
    """The error describes the remedy, and the remedy works."""
    with quiver.open(ROOT, rig.settings, fs=rig.fs, clock=rig.clock, background=False) as store:
        store.register("one", start="earliest")
        store.ingest(numbered(7))
    with pytest.raises(UsageError, match="move everything in it into /cores/core_0/"):
        rig.open(cores=2)
    names = rig.fs.list_dir(ROOT)
    rig.fs.make_dirs(f"{ROOT}/core_0")
    for name in names:
        rig.fs.rename(f"{ROOT}/{name}", f"{ROOT}/core_0/{name}")
    with rig.open(cores=2) as cores:
        assert drain(cores, "one") == [7]


def test_a_cap_too_small_for_the_cores_is_refused(rig: Rig) -> None:
    """Each core needs space for its log and two segments, however the cap is shared."""
    for share_cap in (True, False):
        with pytest.raises(SettingsError, match="over 20 cores leaves each 10000 bytes"):
            rig.open(cores=20, share_cap=share_cap)


def test_without_sharing_each_core_has_an_even_share_of_the_cap(rig: Rig) -> None:
    """A core is full at its share even if the others are empty."""
    with rig.open(cores=4, share_cap=False) as store:
        store.register("one", start="earliest")
        with pytest.raises(CapacityError):
            fill(store, 2, 1_000)
        assert CAP_BYTES // 4 - 2 * SEGMENT_BYTES < store.core(2).internals.claimed_bytes() <= CAP_BYTES // 4
        store.ingest(numbered(0), core=1)
        # Without a given core, the full one is skipped.
        assert {store.ingest(numbered(number)).core for number in range(12)} == {0, 1, 3}


def test_capacity_error_follows_after_the_timeout_if_all_cores_are_full(rig: Rig) -> None:
    """As long as one core has space, ingest succeeds."""
    with rig.open(cores=2, share_cap=False) as store:
        store.register("one", start="earliest")
        with pytest.raises(CapacityError):
            for number in range(1_000):
                store.ingest(numbered(number))
        before = rig.clock.monotonic()
        with pytest.raises(CapacityError):
            store.ingest(numbered(0), timeout=2)
        assert rig.clock.monotonic() - before == pytest.approx(2, abs=0.1)


def test_one_core_in_each_process(rig: Rig) -> None:
    """Each opens its own core; opening one twice is refused; each subscriber gets the bundles of its process's core."""
    stores = [rig.open(cores=2, core=core) for core in (0, 1)]
    with pytest.raises(DirectoryInUseError):
        rig.open(cores=2, core=1)
    with pytest.raises(DirectoryInUseError):
        rig.open(cores=2)
    for core, store in enumerate(stores):
        assert store.cores == (core,)
        store.register("one", start="earliest")
        assert store.ingest(numbered(core)).core == core
        with pytest.raises(UsageError, match=f"has open core {core} of 2"):
            store.ingest(numbered(9), core=1 - core)
        store.seal()
    assert [drain(store, "one") for store in stores] == [[0], [1]]
    for store in stores:
        store.close()


def test_a_failed_start_leaves_nothing_open(rig: Rig) -> None:
    """If the last core cannot be opened, the first ones are closed again."""
    with rig.open(cores=3, core=2), pytest.raises(DirectoryInUseError):
        rig.open(cores=3)
    rig.open(cores=3).close()


def test_stats_have_sums_and_figures_of_each_core(rig: Rig) -> None:
    """Sums over the cores, and the bytes and the share of each."""
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        fill(store, 0, 5)
        rig.tick(store)
        figures = store.stats()
        assert figures["segments"] == figures["cores"][0]["segments"] == 2
        assert figures["subscribers"]["one"]["pending_bundles"] == 5
        size, fraction = store.core_usage()[0]
        assert (figures["cores"][0]["bytes"], figures["cores"][0]["cap_fraction"]) == (size, fraction)
        assert fraction == size / CAP_BYTES
        assert store.disk_bytes == sum(size for size, _ in store.core_usage().values())
    with Rig(size_cap_bytes=None).open(cores=2) as store:
        assert store.core_usage()[1][1] is None


def test_every_call_after_close_is_refused(rig: Rig) -> None:
    """Closing twice is harmless."""
    store = rig.open(cores=2)
    subscriber = store.register("one")
    store.close()
    store.close()
    calls = (
        lambda: store.ingest(numbered(0)), lambda: store.register("two"), store.seal, store.maintain,
        lambda: store.unregister("one"), lambda: subscriber.next_bundle(timeout=0), store.sync, store.activate,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


# ---- removed cores


def left_over(rig: Rig) -> None:
    """Four cores with two bundles each, one sealed and one only in the log, and a subscriber without progress."""
    with rig.open(cores=4) as store:
        store.register("one", start="earliest")
        for number in range(4):
            store.ingest(numbered(number))
        store.seal()
        for number in range(4, 8):
            store.ingest(numbered(number))
        crashed = rig.fs.clone_after_kill()
    rig.fs = crashed


def cores_on_disk(rig: Rig) -> list[str]:
    return [name for name in rig.fs.list_dir(ROOT) if name.startswith("core_")]


def test_bundles_of_removed_cores_are_delivered(rig: Rig) -> None:
    """Also those in the log; then the directories are deleted."""
    left_over(rig)
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        with pytest.raises(UsageError, match="core=3"):
            store.ingest(numbered(0), core=3)
        store.seal()
        assert sorted(drain(store, "one")) == list(range(8))
        rig.tick(store)
        assert cores_on_disk(rig) == ["core_0", "core_1", "core_2", "core_3"]
        rig.clock.advance(rig.settings.delete_grace_s)
        rig.tick(store)
        rig.tick(store)
        assert cores_on_disk(rig) == ["core_0", "core_1"]
        fill(store, 1, 1, first=100)
        assert drain(store, "one") == [100]
    with rig.open(cores=4) as store:
        assert drain(store, "one") == []


def test_calls_over_all_cores_skip_a_core_that_is_removed_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever call it is, if the core was drained and removed after the call started."""
    left_over(rig)
    with rig.open(cores=2) as store:
        rig.tick(store)
        found = store._all_open()
        assert len(found) == 4
        store.seal()
        assert sorted(drain(store, "one")) == list(range(8))
        rig.tick(store)
        subscriber = store.register("one", start="earliest")
        first = subscriber.part(0)
        begin = first.on_bundle

        def removed(callback: Callable[[], object]) -> Callable[[], None]:
            rig.clock.advance(rig.settings.delete_grace_s)
            rig.tick(store, store)
            assert cores_on_disk(rig) == ["core_0", "core_1"]
            return begin(callback)

        monkeypatch.setattr(first, "on_bundle", removed)
        subscriber.on_bundle(lambda: None)
        monkeypatch.setattr(store, "_all_open", lambda: found)
        for ask in (store.seal, store.sync, store.activate, store.maintain):
            ask()
        fill(store, 1, 1, first=100)
        rig.tick(store)
        assert cores_on_disk(rig) == ["core_0", "core_1"]


def test_a_rewind_skips_a_core_that_is_removed_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are rewound; a closed core whose directory still exists is an error."""
    left_over(rig)
    with rig.open(cores=2) as store:
        rig.tick(store)
        store.seal()
        assert sorted(drain(store, "one")) == list(range(8))
        rig.tick(store)
        subscriber = store.register("one", start="earliest")
        parts = dict(subscriber._parts)

        def leaves(_: object) -> str:
            rig.clock.advance(rig.settings.delete_grace_s)
            rig.tick(store, store)
            return "rewound"

        monkeypatch.setattr(parts[0], "rewind", leaves)
        assert list(subscriber.rewind("earliest")) == [0, 1]
        subscriber.join(2, parts[2])
        with pytest.raises(StoreClosedError):
            subscriber.rewind("earliest")


def test_a_removed_core_with_pending_bundles_is_kept(rig: Rig) -> None:
    """Over any number of starts."""
    left_over(rig)
    for _ in range(2):
        with rig.open(cores=1) as store:
            rig.clock.advance(1_000)
            rig.tick(store)
            rig.tick(store)
    assert cores_on_disk(rig) == ["core_0", "core_1", "core_2", "core_3"]
    with rig.open(cores=1) as store:
        store.seal()
        assert sorted(drain(store, "one")) == list(range(8))


def test_a_removed_core_is_delivered_once_another_process_closes_it(rig: Rig) -> None:
    """Also to a subscriber that was registered before."""
    left_over(rig)
    old = rig.open(cores=4, core=3)
    with rig.open(cores=3) as store:
        subscriber = store.register("one", start="earliest")
        assert 3 not in store.stats()["cores"]
        old.close()
        rig.clock.advance(10)
        rig.tick(store)
        assert store.stats()["cores"][3]["is_draining"]
        handle = subscriber.claim(BundleRef(0, 0), core=3)
        assert number_of(handle.bundle) == 3


def test_each_process_drains_its_share(rig: Rig) -> None:
    """With one process per core, each removed core belongs to one of them."""
    left_over(rig)
    stores = [rig.open(cores=2, core=core) for core in (0, 1)]
    assert [sorted(store.stats()["cores"]) for store in stores] == [[0, 2], [1, 3]]
    for store in stores:
        store.close()


def test_quarantine_keeps_a_removed_core(rig: Rig) -> None:
    """Damaged bytes are kept for inspection, so the directory stays."""
    left_over(rig)
    rig.fs.make_dirs(f"{ROOT}/core_3/quarantine")
    rig.fs.create(f"{ROOT}/core_3/quarantine/something.damaged").close()
    with rig.open(cores=3) as store:
        store.seal()
        drain(store, "one")
        rig.tick(store)
        rig.clock.advance(1_000)
        rig.tick(store)
        rig.tick(store)
        assert cores_on_disk(rig) == ["core_0", "core_1", "core_2", "core_3"]
        assert rig.fs.exists(f"{ROOT}/core_3/quarantine/something.damaged")


def _gone(rig: Rig, *, letters: DeadLetters | None = None) -> bool:
    """
    Return whether core 3 was removed after everything was delivered and several checks passed; *letters* are open
    then.
    """
    with rig.open(cores=3) as store:
        store.seal()
        drain(store, "one")
        for _ in range(3):
            rig.tick(store)
            rig.clock.advance(1_000)
            rig.tick(store)
    if letters is not None:
        letters.close()
    return not rig.fs.exists(f"{ROOT}/core_3")


def test_dead_letters_keep_a_removed_core(rig: Rig) -> None:
    """The directory stays until its dead letters are replayed or dropped, and is then deleted."""
    left_over(rig)
    root = f"{ROOT}/core_3"
    dead_letters = DeadLetters(root, "one", fs=rig.fs, clock=rig.clock, background=False)
    assert dead_letters.add(BundleRef(9, 9), numbered(99), reason="HTTP 400")
    assert not _gone(rig, letters=dead_letters)
    assert not _gone(rig)
    assert [letter.ref for letter in read_dead_letters(rig.fs, root, "one")] == [BundleRef(9, 9)]

    with open_dead_letters(rig.fs, root, "one") as box:
        assert box is not None
        assert box.drop({BundleRef(9, 9)}) == 1
    assert _gone(rig)
    assert cores_on_disk(rig) == ["core_0", "core_1", "core_2"]


def test_a_crash_at_any_step_of_a_removal_is_completed_later(rig: Rig) -> None:
    """The remaining directory opens, delivers nothing, and is removed."""
    left_over(rig)
    with rig.open(cores=3) as store:
        store.seal()
        drain(store, "one")
        rig.tick(store)
        rig.clock.advance(rig.settings.delete_grace_s)
        clones = []
        removing = []

        def on_step(op: str, path: str) -> None:
            removing.append("core_3" in path and op in {"remove", "rmdir"})
            if any(removing):
                clones.extend(rig.fs.clone_after_crash(seed) for seed in (0, 1, 2))

        rig.fs.on_step = on_step
        rig.tick(store)
        rig.tick(store)
        rig.fs.on_step = None
        assert cores_on_disk(rig) == ["core_0", "core_1", "core_2"]
    assert len(clones) > 30
    for clone in clones:
        again = Rig(clone, rig.clock)
        with again.open(cores=3) as store:
            assert drain(store, "one") == []
            again.tick(store)
            again.clock.advance(rig.settings.delete_grace_s)
            again.tick(store)
            again.tick(store)
        assert cores_on_disk(again) == ["core_0", "core_1", "core_2"]


def test_an_error_of_one_core_is_raised_after_all_cores_were_maintained(rig: Rig) -> None:
    """A failed disk of one core does not prevent the maintenance of the others."""
    with rig.open(cores=2) as store:
        store.register("one", start="earliest")
        for core in (0, 1):
            store.ingest(numbered(core), core=core)
        store.core(0)._wal.poison(OSError("broken"))
        rig.clock.advance(10)
        with pytest.raises(quiver.StoreFailedError):
            store.maintain()
        assert rig.segments(1) == ["0000000000000000.qseg"]
        with pytest.raises(quiver.StoreFailedError):
            store.ingest(numbered(0), core=0)
        store.ingest(numbered(0), core=1)
        assert isinstance(store, MultiCoreStore)
