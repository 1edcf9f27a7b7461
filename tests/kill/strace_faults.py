"""
Faults at every system call of a scripted run, by `strace`: the kernel's answers, not those of a wrapped file system.

A child is forked with everything loaded, waits until `strace` has attached, runs the script on a real directory and
records its promises in shared memory (`kill_cycles.Tally`). The script is single-threaded and the same every
time, so the n-th call of a kind is the same call in every run.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import logging
import os
import re
import shutil
import signal
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kill_cycles import NAMES, STAMPED_BY_CLOCK_NS, Listener, Tally, number_of, numbered

from quiver import Bundle, QuiverError, Settings, Store, Subscriber
from quiver import open as open_store
from quiver.bundle import BundleRef
from quiver.observe import Value
from quiver.store.segment.info import SegmentInfo
from quiver.testing.clock import ManualClock

SETTINGS = Settings(
    segment_bytes_max=1_200,
    wal_rotate_bytes=1_500,
    wal_bytes_max=60_000,
    wal_files_max=6,
    delete_grace_s=0.0,
    segment_open_s_max=3_600.0,
)
DROPPING = dataclasses.replace(SETTINGS, size_cap_bytes=24_000, size_cap_policy="drop_oldest")
AGING = dataclasses.replace(SETTINGS, max_age_s=10.0)
SYSCALLS = "%file,%desc"
WRITERS = frozenset({
    "pwrite64", "pwritev", "pwritev2", "write", "ftruncate", "fallocate", "fsync", "fdatasync", "openat", "mkdir",
    "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "fchmod",
})  # fmt: skip
"""A full disk, or a disk without inodes, answers these with ENOSPC."""

_CALL = re.compile(r"^(?:\d+ +)?([a-z_0-9]+)\(")
_ATTACH_S_MAX = 20.0
_PR_SET_PTRACER = 0x59616D61


class _Dies(Listener):
    """Ends the process after the drops are recorded, and before any file is removed."""

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        super().event(name, level=level, **attributes)
        if name == "quiver.segment.drop":
            os._exit(0)


class Script:
    """Append, finalize, deliver, acknowledge, free, close, recover; a call that fails is passed over, as callers do."""

    def __init__(self, directory: Path, tally: Tally, settings: Settings = SETTINGS) -> None:
        self.directory = directory
        self.tally = tally
        self.settings = settings
        self.clock = ManualClock(now_ns=2 * STAMPED_BY_CLOCK_NS)
        self.observer = Listener(tally)
        self.store: Store | None = None
        self.waiting: list[tuple[str, int]] = []

    def write(self) -> None:
        """A fresh directory: the log, segments, two subscribers, deletion; then a clean end, and once more."""
        for turn in range(2):
            self.try_to(self.open)
            for _ in range(2):
                self.ingest(5)
                self.try_to(lambda: self.deliver("one", 4))
                self.try_to(self.maintain)
            self.try_to(self.flush)
            self.try_to(lambda: self.deliver("one", 99))
            self.try_to(lambda: self.deliver("two", 99 if turn else 7))
            self.try_to(self.maintain)
            self.try_to(self.close)

    def drop(self) -> None:
        """Ingest more than the cap holds, without timely acknowledgements; then a clean end, and again."""
        for _ in range(2):
            self.try_to(self.open)
            for _ in range(3):
                self.ingest(6)
                self.try_to(self.maintain)
            self.try_to(lambda: self.deliver("one", 3))
            self.ingest(3)
            self.try_to(self.close)

    def expire(self) -> None:
        """Let unacknowledged bundles expire; then a clean end, and again."""
        for _ in range(2):
            self.try_to(self.open)
            for _ in range(3):
                self.ingest(3)
                self.try_to(self.flush)
                self.try_to(lambda: self.deliver("one", 2))
                self.clock.advance(6.0)
                self.try_to(self.maintain)
            self.try_to(self.close)

    def rewind(self) -> None:
        """Acknowledge, rewind, acknowledge again."""
        self.try_to(self.open)
        self.ingest(7)
        self.try_to(self.flush)
        self.try_to(lambda: self.deliver("one", 9))
        self.try_to(self.maintain)
        for to in ("earliest", 1):
            self.try_to(lambda to=to: self.go_back("one", to))
            self.try_to(lambda: self.deliver("one", 2))
            self.try_to(self.maintain)
        self.try_to(self.close)

    def go_back(self, name: str, to: Literal["earliest"] | int) -> None:
        if self.store is not None and name in self.subscribers:
            self.tally.may_come_again(name)
            position = self.subscribers[name].rewind(to).position
            for ref in (BundleRef(one.seq, index) for one in self.segments() for index in range(one.bundle_count)):
                if ref >= position and self.store is not None:
                    self.tally.comes_again(name, number_of(self.store.internals.catalog.bundle(ref)))

    def segments(self) -> list[SegmentInfo]:
        return [] if self.store is None else self.store.internals.catalog.segments()

    def leave_dropping(self) -> None:
        """Leave the state of a death during a drop: the ledger, and the segments in it."""
        self.observer = _Dies(self.tally)
        self.open()
        self.ingest(60)
        raise AssertionError("nothing was dropped")

    def leave(self) -> None:
        """Leave the state of a death during work: rotated log files, segments, some bundles acknowledged."""
        self.open()
        self.ingest(9)
        self.deliver("one", 4)
        self.maintain()
        self.ingest(7)

    def recover(self) -> None:
        """Open what `leave` left, take one bundle more, hand everything out, and close."""
        self.try_to(self.open)
        self.ingest(1)
        self.try_to(lambda: self.deliver("two", 99))
        self.try_to(self.maintain)
        self.try_to(self.close)

    def try_to(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (QuiverError, OSError):
            if call == self.open:
                self.store = None

    def open(self) -> None:
        self.store = None
        self.store = open_store(
            self.directory, self.settings, background=False, clock=self.clock, observer=self.observer
        )
        self.subscribers: dict[str, Subscriber] = {}
        for name in NAMES:
            self.subscribers[name] = self.store.register(name, start="earliest")

    def ingest(self, count: int) -> None:
        for turn in range(count):
            if self.store is None:
                return
            number = self.tally.try_next()
            try:
                self.store.ingest(self.bundle(number), durable=turn % 2 == 0)
            except (QuiverError, OSError):
                continue
            self.tally.accept(number)

    def bundle(self, number: int) -> Bundle:
        if self.settings.max_age_s is None:
            return numbered(number)
        return Bundle({30: numbered(number)[30]}, ingested_at_ns=self.clock.now_ns())

    def deliver(self, name: str, most: int) -> None:
        if self.store is None or name not in self.subscribers:
            return
        for _ in range(most):
            handle = self.subscribers[name].next_bundle(timeout=0)
            if handle is None:
                return
            number = number_of(handle.bundle)
            self.tally.ask(name, number)
            handle.ack()
            self.waiting.append((name, number))

    def deliver_all(self) -> None:
        for name in NAMES:
            self.deliver(name, 99)

    def wait_a_moment(self) -> None:
        """Let the pause pass that follows a segment for which there was no room."""
        self.clock.advance(2.0)

    def maintain(self) -> None:
        if self.store is not None:
            waiting, self.waiting = self.waiting, []
            self.store.maintain()
            for name, number in waiting:
                self.tally.keep(name, number)

    def flush(self) -> None:
        if self.store is not None:
            self.store.seal()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


@dataclass(frozen=True)
class Ended:
    """How a traced run ended, and what `strace` wrote about it."""

    status: int
    trace: str
    failure: str

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def was_hit(self) -> bool:
        return self.killed or "(INJECTED)" in self.trace


def forked(work: Callable[[], None]) -> int:
    """Run *work* in a forked child and return its exit status; its last message is on its standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def traced(work: Callable[[], None], output: Path, *options: str) -> Ended:
    """Run *work* in a forked child under ``strace`` with *options*, from its first call to its last."""
    go_read, go_write = os.pipe()
    say_read, say_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        os.read(go_read, 1)
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            os.write(say_write, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(say_write)
    tracer = subprocess.Popen(
        ["strace", "-qq", "-o", str(output), *options, "-p", str(child)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _wait_for_tracer(child, tracer)
        os.write(go_write, b"g")
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        tracer.communicate(timeout=30)
        for descriptor in (go_read, go_write):
            os.close(descriptor)
        with os.fdopen(say_read, "rb") as pipe:
            failure = pipe.read().decode()
    return Ended(status, output.read_text(errors="replace"), failure)


def _wait_for_tracer(child: int, tracer: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _ATTACH_S_MAX
    status = Path(f"/proc/{child}/status")
    while "TracerPid:\t0\n" in status.read_text():
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"strace did not attach: {tracer.communicate()[1].decode()}")
        os.sched_yield()


def may_trace(output: Path) -> str | None:
    """Return why tracing is impossible here, or None."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    try:
        ended = traced(lambda: None, output)
    except (RuntimeError, OSError) as refused:
        return f"strace may not attach here: {refused}"
    return None if ended.status == 0 else f"a traced process ended with {ended.status}"


def paths_used(work: Callable[[], None], directory: Path, output: Path) -> list[str]:
    """Every path in *directory* that *work* names or has open, found by tracing it."""
    ended = traced(work, output, "-y", "-s", "300", "-e", f"trace={SYSCALLS}")
    assert ended.status == 0, ended.failure
    found = set(re.findall(rf'{re.escape(str(directory))}[^">\s(]*', ended.trace))
    assert len(found) > 10, found
    return sorted(found)


def path_options(paths: list[str]) -> list[str]:
    return [option for path in paths for option in ("-P", path)]


def calls_made(work: Callable[[], None], paths: list[str], output: Path) -> dict[str, int]:
    """How many calls of each kind *work* makes on *paths*."""
    ended = traced(work, output, "-e", f"trace={SYSCALLS}", *path_options(paths))
    assert ended.status == 0, ended.failure
    lines = (_CALL.match(line) for line in ended.trace.splitlines())
    return dict(collections.Counter(match[1] for match in lines if match))
