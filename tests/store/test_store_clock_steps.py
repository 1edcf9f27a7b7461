"""
A wall clock that is set back or forward while a store runs, and while it does not. For `max_age`,
see `test_limits.py`.
"""

from __future__ import annotations

import pytest

from quiver import Settings, Store
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import acknowledge, numbered, open_manual

pytestmark = pytest.mark.usefixtures("quiet")

DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])


def opened(
    fs: CrashFileSystem, clock: ManualClock, observer: InMemoryObserver | None = None, **settings: object
) -> Store:
    chosen = Settings(**{"delete_grace_s": 0.0, **settings})
    return open_manual(fs, settings=chosen, clock=clock, observer=observer)


@pytest.fixture
def fs(clock: ManualClock) -> CrashFileSystem:
    return CrashFileSystem(clock=clock)


@STEPS_S
def test_clock_steps_do_not_affect_claims_and_deferrals(fs: CrashFileSystem, clock: ManualClock, step_s: int) -> None:
    """A deferred bundle is delivered after its delay; a claimed one stays claimed; both exactly once."""
    with opened(fs, clock) as store:
        subscriber = store.register("s", start="earliest")
        for number in range(3):
            store.ingest(numbered(number))
        store.seal()
        claimed, deferred = subscriber.next_bundle(timeout=0), subscriber.next_bundle(timeout=0)
        deferred.nack(10)
        clock.step_wall(step_s)
        assert acknowledge(subscriber) == [2]
        clock.advance(10)
        assert acknowledge(subscriber) == [1]
        clock.advance(DAYS_S)
        assert acknowledge(subscriber) == []
        claimed.ack()
        store.maintain()
        assert len(store.internals.catalog) == 0


@STEPS_S
def test_clock_steps_do_not_affect_sealing_by_age(fs: CrashFileSystem, clock: ManualClock, step_s: int) -> None:
    """The open segment is sealed after `segment.max_open_duration`: not at the step, and not days later."""
    with opened(fs, clock, segment_open_s_max=60.0) as store:
        store.ingest(numbered(0))
        clock.step_wall(step_s)
        store.maintain()
        assert len(store.internals.catalog) == 0
        clock.advance(60)
        store.maintain()
        assert len(store.internals.catalog) == 1


@STEPS_S
def test_clock_steps_between_restarts_lose_nothing(fs: CrashFileSystem, clock: ManualClock, step_s: int) -> None:
    """Everything is delivered once, in the order of ingest, from segments and from the log."""
    with opened(fs, clock) as store:
        store.register("s", start="earliest")
        store.ingest(numbered(0))
        store.seal()
        store.ingest(numbered(1))
    clock.step_wall(step_s)
    with opened(fs, clock) as store:
        store.ingest(numbered(2))
        store.seal()
        store.maintain()
    clock.step_wall(-2 * step_s)
    with opened(fs, clock) as store:
        assert acknowledge(store.register("s")) == [0, 1, 2]
        store.maintain()
        assert len(store.internals.catalog) == 0


def test_after_a_step_back_segments_expire_by_the_age_of_the_process(fs: CrashFileSystem, clock: ManualClock) -> None:
    """With `max_age`, segments from the future are as old as the process."""
    with opened(fs, clock, max_age_s=3600.0) as store:
        store.register("s", start="earliest")
        store.ingest(numbered(0))
        store.seal()
    clock.step_wall(-DAYS_S)
    with opened(fs, clock, max_age_s=3600.0) as store:
        clock.advance(3500)
        store.maintain()
        assert len(store.internals.catalog) == 1
        clock.advance(200)
        store.maintain()
        assert len(store.internals.catalog) == 0


def test_after_a_step_forward_segments_expire_and_are_counted(fs: CrashFileSystem, clock: ManualClock) -> None:
    """The store cannot distinguish it from elapsed time."""
    observer = InMemoryObserver()
    with opened(fs, clock, max_age_s=3600.0) as store:
        store.register("s", start="earliest")
        store.ingest(numbered(0))
        store.seal()
    clock.step_wall(DAYS_S)
    with opened(fs, clock, observer=observer, max_age_s=3600.0) as store:
        store.maintain()
        assert len(store.internals.catalog) == 0
        assert observer.total("quiver.subscriber.dropped_bundles_total") == 1
        store.ingest(numbered(1))
        store.seal()
        store.maintain()
        assert acknowledge(store.register("s")) == [1]
