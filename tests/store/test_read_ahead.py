"""Bundles that are requested one by one are read in sequence, and their order changes nothing in what is returned."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.bundle import Bundle, BundleRef
from quiver.errors import BundleUnavailableError
from quiver.settings import Settings
from quiver.store.catalog import PLACES_MAX, READ_AHEAD_MAX
from quiver.store.opening import open_store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
COUNT = READ_AHEAD_MAX + 40
TWO_SLOTS_EVERY = 50


def _bundle(segment, index):
    slots = {30: pa.record_batch({"n": [segment * COUNT + index]})}
    if index % TWO_SLOTS_EVERY == TWO_SLOTS_EVERY - 1:
        slots[31] = pa.record_batch({"other": [index]})
    return Bundle(slots)


def _number(bundle):
    return bundle[30]["n"][0].as_py()


@pytest.fixture(scope="module")
def store():
    clock = ManualClock()
    with open_store(ROOT, Settings(), fs=CrashFileSystem(), clock=clock, background=False) as store:
        for segment in range(2):
            for index in range(COUNT):
                store.ingest(_bundle(segment, index))
                clock.advance(1.0)
            store.seal()
        yield store


def _catalog(store):
    return store.internals.catalog


def test_in_sequence_every_bundle_is_what_was_ingested(store):
    """Across the end of the read-ahead, bundles with two slots, and the end of a segment."""
    for segment in range(2):
        bundles = [_catalog(store).bundle(BundleRef(segment, index)) for index in range(COUNT)]
        assert bundles == [_bundle(segment, index) for index in range(COUNT)]
        times = [bundle.ingested_at_ns for bundle in bundles]
        assert times == sorted(set(times))


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, COUNT - 1), st.integers(1, 5), st.booleans()), max_size=40
    )
)
def test_in_any_order_every_bundle_is_what_was_ingested(store, steps):
    for segment, first, count, in_run in steps:
        wanted = range(first, min(first + count, COUNT))
        if in_run:
            found = list(_catalog(store).bundles(segment, wanted.start, wanted.stop))
        else:
            found = [_catalog(store).bundle(BundleRef(segment, index)) for index in wanted]
        assert [_number(bundle) for bundle in found] == [segment * COUNT + index for index in wanted]


def test_the_number_of_places_is_limited(store):
    catalog = _catalog(store)
    for index in range(0, COUNT, 3):
        catalog.bundle(BundleRef(0, index))
        assert len(catalog._latest[2]) <= PLACES_MAX


@pytest.mark.parametrize("index", [COUNT, COUNT + 1, -1])
def test_a_bundle_that_does_not_exist_is_an_error_after_the_last_one(store, index):
    catalog = _catalog(store)
    assert _number(catalog.bundle(BundleRef(0, COUNT - 1))) == COUNT - 1
    for _ in range(2):
        with pytest.raises(BundleUnavailableError):
            catalog.bundle(BundleRef(0, index))


def test_after_a_failed_read_the_same_bundle_can_be_requested_again(store):
    catalog = _catalog(store)
    _number(catalog.bundle(BundleRef(0, 4)))

    def fail():
        raise OSError("the disk does not answer")
        yield

    catalog._latest[2][5] = fail()
    with pytest.raises(OSError, match="does not answer"):
        catalog.bundle(BundleRef(0, 5))
    assert _number(catalog.bundle(BundleRef(0, 5))) == 5
