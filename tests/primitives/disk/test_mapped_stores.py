"""A write through a mapping is in the file at once, even a large one."""

import errno
import mmap

import pytest

from quiver.errors import StoreClosedError
from quiver.primitives.disk.mapping import MappedForWriting
from quiver.primitives.disk.prealloc import reserve_blocks
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.crashfs import CrashFileSystem

SIZE = 256 * 1024


@pytest.fixture(params=["real", "crash"])
def file(request, tmp_path):
    fs = REAL_FILES if request.param == "real" else CrashFileSystem()
    made = fs.create(f"{tmp_path}/f" if request.param == "real" else "/f")
    reserve_blocks(made, 0, SIZE, on_unsupported="zeros")
    yield made
    made.close()


@pytest.mark.parametrize("size", [1, 16 * 1024 - 1, 16 * 1024, 100_001])
def test_written_bytes_are_visible(file, size):
    """In the view, in the file, and after a sync."""
    mapping = file.map_write()
    data = bytes(number % 251 for number in range(size))
    mapping.store(4097, data)
    assert bytes(mapping.view()[4096 : 4099 + size]) == b"\0" + data + b"\0\0"
    assert file.pread(size, 4097) == data
    mapping.store(4097, memoryview(data)[::-1].tobytes())
    mapping.sync()
    assert file.pread(size, 4097) == data[::-1]
    mapping.close()
    with pytest.raises(StoreClosedError):
        mapping.store(0, b"x")


def test_a_refused_write_is_stored_through_the_pages():
    """Part of it may have been written, so all of it is stored again."""
    pages = mmap.mmap(-1, SIZE)

    def refuse(data, start):
        pages[start : start + 10] = data[:10]
        raise OSError(errno.EINTR, "half")

    mapping = MappedForWriting(pages, lambda _pages: None, refuse)
    mapping.store(5, b"x" * 20_000)
    assert pages[4:20_006] == b"\0" + b"x" * 20_000 + b"\0"
