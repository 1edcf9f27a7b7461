"""The wall clock is set back or forward: objects and uploaded files expire in time, and no lease ends early."""

from __future__ import annotations

import pytest
from cold_rig import Rig, append, expected, read, settings

from quiver.errors import DirectoryInUseError, MetadataUnavailableError
from quiver.metadata import Watch, acquire
from quiver.metadata.ownership import Ownership
from quiver.topics.settings import ObjectRetention

DAYS_S = 2 * 86_400
STEPS_S = pytest.mark.parametrize("step_s", [-DAYS_S, DAYS_S])


@STEPS_S
def test_objects_expire_in_time_despite_clock_steps(step_s: int) -> None:
    """`retention_time_minutes` of objects is measured with the monotonic clock."""
    rig = Rig(chosen=settings(retention=ObjectRetention(retention_time_minutes=60)))
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.tier.maintain()
        made = len(rig.keys())
        assert made > 1
        rig.clock.step_wall(step_s)
        rig.tier.maintain()
        rig.clock.advance(59 * 60)
        rig.tier.maintain()
        assert len(rig.keys()) == made
        rig.clock.advance(2 * 60)
        rig.tier.maintain()
        assert len(rig.keys()) == 1


@STEPS_S
def test_uploaded_files_expire_in_time_despite_clock_steps(step_s: int) -> None:
    """They stay for `retention_time_minutes`."""
    rig = Rig(chosen=settings(keep_minutes=10))
    with rig.opened() as log:
        append(log, 20)
        log.flush()
        rig.tier.maintain()
        rig.clock.step_wall(step_s)
        rig.tier.maintain()
        assert log._engine.wal.start_offset == 0
        rig.clock.advance(601)
        rig.tier.maintain()
        assert log._engine.wal.start_offset > 0
        assert read(log) == expected(20)


@STEPS_S
def test_leases_end_in_time_despite_clock_steps(step_s: int) -> None:
    """A silent owner under observation loses its topic after one lease, neither at a step nor days later."""
    rig, watch = Rig(), Watch()

    def second() -> Ownership:
        return acquire(rig.facts, "owner", owner="two", ttl_s=30.0, clock=rig.clock, watch=watch)

    first = acquire(rig.facts, "owner", owner="one", ttl_s=30.0, clock=rig.clock)
    with pytest.raises(DirectoryInUseError):
        second()
    rig.clock.step_wall(step_s)
    first.check()
    with pytest.raises(DirectoryInUseError):
        second()
    rig.clock.advance(30)
    assert second().epoch == 2
    with pytest.raises(MetadataUnavailableError):
        first.check()
