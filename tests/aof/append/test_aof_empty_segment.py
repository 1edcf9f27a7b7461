"""A segment without records passes its id to the next one, and is removed. A crash in between leaves both."""

from __future__ import annotations

import pytest
from aof_as_log import ROOT, payloads, segment_files, tiny

from quiver.aof import AofManager
from quiver.errors import InvalidRecordError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")


def opened(fs, config, clock) -> AofManager:
    """Open without threads: files are removed only on request."""
    clock.advance(5)
    return AofManager.open(ROOT, config, fs=fs, clock=clock, background=False)


def test_acknowledged_records_win_over_an_empty_segment_of_the_same_id():
    """
    1. A refused append left only a header, and the process died. 2. The next record is larger than that segment, so it
    is stored in another segment with the same id, and synced. 3. The process dies before the first segment is removed.
    """
    clock = ManualClock()
    fs = CrashFileSystem()
    with pytest.raises(InvalidRecordError):
        opened(fs, tiny(), clock).log("orders").append_record(b"x", ext_id=-1)
    fs = fs.clone_after_kill()
    larger = tiny(segment_target_bytes=128 * 1024, segment_max_bytes=128 * 1024)
    log = opened(fs, larger, clock).log("orders")
    record = b"acknowledged" * 5_000
    log.flush_until(log.append_record(record))
    assert len(segment_files(fs)) == 2
    for disk in (fs.clone_after_kill(), fs.clone_after_crash(0), fs.clone_after_crash(3)):
        with opened(disk, larger, clock) as manager:
            assert payloads(manager.log("orders")) == [record]
            manager.log("orders").append_record_with_timeout(b"more", 5)
        with opened(disk, larger, clock) as manager:
            assert payloads(manager.log("orders")) == [record, b"more"]
