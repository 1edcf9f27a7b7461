"""The log fulfills the contract of all append logs."""

from __future__ import annotations

import pytest
from aof_as_log import AofAsLog, tail_of, tiny

from quiver.aof import TierConfig
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.log_contract import AppendLogContract

pytestmark = pytest.mark.usefixtures("quiet")


class TestAof(AppendLogContract):
    """Segments fill up and are sealed automatically."""

    seeds = (0, 2)

    def open_log(self, fs: FileSystem) -> AofAsLog:
        return AofAsLog(fs, rolls=False)

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        return tail_of(fs)


class TestAofThatRollsOver(AppendLogContract):
    """Every few records the segment is sealed on request, and no spares are created ahead."""

    seeds = (0, 2)

    def open_log(self, fs: FileSystem) -> AofAsLog:
        return AofAsLog(fs, rolls=True, config=tiny(preallocate_segments=0))

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        return tail_of(fs)


@pytest.mark.slow
class TestAofWithEveryPowerLoss(TestAof):
    """With all outcomes of a power loss."""

    seeds = AppendLogContract.seeds


@pytest.mark.slow
class TestAofThatRollsOverWithEveryPowerLoss(TestAofThatRollsOver):
    """With all outcomes of a power loss."""

    seeds = AppendLogContract.seeds


@pytest.mark.slow
class TestAofWithTiers(AppendLogContract):
    """Every sealed segment but the newest is packed and evicted automatically; reading hydrates it."""

    def open_log(self, fs: FileSystem) -> AofAsLog:
        return AofAsLog(fs, rolls=True, config=tiny(tiers=TierConfig(tier0_max_bytes=0)))

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        return tail_of(fs)
