"""The real, the crashing and the failing file system fulfil one contract."""

from __future__ import annotations

import os

import pytest

from quiver.primitives.disk.platform_files import WindowsFiles
from quiver.primitives.disk.real_files import RealFileSystem
from quiver.testing.contracts import FileSystemContract
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


class TestRealFiles(FileSystemContract):
    @pytest.fixture
    def fs(self):
        return RealFileSystem()

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)

    @pytest.fixture(autouse=True, params=[0o022, 0o077])
    def umask(self, request):
        before = os.umask(request.param)
        yield
        os.umask(before)


class _SystemLocks:
    """The locking functions of `msvcrt`, implemented with the locks of this system."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def locking(self, fd, mode, nbytes):
        import fcntl

        assert (os.lseek(fd, 0, os.SEEK_CUR), nbytes) == (WindowsFiles.LOCK_OFFSET, 1)
        try:
            fcntl.flock(fd, fcntl.LOCK_UN if mode == self.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error


class TestRealFilesByWindowsCalls(FileSystemContract):
    """Seek and write under a lock, joined parts, no directory sync: the same guarantees except two."""

    @pytest.fixture
    def fs(self):
        return RealFileSystem(WindowsFiles(_SystemLocks()))

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)

    test_missing_names_are_errors = None  # a directory sync does nothing there, so a missing directory is not noticed
    test_a_file_is_not_a_directory = None
    test_a_reader_cannot_write = None  # modes are set by path there, so a closed handle does not matter


class TestCrashFiles(FileSystemContract):
    @pytest.fixture
    def fs(self):
        return CrashFileSystem()

    @pytest.fixture
    def root(self, fs):
        fs.make_dirs("/root")
        return "/root"


class TestFaultFilesWithoutFaults(TestCrashFiles):
    @pytest.fixture
    def fs(self):
        return FaultFileSystem(CrashFileSystem())


class TestFaultFilesOverRealFiles(FileSystemContract):
    @pytest.fixture
    def fs(self):
        return FaultFileSystem(RealFileSystem())

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)


class Careless(CrashFileSystem):
    """Opens a file instead of creating it, and names another path."""

    def create(self, path, *, mode=0o600):
        return self.create_or_truncate(path, mode=mode)

    def list_dir(self, path):
        raise FileNotFoundError(2, "No such file or directory", "somewhere")


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (FileSystemContract.test_create_never_opens_an_existing_file, "FileExistsError is raised"),
        (FileSystemContract.test_missing_names_are_errors, "the error names /missing, not somewhere"),
    ],
)
def test_a_broken_promise_is_named(promise, words):
    """The suite fails and names the guarantee."""
    with pytest.raises(AssertionError, match=f"broken promise: {words}"):
        promise(FileSystemContract(), Careless(), "")
