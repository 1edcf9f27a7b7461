"""Crashes at every step of operations outside the contract: batches, reservations, retention, full disks, many logs."""

from __future__ import annotations

import pytest
from aof_as_log import ROOT, open_manager, payloads, tiny

from lanes import every, with_stride
from quiver.aof import Retention
from quiver.aof.format.names import parse_archive_name
from quiver.aof.format.record import entries
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS = (0, 1, 2, 3)


def archived(fs: CrashFileSystem, name: str = "orders") -> list[bytes]:
    """Return the records of the archive, oldest segment first."""
    folder = f"{ROOT}/{name}/archive"
    found = []
    for one in sorted(filter(parse_archive_name, fs.list_dir(folder))):
        view = fs.map_read(f"{folder}/{one}").view()
        found += [bytes(entry.payload) for entry in entries(view, HEADER_BYTES, len(view) - FOOTER_BYTES)]
    return found


class Run:
    """The appended records, the durable ones, and the disk at every step after each kind of crash."""

    def __init__(self, config) -> None:
        self.fs = CrashFileSystem()
        self.config = config
        self.clock = ManualClock()
        self.written: list[bytes] = []
        self.durable = 0
        self.moments: list[tuple[str, int, int, list[CrashFileSystem]]] = []
        self.fs.on_step = self._before

    def _before(self, op: str, path: str) -> None:
        clones = [self.fs.clone_after_crash(seed) for seed in SEEDS]
        kill = self.fs.clone_after_kill()
        self.moments.append((f"{op} {path}", self.durable, len(self.written), [*clones, kill]))

    def work(self) -> None:
        for turn in range(2):
            with open_manager(self.fs, self.config, self.clock) as manager:
                log = manager.log("orders")
                for number in range(3):
                    record = b"%d.%d." % (turn, number) * 700
                    self.written += [record, record + b"b", record + b"c"]
                    log.append_records_with_timeout(self.written[-3:], 5)
                    log.wait_for_writable_segment(5)
                    room = log.append_reserve(1000)
                    room.payload[:] = b"r" * 1000
                    if number % 2:
                        room.cancel()
                    else:
                        self.written.append(b"r" * 1000)
                        room.commit()
                    log.flush()
                    self.durable = len(self.written)
                    self.clock.advance(20)
                    manager.maintain()
            self.durable = len(self.written)
        self.fs.on_step = None


@with_stride(3)
@pytest.mark.parametrize(
    "retention",
    [
        Retention(),
        Retention("size", max_total_bytes=2 * 16 * 1024),
        Retention("time", ttl_s=30, action="expire"),
    ],
    ids=["keep_all", "archive by size", "expire by time"],
)
def test_a_crash_at_any_step_keeps_durable_records(retention, stride):
    """Durable records are in the log, or in the archive before it; expired ones are a prefix; the log continues."""
    run = Run(tiny(retention=retention))
    run.work()
    assert len(run.moments) > 60
    for label, durable, written, disks in every(stride, run.moments):
        for index, disk in enumerate(disks):
            if not disk.exists(ROOT):
                continue
            with open_manager(disk) as manager:
                found = payloads(manager.log("orders"))
                before = archived(disk)
                manager.log("orders").append_record(b"more")
            if retention.policy == "keep_all":
                before = []
            complete = before + found
            if retention.action == "expire":
                start = run.written.index(found[0]) if found else 0
                complete = run.written[:start] + found
            promised = written if index == len(SEEDS) else durable
            assert complete == run.written[: len(complete)], (label, index)
            assert len(complete) >= promised or (not found and retention.action == "expire"), (label, index)
            with open_manager(disk) as manager:
                assert payloads(manager.log("orders")) == [*found, b"more"], (label, index)


def test_a_crash_in_one_log_does_not_affect_another():
    """The crash happens while one log seals; the other log is unchanged."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        quiet, busy = manager.log("quiet"), manager.log("busy")
        quiet.append_record(b"quiet")
        quiet.flush()
        disks = []
        fs.on_step = lambda op, path: disks.append(fs.clone_after_crash(2))
        for number in range(4):
            busy.append_record_with_timeout(b"%d" % number * 9_000, 5)
            busy.flush()
            busy.force_rollover(timeout=5)
        fs.on_step = None
    for disk in disks:
        with open_manager(disk) as manager:
            assert payloads(manager.log("quiet")) == [b"quiet"]


@pytest.mark.parametrize("operation", ["rename", "sync_dir", "remove", "create", "pwrite", "sync"])
@pytest.mark.parametrize("action", ["archive", "expire"])
def test_failed_retention_is_retried(operation, action):
    """For every failing call, no record is lost, and expired segments are removed in the end."""
    retention = Retention("size", max_total_bytes=16 * 1024, action=action)
    for nth in range(1, 5):
        disk = CrashFileSystem()
        fs = FaultFileSystem(disk)
        clock = ManualClock()
        with open_manager(fs, tiny(), clock) as manager:
            log = manager.log("orders")
            for number in range(4):
                log.append_record(b"%d" % number)
                log.force_rollover(timeout=5)
        with open_manager(fs, tiny(retention=retention), clock) as manager:
            log = manager.log("orders")
            fs.fail_on(operation, nth)
            for _ in range(3):
                clock.advance(5)
                manager.maintain()
            fs.heal()
            assert payloads(log) == [b"3"]
        assert archived(disk) == ([b"0", b"1", b"2"] if action == "archive" else [])
        with open_manager(disk.clone_after_crash(0)) as manager:
            assert payloads(manager.log("orders")) == [b"3"]
