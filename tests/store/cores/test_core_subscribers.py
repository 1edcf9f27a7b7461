"""Subscribers of several cores by name: their lag, orphans, and rewinding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_rig import Rig, fill, numbered

from quiver import BundleRef, StoreClosedError, UnknownSubscriberError, UsageError
from store_rig import drain


def test_the_lag_of_a_subscriber_is_the_sum_over_the_cores(rig: Rig) -> None:
    """Bundles and bytes are added, the age is the longest, and a store is drained when all of its cores are."""
    with rig.open() as store:
        store.register("one", start="earliest")
        store.register("two", start="earliest")
        fill(store, 0, 3)
        rig.clock.advance(5.0)
        fill(store, 2, 4)
        one, two = store.subscribers()
        assert (one.id, two.id) == ("one", "two")
        assert one.pending_bundles == store.lag("one").pending_bundles == 7
        parts = [part.subscribers()[0] for part in store.open_stores().values()]
        assert one.lag_bytes == sum(part.lag_bytes for part in parts) > 0
        assert one.lag_seconds == max(part.lag_seconds for part in parts) >= 5.0
        assert not store.all_subscribers_drained()
        drain(store, "one")
        assert not store.all_subscribers_drained()
        drain(store, "two")
        assert store.all_subscribers_drained()
        with pytest.raises(UnknownSubscriberError, match="'nobody' in any core"):
            store.lag("nobody")
    for ask in (store.subscribers, store.orphans, store.all_subscribers_drained, lambda: store.drop_orphan("one")):
        with pytest.raises(StoreClosedError):
            ask()


def test_an_orphan_of_all_cores_is_listed_once_and_dropped(rig: Rig) -> None:
    """After the drop it holds no segment in any core."""
    with rig.open() as store:
        store.register("here", start="earliest")
        store.register("gone", start="earliest")
        fill(store, 0, 3)
        fill(store, 1, 2)
    with rig.open() as store:
        store.register("here")
        assert store.orphans() == []
        with pytest.raises(UsageError, match="registration phase"):
            store.drop_orphan("gone")
        store.activate()
        (orphan,) = store.orphans()
        assert (orphan.id, orphan.pending_bundles, orphan.is_orphan) == ("gone", 5, True)
        with pytest.raises(UsageError, match="no orphan"):
            store.drop_orphan("here")
        with pytest.raises(UnknownSubscriberError):
            store.drop_orphan("nobody")
        assert store.drop_orphan("gone") == 5
        assert store.orphans() == []
        assert [status.id for status in store.subscribers()] == ["here"]
        assert len(drain(store, "here")) == 5


def test_a_rewind_by_name_applies_to_every_core(rig: Rig) -> None:
    """A position in one core is refused before any core is rewound."""
    with rig.open() as store:
        fill(store, 0, 3)
        fill(store, 1, 2)
        assert len(drain(store, "one")) == 5
        with pytest.raises(UsageError, match="is a place in one core"):
            store.rewind("one", BundleRef(0, 0))
        with pytest.raises(UnknownSubscriberError):
            store.rewind("nobody", "earliest")
        back = store.rewind("one", "earliest")
        assert sum(one.bundles for one in back.values()) == 5
        assert len(drain(store, "one")) == 5


def test_every_core_delivers_before_its_segment_is_written(rig: Rig) -> None:
    """Segments that are resolved in all cores have no files, and after a crash nothing is delivered again."""
    rig.settings = replace(rig.settings, deliver_unsealed=True)
    with rig.open() as store:
        subscriber = store.register("one", start="earliest")
        for number in range(6):
            store.ingest(numbered(number))
        assert drain(store, "one") == [*range(6)]
        store.maintain()
        crashed = Rig(rig.fs.clone_after_kill(), rig.clock, deliver_unsealed=True)
        rig.clock.advance(60.0)
        store.maintain()
        assert [rig.segments(core) for core in range(3)] == [[], [], []]
        assert store.stats()["open_bundles"] == 0
        assert subscriber.next_bundle(timeout=0) is None
    with crashed.open() as store:
        assert drain(store, "one") == []
        store.ingest(numbered(6))
        assert drain(store, "one") == [6]
