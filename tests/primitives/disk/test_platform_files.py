"""The calls on other systems, tested with substitutes of their modules, not on the systems themselves."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import types

import pytest

from quiver.primitives.disk import platform_files
from quiver.primitives.disk.platform_files import LinuxFiles, MacFiles, WindowsFiles, choose_platform


@pytest.fixture
def fd(tmp_path):
    number = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    yield number
    os.close(number)


def test_each_system_uses_its_own_module(monkeypatch):
    """The name of the system decides, and only its own module is imported."""
    monkeypatch.setitem(sys.modules, "msvcrt", types.ModuleType("msvcrt"))

    assert type(choose_platform("linux")) is LinuxFiles
    assert type(choose_platform("freebsd14")) is LinuxFiles
    assert type(choose_platform("darwin")) is MacFiles
    assert type(choose_platform("win32")) is WindowsFiles
    assert type(platform_files.PLATFORM) is type(choose_platform(sys.platform))


def test_a_system_without_fork_needs_no_handlers(monkeypatch):
    """Without fork, no handlers are registered."""
    registered = []
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: registered.append(functions))
    platform_files.call_at_fork(before=print)
    monkeypatch.delattr(os, "register_at_fork")
    platform_files.call_at_fork(before=print)

    assert registered == [{"before": print}]


class FakeFcntl:
    """Records the requests of macOS."""

    def __init__(self, error=None):
        self.error = error
        self.requests = []

    def fcntl(self, fd, request, argument=0):
        self.requests.append((request, argument))
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))


def test_macos_flushes_the_drive(fd, monkeypatch):
    """Both kinds of sync are F_FULLFSYNC; plain fsync is not called."""
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("fsync does not flush the drive on macOS"))
    system = FakeFcntl()
    mac = MacFiles(system)
    mac.sync(fd)
    mac.sync_data(fd)

    assert system.requests == [(51, 0), (51, 0)]


@pytest.mark.parametrize("refusal", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_macos_falls_back_where_the_request_is_unknown(fd, monkeypatch, refusal):
    """A network volume has no F_FULLFSYNC, so fsync is used."""
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    MacFiles(FakeFcntl(refusal)).sync(fd)

    assert synced == [fd]


def test_macos_never_retries_a_failed_sync(fd, monkeypatch):
    """EIO is final: a second call could succeed although data was lost."""
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("retried"))
    with pytest.raises(OSError) as caught:
        MacFiles(FakeFcntl(errno.EIO)).sync(fd)
    assert caught.value.errno == errno.EIO


def test_macos_reserves_after_the_end(fd):
    """The request has the layout of fstore_t, asks only for the missing bytes, and the file grows."""
    os.ftruncate(fd, 100)
    system = FakeFcntl()
    mac = MacFiles(system)
    mac.reserve(fd, 50, 1000)
    mac.reserve(fd, 0, 1050)

    wanted = bytes.fromhex("04000000 03000000 0000000000000000 b603000000000000 0000000000000000")
    assert system.requests == [(42, wanted)]
    assert os.fstat(fd).st_size == 1050


def test_linux_locks_report_other_errors(fd):
    """Only a lock held by another process is an answer; everything else is an error."""

    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    module = types.SimpleNamespace(LOCK_EX=2, LOCK_NB=4, flock=refuse)
    with pytest.raises(OSError) as caught:
        LinuxFiles(module).lock(fd)
    assert caught.value.errno == errno.ENOLCK


def test_linux_syncs_data_without_metadata(fd, monkeypatch):
    """`sync_data` is fdatasync, `sync` is fsync."""
    calls = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("fdatasync"))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    linux = LinuxFiles(fcntl)
    linux.sync_data(fd)
    linux.sync(fd)

    assert calls == ["fdatasync", "fsync"]


class FakeMsvcrt:
    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self, error=None):
        self.error = error
        self.calls = []

    def locking(self, fd, mode, nbytes):
        self.calls.append((os.lseek(fd, 0, os.SEEK_CUR), mode, nbytes))
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))


def test_windows_locks_a_byte_beyond_the_end(fd):
    """Range locks are mandatory there, so the note at the start must stay readable; the file does not grow."""
    system = FakeMsvcrt()
    windows = WindowsFiles(system)

    assert windows.lock(fd) is True
    windows.unlock(fd)
    assert system.calls == [(1 << 30, 2, 1), (1 << 30, 0, 1)]
    assert os.fstat(fd).st_size == 0


@pytest.mark.parametrize(("error", "held"), [(errno.EACCES, True), (errno.EDEADLK, True), (errno.EIO, False)])
def test_windows_distinguishes_held_locks_from_errors(fd, error, held):
    """EACCES and EDEADLK mean that another process holds the byte; other errors are raised."""
    windows = WindowsFiles(FakeMsvcrt(error))
    if held:
        assert windows.lock(fd) is False
    else:
        with pytest.raises(OSError):
            windows.lock(fd)


def test_windows_replaces_and_removes_read_only_files(tmp_path, monkeypatch):
    """The attribute is cleared first; a missing target is ignored, but a missing file to remove is an error."""
    modes = []
    real_chmod = os.chmod
    monkeypatch.setattr(os, "chmod", lambda path, mode: (modes.append((str(path), mode)), real_chmod(path, mode)))
    windows = WindowsFiles(FakeMsvcrt())
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    for path in (old, new):
        os.close(os.open(path, os.O_CREAT, 0o440))
    windows.rename(new, old)
    windows.rename(old, new)
    windows.remove(new)

    assert modes == [(old, 0o600), (new, 0o600), (new, 0o600)]  # the second one was missing
    with pytest.raises(FileNotFoundError):
        windows.remove(new)


def test_windows_refuses_to_reserve(fd):
    """The caller decides between raising and writing zeros."""
    with pytest.raises(OSError) as caught:
        WindowsFiles(FakeMsvcrt()).reserve(fd, 0, 10)
    assert caught.value.errno == errno.ENOTSUP


def test_windows_syncs_files_and_not_directories(fd, tmp_path, monkeypatch):
    """A file is flushed by `os.fsync`; a directory cannot be opened there."""
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    windows = WindowsFiles(FakeMsvcrt())
    windows.sync_data(fd)
    windows.sync_directory(str(tmp_path))

    assert synced == [fd]
