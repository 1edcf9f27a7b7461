"""The status that a writer publishes: its owner and its age; publishing it never breaks the log."""

from __future__ import annotations

import errno
import json
import os

import pytest
from aof_as_log import ROOT, open_manager, payloads, tiny
from typer.testing import CliRunner

from quiver.aof import AofManager, FlushConfig
from quiver.aof.format.describe import AOF_FILES
from quiver.aof.format.status import STATUS_BYTES_MAX, decode_status
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.status import read_status
from quiver.cli.main import build_app
from quiver.errors import WouldBlockError
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Frame
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("quiet")

PATH = f"{ROOT}/orders/aof.status"


def dumped(root) -> dict:
    done = CliRunner().invoke(build_app(), ["aof", "dump", "--root", str(root)])
    assert done.exit_code == 0, done.output
    return json.loads(done.output.splitlines()[-1])["logs"][0]["writer"] | {"text": " ".join(done.output.split())}


def test_dump_shows_the_counts_of_a_live_writer(tmp_path):
    """Blocked appends, flushes and queues, as the writer published them, with age and owner."""
    with AofManager.open(str(tmp_path)) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 100)
        log.flush()
        log._context.run_status()
        result = dumped(tmp_path)
        assert (result["state"], result["held"], result["problem"]) == ("open", True, "")
        assert result["writer"] == result["holder"] == f"pid {os.getpid()} quiver aof"
        assert result["age_s"] >= 0
        assert result["figures"]["appended_records"] == 1
        assert result["figures"]["flush"]["synchronous_flushes"] == 1
        assert result["figures"]["queues"] == {"seal": 0}
        assert "the writer has the log open" in result["text"]
        assert "synchronous_flushes" in result["text"]
    result = dumped(tmp_path)
    assert (result["state"], result["held"]) == ("closed", False)
    assert "closed the log" in result["meaning"]
    assert "intact" in CliRunner().invoke(build_app(), ["aof", "verify", str(tmp_path)]).output


def test_the_status_of_a_dead_writer_is_shown_as_dead(tmp_path):
    """Its last status is shown with its age. The next writer starts without a status."""
    with AofManager.open(str(tmp_path)) as manager:
        manager.log("orders").append_record(b"x")
        manager.log("orders")._context.run_status()
        kept = (tmp_path / "orders" / "aof.status").read_bytes()
    (tmp_path / "orders" / "aof.status").write_bytes(kept)
    assert "no process on this machine has the log open" in dumped(tmp_path)["meaning"]
    lock = hold(REAL_FILES, str(tmp_path / "aof.lock"), owner="another program")
    result = dumped(tmp_path)
    assert f"stale: pid {os.getpid()} another program has the log open now" in result["meaning"]
    assert result["figures"]["appended_records"] == 1
    lock.release()
    with AofManager.open(str(tmp_path), background=False) as manager:
        manager.log("orders")
        result = dumped(tmp_path)
        assert result["figures"] is None
        assert result["meaning"] == f"no status of a writer; pid {os.getpid()} quiver aof has the log open"
    assert dumped(tmp_path)["meaning"] == "no status of a writer"


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 1000, b"{}", b"[" * 60_000, b"9" * 5000, b"x" * (STATUS_BYTES_MAX + 1)],
    ids=["empty", "zeros", "another object", "deep", "digits", "too large"],
)
def test_a_damaged_status_is_ignored_with_a_message(tmp_path, data):
    """No data depends on it: no command fails, and the log is valid."""
    with AofManager.open(str(tmp_path), background=False) as manager:
        manager.log("orders").append_record(b"x")
    (tmp_path / "orders" / "aof.status").write_bytes(data)
    result = dumped(tmp_path)
    assert result["figures"] is None
    assert result["meaning"].startswith("the status file is ignored: not a writer's status")
    checked = check_log_directory(REAL_FILES, "orders", str(tmp_path / "orders"), read_records=True)
    assert checked.is_intact
    assert [one.kind for one in checked.findings] == ["left over"]
    assert not AOF_FILES.describe("aof.status", memoryview(data)).is_intact


def test_a_directory_instead_of_the_status_is_ignored(tmp_path):
    """Readers ignore it, and the writer continues without publishing."""
    with AofManager.open(str(tmp_path)) as manager:
        (tmp_path / "orders" / "aof.status" / "kept").mkdir(parents=True)
        log = manager.log("orders")
        log.append_record(b"x")
        log._context.run_status()
        assert "is ignored" in dumped(tmp_path)["meaning"]
    with AofManager.open(str(tmp_path), background=False) as manager:
        assert payloads(manager.log("orders")) == [b"x"]


class StatusFails(FaultFileSystem):
    """A file system whose calls for the status, or for its owner, fail while *operation* is set."""

    operation = ""

    def may_fail(self, op: str, path: str) -> None:
        if op == self.operation and ("aof.status" in path or (op, path[-8:]) == ("read_all", "aof.lock")):
            raise OSError(errno.ENOSPC, "no space left on device", path)
        super().may_fail(op, path)


@pytest.mark.parametrize("operation", ["create", "pwrite", "rename", "remove", "read_all"])
def test_a_failed_status_write_does_not_affect_the_log(operation):
    """Append, flush and close work; the status is published when the disk works again."""
    clock = ManualClock(waits="hold")
    fs = StatusFails(CrashFileSystem())
    fs.operation = operation
    with AofManager.open(ROOT, tiny(), fs=fs, clock=clock) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.flush()
        log._context.run_status()
        assert fs.exists(PATH) == (operation in {"remove", "read_all"})
        assert payloads(log) == [b"x"]
    fs.operation = ""
    with AofManager.open(ROOT, tiny(), fs=fs, clock=clock) as manager:
        log = manager.log("orders")
        assert not fs.exists(PATH)
        log._context.run_status()
        status = read_status(fs, f"{ROOT}/orders").status
        assert status is not None
        assert status.figures["records"] == 1


def test_the_status_is_written_when_it_changed():
    """Passed time alone is not a change; a refusal is."""
    clock = ManualClock(waits="hold")
    fs = CrashFileSystem()
    config = tiny(flush=FlushConfig(flush_interval_ms=0, max_unflushed_bytes=1000))
    with AofManager.open(ROOT, config, fs=fs, clock=clock) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 900)
        wait_until(lambda: log.snapshot().spares)  # A background thread prepares the next segment; that is a change.
        log._context.run_status()
        first = fs.read_all(PATH, size_max=STATUS_BYTES_MAX)
        log._context.run_status()
        assert fs.read_all(PATH, size_max=STATUS_BYTES_MAX) == first
        with pytest.raises(WouldBlockError):
            log.append_record(b"x" * 900)
        log._context.run_status()
        answer = decode_status(memoryview(fs.read_all(PATH, size_max=STATUS_BYTES_MAX)))
        assert isinstance(answer, Frame)
        assert answer.value.figures["would_block"] == {"flush": 1}
        assert answer.value.figures["backlog_bytes"] > 900


def test_a_log_without_threads_publishes_no_status():
    """Not even when it is closed: the caller decides when files are written."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log._context.run_status()
        manager.maintain()
    assert not fs.exists(PATH)


def test_a_crash_during_the_replacement_leaves_no_files():
    """Leftovers, including a partial temporary file, are removed when the log is opened."""
    fs = CrashFileSystem()
    disks: list[CrashFileSystem] = []
    with AofManager.open(ROOT, tiny(), fs=fs, clock=ManualClock(waits="hold")) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.flush()
        log._context.run_status()
        fs.on_step = lambda _op, path: disks.extend(
            [fs.clone_after_kill(), *map(fs.clone_after_crash, range(3))] if "aof.status" in path else []
        )
        log.append_record(b"y")
        log._context.run_status()
        fs.on_step = None
    assert len(disks) >= 12
    for disk in disks:
        with open_manager(disk) as manager:
            assert payloads(manager.log("orders"))[0] == b"x"
            assert not [name for name in disk.list_dir(f"{ROOT}/orders") if name.startswith("aof.status")]
