"""Writes are refused before the disk is full, with an error that explains why."""

from __future__ import annotations

import errno

import pytest

from quiver.primitives.disk.disk_full import SMALL_FILES_BYTES, require_room
from quiver.testing.crashfs import CrashFileSystem


class Disk(CrashFileSystem):
    """A disk with this many free bytes."""

    free = 0

    def free_bytes(self, path):
        return self.free


def test_the_error_includes_the_bytes_that_stay_free():
    """Without them it was confusing: 12 MB were left, too few for 64 KiB."""
    disk = Disk()
    disk.free = 12 << 20
    with pytest.raises(
        OSError, match="12582912 bytes are left, too few for 65536 bytes and 16777216 that stay free"
    ) as full:
        require_room(disk, "/", 65_536, room_left=16 << 20)
    assert full.value.errno == errno.ENOSPC
    require_room(disk, "/", (12 << 20) - SMALL_FILES_BYTES)
    disk.free = 0  # unknown
    require_room(disk, "/", 1 << 40)
