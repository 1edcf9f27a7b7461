"""Only the selected calls fail, as often as selected."""

from __future__ import annotations

import errno

import pytest

from quiver.errors import UsageError
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import OPERATIONS, FaultFileSystem


@pytest.fixture
def disk():
    disk = CrashFileSystem()
    disk.create("/f").pwrite(b"12345678", 0)
    disk.open_write("/f").sync()
    disk.make_dirs("/e")
    return disk


def every_operation(fs):
    """One call each; `OPERATIONS` names them."""
    file = fs.open_write("/f")
    return {
        "open": [lambda: fs.open_read("/f"), lambda: fs.open_write("/f")],
        "create": [lambda: fs.create("/new"), lambda: fs.create_or_truncate("/newer")],
        "map": [lambda: fs.map_read("/f")],
        "rename": [lambda: fs.rename("/f", "/g")],
        "link": [lambda: fs.link("/f", "/h")],
        "remove": [lambda: fs.remove("/f")],
        "rmdir": [lambda: fs.remove_dir("/e")],
        "sync_dir": [lambda: fs.sync_dir("/")],
        "mkdir": [lambda: fs.make_dirs("/d")],
        "list": [lambda: fs.list_dir("/")],
        "stat": [lambda: fs.stat("/f"), lambda: fs.exists("/f")],
        "read_all": [lambda: fs.read_all("/f", size_max=99)],
        "lock": [lambda: fs.try_lock("/lock", note="x")],
        "free": [lambda: fs.free_bytes("/")],
        "pread": [lambda: file.pread(1, 0)],
        "pwrite": [lambda: file.pwrite(b"x", 0), lambda: file.pwritev([b"x"], 0)],
        "truncate": [lambda: file.truncate(0)],
        "reserve": [lambda: file.reserve(0, 100)],
        "size": [file.size],
        "sync": [file.sync, file.sync_data],
        "set_mode": [lambda: file.set_mode(0o440)],
    }


def contents(disk):
    names = disk.list_dir("/")
    return {name: disk.list_dir("/e") if name == "e" else disk.read_all(f"/{name}", size_max=99) for name in names}


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_every_operation_can_fail(disk, op):
    """It raises the chosen errno with the path, changes nothing, and works the next time."""
    fs = FaultFileSystem(disk, error=errno.ENOSPC)
    calls = every_operation(fs)
    assert set(calls) == OPERATIONS
    for call in calls[op]:
        before = contents(disk)
        fs.fail_on(op)
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename is not None
        assert contents(disk) == before
        call()


def test_only_the_selected_call_fails(disk):
    """The calls before and after it succeed; all are counted."""
    file = FaultFileSystem(disk, {"sync": 2, "pwrite": 1}).open_write("/f")
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    file.sync()
    with pytest.raises(OSError):
        file.sync_data()
    file.sync()

    assert file._fs.calls == {"open": 1, "pwrite": 1, "sync": 3}


def test_a_broken_disk_stays_broken_until_it_heals(disk):
    """``forever`` fails the chosen call and every later one."""
    fs = FaultFileSystem(disk, {"pread": 2}, forever=True)
    file = fs.open_read("/f")
    file.pread(1, 0)
    for _ in range(3):
        with pytest.raises(OSError):
            file.pread(1, 0)
    fs.heal()

    assert file.pread(1, 0) == b"1"


def test_only_matching_paths_count(disk):
    """Calls on other paths neither fail nor move the count."""
    fs = FaultFileSystem(disk, {"create": 2}, path_part=".qseg")
    for name in ("a", "b.qseg", "c"):
        fs.create(f"/{name}")
    with pytest.raises(OSError):
        fs.create("/d.qseg")

    assert fs.calls == {"create": 2}


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("short_write", [0, 2, 99])
def test_a_prefix_may_be_written(disk, short_write, gathered):
    """A failing write leaves the bytes that the disk accepted before."""
    file = FaultFileSystem(disk, {"pwrite": 1}, short_write=short_write).open_write("/f")
    with pytest.raises(OSError):
        file.pwritev([b"a", b"bc"], 0) if gathered else file.pwrite(b"abc", 0)

    assert file.pread(8, 0) == b"abc"[:short_write] + b"12345678"[min(3, short_write) :]


def test_a_failed_sync_loses_unsynced_bytes(disk):
    """The next sync succeeds, as on real kernels, but the bytes are not on the disk."""
    file = FaultFileSystem(disk, {"sync": 1}).open_write("/f")
    file.pwrite(b"ABCD", 0)
    with pytest.raises(OSError):
        file.sync_data()
    assert file.pread(8, 0) == b"ABCD5678"
    file.sync_data()

    for seed in range(5):
        assert disk.clone_after_crash(seed).read_all("/f", size_max=9) == b"12345678"
    file.pwrite(b"abcd", 0)
    file.sync_data()
    assert disk.clone_after_crash(0).read_all("/f", size_max=9) == b"abcd5678"


def test_a_file_without_a_crash_model_just_fails(tmp_path):
    """On the real disk a failed sync only raises the error."""
    from quiver.primitives.disk.real_files import REAL_FILES

    file = FaultFileSystem(REAL_FILES, {"sync": 1}).create(str(tmp_path / "f"))
    file.pwrite(b"x", 0)
    with pytest.raises(OSError):
        file.sync()
    file.sync()

    assert file.pread(1, 0) == b"x"
    file.close()


@pytest.mark.parametrize("wrong", [{"fsync": 1}, {"sync": 0}])
def test_misspelled_faults_are_refused(wrong):
    """A fault that never happens would make a test pass without testing anything."""
    with pytest.raises(UsageError):
        FaultFileSystem(CrashFileSystem(), wrong)
