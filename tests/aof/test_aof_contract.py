"""The log keeps the contract that every append log of this house keeps."""

from __future__ import annotations

import pytest
from aof_as_log import AofAsLog, tail_of, tiny

from quiver.aof import TierConfig
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.log_contract import AppendLogContract

pytestmark = pytest.mark.usefixtures("quiet")


class TestAof(AppendLogContract):
    """Segments fill up and are sealed in passing."""

    def open_log(self, fs: FileSystem) -> AofAsLog:
        return AofAsLog(fs, rolls=False)

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        return tail_of(fs)


class TestAofThatRollsOver(AppendLogContract):
    """Every few records the segment is sealed on request, and there are no spares made ahead."""

    def open_log(self, fs: FileSystem) -> AofAsLog:
        return AofAsLog(fs, rolls=True, config=tiny(preallocate_segments=0))

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        return tail_of(fs)


@pytest.mark.slow
class TestAofWithTiers(AppendLogContract):
    """Every sealed segment but the newest is packed and leaves in passing; reading brings it back."""

    def open_log(self, fs: FileSystem) -> AofAsLog:
        return AofAsLog(fs, rolls=True, config=tiny(tiers=TierConfig(tier0_max_bytes=0)))

    def tail(self, fs: FileSystem) -> tuple[str, int]:
        return tail_of(fs)
