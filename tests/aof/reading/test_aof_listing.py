"""A listing that is made while segments are created has no hole."""

import pytest
from aof_as_log import ROOT, AofAsLog, open_manager

from quiver.aof.format.names import DURABILITY, POINTER_NAME
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.reader import Reader
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem


class Late:
    """Files whose first listing misses one name, as in a directory that changes meanwhile."""

    def __init__(self, fs, missed):
        self._fs = fs
        self._missed = missed

    def __getattr__(self, name):
        return getattr(self._fs, name)

    def list_dir(self, path):
        missed, self._missed = self._missed, None
        return [name for name in self._fs.list_dir(path) if name != missed]


def test_a_listing_has_no_hole_below_its_last_segment():
    """A reader that continues after the last listed segment has read all segments before it."""
    fs = CrashFileSystem()
    log = AofAsLog(fs, rolls=True)
    for number in range(6):
        log.append(b"%d" % number, durable=True)
        log.upkeep()
    log.close()
    all_names = LogFiles(f"{ROOT}/orders", fs=fs).names()
    assert len(all_names) > 3
    assert LogFiles(f"{ROOT}/orders", fs=Late(fs, str(all_names[1]))).names() == all_names
    assert LogFiles(f"{ROOT}/orders", fs=Late(fs, str(all_names[-1]))).names() == all_names[:-1]


class Between:
    """Files whose writer acts between a reader's access to the pointer and to the durability snapshot."""

    def __init__(self, fs, action):
        self._fs = fs
        self._action = action
        self._looks = 0

    def __getattr__(self, name):
        return getattr(self._fs, name)

    def open_read(self, path):
        self._looks += path.endswith(f"/{POINTER_NAME}") or f"/{DURABILITY}/" in path
        if self._looks == 2 and self._action is not None:
            action, self._action = self._action, None
            action()
        return self._fs.open_read(path)


@pytest.mark.parametrize("how", ["segments", "piece"])
def test_a_segment_sealed_during_the_read_is_durable(how):
    """It moves from the snapshot to the pointer: a reader that finds it in neither would consider its records lost."""
    fs = CrashFileSystem()
    clock = ManualClock()
    with open_manager(fs, clock=clock) as manager:
        log = manager.log("orders")
        log.flush_until(log.append_record(b"first"))

        def go_on():
            log.force_rollover(timeout=5)
            log.flush_until(log.append_record(b"second"))
            clock.advance(5)
            manager.maintain()

        clock.advance(5)
        manager.maintain()
        end = log.snapshot().segments[0].current_size
        seen = LogFiles(f"{ROOT}/orders", fs=Between(fs, go_on))
        if how == "segments":
            assert [one.name.segment_id for one in seen.segment_files() if one.durable > HEADER_BYTES] == [0]
        else:
            assert seen.piece(0, HEADER_BYTES, end, durable_only=True).end == end


def test_the_last_record_becomes_visible_to_other_processes():
    """Also when maintenance ran between its flush and the time at which the snapshot was due."""
    fs = CrashFileSystem()
    clock = ManualClock()
    with open_manager(fs, clock=clock) as manager:
        log = manager.log("orders")
        beside = Reader(LogFiles(f"{ROOT}/orders", fs=fs), 0, durable_only=True)
        for payload in (b"first", b"last"):
            log.flush_until(log.append_record(payload))
            clock.advance(0.5)
            manager.maintain()
        clock.advance(2)
        manager._workers.run_pending()
        assert [record.payload for record in beside] == [b"first", b"last"]
