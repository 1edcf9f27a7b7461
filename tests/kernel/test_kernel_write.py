"""`pwritev` of the compiled kernel writes what `os.pwritev` writes, and raises the same errors."""

import errno
import os
import resource

import pytest

PARTS = [
    (),
    (b"",),
    (b"one",),
    (b"one", bytearray(b"two"), memoryview(b"three").cast("b"), b""),
    [b"x" * 70_000, b"y"],
    [b"a", b"bc"] * 500,
]


@pytest.fixture
def descriptor(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("parts", PARTS)
def test_the_same_bytes_are_written(kernel, descriptor, parts):
    """No part, one, several kinds of buffers, large ones, and many."""
    for write in (kernel.pwritev, os.pwritev):
        os.ftruncate(descriptor, 0)
        assert write(descriptor, parts, 10) == sum(map(len, parts))
        assert os.pread(descriptor, 1 << 20, 10) == b"".join(map(bytes, parts))


@pytest.mark.parametrize(
    ("parts", "offset"), [((b"x",), -2), ([b"x"] * (os.sysconf("SC_IOV_MAX") + 1), 0), ([b"x"] * 5_000, 0)]
)
def test_the_same_errors_of_the_system_are_raised(kernel, descriptor, parts, offset):
    """A negative offset and too many parts are errors of the system."""
    for write in (kernel.pwritev, os.pwritev):
        with pytest.raises(OSError, match="Invalid argument") as failed:
            write(descriptor, parts, offset)
        assert failed.value.errno == errno.EINVAL


def test_a_closed_descriptor_is_refused(kernel):
    """Writing to a descriptor that is not open fails, for small and for large writes."""
    for size in (1, 100_000):
        with pytest.raises(OSError, match="Bad file descriptor") as failed:
            kernel.pwritev(2**31 - 1, (bytes(size),), 0)
        assert failed.value.errno == errno.EBADF


@pytest.mark.parametrize("size", [150, 150_000])
def test_a_short_write_is_returned(kernel, descriptor, size):
    """The bytes before the limit of the file's size are written; the next write reports the limit."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert kernel.pwritev(descriptor, (bytes(size),), 0) == 100
        with pytest.raises(OSError, match="File too large") as failed:
            kernel.pwritev(descriptor, (bytes(size),), 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.value.errno == errno.EFBIG


@pytest.mark.parametrize("parts", ["text", [b"x", "text"], [b"x", None], 7, [memoryview(b"abcdef")[::2]]])
def test_other_parts_are_refused(kernel, descriptor, parts):
    """Nothing is written if one part is not a buffer."""
    with pytest.raises((TypeError, BufferError)):
        kernel.pwritev(descriptor, parts, 0)
    assert os.fstat(descriptor).st_size == 0
