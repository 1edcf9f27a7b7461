"""Many threads append to one or many logs during flush, seal, retention and reads: prefix, order, durability."""

from __future__ import annotations

import threading

import pytest
from aof_as_log import tiny

from quiver.aof import AofManager, FlushConfig, Retention
from quiver.errors import WouldBlockError
from quiver.testing.crashfs import CrashFileSystem


class Checked:
    """Threads whose first failure fails the test."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def run(self, work, *args) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.errors.append(error)
                raise

        self.threads.append(threading.Thread(target=guarded))

    def finish(self, timeout_s: float = 120) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(timeout_s)
            assert not thread.is_alive(), "it hangs"
        assert not self.errors, self.errors


def parsed(payload) -> tuple[int, int]:
    writer, number, rest = bytes(payload).split(b":", 2)
    assert rest == b"x" * (int(number) % 50)
    return int(writer), int(number)


def check_order(payloads, writers: int, each: int) -> None:
    """Every record of every writer exists once, in the order of its writer."""
    found: dict[int, list[int]] = {writer: [] for writer in range(writers)}
    for payload in payloads:
        writer, number = parsed(payload)
        found[writer].append(number)
    assert all(numbers == list(range(each)) for numbers in found.values())


def stress(manager, *, logs: int, writers: int, each: int) -> None:
    checked = Checked()
    opened = [manager.log(f"log-{number}") for number in range(logs)]
    done = threading.Event()
    left = [logs * writers]
    guard = threading.Lock()

    def write(log, writer):
        for number in range(each):
            record = b"%d:%d:" % (writer, number) + b"x" * (number % 50)
            if number % 5 == 4:
                log.append_records_with_timeout([record], 60)
            else:
                log.append_record_with_timeout(record, 60)
            if number % 40 == 0:
                log.flush()
        with guard:
            left[0] -= 1
            if not left[0]:
                done.set()

    def follow(log, durable_only):
        follower = log.tail_follower(0, durable_only=durable_only)
        seen = [follower.next(60) for _ in range(writers * each)]
        assert None not in seen
        ids = [one.record_id for one in seen]
        assert ids == sorted(ids)
        if durable_only:
            assert log.is_durable(ids[-1])
        check_order([one.payload for one in seen], writers, each)

    def roll(log):
        while not done.is_set():
            try:
                log.force_rollover(timeout=60)
            except WouldBlockError:
                continue
            done.wait(0.01)

    def read(log):
        while not done.is_set():
            ids = [one.record_id for one in log.open_reader(views=True)]
            assert ids == sorted(ids)
            log.snapshot()

    for log in opened:
        for writer in range(writers):
            checked.run(write, log, writer)
        checked.run(follow, log, True)
        checked.run(follow, log, False)
    checked.run(roll, opened[0])
    checked.run(read, opened[-1])
    checked.finish()
    for log in opened:
        log.flush()
        check_order([one.payload for one in log.open_reader()], writers, each)


CONFIG = tiny(flush=FlushConfig(flush_interval_ms=1, flush_watermark_bytes=4096, max_unflushed_bytes=32 * 1024))


def test_one_log_with_many_threads_loses_no_durable_record():
    """On the disk in memory: the records that are durable at the end survive a power loss."""
    fs = CrashFileSystem()
    with AofManager.open("/aof", CONFIG, fs=fs) as manager:
        stress(manager, logs=1, writers=4, each=150)
        lost = fs.clone_after_crash(0)
    with AofManager.open("/aof", CONFIG, fs=lost) as manager:
        check_order([one.payload for one in manager.log("log-0").open_reader()], 4, 150)


@pytest.mark.slow
@pytest.mark.parametrize("retention", [Retention(), Retention("size", max_total_bytes=1 << 30, action="expire")])
def test_many_logs_with_many_threads_keep_every_record(tmp_path, retention):
    """On a real disk, for minutes."""
    config = tiny(flush=CONFIG.flush, retention=retention, preallocate_segments=2)
    with AofManager.open(str(tmp_path), config) as manager:
        stress(manager, logs=4, writers=3, each=500)
    with AofManager.open(str(tmp_path), config) as manager:
        for number in range(4):
            check_order([one.payload for one in manager.log(f"log-{number}").open_reader()], 3, 500)
