"""Subscribers of an open store: claims, waiting, durability and ownership. No test sleeps."""

import gc
import threading

import pytest
from registry_rig import ROOT, Bench, names

from quiver.bundle import BundleRef
from quiver.errors import (
    BundleUnavailableError,
    CorruptionError,
    DirectoryInUseError,
    StoreClosedError,
    UnknownSubscriberError,
    UsageError,
)
from quiver.primitives.checksum import crc32c
from quiver.store.format.progress import Progress, SegmentProgress
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing, load_progress, save_progress
from quiver.store.subscribers.state import SegmentRef, Segments
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


def test_two_subscribers_are_independent():
    bench = Bench()
    first, second = bench.registry.register("first"), bench.registry.register("second")
    bench.seal(0, 2)
    handle = first.next_bundle(timeout=0)
    handle.ack()
    assert names(bench.refs(second)) == ["0:0", "0:1"]
    assert names(bench.refs(first)) == ["0:1"]
    assert first.lag().pending_bundles == 1
    assert second.lag().pending_bundles == 2


def test_a_bundle_is_read_once_on_first_access():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    handle = subscriber.next_bundle(timeout=0)
    assert bench.reads == []
    assert handle.bundle is handle.bundle
    assert handle.bundle[60].column("data").to_pylist() == [b"0:0"]
    assert bench.reads == [BundleRef(0, 0)]


def test_a_new_subscriber_is_durable_when_register_returns():
    """After a power loss it exists and has its start position."""
    bench = Bench(segments=[SegmentRef(3, 1)], next_seq=4)
    bench.registry.register("late")
    bench.registry.register("early", start="earliest")
    bench.registry.register("exact", start=4)
    for seed in range(12):
        disk = bench.disk.clone_after_crash(seed)
        found = {name: load_progress(disk, ROOT, name) for name in ("late", "early", "exact")}
        assert found == {"late": Progress(4, {}), "early": Progress(3, {}), "exact": Progress(4, {})}


def test_latest_starts_with_the_next_sealed_segment():
    bench = Bench(segments=[SegmentRef(0, 1)])
    late, early = bench.registry.register("late"), bench.registry.register("early", start="earliest")
    bench.seal(1, 1)
    assert names(bench.refs(late)) == ["1:0"]
    assert names(bench.refs(early)) == ["0:0", "1:0"]


def test_a_known_subscriber_ignores_start_and_resumes():
    bench = Bench(segments=[SegmentRef(0, 2)])
    bench.registry.register("a", start="earliest").next_bundle(timeout=0).ack()
    bench.registry.close()
    again = Bench(bench.disk, segments=[SegmentRef(0, 2)])
    again.registry.activate()
    assert [orphan.id for orphan in again.registry.orphans()] == ["a"]
    assert names(again.refs(again.registry.register("a", start="latest"))) == ["0:1"]
    assert again.registry.orphans() == []


def test_registering_twice_is_one_subscriber():
    bench = Bench()
    first, second = bench.registry.register("a"), bench.registry.register("a")
    bench.seal(0, 2)
    handles = [first.next_bundle(timeout=0), second.next_bundle(timeout=0)]
    assert names(handles) == ["0:0", "0:1"]


def test_invalid_ids_and_starts_create_no_files():
    bench = Bench()
    for subscriber_id in ("", "a b", "x" * 65, "CON"):
        with pytest.raises(UsageError):
            bench.registry.register(subscriber_id)
    with pytest.raises(UsageError):
        bench.registry.register("a", start=7)
    assert bench.disk.list_dir(ROOT) == []


def test_next_bundle_without_pending_bundles_and_timeout_is_none():
    subscriber = Bench().registry.register("a")
    assert subscriber.next_bundle(timeout=0) is None
    assert subscriber.next_bundle(timeout=5) is None


def test_a_deferred_bundle_is_delivered_later_and_blocks_no_other():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 3)
    subscriber.next_bundle(timeout=0).nack(10)
    others = bench.refs(subscriber)
    assert names(others) == ["0:1", "0:2"]
    bench.seal(1, 1)
    bench.clock.advance(10)
    assert names(bench.refs(subscriber)) == ["0:0", "1:0"]


def test_waiting_ends_when_a_deferral_does():
    """The waiting call gets the bundle at that moment, not at the end of its timeout."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    subscriber.next_bundle(timeout=0).nack(7.5)
    begun = bench.clock.monotonic()
    assert subscriber.next_bundle(timeout=100) is not None
    assert bench.clock.monotonic() - begun == pytest.approx(7.5)


def test_a_deferred_bundle_can_be_claimed_by_reference_at_once():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 2)
    handle = subscriber.next_bundle(timeout=0)
    ref = handle.ref
    with pytest.raises(BundleUnavailableError, match="claimed"):
        subscriber.claim(ref)
    assert subscriber.claim(BundleRef(0, 1)).ref == BundleRef(0, 1)
    handle.nack(3600)
    subscriber.claim(ref).ack()
    with pytest.raises(BundleUnavailableError, match="resolved"):
        subscriber.claim(ref)
    for missing in (BundleRef(0, 2), BundleRef(9, 0), BundleRef(0, -1)):
        with pytest.raises(BundleUnavailableError, match="no bundle"):
            subscriber.claim(missing)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_deferral_into_the_past_is_refused_and_keeps_the_claim(seconds):
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    handle = subscriber.next_bundle(timeout=0)
    with pytest.raises(UsageError):
        handle.nack(seconds)
    handle.ack()


def test_a_released_handle_returns_its_bundle():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 2)
    handle = subscriber.next_bundle(timeout=0)
    assert handle.ref == BundleRef(0, 0)
    del handle
    gc.collect()
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(0, 0)


@pytest.mark.parametrize("take", ["next_bundle", "next_run"])
@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (lambda registry: registry.pending_bundles_in_range("a", 0, 0), [BundleRef(0, 0)]),
        (lambda registry: registry.lag("a").claimed_bundles, 0),
        (lambda registry: registry.status("a").claimed_bundles, 0),
        (lambda registry: [status.claimed_bundles for status in registry.statuses()], [0]),
        (lambda registry: registry.claimed_segments(), set()),
    ],
    ids=["pending", "lag", "status", "statuses", "claimed segments"],
)
def test_a_bundle_whose_handle_was_dropped_is_shown_as_not_claimed(take, look, expected):
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    taken = getattr(subscriber, take)(timeout=0)
    del taken
    gc.collect()
    assert look(bench.registry) == expected


def test_a_handle_collected_inside_the_registrys_own_lock_cannot_deadlock():
    """The garbage collector may run anywhere: the bundle is recorded and returned with the next call."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    handles = [subscriber.next_bundle(timeout=0)]
    with bench.registry._condition:
        handles.clear()
        gc.collect()
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(0, 0)


def test_leaving_a_with_block_without_an_answer_returns_the_bundle():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    with subscriber.next_bundle(timeout=0) as handle:
        pass
    assert handle.outcome == "returned"
    with pytest.raises(BundleUnavailableError, match="returned"):
        handle.ack()
    with subscriber.next_bundle(timeout=0) as handle:
        handle.ack()
    assert subscriber.next_bundle(timeout=0) is None


def test_a_second_answer_must_equal_the_first():
    """The same answer again is harmless; another one is refused, because the bundle may be claimed elsewhere by now."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 3)
    acked, rejected, deferred = bench.refs(subscriber)
    acked.ack()
    acked.ack()
    rejected.reject()
    rejected.reject()
    deferred.nack()
    for handle, other in (
        (acked, "reject"),
        (acked, "nack"),
        (rejected, "ack"),
        (deferred, "ack"),
        (deferred, "nack"),
    ):
        with pytest.raises(BundleUnavailableError):
            getattr(handle, other)()
    subscriber.release()
    assert bench.observer.total("quiver.subscriber.acked_bundles_total") == 1
    assert bench.observer.total("quiver.subscriber.rejected_bundles_total") == 1
    assert bench.observer.total("quiver.subscriber.deferred_bundles_total") == 1


def test_a_read_error_returns_the_bundle():
    """A known loss of another engine: the claim of an unreadable bundle was never released."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 2)
    bench.unreadable.add(BundleRef(0, 0))
    handle = subscriber.next_bundle(timeout=0)
    with pytest.raises(CorruptionError) as caught:
        _ = handle.bundle
    assert caught.value.path
    assert subscriber.claim(BundleRef(0, 0)).ref == BundleRef(0, 0)
    gc.collect()
    bench.unreadable.clear()
    again = {str(handle.ref): handle for handle in bench.refs(subscriber)}
    assert sorted(again) == ["0:0", "0:1"]
    assert again["0:0"].bundle is not None
    assert bench.observer.total("quiver.subscriber.read_errors_total") == 1


def test_an_unreadable_bundle_blocks_no_other_and_can_be_rejected():
    """It is delivered again when nothing else is pending; its handle accepts an answer."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 3)
    bench.unreadable.add(BundleRef(0, 0))
    bad = subscriber.next_bundle(timeout=0)
    with pytest.raises(CorruptionError):
        _ = bad.bundle
    order = []
    while (handle := subscriber.next_bundle(timeout=0)).ref != BundleRef(0, 0):
        order.append(str(handle.ref))
        handle.ack()
    assert order == ["0:1", "0:2"]
    with pytest.raises(BundleUnavailableError, match="claimed"):
        bad.reject()
    handle.nack()
    bad.reject()
    assert subscriber.next_bundle(timeout=0) is None
    bench.registry.save()
    assert bench.registry.complete(0, 3)


def test_an_unreadable_bundle_can_be_deferred():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    bench.unreadable.add(BundleRef(0, 0))
    handle = subscriber.next_bundle(timeout=0)
    with pytest.raises(CorruptionError):
        _ = handle.bundle
    handle.nack(60)
    assert subscriber.next_bundle(timeout=0) is None
    bench.clock.advance(60)
    assert subscriber.next_bundle(timeout=0) is not None


class Waiter(threading.Thread):
    """Waits for a bundle in its own thread."""

    def __init__(self, subscriber, timeout=None):
        super().__init__(daemon=True)
        self.subscriber, self.timeout = subscriber, timeout
        self.handle = self.error = None
        self.start()

    def run(self):
        try:
            self.handle = self.subscriber.next_bundle(timeout=self.timeout)
        except (StoreClosedError, UnknownSubscriberError, BundleUnavailableError) as error:
            self.error = error

    def outcome(self):
        self.join(30)
        assert not self.is_alive()
        return self.error or self.handle


def _waiting(bench, subscriber):
    waiter = Waiter(subscriber)
    bench.clock.wait_for_waiters(1)
    return waiter


def test_a_new_segment_wakes_waiting_calls():
    bench = Bench(waits="hold")
    waiter = _waiting(bench, bench.registry.register("a"))
    bench.seal(0, 1)
    assert waiter.outcome().ref == BundleRef(0, 0)


@pytest.mark.parametrize("how", ["defer", "drop", "leave", "unreadable"])
def test_a_returned_bundle_wakes_waiting_calls(how):
    """A known error of another engine: only new segments woke waiting calls."""
    bench = Bench(waits="hold")
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    handle = subscriber.next_bundle(timeout=0)
    waiter = _waiting(bench, subscriber)
    if how == "defer":
        handle.nack()
    elif how == "drop":
        del handle
        gc.collect()
    elif how == "leave":
        with handle:
            pass
    else:
        bench.unreadable.add(BundleRef(0, 0))
        with pytest.raises(CorruptionError):
            _ = handle.bundle
    assert waiter.outcome().ref == BundleRef(0, 0)


def test_the_end_of_a_deferral_wakes_waiting_calls():
    bench = Bench(waits="hold")
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    subscriber.next_bundle(timeout=0).nack(0.5)
    waiter = _waiting(bench, subscriber)
    bench.clock.advance(0.5)
    assert waiter.outcome().ref == BundleRef(0, 0)


def test_closing_wakes_waiting_calls():
    bench = Bench(waits="hold")
    waiter = _waiting(bench, bench.registry.register("a"))
    bench.registry.close()
    assert isinstance(waiter.outcome(), StoreClosedError)


def test_unregistering_wakes_waiting_calls():
    bench = Bench(waits="hold")
    waiter = _waiting(bench, bench.registry.register("a"))
    bench.registry.unregister("a")
    assert isinstance(waiter.outcome(), UnknownSubscriberError)


def test_threads_share_a_subscriber_and_each_bundle_goes_to_one():
    bench = Bench()
    subscriber = bench.registry.register("a")
    for seq in range(20):
        bench.seal(seq, 50)
    taken, guard = [], threading.Lock()

    def work(number):
        count = 0
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            count += 1
            if (count + number) % 7 == 0:
                handle.nack()
                continue
            handle.ack()
            with guard:
                taken.append(handle.ref)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == [BundleRef(seq, index) for seq in range(20) for index in range(50)]
    bench.registry.save()
    assert load_progress(bench.disk, ROOT, "a") == Progress(20, {})


def test_progress_is_written_once_per_changed_subscriber():
    """One atomic replacement for any number of acks, and none without changes."""
    bench = Bench()
    busy, idle = bench.registry.register("busy"), bench.registry.register("idle")
    bench.seal(0, 100)
    for handle in bench.refs(busy):
        handle.ack()
    idle.next_bundle(timeout=0).nack()
    renames = []
    bench.disk.on_step = lambda op, path: renames.append(path) if op == "rename" else None
    assert bench.registry.save() == 1
    assert bench.registry.save() == 0
    assert renames == [f"{ROOT}/quiver.sub.busy"]


def test_a_failed_progress_write_does_not_prevent_the_others():
    disk = CrashFileSystem()
    faulty = FaultFileSystem(disk)
    bench = Bench(faulty)
    subscribers = [bench.registry.register(name) for name in ("a", "b")]
    bench.seal(0, 1)
    for subscriber in subscribers:
        subscriber.next_bundle(timeout=0).ack()
    faulty.fail_on("rename")
    with pytest.raises(OSError, match="."):
        bench.registry.save()
    assert [load_progress(disk, ROOT, name) for name in ("a", "b")] == [Progress(0, {}), Progress(1, {})]
    assert bench.registry.save() == 1
    assert load_progress(disk, ROOT, "a") == Progress(1, {})


def test_only_durable_progress_allows_deletion():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    assert not bench.registry.complete(0, 1)
    subscriber.next_bundle(timeout=0).ack()
    assert not bench.registry.complete(0, 1)
    bench.registry.save()
    assert bench.registry.complete(0, 1)
    assert bench.registry.complete_segments() == [0]
    bench.registry.register("late", start="earliest")
    assert not bench.registry.complete(0, 1)


def test_without_subscribers_nothing_is_complete():
    bench = Bench(segments=[SegmentRef(0, 1)])
    assert not bench.registry.complete(0, 1)
    assert bench.registry.complete_segments() == []


def test_any_finished_segment_can_be_deleted():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    bench.seal(1, 1)
    subscriber.claim(BundleRef(1, 0)).ack()
    bench.registry.save()
    assert bench.registry.complete_segments() == [1]
    assert bench.registry.slowest() == "a"
    assert bench.registry.least_lag_segments() == 1


def test_an_orphan_keeps_its_segments_until_it_is_dropped():
    """It is reported and prevents deletion; unregister counts and releases its pending bundles."""
    bench = Bench(segments=[SegmentRef(0, 3)])
    bench.registry.register("gone", start="earliest")
    bench.registry.close()
    again = Bench(bench.disk, segments=[SegmentRef(0, 3)])
    subscriber = again.registry.register("here", start="earliest")
    again.registry.activate()
    assert "quiver.subscriber.orphan" in again.observer.events
    for handle in again.refs(subscriber):
        handle.ack()
    again.registry.save()
    assert not again.registry.complete(0, 3)
    assert again.registry.slowest() == "gone"
    again.registry.unregister("gone")
    assert again.observer.total("quiver.subscriber.dropped_bundles_total") == 3
    assert again.registry.complete(0, 3)
    for seed in range(8):
        assert load_progress(again.disk.clone_after_crash(seed), ROOT, "gone") is None


def test_unregistering_ends_everything():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    handle = subscriber.next_bundle(timeout=0)
    bench.registry.unregister("a")
    for call in (handle.ack, lambda: subscriber.next_bundle(timeout=0), lambda: bench.registry.unregister("a")):
        with pytest.raises(UnknownSubscriberError):
            call()
    assert bench.disk.list_dir(ROOT) == []
    assert bench.registry.save() == 0
    assert bench.registry.register("a").next_bundle(timeout=0) is None


def test_closing_writes_progress_and_releases_ownership():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 2)
    subscriber.next_bundle(timeout=0).ack()
    handle = subscriber.next_bundle(timeout=0)
    bench.registry.close()
    bench.registry.close()
    assert load_progress(bench.disk, ROOT, "a") == Progress(0, {0: SegmentProgress(2, 0b01)})
    calls = (handle.ack, handle.nack, lambda: subscriber.next_bundle(timeout=0), lambda: bench.registry.register("b"))
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
    del handle
    gc.collect()
    SubscriberFile(bench.disk, ROOT, "a").acquire()


def test_the_registry_closes_on_a_full_disk():
    disk = CrashFileSystem()
    disk.make_dirs(ROOT)
    faulty = FaultFileSystem(disk)
    bench = Bench(faulty)
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    subscriber.next_bundle(timeout=0).ack()
    faulty.fail_on("create")
    bench.registry.close()
    assert "quiver.subscriber.progress.flush" in bench.observer.events
    assert load_progress(disk, ROOT, "a") == Progress(0, {})
    SubscriberFile(disk, ROOT, "a").acquire()


def test_a_released_subscriber_can_be_used_by_another_process():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 2)
    subscriber.next_bundle(timeout=0).ack()
    handle = subscriber.next_bundle(timeout=0)
    with pytest.raises(DirectoryInUseError):
        SubscriberFile(bench.disk, ROOT, "a").acquire()
    subscriber.release()
    with pytest.raises(BundleUnavailableError):
        handle.ack()
    with SubscriberFile(bench.disk, ROOT, "a") as elsewhere:
        elsewhere.know([SegmentRef(0, 2)])
        assert (elsewhere.position().segment, elsewhere.position().index) == (0, 1)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(0, 1)
    with pytest.raises(BundleUnavailableError):
        handle.ack()


def test_a_subscriber_of_another_process_prevents_deletion_too():
    """It can be registered here but not used, and its progress allows deletion once it is on disk."""
    bench = Bench()
    create_if_missing(bench.disk, ROOT, "query", start="earliest", segments=Segments(), profile="spec")
    bench.registry.refresh()
    bench.seal(0, 2)
    elsewhere = SubscriberFile(bench.disk, ROOT, "query")
    elsewhere.acquire()
    subscriber = bench.registry.register("query")
    for call in (lambda: subscriber.next_bundle(timeout=0), lambda: subscriber.claim(BundleRef(0, 0))):
        with pytest.raises(DirectoryInUseError, match="pid"):
            call()
    with pytest.raises(DirectoryInUseError):
        bench.registry.unregister("query")
    elsewhere.know([SegmentRef(0, 2)])
    elsewhere.ack_through(0, 1)
    elsewhere.save()
    bench.registry.refresh()
    assert subscriber.lag().pending_bundles == 1
    assert not bench.registry.complete(0, 2)
    elsewhere.ack_through(1, 0)
    bench.registry.refresh()
    assert not bench.registry.complete(0, 2)
    elsewhere.save()
    assert not bench.registry.complete(0, 2)
    bench.registry.refresh()
    assert bench.registry.complete(0, 2)
    elsewhere.release()
    bench.seal(1, 1)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(1, 0)


def test_subscribers_that_appear_and_disappear_on_disk_are_noticed():
    """Another process may create one, or drop an orphan."""
    bench = Bench(segments=[SegmentRef(0, 1)])
    here = bench.registry.register("here", start="earliest")
    here.next_bundle(timeout=0).ack()
    bench.registry.save()
    assert bench.registry.complete(0, 1)
    create_if_missing(bench.disk, ROOT, "new", start=0, segments=Segments([SegmentRef(0, 1)]), profile="spec")
    bench.registry.refresh()
    assert not bench.registry.complete(0, 1)
    assert bench.registry.status("new").pending_bundles == 1
    bench.disk.remove(f"{ROOT}/quiver.sub.new")
    bench.registry.refresh()
    assert bench.registry.complete(0, 1)
    with pytest.raises(UnknownSubscriberError):
        bench.registry.status("new")


def test_a_file_that_did_not_change_is_not_read_again():
    bench = Bench()
    save_progress(bench.disk, ROOT, "query", Progress(0, {}), profile="spec")
    bench.clock.set_wall_ns(bench.disk.stat(f"{ROOT}/quiver.sub.query").modified_ns)
    bench.registry.refresh()
    read = []
    real = bench.disk.read_all
    bench.disk.read_all = lambda path, size_max: (read.append(path), real(path, size_max=size_max))[1]
    bench.registry.refresh()
    assert read  # changed within the last two seconds: its timestamp is not reliable yet
    bench.clock.advance(3)
    read.clear()
    bench.registry.refresh()
    assert read == []


def test_a_damaged_progress_file_causes_redelivery():
    """It is copied to quarantine and created again without progress, counted and reported."""
    bench = Bench(segments=[SegmentRef(0, 2)])
    for handle in bench.refs(bench.registry.register("a", start="earliest")):
        handle.ack()
    bench.registry.close()
    path = f"{ROOT}/quiver.sub.a"
    bad = bytearray(bench.disk.read_all(path, size_max=1000))
    bad[15] ^= 0xFF
    bench.disk.open_write(path).pwrite(bytes(bad), 0)

    again = Bench(bench.disk, segments=[SegmentRef(0, 2)])
    copies = again.disk.list_dir(f"{ROOT}/quarantine")
    assert [again.disk.read_all(f"{ROOT}/quarantine/{name}", size_max=1000) for name in copies] == [bad]
    assert again.observer.total("quiver.recovery.damaged_files_total") == 1
    assert "quiver.subscriber.progress.recreated" in again.observer.events
    assert not again.registry.complete(0, 2)
    assert names(again.refs(again.registry.register("a"))) == ["0:0", "0:1"]


def test_damage_to_the_file_of_another_process_blocks_deletion_until_it_is_written_again():
    bench = Bench()
    create_if_missing(bench.disk, ROOT, "query", start="earliest", segments=Segments(), profile="spec")
    elsewhere = SubscriberFile(bench.disk, ROOT, "query")
    elsewhere.acquire()
    bench.seal(0, 1)
    elsewhere.know([SegmentRef(0, 1)])
    elsewhere.ack_through(1, 0)
    elsewhere.save()
    bench.registry.refresh()
    assert bench.registry.complete(0, 1)
    bench.disk.open_write(f"{ROOT}/quiver.sub.query").pwrite(b"\0", 0)
    for opened in (bench, Bench(bench.disk, segments=[SegmentRef(0, 1)])):
        opened.registry.refresh()
        assert not opened.registry.complete(0, 1)
    elsewhere.written = None
    elsewhere.save()
    bench.registry.refresh()
    assert bench.registry.complete(0, 1)


def test_damage_is_handled_the_same_at_first_use_and_at_open():
    bench = Bench(segments=[SegmentRef(0, 1)])
    subscriber = bench.registry.register("a")
    bench.disk.open_write(f"{ROOT}/quiver.sub.a").pwrite(b"\0", 0)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(0, 0)
    assert len(bench.disk.list_dir(f"{ROOT}/quarantine")) == 1


def test_flags_of_a_newer_version_are_reported_and_ignored():
    bench = Bench()
    save_progress(bench.disk, ROOT, "a", Progress(0, {}), profile="spec")
    data = bytearray(bench.disk.read_all(f"{ROOT}/quiver.sub.a", size_max=1000))
    data[12] = 1
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
    bench.disk.open_write(f"{ROOT}/quiver.sub.a").pwrite(bytes(data), 0)
    again = Bench(bench.disk)
    assert "quiver.subscriber.progress.load" in again.observer.events
    assert again.registry.status("a").oldest_incomplete == 0


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_stale_progress_does_not_hide_new_data_after_a_restart(profile):
    """
    A known loss of another engine: all is delivered and deleted, the process restarts, numbering begins at 0 again, the
    old entries mean "done", and new data is never delivered. Here the progress itself reserves the numbers.
    """
    bench = Bench(profile=profile)
    subscriber = bench.registry.register("a")
    for seq in range(5):
        bench.seal(seq, 1)
    for handle in bench.refs(subscriber):
        handle.ack()
    bench.registry.save()
    assert bench.registry.complete_segments() == [0, 1, 2, 3, 4]
    if profile == "spec":
        bench.registry.removed(range(5))
    bench.registry.close()

    again = Bench(bench.disk, profile=profile)
    next_seq = again.registry.floor() + 1
    assert next_seq == 5
    subscriber = again.registry.register("a")
    again.seal(next_seq, 3)
    assert not again.registry.complete(next_seq, 3)
    assert names(again.refs(subscriber)) == ["5:0", "5:1", "5:2"]


def test_stale_entries_of_another_engine_do_not_hide_new_data():
    """
    The same loss, with the file as the other engine writes it: 0 and complete entries of deleted segments. Their
    numbers are not used again, and where another engine did that, an entry with another bundle count is ignored.
    """
    disk = CrashFileSystem()
    disk.make_dirs(ROOT)
    stale = Progress(0, {0: SegmentProgress(5, 0b11111), 1: SegmentProgress(5, 0b11111)})
    save_progress(disk, ROOT, "a", stale, profile="otap")
    bench = Bench(disk, profile="otap")
    assert bench.registry.floor() == 1
    subscriber = bench.registry.register("a")
    bench.seal(2, 5)
    assert len(bench.refs(subscriber)) == 5

    collided = Bench(disk.clone_after_kill(), segments=[SegmentRef(0, 4)], next_seq=1, profile="otap")
    assert "quiver.subscriber.progress.mismatch" in collided.observer.events
    assert not collided.registry.complete(0, 4)
    assert len(collided.refs(collided.registry.register("a"))) == 4


def test_entries_of_the_otap_file_are_removed_with_their_segment():
    bench = Bench(profile="otap")
    subscriber = bench.registry.register("a")
    bench.seal(0, 1)
    bench.seal(1, 1)
    for handle in bench.refs(subscriber):
        handle.ack()
    bench.registry.save()
    assert sorted(load_progress(bench.disk, ROOT, "a").entries) == [0, 1]
    bench.registry.removed([0])
    bench.registry.save()
    assert load_progress(bench.disk, ROOT, "a") == Progress(0, {1: SegmentProgress(1, 1)})


def test_a_handle_of_a_deleted_segment_accepts_an_answer():
    """Policy deleted it while it was claimed: the ack is harmless, and none of its bundles is delivered."""
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.seal(0, 3)
    handle = subscriber.next_bundle(timeout=0)
    bench.registry.removed([0])
    handle.ack()
    assert subscriber.next_bundle(timeout=0) is None
    bench.registry.save()
    bench.seal(1, 1)
    assert subscriber.next_bundle(timeout=0).ref == BundleRef(1, 0)
    assert load_progress(bench.disk, ROOT, "a") == Progress(1, {})


@pytest.mark.parametrize("profile", ["spec", "otap"])
def test_a_crash_at_any_step_may_redeliver_but_skips_nothing(profile):
    """Register, deliver, ack some, write, ack all, write; lose power at any step; open; compare."""
    segments = [SegmentRef(0, 2), SegmentRef(1, 2)]
    flushed: set[str] = set()
    acked: set[str] = set()
    registered = False
    states = []
    disk = CrashFileSystem()
    disk.make_dirs(ROOT)
    bench = Bench(disk, segments=segments, profile=profile)

    def remember(op, path):
        states.extend((disk.clone_after_crash(seed), set(flushed), set(acked), registered) for seed in range(6))

    disk.on_step = remember
    subscriber = bench.registry.register("a", start="earliest")
    registered = True
    for indices in ((1, 2), (0, 3)):
        handles = {index: subscriber.claim(BundleRef(*divmod(index, 2))) for index in indices}
        for handle in handles.values():
            handle.ack()
            acked.add(str(handle.ref))
        bench.registry.save()
        flushed |= acked
    bench.registry.close()
    remember("end", "")
    disk.on_step = None

    everything = ["0:0", "0:1", "1:0", "1:1"]
    for state, were_flushed, were_acked, was_registered in states:
        found = load_progress(state, ROOT, "a")
        assert found is not None or not was_registered
        again = Bench(state, segments=segments, profile=profile)
        delivered = names(again.refs(again.registry.register("a", start="earliest")))
        assert set(everything) - were_acked <= set(delivered) <= set(everything) - were_flushed
        assert delivered == sorted(delivered)
    assert flushed == set(everything)


def test_status_and_stats_describe_every_subscriber():
    bench = Bench()
    subscriber = bench.registry.register("a")
    bench.clock.set_wall_ns(bench.disk.stat(f"{ROOT}/quiver.sub.a").modified_ns + 10 * 10**9)
    begun_ns = bench.clock.now_ns() - 7 * 10**9
    bench.registry.sealed(SegmentRef(0, 3, begun_ns + 1, begun_ns, 900))
    handles = bench.refs(subscriber)
    handles[1].ack()
    handles[2].nack(5)
    assert bench.registry.stats() == {
        "a": {
            "registered": True,
            "owned": True,
            "orphan": False,
            "oldest_incomplete": 0,
            "pending_bundles": 2,
            "claimed_bundles": 1,
            "deferred_bundles": 1,
            "dropped_bundles": 0,
            "lag_bytes": 600,
            "lag_seconds": 7.0,
            "idle_seconds": 0.0,
            "progress_age_seconds": 10.0,
        }
    }
    assert repr(subscriber) == "Subscriber('a')"
    assert repr(handles[0]) == "BundleHandle(0:0, claimed)"
    assert repr(handles[1]) == "BundleHandle(0:1, acked)"
    assert bench.registry.slowest() == "a"
    for handle in (handles[0], subscriber.claim(BundleRef(0, 2))):
        handle.ack()
    assert bench.registry.slowest() is None
