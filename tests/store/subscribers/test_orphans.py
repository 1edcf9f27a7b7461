"""Orphans: subscribers that were not registered in the start phase are listed, and dropped on request or by age."""

import pytest
from registry_rig import ROOT, Bench, crash_states, names

from quiver.errors import DirectoryInUseError, StoreClosedError, UnknownSubscriberError, UsageError
from quiver.primitives.disk import lock as lock_file
from quiver.store.subscribers import subscribers
from quiver.store.subscribers.progress_store import SubscriberFile, load_progress
from quiver.store.subscribers.state import SegmentRef

DAY_S = 86_400.0
COUNTED = "quiver.subscriber.dropped_bundles_total"


def _segments():
    return [SegmentRef(0, 4, 9 * 10**9, 5 * 10**9, 1000), SegmentRef(1, 1, None, None, 0)]


def _opened(**options):
    """`gone` and `here` have progress; only `here` is registered again."""
    bench = Bench(segments=_segments())
    bench.registry.register("gone", "earliest").next_bundle(timeout=0).ack()
    bench.registry.register("here", "earliest")
    bench.registry.close()
    again = Bench(bench.disk, segments=_segments(), **options)
    again.registry.register("here")
    return again


def test_orphans_exist_only_after_the_registration_phase():
    bench = _opened()
    assert bench.registry.orphans() == []
    with pytest.raises(UsageError, match="activate"):
        bench.registry.drop_orphan("gone")
    bench.registry.activate()
    assert [orphan.id for orphan in bench.registry.orphans()] == ["gone"]


def test_the_first_delivery_ends_the_registration_phase():
    bench = _opened()
    bench.registry.register("here").next_bundle(timeout=0)
    assert [orphan.id for orphan in bench.registry.orphans()] == ["gone"]


def test_each_orphan_is_listed_with_age_and_backlog():
    bench = _opened()
    bench.registry.activate()
    bench.clock.advance(90)
    bench.clock.set_wall_ns(25 * 10**9)
    (orphan,) = bench.registry.orphans()
    assert (orphan.pending_bundles, orphan.lag_bytes, orphan.lag_seconds) == (4, 750, 20.0)
    assert orphan.idle_seconds == 90
    reported = next(event for event in bench.observer.reported if event["name"] == "quiver.subscriber.orphan")
    assert (reported["subscriber"], reported["holds_bundles"], reported["holds_bytes"]) == ("gone", 4, 750)


def test_a_dropped_orphan_keeps_no_segments():
    bench = _opened(audit_bytes_max=100_000)
    bench.registry.activate()
    assert not bench.registry.all_subscribers_drained()
    assert bench.registry.drop_orphan("gone") == 4
    assert bench.observer.counts[COUNTED, (("reason", "orphan"), ("subscriber", "gone"))] == 4
    bench.ack_all(bench.registry.register("here"))
    bench.registry.save()
    assert bench.registry.complete_segments() == [0, 1]
    assert bench.registry.all_subscribers_drained()
    for seed in range(8):
        assert load_progress(bench.disk.clone_after_crash(seed), ROOT, "gone") is None


def test_a_registered_subscriber_is_not_an_orphan():
    bench = _opened()
    bench.registry.activate()
    with pytest.raises(UsageError, match="unregister"):
        bench.registry.drop_orphan("here")
    with pytest.raises(UnknownSubscriberError):
        bench.registry.drop_orphan("nobody")
    bench.registry.register("gone")
    with pytest.raises(UsageError, match="unregister"):
        bench.registry.drop_orphan("gone")
    bench.registry.close()
    with pytest.raises(StoreClosedError):
        bench.registry.drop_orphan("gone")


def test_a_subscriber_of_another_process_is_neither_dropped_nor_listed(monkeypatch):
    """On systems that report locks it is not listed; on no system is it dropped."""
    bench = _opened(orphan_age_s=DAY_S)
    with SubscriberFile(bench.disk, ROOT, "gone"):
        bench.registry.activate()
        with pytest.raises(DirectoryInUseError):
            bench.registry.drop_orphan("gone")
        bench.clock.advance(2 * DAY_S)
        bench.registry.refresh()
        assert [orphan.id for orphan in bench.registry.orphans()] == ["gone"]
        monkeypatch.setattr(subscribers, "is_held", lambda fs, path: path.endswith("gone.lock"))
        assert bench.registry.orphans() == []
    # The lock showed that it was active: its age begins then.
    bench.clock.advance(DAY_S - 1)
    bench.registry.refresh()
    assert load_progress(bench.disk, ROOT, "gone") is not None
    bench.clock.advance(1)
    bench.registry.refresh()
    assert load_progress(bench.disk, ROOT, "gone") is None
    assert callable(lock_file.is_held)


def test_an_orphan_is_dropped_exactly_at_its_maximum_age():
    bench = _opened(orphan_age_s=DAY_S)
    bench.clock.advance(5 * DAY_S)  # the registration phase may take its time
    bench.registry.refresh()
    bench.registry.activate()
    bench.clock.advance(DAY_S - 1)
    bench.registry.refresh()
    assert [orphan.id for orphan in bench.registry.orphans()] == ["gone"]
    bench.clock.advance(1)
    bench.registry.refresh()
    assert bench.registry.orphans() == []
    assert bench.observer.total(COUNTED) == 4
    assert [status.id for status in bench.registry.statuses()] == ["here"]


def test_a_stepped_clock_drops_no_orphan():
    bench = _opened(orphan_age_s=DAY_S)
    bench.registry.activate()
    for wall_ns in (2**62, 0, 10**18):
        bench.clock.set_wall_ns(wall_ns)
        bench.registry.refresh()
        (orphan,) = bench.registry.orphans()
        assert orphan.lag_seconds >= 0
        assert orphan.progress_age_seconds >= 0


def test_a_subscriber_with_changing_progress_is_active():
    """Its process takes the lock only now and then."""
    bench = _opened(orphan_age_s=DAY_S)
    bench.registry.activate()
    bench.clock.advance(DAY_S - 1)
    with SubscriberFile(bench.disk, ROOT, "gone") as elsewhere:
        elsewhere.know(_segments())
        elsewhere.ack_through(0, 3)
        elsewhere.save()
    bench.registry.refresh()
    bench.clock.advance(DAY_S - 1)
    bench.registry.refresh()
    assert [orphan.pending_bundles for orphan in bench.registry.orphans()] == [2]


def test_without_a_maximum_age_orphans_are_kept():
    bench = _opened()
    bench.registry.activate()
    bench.clock.advance(10_000 * DAY_S)
    bench.registry.refresh()
    assert [orphan.id for orphan in bench.registry.orphans()] == ["gone"]


def test_a_power_loss_during_a_drop_leaves_all_or_none_of_an_orphan():
    """
    The rest can be dropped again; a new subscriber of that name starts without progress, even if a
    backup was left.
    """
    bench = _opened(progress_damage="backup")
    bench.registry.activate()
    bench.registry.rewind("gone", "earliest")
    assert bench.disk.exists(f"{ROOT}/quiver.sub.gone.bak")
    for state in crash_states(bench.disk, lambda: bench.registry.drop_orphan("gone")):
        again = Bench(state, segments=_segments(), progress_damage="backup")
        assert [status.id for status in again.registry.statuses()] in (["gone", "here"], ["here"])
        again.registry.activate()
        if "gone" in [orphan.id for orphan in again.registry.orphans()]:
            again.registry.drop_orphan("gone")
        new = again.registry.register("gone", 1)
        again.registry.close()
        again.flip("quiver.sub.gone")
        last = Bench(state, segments=_segments(), progress_damage="backup")
        assert names(last.refs(last.registry.register("gone"))) == ["0:0", "0:1", "0:2", "0:3", "1:0"]
        assert new.id == "gone"
