"""Batches of bundles behave like bundles that are delivered one by one."""

import threading

import pyarrow as pa
import pytest
from registry_rig import Bench, names

from quiver.bundle import Bundle, BundleRef
from quiver.errors import (
    BundleUnavailableError,
    DirectoryInUseError,
    StoreClosedError,
    UnknownSubscriberError,
    UsageError,
)
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.progress_store import SubscriberFile
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"


def _bench(*counts, order="oldest", **options):
    bench = Bench(**options)
    subscriber = bench.registry.register("a", "earliest", order=order)
    for seq, count in enumerate(counts):
        bench.seal(seq, count)
    return bench, subscriber


def test_a_batch_has_at_most_the_requested_number_of_bundles():
    _, subscriber = _bench(2, 3)
    handles = subscriber.next_bundles(4, timeout=0)
    assert names(handles) == ["0:0", "0:1", "1:0", "1:1"]
    rest = subscriber.next_bundles(4, timeout=0)
    assert names(rest) == ["1:2"]
    assert subscriber.next_bundles(1, timeout=0) == []
    assert subscriber.lag().pending_bundles == 5


def test_a_bundle_of_a_batch_is_read_on_first_access():
    bench, subscriber = _bench(5)
    handles = subscriber.next_bundles(5, timeout=0)
    assert bench.reads == []
    assert handles[3].bundle[60].column("data")[0].as_py() == b"0:3"
    assert bench.reads == [BundleRef(0, 3)]


def test_a_newest_first_batch_includes_the_backfill():
    _, subscriber = _bench(8, order="newest")
    assert names(subscriber.next_bundles(6, timeout=0)) == ["0:7", "0:6", "0:5", "0:0", "0:4", "0:3"]


def test_unreadable_bundles_are_last_in_batches():
    bench, subscriber = _bench(3)
    bench.unreadable.add(BundleRef(0, 0))
    first, second, third = subscriber.next_bundles(3, timeout=0)
    with pytest.raises(Exception, match="checksum"):
        _ = first.bundle
    second.nack()
    assert names(subscriber.next_bundles(3, timeout=0)) == ["0:1", "0:0"]
    assert third.outcome is None


def test_a_batch_waits_for_one_bundle_only():
    bench = Bench(waits="hold")
    subscriber = bench.registry.register("a", "earliest")
    found = []
    thread = threading.Thread(target=lambda: found.extend(subscriber.next_bundles(10, timeout=60)))
    thread.start()
    bench.clock.wait_for_waiters(1)
    bench.seal(0, 2)
    thread.join(30)
    assert names(found) == ["0:0", "0:1"]


def test_an_acknowledged_batch_is_counted_once_and_durable_after_the_next_write():
    bench, subscriber = _bench(4, audit_bytes_max=100_000)
    handles = subscriber.next_bundles(4, timeout=0)
    subscriber.ack_all(handles[:3])
    subscriber.ack_all(handles[:3])
    assert subscriber.lag().pending_bundles == 1
    assert [handle.outcome for handle in handles] == ["acked"] * 3 + [None]
    bench.registry.save()
    assert bench.observer.total("quiver.subscriber.acked_bundles_total") == 3
    again = Bench(bench.disk.clone_after_crash(1), segments=list(bench.registry._segments))
    assert names(again.refs(again.registry.register("a"))) == ["0:3"]


def test_ack_all_refuses_only_bundles_with_another_outcome():
    bench, subscriber = _bench(4)
    handles = subscriber.next_bundles(4, timeout=0)
    handles[1].reject()
    handles[2].nack(10)
    with pytest.raises(BundleUnavailableError, match="0:1 cannot be acked: it was rejected"):
        subscriber.ack_all(handles)
    assert [handle.outcome for handle in handles] == ["acked", "rejected", "deferred", "acked"]
    bench.registry.save()
    assert bench.observer.total("quiver.subscriber.acked_bundles_total") == 2
    assert subscriber.lag().pending_bundles == 1


def test_handles_of_another_subscriber_are_refused():
    bench, subscriber = _bench(1)
    other = bench.registry.register("b", "earliest")
    handles = subscriber.next_bundles(1, timeout=0)
    with pytest.raises(BundleUnavailableError, match="has ended"):
        subscriber.ack_all(other.next_bundles(1, timeout=0))
    assert other.lag().pending_bundles == subscriber.lag().pending_bundles == 1
    assert names(handles) == ["0:0"]


def test_bundles_of_released_handles_are_delivered_again():
    _, subscriber = _bench(3)
    kept = subscriber.next_bundles(3, timeout=0)[1]
    assert names(subscriber.next_bundles(3, timeout=0)) == ["0:0", "0:2"]
    assert kept.outcome is None


def test_invalid_arguments_and_a_closed_store_are_refused():
    bench, subscriber = _bench(2)
    with pytest.raises(UsageError):
        subscriber.next_bundles(0)
    with SubscriberFile(bench.disk, ROOT, "a"), pytest.raises(DirectoryInUseError):
        subscriber.next_bundles(1)
    handles = subscriber.next_bundles(2, timeout=0)
    bench.registry.close()
    with pytest.raises(StoreClosedError):
        subscriber.ack_all(handles)
    with pytest.raises(StoreClosedError):
        subscriber.next_bundles(1, timeout=0)
    other, removed = _bench(1)
    other.registry.unregister("a")
    with pytest.raises(UnknownSubscriberError):
        removed.next_bundles(1, timeout=0)


def _bundles(count):
    """Several slots, dictionaries, empty batches and a changed schema, each in its own stream."""
    made = []
    for number in range(count):
        rows = number % 3
        words = pa.array([f"word {number % 5}"] * rows, pa.string()).dictionary_encode()
        slots = {30: pa.record_batch({"word": words, "number": pa.array([number] * rows, pa.int64())})}
        if number % 2:
            slots[31] = pa.record_batch({f"column {number % 4}": pa.array([str(number)] * (number % 4))})
        made.append(Bundle(slots, ingested_at_ns=number))
    return made


def _values(bundle):
    """Dictionaries of one stream are unified, so that of a batch may have more words than before."""
    return {slot: (bundle[slot].schema, bundle[slot].num_rows, bundle[slot].to_pylist()) for slot in bundle}


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_reading_in_any_order_returns_the_same_values(compression):
    """Sequential reading uses another code path than reading one bundle: both return the ingested values."""
    disk, clock = CrashFileSystem(), ManualClock()
    settings = Settings(segment_compression=compression)
    with open_store(ROOT, settings, fs=disk, clock=clock, background=False) as store:
        bundles = _bundles(40)
        for bundle in bundles:
            store.ingest(bundle)
        store.seal()
        first, second, third = (store.register(name, "earliest") for name in "abc")
        for number, handle in enumerate(first.next_bundles(100, timeout=0)):
            assert _values(handle.bundle) == _values(bundles[number])
            assert handle.bundle.ingested_at_ns == number
        for number in (0, 1, 2, 17, 3, 4, 0, 1, 39, 38):
            with second.claim(BundleRef(0, number)) as handle:
                assert _values(handle.bundle) == _values(bundles[number])
        again = third.next_bundles(100, timeout=0)
        assert [_values(handle.bundle) for handle in again] == [_values(bundle) for bundle in bundles]


def test_batches_of_sequential_reading_outlive_the_reader():
    disk, clock = CrashFileSystem(), ManualClock()
    bundles = _bundles(9)
    with open_store(ROOT, Settings(), fs=disk, clock=clock, background=False) as store:
        for bundle in bundles:
            store.ingest(bundle)
        store.seal()
        path = f"{ROOT}/segments/0000000000000000.qseg"
        reader = SegmentReader.open(disk, path)
        found = [Bundle(reader.bundle(index)) for index in range(5)]
        reader.close()
        assert list(map(_values, found)) == list(map(_values, bundles[:5]))
        with pytest.raises(StoreClosedError):
            reader.bundle(5)
