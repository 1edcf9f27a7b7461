"""Dropped bundles are resolved for every subscriber, counted once, and recorded durably before any file is deleted."""

import pytest
from registry_rig import ROOT, Bench, crash_states, dropped, names

from quiver.bundle import BundleRef
from quiver.store.format.progress import Progress, SegmentProgress
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing, load_progress
from quiver.store.subscribers.state import SegmentRef, Segments
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

COUNTED = "quiver.subscriber.dropped_bundles_total"


def _three(bench):
    """One subscriber that runs here and acked a bundle, one that is only registered, and one of another process."""
    here = bench.registry.register("here", "earliest")
    bench.registry.register("idle", "earliest")
    create_if_missing(bench.disk, ROOT, "query", start="earliest", segments=Segments(), profile="spec")
    elsewhere = SubscriberFile(bench.disk, ROOT, "query")
    elsewhere.acquire()
    bench.registry.refresh()
    bench.seal(0, 3)
    bench.seal(1, 2)
    here.next_bundle(timeout=0).ack()
    return here, elsewhere


def test_a_drop_is_resolved_durably_and_counted_for_each_local_subscriber():
    bench = Bench()
    here, _ = _three(bench)
    assert bench.registry.drops.apply([dropped(0, 3)]) == {"here": 2, "idle": 3}
    for seed in range(8):
        disk = bench.disk.clone_after_crash(seed)
        for name in ("here", "idle"):
            assert load_progress(disk, ROOT, name) == Progress(1, {})
    by_reason = {dict(reported)["reason"] for (name, reported) in bench.observer.counts if name == COUNTED}
    assert by_reason == {"size"}
    assert bench.observer.total(COUNTED) == 5
    assert bench.registry.stats()["here"]["dropped_bundles"] == 2
    assert names(bench.refs(here)) == ["1:0", "1:1"]


def test_a_repeated_drop_changes_and_counts_nothing():
    bench = Bench()
    _three(bench)
    bench.registry.drops.apply([dropped(0, 3)])
    steps = []
    bench.disk.on_step = lambda op, path: steps.append((op, path))
    assert bench.registry.drops.apply([dropped(0, 3)]) == {}
    assert [path for op, path in steps if op == "rename"] == []
    assert bench.observer.total(COUNTED) == 5


def test_a_drop_is_settled_once_the_other_process_has_applied_it():
    bench = Bench()
    _, elsewhere = _three(bench)
    entry = dropped(0, 3)
    bench.registry.drops.apply([entry])
    bench.registry.removed([0])
    assert not bench.registry.drops.is_settled(entry)
    elsewhere.know([SegmentRef(1, 2)])
    assert elsewhere.fold_drops([entry]) == {"size": 3}
    assert elsewhere.fold_drops([entry]) == {}
    assert not bench.registry.drops.is_settled(entry)
    elsewhere.save()
    bench.registry.refresh()
    assert bench.registry.drops.is_settled(entry)
    assert load_progress(bench.disk, ROOT, "query") == Progress(1, {})


def test_a_drop_is_applied_for_a_process_that_ended():
    """While the ledger has the entry, each maintenance pass applies it again."""
    bench = Bench()
    _, elsewhere = _three(bench)
    entry = dropped(0, 3)
    bench.registry.drops.apply([entry])
    bench.registry.removed([0])
    elsewhere.release()
    assert bench.registry.drops.apply([entry]) == {"query": 3}
    assert bench.registry.drops.is_settled(entry)


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_drop_without_earlier_subscribers_is_settled_at_once(profile):
    bench = Bench(profile=profile)
    bench.seal(0, 3)
    assert bench.registry.drops.apply([dropped(0, 3)]) == {}
    assert bench.registry.drops.is_settled(dropped(0, 3))
    bench.registry.register("late")
    assert bench.registry.drops.apply([dropped(0, 3)]) == {}
    assert bench.registry.drops.is_settled(dropped(0, 3))


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_drop_of_a_deleted_segment_can_be_applied(profile):
    """After a crash between the deletion and the end: no process has claims, and the file does not exist."""
    bench = Bench(profile=profile)
    bench.registry.register("a", "earliest")
    bench.registry.close()
    again = Bench(bench.disk, segments=[SegmentRef(1, 1)], profile=profile)
    entry = dropped(0, 3, "age")
    assert again.registry.drops.apply([entry]) == {"a": 3}
    assert again.registry.drops.is_settled(entry)
    assert names(again.refs(again.registry.register("a"))) == ["1:0"]


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_loss_is_not_counted_again_after_a_restart(profile):
    """
    The ledger keeps its entry until a query in another process has read it. With `otap`, complete progress is only a 0:
    if it forgot the dropped segment, each restart would count its bundles again.
    """
    bench = Bench(profile=profile)
    here, _ = _three(bench)
    assert bench.registry.drops.apply([dropped(0, 3)]) == {"here": 2, "idle": 3}
    bench.registry.removed([0])
    bench.ack_all(here)
    bench.registry.save()
    disk = bench.disk.clone_after_kill()
    for _ in range(2):
        again = Bench(disk, segments=[SegmentRef(1, 2)], profile=profile)
        assert set(again.registry.drops.apply([dropped(0, 3)])) <= {"query"}
        assert names(again.refs(again.registry.register("here"))) == []
        again.registry.close()
    assert again.registry.drops.is_settled(dropped(0, 3))


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_progress_forgets_drops_that_left_the_ledger(profile):
    """Otherwise it would grow with every drop."""
    bench = Bench(profile=profile)
    here = bench.registry.register("here", "earliest")
    for seq in range(2):
        bench.seal(seq, 2)
    bench.ack_all(here)
    bench.registry.drops.apply([dropped(0, 2)])
    bench.registry.removed([0])
    bench.registry.save()
    assert (0 in load_progress(bench.disk, ROOT, "here").entries) == (profile == "otap")
    bench.registry.drops.forget([0])
    bench.registry.removed([1])
    bench.registry.save()
    assert load_progress(bench.disk, ROOT, "here").entries == {}


def test_several_segments_are_dropped_in_any_order():
    """A later segment may be dropped before an older one; none between them is skipped."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    for seq in range(4):
        bench.seal(seq, 2)
    assert bench.registry.drops.apply([dropped(1, 2), dropped(3, 2, "age")]) == {"a": 4}
    bench.registry.removed([1, 3])
    bench.registry.save()
    assert names(bench.refs(subscriber)) == ["0:0", "0:1", "2:0", "2:1"]
    assert bench.registry.complete_segments() == []


def test_a_handle_of_a_dropped_bundle_can_still_be_resolved():
    """It counts only as dropped; if it is returned, it is not delivered again."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 3)
    acked, deferred, left = bench.refs(subscriber)
    deferred.nack(5)
    assert bench.registry.drops.apply([dropped(0, 3)]) == {"a": 3}
    acked.ack()
    left.nack()
    bench.clock.advance(10)
    assert subscriber.next_bundle(timeout=0) is None
    assert bench.observer.total("quiver.subscriber.acked_bundles_total") == 0
    assert bench.registry.claimed_segments() == set()


def test_a_rewind_does_not_return_dropped_bundles():
    """Before and after its file is deleted."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    for seq in range(3):
        bench.seal(seq, 1)
    bench.ack_all(subscriber)
    bench.registry.drops.apply([dropped(1, 1)])
    assert subscriber.rewind("earliest").bundles == 3
    assert names(bench.refs(subscriber)) == ["0:0", "2:0"]
    bench.registry.removed([1])
    assert bench.registry.drops.apply([dropped(1, 1)]) == {}
    assert bench.observer.total(COUNTED) == 0


def test_a_disk_error_is_reported_and_the_next_call_continues():
    """The drop is still counted once."""
    disk = CrashFileSystem()
    faulty = FaultFileSystem(disk)
    bench = Bench(faulty)
    _three(bench)
    faulty.fail_on("rename")
    with pytest.raises(OSError, match="."):
        bench.registry.drops.apply([dropped(0, 3)])
    assert not bench.registry.drops.is_settled(dropped(0, 3))
    bench.registry.drops.apply([dropped(0, 3)])
    assert bench.observer.total(COUNTED) == 5
    assert load_progress(disk, ROOT, "here") == load_progress(disk, ROOT, "idle") == Progress(1, {})


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_drop_in_a_replaced_but_unsynced_file_is_counted(profile):
    """The new file exists, only its durability is uncertain: after the next read nothing is left to count."""
    bench = Bench(profile=profile)
    bench.registry.register("idle", "earliest")
    bench.seal(0, 3)
    bench.registry.close()
    faulty = FaultFileSystem(bench.disk, {"sync_dir": 1})
    again = Bench(faulty, segments=[SegmentRef(0, 3)], profile=profile)
    with pytest.raises(OSError, match="Input/output"):
        again.registry.drops.apply([dropped(0, 3)])
    again.registry.drops.apply([dropped(0, 3)])
    assert again.observer.total(COUNTED) == 3


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_crash_at_any_step_leaves_no_gap_in_progress(profile):
    """Apply, delete, forget; lose power at any step; open, apply the ledger, and every existing bundle is delivered."""
    bench = Bench(profile=profile)
    bench.registry.register("b", "earliest")
    subscriber = bench.registry.register("a", "earliest")
    bench.seal(0, 2)
    bench.seal(1, 2)
    subscriber.claim(BundleRef(1, 1)).ack()
    bench.registry.save()

    def work():
        bench.registry.drops.apply([dropped(0, 2)])
        bench.registry.removed([0])
        bench.registry.save()

    for state in crash_states(bench.disk, work):
        for is_gone in (False, True):
            disk = state.clone_after_kill()
            segments = [SegmentRef(1, 2)] if is_gone else [SegmentRef(0, 2), SegmentRef(1, 2)]
            again = Bench(disk, segments=segments, profile=profile)
            again.registry.drops.apply([dropped(0, 2)])
            assert again.registry.drops.is_settled(dropped(0, 2))
            again.registry.removed([0])
            assert names(again.refs(again.registry.register("a"))) == ["1:0"]
            assert names(again.refs(again.registry.register("b"))) == ["1:0", "1:1"]


def test_progress_with_another_bundle_count_is_ignored():
    """The ledger has the number of bundles."""
    bench = Bench()
    bench.registry.register("a", "earliest")
    progress = Progress(0, {0: SegmentProgress(2, 0b01)})
    bench.registry.close()
    with SubscriberFile(bench.disk, ROOT, "a") as file:
        file.put(progress)
    again = Bench(bench.disk)
    assert again.registry.drops.apply([dropped(0, 3)]) == {"a": 3}
