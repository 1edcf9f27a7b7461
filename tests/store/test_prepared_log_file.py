"""The next log file is prepared before a rotation needs it. A crash at any step leaves a directory that opens."""

from __future__ import annotations

import errno
import threading
from functools import partial

import pytest

from quiver import Settings, StoreFailedError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.store import Store
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import numbered, open_manual, read_numbers, sealed_numbers
from waiting import TIMEOUT_S

ROOT = "/prepared"
NEXT = f"{ROOT}/wal/quiver.wal.next"
ACTIVE = f"{ROOT}/wal/quiver.wal"
SETTINGS = Settings(wal_rotate_bytes=6_000, wal_bytes_max=60_000, wal_files_max=8, delete_grace_s=0.0)
SEEDS = (0, 1, 2, 3)
opened = partial(open_manual, settings=SETTINGS, root=ROOT)


def fill(store: Store, share: float) -> None:
    """Ingest until the active file has *share* of the bytes at which it is rotated."""
    number = store._sequence
    while store._wal._offset < share * SETTINGS.wal_rotate_bytes:
        store.ingest(numbered(number))
        number += 1


def rotate(store: Store) -> None:
    files = store.stats()["wal_files"]
    while store.stats()["wal_files"] == files:
        store.ingest(numbered(store._sequence))


def log_bytes(fs: FileSystem) -> int:
    names = [name for name in fs.list_dir(f"{ROOT}/wal") if name != "quiver.wal.cursor"]
    return sum(fs.stat(f"{ROOT}/wal/{name}").size_bytes for name in names)


def test_a_rotation_uses_the_prepared_file() -> None:
    """It changes names and writes one block, but creates no file."""
    fs = CrashFileSystem()
    with opened(fs) as store:
        fill(store, 0.4)
        store.maintain()
        assert not fs.exists(NEXT), "a small log needs no second file"
        fill(store, 0.6)
        store.maintain()
        prepared = fs.stat(NEXT).inode
        store.maintain()
        assert fs.stat(NEXT).inode == prepared
        created: list[str] = []
        fs.on_step = lambda operation, path: created.append(path) if operation.startswith("create") else None
        rotate(store)
        fs.on_step = None
        assert (created, fs.stat(ACTIVE).inode, fs.exists(NEXT)) == ([], prepared, False)
        count = store._sequence
    assert read_numbers(fs, ROOT) == list(range(count))


def test_a_rotation_creates_the_file_if_none_was_prepared() -> None:
    """Ingest does not wait for the thread that prepares it."""
    with opened(CrashFileSystem()) as store:
        for files in (2, 3):
            rotate(store)
            assert store.stats()["wal_files"] == files


def test_the_prepared_file_counts_as_log() -> None:
    """Before, during and after its use."""
    fs = CrashFileSystem()
    with opened(fs) as store:
        for _ in range(2):
            fill(store, 0.7)
            store.maintain()
            assert fs.exists(NEXT)
            assert store.stats()["wal_bytes"] == log_bytes(fs)
            rotate(store)
            assert store.stats()["wal_bytes"] == log_bytes(fs)
        fill(store, 0.7)
        store.maintain()
    assert not fs.exists(NEXT), "closing removes what was never used"


def test_no_file_is_prepared_above_a_limit() -> None:
    """The rotation would be refused, too."""
    fs = CrashFileSystem()
    full = Settings(wal_rotate_bytes=6_000, wal_bytes_max=60_000, wal_files_max=2, delete_grace_s=0.0)
    with opened(fs, settings=full) as store:
        rotate(store)
        fill(store, 0.9)
        store._wal.prepare_next()
        assert not fs.exists(NEXT)


@pytest.mark.parametrize("left", [0, 1, 37, 38])
def test_a_file_prepared_during_an_append_does_not_exceed_the_cap(left: int) -> None:
    """The space was checked for the entry, and then the background thread prepares the file before the append."""
    with opened(CrashFileSystem()) as store:
        start = store._wal._offset
        store.ingest(numbered(0))
        entry_bytes = store._wal._offset - start
    fs = CrashFileSystem()
    # Nine entries in the first file, and the eighth of the second one reaches the cap.
    cap = 2 * start + 17 * entry_bytes + left
    settings = Settings(wal_rotate_bytes=8 * entry_bytes + entry_bytes // 4, wal_bytes_max=cap, wal_files_max=8)
    with opened(fs, settings=settings) as store:
        store.register("s")  # never acknowledges
        prepare = store._wal.prepare_next
        fs.on_step = lambda operation, path: prepare() if (operation, path) == ("pwrite", ACTIVE) else None
        sizes = []
        for number in range(60):
            store.ingest(numbered(number))
            sizes.append(log_bytes(fs))
            assert store.stats()["wal_bytes"] == sizes[-1]
        fs.on_step = None
        assert cap - entry_bytes <= max(sizes) <= cap


def test_a_full_disk_only_leaves_the_work_to_the_rotation() -> None:
    """Of all failures, only this one is expected to end by itself."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, {"create": 1}, error=errno.ENOSPC, path_part="quiver.wal.next")
    with opened(disk) as store:  # creates the first file
        fill(store, 0.1)
    with opened(fs) as store:
        fill(store, 0.7)
        store.maintain()
        assert not disk.exists(NEXT)
        rotate(store)
        count = store._sequence
    assert read_numbers(disk, ROOT) == list(range(count))


@pytest.mark.parametrize("failing", ["pwrite", "sync"])
def test_any_other_failure_is_final(failing: str) -> None:
    """Also that of a file that contains no data yet: the disk is failing."""
    disk = CrashFileSystem()
    with opened(disk) as store:
        fill(store, 0.1)
    fs = FaultFileSystem(disk, {failing: 1}, path_part="quiver.wal.next")
    store = opened(fs)
    fill(store, 0.7)
    with pytest.raises(StoreFailedError, match="preparing a rotation failed"):
        store.maintain()
    with pytest.raises(StoreFailedError):
        store.ingest(numbered(store._sequence))
    count = store._sequence
    store.close()
    with opened(disk.clone_after_kill()) as store:
        store.seal()
        assert sealed_numbers(store) == list(range(count))


class WatchedLock:
    """Sets an event when a thread has to wait for the lock."""

    def __init__(self, settled: threading.Event) -> None:
        self._lock = threading.Lock()
        self._settled = settled

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._settled.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("step", range(6))
def test_no_file_is_prepared_while_the_log_rotates(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Another thread asks for the next file at each step of a rotation.

    Before the last rename it would truncate the file that the rotation is about to use.
    """
    fs = CrashFileSystem()
    main, settled = threading.current_thread(), threading.Event()
    steps: list[tuple[str, str]] = []

    def prepare() -> None:
        try:
            store._wal.prepare_next()
        finally:
            settled.set()

    other = threading.Thread(target=prepare)

    def interrupt(operation: str, path: str) -> None:
        if threading.current_thread() is main and store._wal._syncing:  # within the rotation
            steps.append((operation, path.rpartition("/")[2]))
            if len(steps) == step + 1:
                other.start()
                assert settled.wait(TIMEOUT_S), "the other thread has neither finished nor found the lock taken"

    with opened(fs) as store:
        fill(store, 0.7)
        store.maintain()
        fill(store, 1.0)
        monkeypatch.setattr(store._wal._next, "lock", WatchedLock(settled))
        fs.on_step = interrupt
        store.ingest(numbered(store._sequence))
        fs.on_step = None
        other.join(TIMEOUT_S)
        assert not other.is_alive()
        assert steps == [
            ("pwrite", "quiver.wal.next"), ("sync", "quiver.wal.next"), ("sync", "quiver.wal"),
            ("rename", "quiver.wal.1"), ("sync_dir", "wal"), ("rename", "quiver.wal"),
        ]  # fmt: skip
        assert not fs.exists(NEXT), "the new file is not yet half full"
        rotate(store)
        count = store._sequence
        assert read_numbers(fs.clone_after_kill(), ROOT) == list(range(count))
    assert read_numbers(fs, ROOT) == list(range(count))


def test_a_crash_at_any_step_loses_nothing_and_leaves_no_trace() -> None:
    """While the file is prepared, switched to, prepared again and removed."""
    fs = CrashFileSystem()
    promised = [0, 0]
    states: list[tuple[str, CrashFileSystem, int]] = []

    def before(operation: str, path: str) -> None:
        label = f"step {len(states)} ({operation} {path})"
        states.append((f"{label}, kill", fs.clone_after_kill(), promised[0]))
        states.extend((f"{label}, power loss {seed}", fs.clone_after_crash(seed), promised[1]) for seed in SEEDS)

    store = opened(fs)
    fs.on_step = before
    for share in (0.6, 1.0, 0.6, 1.0, 0.7):
        while store._wal._offset < share * SETTINGS.wal_rotate_bytes:
            store.ingest(numbered(store._sequence))
            promised[0] = store._sequence
        store.sync()
        promised[1] = promised[0]
        store.maintain()
        if share == 1.0:
            rotate(store)
            promised[0] = store._sequence
    store.close()
    fs.on_step = None
    assert sum("quiver.wal.next" in label for label, _, _ in states) >= 10 * (1 + len(SEEDS))
    for label, disk, count in states:
        found = read_numbers(disk, ROOT)
        assert found == sorted(set(found)), f"{label}: a reader sees {found}"
        with opened(disk) as store:
            assert not disk.exists(NEXT), label
            store.seal()
            assert sealed_numbers(store) == found, label
            assert found[:count] == list(range(count)), f"{label}: {found} has not all of {count}"
