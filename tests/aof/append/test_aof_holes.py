"""A power loss may keep later records but lose earlier ones: then both are removed."""

import logging

import pytest
from aof_as_log import open_manager, payloads, segment_files, tiny

from quiver.testing.crashfs import CrashFileSystem


@pytest.mark.parametrize("opened", [0, 8, 9, 10])
def test_a_log_never_has_a_hole(opened):
    """Two segments are unsynced: whichever part of them the disk keeps, the log is a prefix."""
    logging.disable(logging.CRITICAL)
    expected = [b"1", b"2" * 16_200]
    seen = set()
    for seed in range(21):
        fs = CrashFileSystem()
        for turn in range(opened + 1):
            manager = open_manager(fs, tiny(preallocate_segments=2))
            log = manager.log("orders")
            if turn < opened:
                manager.close()
        for record in expected:
            log.append_record_with_timeout(record, 5)
        lost = fs.clone_after_crash(seed)
        manager.close()
        again = open_manager(lost, tiny(preallocate_segments=2))
        found = payloads(again.log("orders"))
        assert found == expected[: len(found)]
        again.log("orders").append_record_with_timeout(b"more", 5)
        assert payloads(again.log("orders")) == [*found, b"more"]
        again.close()
        seen.add(len(found))
    logging.disable(logging.NOTSET)
    assert len(seen) > 1


@pytest.mark.usefixtures("quiet")
def test_damage_to_a_sealed_segment_is_not_considered_a_hole():
    """Its header is damaged, and a kill came before the snapshot recorded the first, confirmed sync after it."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for number in range(3):
            log.append_record(b"%d" % number)
            log.force_rollover(timeout=5)
        last = log.append_record(b"confirmed")
        log.flush_until(last)
        killed = fs.clone_after_kill()
    path = segment_files(killed)[2]
    file = killed.open_write(path)
    file.pwrite(b"\xff", 1)
    file.close()
    with open_manager(killed) as manager:
        log = manager.log("orders")
        assert log.read_record(last).payload == b"confirmed"
        assert log.append_record(b"more") > last
