"""Bundles are delivered before their segment is written, and segments that all have resolved are never written."""

import threading

import pyarrow as pa
import pytest

import quiver
from lanes import every, with_stride
from quiver.bundle import Bundle, BundleRef
from quiver.errors import BundleUnavailableError
from quiver.settings import Settings
from quiver.store.early_delivery import LISTED_MAX, WAIT_S_MAX
from quiver.store.format.early_progress import EARLY_SEGMENTS_MAX, decode_early_progress
from quiver.store.format.names import EARLY_PROGRESS
from quiver.store.segment.writer import write_segment
from quiver.store.snapshots.snapshot import restore, snapshot
from quiver.store.subscribers.progress_store import create_if_missing
from quiver.store.subscribers.state import Segments
from quiver.testing.clock import ManualClock
from store_rig import (
    LOGS,
    ROOT,
    acknowledge,
    drain,
    fill,
    number_of,
    open_small,
    read_numbers,
    sealed_numbers,
)
from waiting import wait_until


def opened(fs, clock=None, **changes):
    changes.setdefault("segment_open_s_max", 3600.0)
    return open_small(fs, clock, deliver_unsealed=True, **changes)


def swapped(store):
    """Close the open segment, without writing it."""
    with store._lock:
        assert store._sealing.swap()
    return store._sealing.pending


# ── delivery ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("take", ["one", "many", "run"])
def test_bundles_are_delivered_before_they_are_sealed(fs, durability, take):
    """In all three ways, with the reference that they keep."""
    with opened(fs, durability=durability) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1, 2])
        if take == "run":
            run = subscriber.next_run(timeout=0)
            found = [(BundleRef(run.segment, at), number_of(bundle)) for at, bundle in run]
            run.nack()
        elif take == "many":
            handles = subscriber.next_bundles(10, timeout=0)
            found = [(handle.ref, number_of(handle.bundle)) for handle in handles]
            del handles
        else:
            handles = [subscriber.next_bundle(timeout=0) for _ in range(3)]
            found = [(handle.ref, number_of(handle.bundle)) for handle in handles]
            handles.clear()
        assert [number for _, number in found] == [0, 1, 2]
        assert not len(store.internals.catalog)
        store.seal()
        for ref, number in found:
            with subscriber.claim(ref) as handle:
                assert number_of(handle.bundle) == number


def test_a_waiting_subscriber_is_woken_by_ingest(tmp_path):
    """It does not wait for the segment."""
    settings = Settings(deliver_unsealed=True, segment_open_s_max=3600.0)
    with quiver.open(str(tmp_path / "buffer"), settings=settings) as store:
        subscriber = store.register("s", start="earliest")
        got = []
        thread = threading.Thread(target=lambda: got.append(subscriber.next_bundle(timeout=30)))
        thread.start()
        wait_until(lambda: store._claims.waiting)
        fill(store, [7])
        thread.join(30)
        assert number_of(got[0].bundle) == 7
        got.clear()


def test_a_callback_is_called_for_unsealed_bundles(tmp_path):
    """`on_bundle`, too."""
    settings = Settings(deliver_unsealed=True, segment_open_s_max=3600.0)
    with quiver.open(str(tmp_path / "buffer"), settings=settings) as store:
        subscriber = store.register("s", start="earliest")
        called = threading.Event()
        stop = subscriber.on_bundle(called.set)
        fill(store, [0])
        assert called.wait(30)
        stop()


@pytest.mark.parametrize("order", ["oldest", "newest", "round_robin"])
def test_every_order_includes_unsealed_bundles(fs, order):
    """`newest` begins with the newest one, sealed or not."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest", order=order)
        fill(store, [0, 1])
        store.seal()
        fill(store, [2, 3])
        got = acknowledge(subscriber)
        assert sorted(got) == [0, 1, 2, 3]
        assert got[0] == (3 if order == "newest" else 0)


def test_what_was_acknowledged_early_is_not_delivered_again(fs):
    """Neither are the others lost: claimed, deferred, rejected and returned ones keep their state in the segment."""
    clock = ManualClock()
    with opened(fs, clock) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, range(6))
        handles = subscriber.next_bundles(6, timeout=0)
        handles[0].ack()
        handles[1].reject("broken")
        handles[2].nack(5.0)
        with handles[3]:
            pass
        store.seal()
        assert subscriber.lag().pending_bundles == 4
        assert subscriber.lag().claimed_bundles == 2
        assert acknowledge(subscriber) == [3]
        clock.advance(5.0)
        assert acknowledge(subscriber) == [2]
        for handle in handles[4:]:
            handle.ack()
        assert subscriber.lag().is_drained


def test_bundles_are_read_while_their_segment_is_written(fs, monkeypatch):
    """From memory until the file is there, from the file afterwards; buffers stay valid."""
    import quiver.store.sealing.schedule as schedule

    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1])
        handles = subscriber.next_bundles(2, timeout=0)
        early = handles[0].bundle
        read = []

        def write(*arguments, **named):
            info = write_segment(*arguments, **named)
            read.append(number_of(handles[1].bundle))
            return info

        monkeypatch.setattr(schedule, "write_segment", write)
        store.seal()
        fill(store, range(2, 40))
        store.seal()
        assert set(read) == {1}
        assert number_of(early) == 0
        assert early[LOGS]["pad"][0].as_py() == "x" * 50
        handles.clear()


def test_large_and_dictionary_bundles_are_delivered(fs):
    """Large ones are only in the log; a message with dictionaries is a stream of its own."""
    big = Bundle({LOGS: pa.record_batch({"n": pa.array([1]), "pad": pa.array(["y" * 200_000])})})
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    with opened(fs, segment_bytes_max=1 << 20, wal_bytes_max=8 << 20, wal_rotate_bytes=1 << 20) as store:
        subscriber = store.register("s", start="earliest")
        store.ingest(big)
        store.ingest(Bundle({LOGS: pa.record_batch({"n": pa.array([2, 2, 2]), "w": words})}))
        first, second = subscriber.next_bundles(2, timeout=0)
        assert first.bundle[LOGS].equals(big[LOGS])
        assert second.bundle[LOGS]["w"].to_pylist() == ["a", "b", "a"]
        assert not len(store.internals.catalog)
        first.ack()
        second.ack()


# ── segments that are never written ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
def test_a_segment_that_all_have_resolved_is_never_written(fs, durability):
    """The log forgets it, its number is not used again, and later bundles are delivered as always."""
    with opened(fs, durability=durability) as store:
        for name in ("one", "two"):
            store.register(name, start="earliest")
        fill(store, [0, 1])
        for name in ("one", "two"):
            assert drain(store, name) == [0, 1]
        pending = swapped(store)
        store.maintain()
        assert store._sealing.pending is None
        assert not len(store.internals.catalog)
        assert read_numbers(fs) == []
        fill(store, [2])
        with store.register("one").next_bundle(timeout=0) as handle:
            assert handle.ref.segment > pending.seq
        assert drain(store, "one") == drain(store, "two") == [2]
    with opened(fs, durability=durability) as store:
        fill(store, [3])
        with store.register("one").next_bundle(timeout=0) as handle:
            assert handle.ref.segment > pending.seq
            assert number_of(handle.bundle) == 3
            handle.ack()


def test_a_closed_segment_waits_for_its_subscribers(fs):
    """For a limited time; then it is written."""
    clock = ManualClock()
    with opened(fs, clock) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1])
        handle = subscriber.next_bundle(timeout=0)
        swapped(store)
        store.maintain()
        assert store._sealing.pending is not None
        clock.advance(WAIT_S_MAX)
        store.maintain()
        assert sealed_numbers(store) == [0, 1]
        handle.ack()


@pytest.mark.parametrize("reason", ["none", "foreign", "late", "headroom"])
def test_a_segment_is_written_if_somebody_may_need_it(fs, reason):
    """Without subscribers, for one of another process, for a new one, and if finished segments are kept."""
    changes = {"steady_state_headroom_bytes": 100_000} if reason == "headroom" else {}
    with opened(fs, **changes) as store:
        if reason != "none":
            store.register("s", start="earliest")
        if reason == "foreign":
            create_if_missing(fs, ROOT, "query", start="earliest", segments=Segments(), profile="spec")
        fill(store, [0, 1])
        if reason != "none":
            assert drain(store, "s") == [0, 1]
        pending = swapped(store)
        if reason == "late":
            store.register("new", start="earliest")
        if reason in {"foreign", "late"}:
            store._clock.advance(WAIT_S_MAX)
        store.maintain()
        assert pending.seq in store.internals.catalog
        if reason == "late":
            assert drain(store, "new") == [0, 1]


def listed(fs) -> list[int]:
    """Return the numbers in the file of early progress."""
    found = decode_early_progress(memoryview(fs.read_all(f"{ROOT}/{EARLY_PROGRESS}", size_max=1 << 20)))
    return [segment.seq for segment in found.value.segments]


@pytest.mark.parametrize("acknowledged", [0, 1])
def test_seals_without_maintenance_do_not_fill_the_file(fs, acknowledged, monkeypatch):
    """A program may call `seal` after each bundle and nothing else, with any subscriber."""
    monkeypatch.setattr("quiver.store.early_delivery.LISTED_MAX", 8)
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        for number in range(40):
            fill(store, [number, number])
            if acknowledged:
                subscriber.next_bundle(timeout=0).ack()
            store.seal()
            assert len(listed(fs)) <= 8
    assert 8 < LISTED_MAX < EARLY_SEGMENTS_MAX
    with opened(fs) as store:
        numbers = drain(store)
        assert sorted(numbers) == sorted([*range(40)] * 2)[40 * acknowledged :]


def test_more_subscribers_than_the_file_can_list_get_sealed_bundles(fs, monkeypatch):
    monkeypatch.setattr("quiver.store.early_delivery.EARLY_ENTRIES_MAX", 3)
    with opened(fs) as store:
        subscribers = [store.register(f"s{number}", start="earliest") for number in range(4)]
        fill(store, [0])
        store.seal()  # the segment that was published with the first of them
        fill(store, [1])
        assert [acknowledge(subscriber) for subscriber in subscribers] == [[0]] * 4
        store.seal()
        assert [acknowledge(subscriber) for subscriber in subscribers] == [[1]] * 4


def test_a_subscriber_that_registers_late_gets_what_is_not_sealed(fs):
    """`earliest` and `latest` both include the open segment."""
    with opened(fs) as store:
        store.register("s", start="earliest")
        fill(store, [0, 1])
        assert drain(store, "s") == [0, 1]
        assert drain(store, "early", start="earliest") == [0, 1]
        assert drain(store, "late", start="latest") == [0, 1]


# ── other calls ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("to", ["earliest", "segment", "bundle"])
def test_unsealed_bundles_can_be_rewound(fs, to):
    """Durably: they are delivered again after a crash, too."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1, 2])
        assert acknowledge(subscriber) == [0, 1, 2]
        store.maintain()
        seq = store._sealing.next_seq
        found = subscriber.rewind({"earliest": "earliest", "segment": seq, "bundle": BundleRef(seq, 1)}[to])
        expected = [1, 2] if to == "bundle" else [0, 1, 2]
        assert found.bundles == len(expected)
        crashed = fs.clone_after_kill()
        assert acknowledge(subscriber) == expected
    with opened(crashed) as store:
        assert drain(store, "s") == expected


def test_a_removed_subscriber_leaves_nothing_to_its_successor(fs):
    """A new one with the same id gets everything, also after a crash."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1])
        assert acknowledge(subscriber) == [0, 1]
        store.maintain()
        store.unregister("s")
        store.register("s", start="earliest")
        crashed = fs.clone_after_kill()
        assert drain(store, "s") == [0, 1]
    with opened(crashed) as store:
        assert drain(store, "s") == [0, 1]


def test_a_released_subscriber_continues_in_another_process(fs):
    """Bundles that it acknowledged early are sealed, so that its next owner finds them in the progress file."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1])
        assert acknowledge(subscriber, 1) == [0]
        subscriber.release()
        assert sealed_numbers(store) == [0, 1]
        assert drain(store, "s") == [1]


def test_a_bundle_of_a_dropped_segment_cannot_be_claimed(fs):
    """It is gone, like that of a deleted segment."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0])
        with subscriber.next_bundle(timeout=0) as handle:
            ref = handle.ref
            handle.ack()
        swapped(store)
        store.maintain()
        with pytest.raises(BundleUnavailableError):
            subscriber.claim(ref)
        with pytest.raises(BundleUnavailableError):
            store._early.load(ref)


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_maintenance_saved_is_not_delivered_again_after_a_crash(fs):
    """The others are, under the same references."""
    store = opened(fs)
    subscriber = store.register("s", start="earliest")
    store.register("other", start="earliest")
    fill(store, range(6))
    handles = subscriber.next_bundles(6, timeout=0)
    refs = {number_of(handle.bundle): handle.ref for handle in handles}
    for handle in handles[1::2]:
        handle.ack()
    store.maintain()
    handles[0].ack()  # after the pass: it may be delivered again
    crashed = fs.clone_after_kill()
    with opened(crashed) as store:
        found = store.register("s").next_bundles(10, timeout=0)
        assert {number_of(handle.bundle): handle.ref for handle in found} == {n: refs[n] for n in (0, 2, 4)}
        del found
        assert drain(store, "other") == [*range(6)]
        fill(store, [6])
        with store.register("other").next_bundle(timeout=0) as handle:
            assert handle.ref.segment > refs[0].segment
    handles.clear()


@with_stride(3)
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing_that_was_saved(fs, stride):
    """Two subscribers at different speeds, and a kill or a power loss before any step."""
    states = []
    promised: set[int] = set()
    saved = {"fast": set(), "slow": set()}
    acked = {"fast": set(), "slow": set()}
    refs: dict[BundleRef, int] = {}

    def before(operation, path):
        durable = {name: set(numbers) for name, numbers in saved.items()}
        states.append((f"{operation} {path}", fs.clone_after_kill(), set(promised), durable, dict(refs)))
        states.append((f"power, {operation} {path}", fs.clone_after_crash(1), set(), durable, dict(refs)))

    clock = ManualClock()
    store = opened(fs, clock, segment_bytes_max=1200)
    subscribers = {name: store.register(name, start="earliest") for name in saved}
    fs.on_step = before
    for number in range(40):
        fill(store, [number])
        promised.add(number)
        for name, pace in (("fast", 1), ("slow", 3)):
            while number % pace == 0 and (handle := subscribers[name].next_bundle(timeout=0)) is not None:
                found = number_of(handle.bundle)
                refs[handle.ref] = found
                handle.ack()
                acked[name].add(found)
        if number % 5 == 4:
            clock.advance(0.4)
            store.maintain()
            saved = {name: set(numbers) for name, numbers in acked.items()}
    fs.on_step = None
    assert len(states) > 200
    for label, crashed, kept, durable, known in every(stride, states):
        with opened(crashed, segment_bytes_max=1200) as again:
            for name, done in durable.items():
                subscriber = again.register(name, start="earliest")
                got = []
                for _ in range(2):
                    while (handle := subscriber.next_bundle(timeout=0)) is not None:
                        found = number_of(handle.bundle)
                        got.append(found)
                        assert known.get(handle.ref, found) == found, f"{label}: {handle.ref} is another bundle"
                        handle.ack()
                    again.seal()
                assert len(got) == len(set(got)), f"{label}: {name} got {got}"
                assert not done.intersection(got), f"{label}: {name} got {sorted(done.intersection(got))} again"
                missing = kept - set(got) - acked[name]
                assert not missing, f"{label}: {name} misses {missing}"


def test_without_a_log_a_number_is_not_used_again_after_a_crash(fs):
    """The bundles are lost, but may have been delivered: another one must not get their address."""
    store = opened(fs, durability="segment_only")
    subscriber = store.register("s", start="earliest")
    fill(store, [0])
    with subscriber.next_bundle(timeout=0) as handle:
        lost = handle.ref
    crashed = fs.clone_after_crash(1)
    with opened(crashed, durability="segment_only") as again:
        fill(again, [1])
        with again.register("s").next_bundle(timeout=0) as handle:
            assert number_of(handle.bundle) == 1
            assert handle.ref.segment > lost.segment


def test_without_subscribers_of_this_process_nothing_is_listed(fs):
    """A program that only ingests writes no file for each segment; the first subscriber gets the open segment."""
    with opened(fs) as store:
        fill(store, [0])
        store.maintain()
        assert not fs.exists(f"{ROOT}/{EARLY_PROGRESS}")
        subscriber = store.register("s", start="earliest")
        assert acknowledge(subscriber) == [0]
        assert not len(store.internals.catalog)


@pytest.mark.parametrize("identity", [None, "8e7dbf9c-7b1c-4f11-9d4e-5a0c2d3e4f50"])
def test_a_restored_snapshot_does_not_deliver_again(fs, identity):
    """Bundles that were resolved before the copy stay resolved, under other numbers; the rest is delivered."""
    with opened(fs) as store:
        subscriber = store.register("s", start="earliest")
        fill(store, [0, 1])
        store.seal()
        fill(store, range(2, 6))
        assert acknowledge(subscriber, 4) == [0, 1, 2, 3]
        store.maintain()
        snapshot(fs, ROOT, "/copy", now_ns=10**18)
        restore(fs, "/copy", "/restored", identity=identity)
        assert acknowledge(subscriber) == [4, 5]
    with quiver.open("/restored", store.settings, fs=fs, background=False) as again:
        assert drain(again, "s") == [4, 5]
        fill(again, [6])
        assert drain(again, "s") == [6]


@pytest.mark.parametrize("damage", [b"", b"QUIVER\0E", b"\xff" * 100], ids=["empty", "short", "ones"])
def test_damaged_early_progress_delivers_again(fs, damage):
    """The damaged bytes are kept."""
    store = opened(fs)
    fill(store, [0, 1])
    assert drain(store, "s") == [0, 1]
    store.maintain()
    crashed = fs.clone_after_kill()
    file = crashed.create_or_truncate(f"{ROOT}/{EARLY_PROGRESS}")
    file.pwrite(damage, 0)
    file.close()
    with opened(crashed) as store:
        assert drain(store, "s") == [0, 1]
        kept = crashed.list_dir(f"{ROOT}/quarantine")
        assert any(name.startswith(EARLY_PROGRESS) for name in kept)


def test_the_option_can_be_turned_off(fs):
    """Resolved bundles stay resolved, and the rest is delivered when it is sealed."""
    store = opened(fs)
    fill(store, [0, 1, 2])
    assert drain(store, "s", 2) == [0, 1]
    store.maintain()
    crashed = fs.clone_after_kill()
    with open_small(crashed, deliver_unsealed=False) as store:
        store.seal()
        assert drain(store, "s") == [2]
        fill(store, [3])
        assert drain(store, "s") == []
    assert not crashed.exists(f"{ROOT}/{EARLY_PROGRESS}")


def test_a_gap_in_the_replayed_log_makes_early_progress_void(fs):
    """After a damaged entry, bundles have other indices, so all of them are delivered again."""
    store = opened(fs)
    fill(store, range(6))
    assert drain(store, "s") == [*range(6)]
    store.maintain()
    crashed = fs.clone_after_kill()
    file = crashed.open_write(f"{ROOT}/wal/quiver.wal")
    data = bytearray(file.pread(file.size(), 0))
    at = data.index(b"x" * 50, data.index(b"x" * 50) + 51)
    file.pwrite(b"z", at)
    file.close()
    with opened(crashed) as store:
        store.seal()
        assert drain(store, "s") == [0, 2, 3, 4, 5]
