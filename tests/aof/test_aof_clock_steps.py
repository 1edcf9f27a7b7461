"""The wall clock is set back or forward: segments are sealed and expire in time, and record times never decrease."""

from __future__ import annotations

import pytest
from aof_as_log import ROOT, payloads, segment_files, tiny

from quiver.aof import AofManager, Retention, TierConfig
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])
SEAL_S = 1
COLD = "/cold"
HOUR = Retention("time", ttl_s=3600, action="expire")


def opened(fs: CrashFileSystem, clock: ManualClock, **config: object) -> AofManager:
    return AofManager.open(ROOT, tiny(**config), fs=fs, clock=clock, background=False)


def seal(manager: AofManager, clock: ManualClock, payload: bytes) -> None:
    """Append a record in its own segment."""
    manager.log("orders").append_record(payload)
    manager.maintain()
    clock.advance(SEAL_S)
    manager.maintain()


@STEPS_S
@pytest.mark.parametrize("tiers", [None, TierConfig(objects=COLD)])
def test_records_expire_by_their_real_age(step_s: int, tiers: TierConfig | None) -> None:
    """Records stay for `ttl_s` and are then removed."""
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    fs.make_dirs(COLD)
    with opened(fs, clock, max_segment_age_s=SEAL_S, retention=HOUR, tiers=tiers) as manager:
        log = manager.log("orders")
        for payload in (b"a", b"b"):
            seal(manager, clock, payload)
        clock.step_wall(step_s)
        seal(manager, clock, b"c")
        clock.advance(3500)
        manager.maintain()
        assert payloads(log) == [b"a", b"b", b"c"]
        clock.advance(200)
        manager.maintain()
        manager.maintain()
        assert payloads(log) == []


def test_after_a_step_back_segments_from_the_future_expire() -> None:
    """They age with the process: they expire in time, and so do later ones."""
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    with opened(fs, clock, max_segment_age_s=SEAL_S, retention=HOUR) as manager:
        seal(manager, clock, b"a")
    clock.step_wall(-DAYS_S)
    with opened(fs, clock, max_segment_age_s=SEAL_S, retention=HOUR) as manager:
        manager.maintain()
        seal(manager, clock, b"b")
        assert payloads(manager.log("orders")) == [b"a", b"b"]
        clock.advance(3700)
        manager.maintain()
        manager.maintain()
        assert payloads(manager.log("orders")) == []


@STEPS_S
def test_the_active_segment_is_sealed_in_time(step_s: int) -> None:
    """After `max_segment_age_s` at the latest; an early seal loses nothing."""
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    with opened(fs, clock, max_segment_age_s=60) as manager:
        log = manager.log("orders")
        log.append_record(b"a")
        manager.maintain()
        clock.step_wall(step_s)
        clock.advance(61)
        manager._workers.run_pending()
        assert [one.state for one in log.segment_snapshot()] == ["sealed"]
        log.append_record(b"b")
        assert payloads(log) == [b"a", b"b"]
    assert len(segment_files(fs)) == 2


@STEPS_S
def test_record_times_never_decrease(step_s: int) -> None:
    """Even across a restart."""
    clock = ManualClock()
    fs = CrashFileSystem(clock=clock)
    with opened(fs, clock) as manager:
        manager.log("orders").append_record(b"a")
    clock.step_wall(step_s)
    with opened(fs, clock) as manager:
        log = manager.log("orders")
        log.append_record(b"b")
        times = [record.timestamp for record in log.open_reader()]
        assert times == sorted(times)
        assert len(times) == 2
