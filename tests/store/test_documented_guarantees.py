"""Sentences of the public docstrings that no other module tests."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from quiver.bundle import Bundle, BundleRef, schema_fingerprint
from quiver.errors import InvalidBundleError
from quiver.observe import InMemoryObserver
from quiver.settings import Settings
from quiver.store.reading.read import read
from quiver.testing.crashfs import CrashFileSystem
from store_rig import LOGS, ROOT, drain, numbered, open_manual, small_settings


@pytest.mark.parametrize("slot", [-1, 64])
def test_slots_outside_of_0_to_63_are_refused(slot):
    with pytest.raises(InvalidBundleError):
        Bundle({slot: pa.record_batch({"a": [1]})})


def test_all_64_slots_are_stored():
    with open_manual(CrashFileSystem(), settings=Settings(segment_bytes_max=4_000_000)) as store:
        subscriber = store.register("a", start="earliest")
        store.ingest(Bundle({slot: pa.record_batch({"a": [slot]}) for slot in range(64)}))
        store.seal()
        found = subscriber.next_bundle(timeout=0).bundle
        assert {slot: found[slot].column("a").to_pylist() for slot in found.slots} == {n: [n] for n in range(64)}


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
def test_buffers_of_a_bundle_are_not_needed_after_ingest(durability):
    """The caller may overwrite them at once, also those of a large batch."""
    values = np.arange(200_000, dtype=np.int64)
    with open_manual(CrashFileSystem(), settings=Settings(durability=durability)) as store:
        subscriber = store.register("a", start="earliest")
        store.ingest(Bundle({LOGS: pa.record_batch({"a": pa.array(values)})}))
        values[:] = -1
        store.seal()
        assert subscriber.next_bundle(timeout=0).bundle[LOGS].column("a").to_pylist() == list(range(200_000))


def test_the_order_of_a_subscriber_is_not_stored():
    """Without `order`, a subscriber that was registered with one starts with the oldest bundle."""
    fs = CrashFileSystem()
    with open_manual(fs, settings=small_settings()) as store:
        newest = store.register("a", start="earliest", order="newest")
        for number in range(3):
            store.ingest(numbered(number))
            store.seal()
        assert newest.next_bundle(timeout=0).ref == BundleRef(2, 0)
    with open_manual(fs, settings=small_settings()) as store:
        assert store.register("a").next_bundle(timeout=0).ref == BundleRef(0, 0)


def test_a_subscriber_that_is_registered_again_is_a_new_one():
    """`unregister` returns the number of its unresolved bundles, which count as dropped for it."""
    observer = InMemoryObserver()
    with open_manual(CrashFileSystem(), settings=small_settings(), observer=observer) as store:
        subscriber = store.register("a", start="earliest")
        for number in range(3):
            store.ingest(numbered(number))
        store.seal()
        subscriber.next_bundle(timeout=0).ack()
        assert store.unregister("a") == 2
        assert observer.total("quiver.subscriber.dropped_bundles_total") == 2
        again = store.register("a")
        assert again.next_bundle(timeout=0) is None
        store.ingest(numbered(3))
        store.seal()
        assert drain(store, "a") == [3]


def test_a_scan_returns_the_same_rows_each_time():
    """It is planned when it is created: later bundles are not in it."""
    fs = CrashFileSystem()
    with open_manual(fs, settings=small_settings()) as store:
        store.ingest(numbered(0))
        store.seal()
        store.ingest(numbered(1))
        scan = read(ROOT, fs=fs).scan(LOGS)
        first = scan.to_table()
        store.ingest(numbered(2))
        store.seal()
        assert scan.to_table() == first
        assert first.num_rows * 3 == read(ROOT, fs=fs).scan(LOGS).to_table().num_rows * 2


def test_the_default_settings_drop_no_bundles():
    defaults = Settings()
    limits = ("size_cap_bytes", "segments_max", "max_age_s", "cold_max_age_s", "orphan_age_s")
    assert [getattr(defaults, name) for name in limits] == [None] * len(limits)
    assert defaults.size_cap_policy == "backpressure"


def test_fingerprints_differ_by_everything_that_distinguishes_schemas():
    """Names, order, types with units and zones, nullability and metadata, at every depth."""
    a, b = pa.field("a", pa.int64()), pa.field("b", pa.utf8())
    nested = [
        pa.struct([a, b]), pa.struct([b, a]), pa.struct([a.with_nullable(False), b]),
        pa.struct([a.with_metadata({"k": "v"}), b]), pa.list_(a), pa.list_(a.with_name("c")), pa.large_list(a),
    ]  # fmt: skip
    times = [pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("ns", "Europe/Berlin")]
    schemas = [
        pa.schema([a, b]), pa.schema([b, a]), pa.schema([a]), pa.schema([a.with_name("b"), b.with_name("a")]),
        pa.schema([a, b], metadata={"k": "v"}), pa.schema([a.with_metadata({"k": "v"}), b]),
        pa.schema([a.with_nullable(False), b]),
        *(pa.schema([pa.field("a", kind)]) for kind in [*nested, *times]),
        *(pa.schema([pa.field("a", pa.dictionary(pa.int8(), pa.utf8(), ordered))]) for ordered in (False, True)),
    ]  # fmt: skip
    for one, other in itertools.combinations(schemas, 2):
        assert schema_fingerprint(one) != schema_fingerprint(other), (one, other)
