"""Former names of methods and arguments still work, with a `DeprecationWarning`."""

import pytest

from quiver.aof import AofConfig, AofManager, replay_upstream
from quiver.testing.crashfs import CrashFileSystem


@pytest.fixture
def log():
    with AofManager.open("/aof", AofConfig(), fs=CrashFileSystem(), background=False) as manager:
        yield manager.log("orders")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("append_record_with_timeout", lambda log: log.append_record_with_timeout(b"x", timeout_s=1)),
        ("append_records_with_timeout", lambda log: log.append_records_with_timeout([b"x"], timeout_s=1)),
        ("wait_for_writable_segment", lambda log: log.wait_for_writable_segment(timeout_s=1)),
        ("flush_until", lambda log: log.flush_until(log.append_record(b"x"), timeout_s=1)),
        ("flush", lambda log: log.flush(timeout_s=1)),
        ("force_rollover", lambda log: log.force_rollover(timeout_s=1)),
        ("next", lambda log: log.tail_follower().next(timeout_s=0)),
        ("next_sealed_segment", lambda log: log.tail_follower().next_sealed_segment(timeout_s=0)),
        ("replay_upstream", lambda log: replay_upstream(log, lambda _: [(1, b"x")], timeout_s=1)),
    ],
)
def test_timeout_s_is_accepted_as_timeout(log, name, call):
    with pytest.warns(DeprecationWarning, match=rf"{name}\(timeout_s=\) is now timeout=") as warned:
        call(log)
    assert warned[0].filename == __file__


def test_adopt_calls_import_staged(log):
    with pytest.warns(DeprecationWarning, match="Aof.adopt is now Aof.import_staged"):
        assert log.adopt() == 0
