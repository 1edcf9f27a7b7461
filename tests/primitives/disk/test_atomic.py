"""A crash at any step of a replacement leaves the old file or the new one, complete."""

from __future__ import annotations

import errno

import pytest

from quiver.errors import InvariantError
from quiver.primitives.disk.atomic import remove_durably, replace_advisory_file, replace_file
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

OLD, NEW = b"o" * 5000, b"n" * 9000
SEEDS = range(24)


@pytest.fixture
def disk():
    """A disk with the old file, durable."""
    disk = CrashFileSystem()
    disk.make_dirs("/d")
    replace_file(disk, "/d/f", OLD)
    return disk


@pytest.mark.parametrize("left_over", [False, True])
def test_a_crash_leaves_the_old_file_or_the_new(disk, left_over):
    """At every step and for any surviving writes: never neither, never a mixture, and the new one after the return."""
    if left_over:
        disk.create("/d/f.tmp").pwrite(b"half a file of an earlier run", 0)
    states = []
    disk.on_step = lambda op, path: states.extend((op, disk.clone_after_crash(seed)) for seed in SEEDS)
    replace_file(disk, "/d/f", NEW)

    seen = {clone.read_all("/d/f", size_max=10_000) for _, clone in states}
    assert seen == {OLD, NEW}
    steps = list(dict.fromkeys(op for op, _ in states))
    assert steps == ["create", "pwrite", "sync", "rename", "sync_dir"]
    for seed in SEEDS:
        assert disk.clone_after_crash(seed).read_all("/d/f", size_max=10_000) == NEW
        assert disk.clone_after_crash(seed).list_dir("/d") == ["f"]


def test_a_kill_leaves_an_advisory_file_complete(disk):
    """At every step a reader sees the old file or the new one. Without a sync, a power loss may leave neither."""
    states, steps = [], []
    disk.on_step = lambda op, path: (steps.append(op), states.append(disk.clone_after_kill()))
    replace_advisory_file(disk, "/d/f", NEW)
    disk.on_step = None

    assert steps == ["create", "pwrite", "rename"]
    assert {clone.read_all("/d/f", size_max=10_000) for clone in states} == {OLD}
    assert disk.clone_after_kill().read_all("/d/f", size_max=10_000) == NEW
    assert disk.list_dir("/d") == ["f"]


@pytest.mark.parametrize("step", ["create", "pwrite", "rename"])
def test_an_advisory_file_that_cannot_be_replaced_stays(disk, step):
    """EIO is raised, and the next replacement succeeds."""
    failing = FaultFileSystem(disk, {step: 1}, short_write=10)
    with pytest.raises(OSError, match="f"):
        replace_advisory_file(failing, "/d/f", NEW)

    assert disk.read_all("/d/f", size_max=10_000) == OLD
    replace_advisory_file(failing, "/d/f", NEW)
    assert disk.read_all("/d/f", size_max=10_000) == NEW


def test_without_the_sync_there_is_a_third_state(disk):
    """The tests would fail: without the sync, some power losses leave neither the old bytes nor the new ones."""
    file = disk.create("/d/f.tmp")
    file.pwrite(NEW, 0)
    disk.rename("/d/f.tmp", "/d/f")
    disk.sync_dir("/d")

    seen = {disk.clone_after_crash(seed).read_all("/d/f", size_max=10_000) for seed in SEEDS}
    assert b"" in seen
    assert len(seen) > 2


def test_without_the_directory_sync_the_old_file_may_return(disk):
    """The tests would fail without this sync, too."""
    file = disk.create("/d/f.tmp")
    file.pwrite(NEW, 0)
    file.sync_data()
    disk.rename("/d/f.tmp", "/d/f")

    assert disk.clone_after_crash(0).read_all("/d/f", size_max=10_000) == OLD


@pytest.mark.parametrize("replace", [replace_file, replace_advisory_file])
@pytest.mark.parametrize("removes", [True, False])
def test_a_refused_file_leaves_no_blocks_allocated(disk, replace, removes):
    """A full disk has no blocks for an incomplete file. If it cannot be removed either, the first error is raised."""
    fails = {"pwrite": 1} if removes else {"pwrite": 1, "remove": 1}
    failing = FaultFileSystem(disk, fails, error=errno.ENOSPC, short_write=10)
    with pytest.raises(OSError) as caught:
        replace(failing, "/d/f", NEW)

    assert caught.value.errno == errno.ENOSPC
    assert disk.list_dir("/d") == (["f"] if removes else ["f", "f.tmp"])
    assert disk.read_all("/d/f", size_max=10_000) == OLD


@pytest.mark.parametrize("step", ["create", "pwrite", "sync", "rename", "sync_dir"])
def test_a_failing_step_is_reported(disk, step):
    """EIO is raised; readers see one of the two files; the next replacement succeeds."""
    failing = FaultFileSystem(disk, {step: 1}, short_write=10)
    with pytest.raises(OSError) as caught:
        replace_file(failing, "/d/f", NEW)

    assert caught.value.errno == errno.EIO
    assert disk.read_all("/d/f", size_max=10_000) == (NEW if step == "sync_dir" else OLD)
    replace_file(failing, "/d/f", b"third")
    assert disk.clone_after_crash(0).read_all("/d/f", size_max=10_000) == b"third"


def test_the_file_has_the_requested_mode(tmp_path):
    """On the real disk, with its contents and without a leftover temporary file."""
    path = str(tmp_path / "f")
    replace_file(REAL_FILES, path, memoryview(b"one"), mode=0o640)
    replace_file(REAL_FILES, path, bytearray(b"three"), mode=0o600)

    assert REAL_FILES.read_all(path, size_max=10) == b"three"
    assert REAL_FILES.stat(path).mode == 0o600
    assert REAL_FILES.list_dir(str(tmp_path)) == ["f"]


def test_a_bare_name_is_in_the_current_directory(tmp_path, monkeypatch):
    """A path without a directory is relative to the current one."""
    monkeypatch.chdir(tmp_path)
    replace_file(REAL_FILES, "f", b"x")
    remove_durably(REAL_FILES, ["f"])

    assert REAL_FILES.list_dir(".") == []


def test_removed_files_stay_removed():
    """Each directory is synced once, after all its removals; missing files are ignored."""
    disk = CrashFileSystem()
    for path in ("/a", "/b"):
        disk.make_dirs(path)
        for name in ("1", "2"):
            replace_file(disk, f"{path}/{name}", b"x")
    steps = []
    disk.on_step = lambda op, path: steps.append(f"{op} {path}")
    remove_durably(disk, ["/a/1", "/b/1", "/a/missing", "/a/2"])

    assert steps == ["remove /a/1", "remove /b/1", "remove /a/missing", "remove /a/2", "sync_dir /a", "sync_dir /b"]
    for seed in SEEDS:
        clone = disk.clone_after_crash(seed)
        assert (clone.list_dir("/a"), clone.list_dir("/b")) == ([], ["2"])


def test_a_removal_that_an_earlier_run_began_is_made_durable():
    """It was killed between unlink and sync; the next run finds no file and still syncs the directory."""
    disk = CrashFileSystem()
    replace_file(disk, "/f", b"x")
    disk.remove("/f")
    disk = disk.clone_after_kill()
    assert disk.clone_after_crash(0).exists("/f")
    remove_durably(disk, ["/f"])

    assert not disk.clone_after_crash(0).exists("/f")


def test_a_removal_that_fails_is_reported():
    """EIO does not mean that the file is missing."""
    disk = CrashFileSystem()
    replace_file(disk, "/f", b"x")
    with pytest.raises(OSError):
        remove_durably(FaultFileSystem(disk, {"remove": 1}), ["/f"])

    assert disk.exists("/f")


@pytest.mark.parametrize("replace", [replace_file, replace_advisory_file])
def test_an_incomplete_file_does_not_replace_the_old_one(disk, replace):
    """Two writers of one file share the temporary name: each would write into the file of the other."""

    class Shared(CrashFileSystem):
        def create_or_truncate(self, path, *, mode=0o600):
            file = super().create_or_truncate(path, mode=mode)
            file.pwrite(b"longer than what the first writer writes", 0)
            return file

    disk.__class__ = Shared
    with pytest.raises(InvariantError, match="a file gets its name only when it is complete: /d/f.tmp"):
        replace(disk, "/d/f", b"short")
    assert disk.read_all("/d/f", size_max=10_000) == OLD
