"""The real disk: short writes, errors that name the file, durable directories, locks that end with their process."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clean_process import in_a_clean_process
from quiver.errors import DirectoryInUseError
from quiver.primitives.disk import lock as lock_file
from quiver.primitives.disk import real_files
from quiver.primitives.disk.descriptors import RESERVE
from quiver.primitives.disk.file_system import NotRegularFileError
from quiver.primitives.disk.platform_files import PLATFORM, LinuxFiles
from quiver.primitives.disk.real_files import REAL_FILES, RealFile, RealFileSystem


def open_descriptors():
    """Return how many descriptors are open, without those that an earlier test reserved."""
    return len(list(Path("/proc/self/fd").iterdir())) - len(RESERVE)


class Transcript(LinuxFiles):
    """Records the system's calls; makes them short or fail on request."""

    def __init__(self, *, take=None, iov_max=1024):
        super().__init__(PLATFORM._fcntl)
        self.calls = []
        self.take = take  # bytes that each write takes at most
        self.iov_max = iov_max
        self.refuse = {}  # directory → errno of its sync

    def pread(self, fd, size, offset):
        return os.pread(fd, min(size, self.take or size), offset)

    def pwrite(self, fd, data, offset):
        self.calls.append("pwrite")
        return os.pwrite(fd, data[: self.take], offset) if self.take != 0 else 0

    def pwritev(self, fd, parts, offset):
        if len(parts) > self.iov_max:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.calls.append(f"pwritev {len(parts)}")
        joined = b"".join(parts)
        return os.pwrite(fd, joined[: self.take], offset) if self.take != 0 else 0

    def sync_directory(self, path, close):
        self.calls.append(f"sync {path}")
        if path in self.refuse:
            raise OSError(self.refuse[path], os.strerror(self.refuse[path]))
        super().sync_directory(path, close)


def write_with(platform, tmp_path, parts, **kwargs):
    fs = RealFileSystem(platform)
    file = fs.create_or_truncate(str(tmp_path / "f"))
    try:
        file.pwritev(parts, 5, **kwargs)
        file.pwrite(b"".join(parts), 5 + sum(map(len, parts)))
        return file.pread(1 << 20, 5)
    finally:
        file.close()


PARTS = [b"", b"abc", b"", b"", b"defgh", b"i", b"", b"jklmnopqrs", b""]


@pytest.mark.parametrize("take", [1, 2, 3, 5, 9, 18, 19, 20, None])
@pytest.mark.parametrize("iov_max", [1, 2, 9, 1024])
@pytest.mark.parametrize("size", [-1, 19])
def test_short_writes_are_continued(tmp_path, take, iov_max, size):
    """All bytes are written in order, whether we count them or the caller does."""
    complete = b"".join(PARTS)

    assert write_with(Transcript(take=take, iov_max=iov_max), tmp_path, PARTS, size=size) == complete * 2


def test_a_write_in_one_piece_is_one_call(tmp_path):
    """If the disk takes everything, nothing is joined, counted twice or called twice."""
    for kwargs in ({}, {"size": 19}):
        platform = Transcript()
        write_with(platform, tmp_path, PARTS, **kwargs)

        assert platform.calls == ["pwritev 9", "pwrite"]


def test_more_parts_than_the_system_takes(tmp_path):
    """A gathered write beyond IOV_MAX becomes several calls."""
    parts = [b"%d," % number for number in range(3000)]
    platform = Transcript(iov_max=1000)

    assert write_with(platform, tmp_path, parts) == b"".join(parts) * 2
    assert platform.calls[:3] == ["pwritev 1000"] * 3
    assert write_with(PLATFORM, tmp_path, parts) == b"".join(parts) * 2


def test_a_disk_that_takes_nothing_is_an_error(tmp_path):
    """A write of no bytes without an error would be retried forever."""
    with pytest.raises(OSError, match="accepts no more bytes") as caught:
        write_with(Transcript(take=0), tmp_path, [b"x"])
    assert caught.value.filename == str(tmp_path / "f")
    file = RealFileSystem(Transcript(take=0)).create(str(tmp_path / "g"))
    with pytest.raises(OSError, match="accepts no more bytes"):
        file.pwrite(b"x", 0)
    file.close()


def test_an_invalid_write_is_not_treated_as_too_many_parts(tmp_path):
    """EINVAL with few parts comes from the disk."""
    file = REAL_FILES.create(str(tmp_path / "f"))
    with pytest.raises(OSError) as caught:
        file.pwritev([b"x"], -5)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(tmp_path / "f"))
    file.close()


def test_a_file_size_limit_leaves_the_prefix_and_raises(tmp_path):
    """A real short write: the limit shortens the first call, and the second raises the error."""
    script = """
import resource, signal, sys
from quiver.primitives.disk.real_files import REAL_FILES
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file = REAL_FILES.create(sys.argv[1])
try:
    file.pwritev([b"a" * 6000, b"b" * 6000], 0)
except OSError as error:
    print(error.errno, error.filename, file.size())
file.close()
"""
    path = str(tmp_path / "f")
    done = subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True)

    assert done.stdout.split() == [str(errno.EFBIG), path, "10000"]


def test_symbolic_links_are_refused(tmp_path):
    """A link in place of a file must not redirect the writes of a store."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "target")

    for call in (REAL_FILES.open_read, REAL_FILES.open_write, REAL_FILES.create_or_truncate, REAL_FILES.map_read):
        with pytest.raises(OSError) as caught:
            call(str(tmp_path / "link"))
        assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(tmp_path / "link"))
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_only_files_are_opened(tmp_path, kind):
    """A pipe, a socket or a device in place of a file is refused at once, without waiting for it or reading it."""
    path = str(tmp_path / "f")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path)
    else:
        path = "/dev/zero"
    before = open_descriptors()

    for call in (
        *(REAL_FILES.open_read, REAL_FILES.open_write, REAL_FILES.create_or_truncate, REAL_FILES.map_read),
        lambda path: REAL_FILES.read_all(path, size_max=10),
        lambda path: REAL_FILES.try_lock(path, note="another process"),
    ):
        with pytest.raises(NotRegularFileError) as caught:
            call(path)
        assert caught.value.filename == path
    assert open_descriptors() == before


def test_opening_waits_for_a_lease_of_a_file_server(tmp_path, monkeypatch):
    """A file with a lease cannot be opened without waiting, so it is opened again with waiting."""
    (tmp_path / "f").write_bytes(b"leased")
    os.mkfifo(tmp_path / "pipe")
    ordinary = os.open

    def leased(path, flags, mode=0o777):
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        return ordinary(path, flags, mode)

    monkeypatch.setattr(os, "open", leased)

    assert REAL_FILES.read_all(str(tmp_path / "f"), size_max=10) == b"leased"
    with pytest.raises(NotRegularFileError):
        REAL_FILES.open_read(str(tmp_path / "pipe"))


def test_a_file_above_the_limit_is_not_read(tmp_path, monkeypatch):
    """It is refused because of its size, before it is read."""
    with (tmp_path / "f").open("wb") as file:
        file.truncate(5 << 40)
    monkeypatch.setattr(PLATFORM, "pread", None)

    with pytest.raises(OSError, match="larger than 10 bytes") as caught:
        REAL_FILES.read_all(str(tmp_path / "f"), size_max=10)
    assert caught.value.errno == errno.EFBIG


def test_a_file_that_is_longer_than_its_size_is_read_to_its_end(tmp_path, monkeypatch):
    """As files of the kernel, which have size 0, and files that grow meanwhile. The limit applies to what is read."""
    path = str(tmp_path / "f")
    (tmp_path / "f").write_bytes(bytes(range(100)))
    for size in (0, 3, 99):
        monkeypatch.setattr(RealFile, "size", lambda _, size=size: size)
        assert REAL_FILES.read_all(path, size_max=100) == bytes(range(100))
        with pytest.raises(OSError, match="larger than 99 bytes"):
            REAL_FILES.read_all(path, size_max=99)


def test_an_unclosed_file_is_reported(tmp_path):
    """A garbage-collected file warns as Python's files do, and closes its descriptor."""
    file = REAL_FILES.create(str(tmp_path / "f"))
    before = open_descriptors()
    with pytest.warns(ResourceWarning, match="never closed"):
        del file

    assert open_descriptors() == before - 1


def test_descriptors_are_not_inherited(tmp_path):
    """A child process that runs another program does not keep our files open."""
    file = REAL_FILES.create(str(tmp_path / "f"))

    assert not os.get_inheritable(file._fd)
    file.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.reserve(0, 10),
        lambda file: file.truncate(10),
        lambda file: file.pwritev([b"x"], 0),
        lambda file: file.map(),
    ],
)
def test_errors_of_a_closed_file_name_it(tmp_path, call):
    """EBADF, with the path."""
    file = REAL_FILES.create(str(tmp_path / "f"))
    file.close()

    with pytest.raises(OSError) as caught:
        call(file)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(tmp_path / "f"))


def test_a_mode_that_cannot_be_set_leaves_no_descriptor(tmp_path, monkeypatch):
    """The file is closed before the error is raised."""

    def refuse(fd, path, mode):
        raise OSError(errno.EIO, "no")

    platform = Transcript()
    monkeypatch.setattr(platform, "set_mode", refuse)
    before = open_descriptors()
    with pytest.raises(OSError, match="no"):
        RealFileSystem(platform).create(str(tmp_path / "f"))

    assert open_descriptors() == before


def test_every_created_directory_is_synced_into_its_parent(tmp_path):
    """Parents first, each before the next one is created; also into the deepest existing directory."""
    platform = Transcript()
    fs = RealFileSystem(platform)
    root = str(tmp_path)
    fs.make_dirs(f"{root}/a/b/c")

    parent = str(tmp_path.parent)
    assert platform.calls == [f"sync {parent}", f"sync {root}", f"sync {root}/a", f"sync {root}/a/b"]
    platform.calls.clear()
    fs.make_dirs(f"{root}/a/b/c/")
    assert platform.calls == [f"sync {root}/a/b"]


def test_relative_paths_work(tmp_path, monkeypatch):
    """A name without a directory is in the current one."""
    monkeypatch.chdir(tmp_path)
    REAL_FILES.make_dirs("x/y")
    REAL_FILES.sync_dir("")

    assert REAL_FILES.list_dir(".") == ["x"]


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_parent_that_cannot_be_opened_is_not_synced(tmp_path, refusal):
    """We may lack permission to open directories above our own."""
    platform = Transcript()
    platform.refuse[str(tmp_path.parent)] = refusal
    RealFileSystem(platform).make_dirs(str(tmp_path / "a"))

    assert (tmp_path / "a").is_dir()


def test_a_failed_directory_sync_is_an_error(tmp_path):
    """EIO is always raised, and names the directory."""
    platform = Transcript()
    parent = str(tmp_path.parent)
    platform.refuse[parent] = errno.EIO
    fs = RealFileSystem(platform)
    for call in (lambda: fs.make_dirs(str(tmp_path / "a")), lambda: fs.sync_dir(parent)):
        with pytest.raises(OSError) as caught:
            call()
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, parent)


def test_two_processes_may_create_one_directory(tmp_path, monkeypatch):
    """If another process creates it a moment earlier, it is used and synced."""
    platform = Transcript()
    fs = RealFileSystem(platform)
    target = str(tmp_path / "a")
    monkeypatch.setattr(fs, "exists", lambda path: path == str(tmp_path))
    (tmp_path / "a").mkdir()
    fs.make_dirs(target)

    assert platform.calls[-1] == f"sync {tmp_path}"


# ---- locks


HOLD = """
import sys
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
lock = hold(REAL_FILES, sys.argv[1], owner="quiver run")
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


def test_a_lock_of_another_process_names_its_pid(tmp_path, holder):
    """The error shows which process to stop; a killed process holds no lock."""
    path = str(tmp_path / "lock")
    with pytest.raises(DirectoryInUseError, match="quiver run") as caught:
        lock_file.hold(REAL_FILES, path, owner="test")
    assert caught.value.path == path
    assert caught.value.holder == f"pid {holder.pid} quiver run"

    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock = lock_file.hold(REAL_FILES, path, owner="test")
    assert REAL_FILES.read_all(path, size_max=100) == b"pid %d test\n" % os.getpid()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    lock.release()


def test_a_lock_without_a_note_is_held_by_another_process(tmp_path, holder):
    """An empty or very large note does not hide that the lock is held."""
    path = tmp_path / "lock"
    for note in (b"", b"x" * 10_000):
        path.write_bytes(note)
        with pytest.raises(DirectoryInUseError, match="another process"):
            lock_file.hold(REAL_FILES, str(path), owner="test")


@in_a_clean_process
def test_a_forked_child_holds_no_lock(tmp_path):
    """
    The lock is free after the parent's release, although the child still runs; the exit of a child does not release
    the parent's lock.
    """
    path = str(tmp_path / "lock")
    lock = REAL_FILES.try_lock(path, note="parent")
    ready, tell = os.pipe()
    go, release = os.pipe()
    child = os.fork()
    if child == 0:
        lock.release()  # the parent's lock is not the child's to release
        os.write(tell, b"1" if REAL_FILES.try_lock(path, note="child") is None else b"0")
        os.read(go, 1)
        os._exit(0)

    try:
        assert os.read(ready, 1) == b"1"
        assert REAL_FILES.try_lock(path, note="parent again") is None
        lock.release()
        again = REAL_FILES.try_lock(path, note="parent again")
        assert again is not None
        again.release()
    finally:
        os.write(release, b"1")
        os.waitpid(child, 0)
        for fd in (ready, tell, go, release):
            os.close(fd)


def test_a_child_closes_inherited_locks_after_the_fork(tmp_path):
    """Each lock is closed once, without being released."""
    path = str(tmp_path / "lock")
    lock = REAL_FILES.try_lock(path, note="x")
    before = open_descriptors()
    real_files._forget_inherited_locks()
    lock.forget()
    lock.release()

    assert open_descriptors() == before - 1
    assert not list(real_files._open_locks)


def test_a_garbage_collected_lock_is_reported_and_free(tmp_path):
    """A lock without references is released."""
    path = str(tmp_path / "lock")
    lock = REAL_FILES.try_lock(path, note="x")
    with pytest.warns(ResourceWarning, match="never released"):
        del lock
    again = REAL_FILES.try_lock(path, note="x")

    assert again is not None
    again.release()


def test_attempts_for_a_replaced_lock_file_are_limited(tmp_path, monkeypatch):
    """A lock file that is replaced again and again raises an error."""
    monkeypatch.setattr(REAL_FILES, "_still_named", lambda fd, path: False)
    before = open_descriptors()
    with pytest.raises(OSError) as caught:
        REAL_FILES.try_lock(str(tmp_path / "lock"), note="x")

    assert caught.value.errno == errno.EBUSY
    assert open_descriptors() == before


def test_a_lock_removed_at_the_wrong_moment_is_taken_again(tmp_path, monkeypatch):
    """The file was removed between open and lock: the second attempt locks the new one."""
    path = str(tmp_path / "lock")
    platform = Transcript()
    locked = []

    def lock_and_remove(fd):
        locked.append(fd)
        if len(locked) == 1:
            (tmp_path / "lock").unlink()
        return LinuxFiles.lock(platform, fd)

    monkeypatch.setattr(platform, "lock", lock_and_remove)
    lock = RealFileSystem(platform).try_lock(path, note="x")

    assert len(locked) == 2
    assert REAL_FILES.try_lock(path, note="y") is None
    lock.release()


@pytest.mark.parametrize("step", ["lock", "pwrite"])
def test_a_lock_that_fails_leaves_nothing_held(tmp_path, monkeypatch, step):
    """ENOLCK and ENOSPC are raised with the path; the descriptor is closed."""
    path = str(tmp_path / "lock")
    platform = Transcript()

    def refuse(*args):
        raise OSError(errno.ENOLCK, "no")

    monkeypatch.setattr(platform, step, refuse)
    with pytest.raises(OSError) as caught:
        RealFileSystem(platform).try_lock(path, note="x")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOLCK, path)
    lock = REAL_FILES.try_lock(path, note="x")
    assert lock is not None
    lock.release()
