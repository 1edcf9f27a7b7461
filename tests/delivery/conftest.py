"""Fixtures shared by the tests of delivery."""

import pytest

from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem


@pytest.fixture
def disk(clock: ManualClock) -> CrashFileSystem:
    """A disk with the directory of a store."""
    disk = CrashFileSystem(clock=clock)
    disk.make_dirs("/store")
    return disk
