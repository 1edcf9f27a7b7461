"""
SIGKILL, EIO and ENOSPC at every system call of append, finalize, acknowledge, free and recover; short writes.

`strace` changes the kernel's answers, so every call between the store and the disk is covered, including `close` and
`stat`. It cannot make a write short: it can change the return value, but then the kernel has written none of the
bytes. Short writes are therefore made in two other ways: with a limit on the size of files, at which the kernel writes
the bytes that still fit and refuses the rest with EFBIG; and with a platform whose writes take only some bytes.
"""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kill_cycles
import pytest
import strace_faults
from kill_cycles import Tally
from strace_faults import (
    AGING,
    DROPPING,
    SETTINGS,
    WRITERS,
    Script,
    calls_made,
    may_trace,
    path_options,
    paths_used,
    traced,
)

from clean_process import in_a_clean_process
from quiver import Settings, StoreFailedError
from quiver import open as open_store
from quiver.primitives.disk.platform_files import PLATFORM
from quiver.primitives.disk.real_files import RealFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

FAULTS = {"kill": "signal=KILL", "EIO": "error=EIO", "ENOSPC": "error=ENOSPC"}


@pytest.fixture(autouse=True)
def _warm() -> None:
    kill_cycles.warm_up(SETTINGS)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    chosen = Path(tempfile.mkdtemp(prefix="quiver-strace-", dir=memory)) if memory.is_dir() else tmp_path
    yield chosen
    shutil.rmtree(chosen, ignore_errors=True)


PHASES: dict[str, tuple[str, Settings, str | None]] = {
    "write": ("write", SETTINGS, None),
    "recover": ("recover", SETTINGS, "leave"),
    "drop oldest": ("drop", DROPPING, None),
    "expire": ("expire", AGING, None),
    "rewind": ("rewind", SETTINGS, None),
    "recover amid a drop": ("recover", DROPPING, "leave_dropping"),
}
"""The part of the script that runs, its settings, and the part that prepares its directory."""


class Phase:
    """One part of the script on a directory that is recreated for every run."""

    def __init__(self, base: Path, name: str) -> None:
        self.directory = base / "store"
        self.output = base / "trace"
        self.name, self.settings, leave = PHASES[name]
        self._left = base / "left"
        self._tally_left = Tally()
        if leave is not None:
            self._leave(leave)

    def _leave(self, leave: str) -> None:
        self.directory.mkdir(parents=True)
        ended = strace_faults.forked(getattr(Script(self.directory, self._tally_left, self.settings), leave))
        assert ended == 0
        shutil.move(self.directory, self._left)
        if leave == "leave":
            with (self._left / "wal/quiver.wal").open("ab") as log:
                log.write(b"\x40\0\0\0torn")

    def prepare(self) -> Script:
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._left.exists():
            shutil.copytree(self._left, self.directory)
        return Script(self.directory, self._tally_left.copy(), self.settings)

    def work(self, script: Script) -> Callable[[], None]:
        return getattr(script, self.name)

    def check(self, script: Script, label: str) -> None:
        kill_cycles.check(self.directory, script.tally, self.settings, label)


@in_a_clean_process
def test_each_phase_works_without_a_fault(base: Path) -> None:
    """Policy drops in the phase for drops, and nothing is lost in the others."""
    for name, (_, settings, _) in PHASES.items():
        run = Phase(base / name.replace(" ", "_"), name)
        script = run.prepare()
        assert strace_faults.forked(run.work(script)) == 0, name
        run.check(script, name)
        assert bool(script.tally.dropped_bundles) == (settings is not SETTINGS), name
        assert len(script.tally.accepted()) > 5, name


@pytest.mark.strace
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_at_every_system_call(base: Path, phase: str, fault: str, request: pytest.FixtureRequest) -> None:
    """After any single fault the process continues, raises an error or dies; its promises are kept."""
    reason = may_trace(base / "trace")
    if reason is not None:
        pytest.skip(reason)
    run = Phase(base, phase)
    paths = paths_used(run.work(run.prepare()), run.directory, run.output)
    counts = calls_made(run.work(run.prepare()), paths, run.output)
    kinds = {kind: count for kind, count in counts.items() if fault != "ENOSPC" or kind in WRITERS}
    assert sum(kinds.values()) > 50, counts
    stride = request.config.getoption("--strace-stride")
    hits = tried = 0
    for kind, count in sorted(kinds.items()):
        for nth in range(random.randint(1, stride), count + 1, stride):
            script = run.prepare()
            inject = f"inject={kind}:{FAULTS[fault]}:when={nth}"
            ended = traced(run.work(script), run.output, "-e", f"trace={kind}", "-e", inject, *path_options(paths))
            label = f"{phase}: {fault} at {kind} {nth} of {count}"
            assert ended.killed if fault == "kill" and ended.was_hit else ended.status == 0, f"{label}: {ended.failure}"
            tried += 1
            hits += ended.was_hit
            run.check(script, label)
    print(f"\n{phase}, {fault}: {hits} of {tried} calls hit; {kinds}")
    assert hits > 0.95 * tried


@in_a_clean_process
def test_short_writes_at_a_file_size_limit(base: Path) -> None:
    """The write that crosses the limit is short, and the next one fails; without the limit, work continues."""
    run = Phase(base, "write")
    for limit in [1, 37, 38, *random.sample(range(2, 3_500), 9)]:
        script = run.prepare()

        def limited(script: Script = script, limit: int = limit) -> None:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            script.try_to(script.open)
            script.ingest(3)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            script.ingest(12)
            for step in (script.flush, script.deliver_all, script.maintain):
                script.try_to(step)
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            before = len(script.tally.accepted())
            script.wait_a_moment()
            script.ingest(2)
            assert len(script.tally.accepted()) == before + 2, f"limit {limit}: refused after it was lifted"
            script.try_to(script.close)

        assert strace_faults.forked(limited) == 0, f"limit {limit}"
        run.check(script, f"files of at most {limit} bytes")


class ShortPlatform:
    """The real platform, but each write takes at most *most* bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.short = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(PLATFORM, name)

    def pwrite(self, fd: int, data: Any, offset: int, /) -> int:
        view = memoryview(data).cast("B")
        self.short += len(view) > self.most
        return PLATFORM.pwrite(fd, view[: self.most], offset)

    def pwritev(self, fd: int, parts: Sequence[Any], offset: int, /) -> int:
        return self.pwrite(fd, b"".join(parts), offset)


@pytest.mark.parametrize("most", [1, 7, 100, 4_095])
def test_writes_that_take_only_some_bytes(tmp_path: Path, most: int) -> None:
    """After a short write the rest is written: every file is complete."""
    platform = ShortPlatform(most)
    fs = RealFileSystem(platform)
    bundles = [kill_cycles.numbered(number) for number in range(9)]
    with open_store(tmp_path, SETTINGS, fs=fs, background=False) as store:
        subscriber = store.register("s", start="earliest")
        for bundle in bundles:
            store.ingest(bundle, durable=True)
        store.seal()
        got = []
        for _ in range(5):
            handle = subscriber.next_bundle(timeout=0)
            got.append(handle.bundle)
            handle.ack()
        store.maintain()
    with open_store(tmp_path, SETTINGS, background=False) as store:
        subscriber = store.register("s", start="earliest")
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            got.append(handle.bundle)
            handle.ack()
    assert got == bundles
    assert platform.short > 0


def test_a_disk_that_accepts_no_bytes(tmp_path: Path) -> None:
    """A write of zero bytes without an error is reported and does not loop forever."""
    platform = ShortPlatform(1 << 30)
    store = open_store(tmp_path, SETTINGS, fs=RealFileSystem(platform), background=False)
    store.ingest(kill_cycles.numbered(0), durable=True)
    platform.most = 0
    for number in (1, 2):
        with pytest.raises(StoreFailedError, match="reopen"):
            store.ingest(kill_cycles.numbered(number), durable=True)
    store.close()
    with open_store(tmp_path, SETTINGS, background=False) as again:
        again.seal()
        assert kill_cycles.in_segments(again) == [0]
