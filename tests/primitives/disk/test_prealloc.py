"""Reserved blocks exist, or the caller gets an error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quiver.primitives.disk.platform_files import PLATFORM, LinuxFiles
from quiver.primitives.disk.prealloc import reserve_blocks, zero_fill
from quiver.primitives.disk.real_files import REAL_FILES, RealFileSystem
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem


class Refusing(LinuxFiles):
    """A system whose reservations fail."""

    def __init__(self, error):
        super().__init__(PLATFORM._fcntl)
        self.error = error

    def reserve(self, fd, start, length):
        raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def opened():
    """Open files that are closed at the end."""
    files = []
    yield lambda file: files.append(file) or file
    for file in files:
        file.close()


def blocks_bytes(path):
    return Path(path).stat().st_blocks * 512


@pytest.mark.parametrize("fs", [REAL_FILES, RealFileSystem(Refusing(errno.EOPNOTSUPP))], ids=["reserves", "writes"])
def test_reserved_blocks_are_on_the_disk(tmp_path, opened, fs):
    """The file has blocks for all its bytes, including former holes, for each way of reserving."""
    path = str(tmp_path / "f")
    file = opened(fs.create(path))
    file.pwrite(b"head", 0)
    file.truncate(2_000_000)
    file.pwrite(b"tail", 1_999_996)
    assert blocks_bytes(path) < 100_000
    reserve_blocks(file, 0, 3_000_000, on_unsupported="zeros")

    assert file.size() == 3_000_000
    assert blocks_bytes(path) >= 3_000_000
    assert file.pread(3_000_000, 0) == b"head" + bytes(1_999_992) + b"tail" + bytes(1_000_000)


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_the_caller_decides_when_reserving_is_unsupported(tmp_path, opened, error):
    """``raise`` passes the error on, with the path, and leaves the file as it was."""
    path = str(tmp_path / "f")
    file = opened(RealFileSystem(Refusing(error)).create(path))
    with pytest.raises(OSError) as caught:
        reserve_blocks(file, 0, 100, on_unsupported="raise")
    assert (caught.value.errno, caught.value.filename, file.size()) == (error, path, 0)

    reserve_blocks(file, 10, 100, on_unsupported="zeros")
    assert file.size() == 110


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_full_disk_is_an_error_either_way(tmp_path, opened, error):
    """ENOSPC is not "unsupported": writing zeros could not help."""
    path = str(tmp_path / "f")
    file = opened(RealFileSystem(Refusing(error)).create(path))
    for choice in ("raise", "zeros"):
        with pytest.raises(OSError) as caught:
            reserve_blocks(file, 0, 100, on_unsupported=choice)
        assert (caught.value.errno, file.size()) == (error, 0)


def test_a_length_of_zero_reserves_nothing(tmp_path, opened):
    """The system would refuse it as invalid."""
    file = opened(REAL_FILES.create(str(tmp_path / "f")))
    reserve_blocks(file, 1000, 0, on_unsupported="raise")

    assert file.size() == 0


def test_any_file_can_be_filled(opened):
    """A file without `reserve` is unsupported; writing zeros always works, and may fail halfway."""

    class Plain:
        def __init__(self, inner):
            self.path = inner.path
            self.size, self.pread, self.pwrite = inner.size, inner.pread, inner.pwrite

        def reserve(self, start, length):
            raise OSError(errno.ENOTSUP, "cannot reserve", self.path)

    disk = CrashFileSystem()
    plain = Plain(disk.create("/f"))
    with pytest.raises(OSError) as caught:
        reserve_blocks(plain, 0, 100, on_unsupported="raise")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTSUP, "/f")
    reserve_blocks(plain, 0, 100, on_unsupported="zeros")
    assert plain.size() == 100

    failing = FaultFileSystem(disk, {"pwrite": 2}, error=errno.ENOSPC).open_write("/f")
    with pytest.raises(OSError) as caught:
        zero_fill(failing, 0, 3 << 20)
    assert caught.value.errno == errno.ENOSPC
    assert plain.size() == 1 << 20


@pytest.mark.parametrize("length", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_zeros_are_exactly_where_asked(length):
    """The bytes before and after them stay."""
    file = CrashFileSystem().create("/f")
    file.pwrite(b"x" * (length + 2), 0)
    zero_fill(file, 1, length)

    assert file.pread(length + 99, 0) == b"x" + bytes(length) + b"x"
