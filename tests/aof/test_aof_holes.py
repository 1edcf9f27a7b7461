"""
What was appended later may survive a loss of power that what was appended before it does not: neither is there then.
"""

import logging

import pytest
from aof_as_log import open_manager, payloads, tiny

from quiver.testing.crashfs import CrashFileSystem


@pytest.mark.parametrize("opened", [0, 8, 9, 10])
def test_a_log_never_has_a_hole(opened):
    """Two segments, none of them synced; whatever the disk keeps of them, what is read is the beginning."""
    logging.disable(logging.CRITICAL)
    expected = [b"1", b"2" * 16_200]
    seen = set()
    for seed in range(21):
        files = CrashFileSystem()
        for turn in range(opened + 1):
            manager = open_manager(files, tiny(preallocate_segments=2))
            log = manager.log("orders")
            if turn < opened:
                manager.close()
        for record in expected:
            log.append_record_with_timeout(record, 5)
        lost = files.clone_after_crash(seed)
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
