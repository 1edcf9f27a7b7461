"""The checksums of the compiled kernel have the values of their twins."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.primitives import checksum

SIZES = [*range(160), 255, 256, 257, *range(500, 800, 7), 1023, 1024, 1025, 4095, 4096, 4097, 65_535, 65_536, 1 << 20]
BYTES = bytes(number * 167 + 13 & 0xFF for number in range(1 << 20))


def test_values_for_every_size(kernel):
    """Each size up to 160 bytes, and sizes at the limits of the loops and of the GIL, has the value of the twin."""
    for size in SIZES:
        data = BYTES[:size]
        assert kernel.crc32(data) == zlib.crc32(data)
        assert kernel.crc32c(data) == checksum._aws().crc32c(data)
        assert kernel.crc64_nvme(data) == checksum.crc64_nvme(data)


def test_known_answers(kernel):
    """The check values of all polynomials."""
    assert kernel.crc32(b"123456789") == 0xCBF43926
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc64_nvme(b"123456789") == 0xAE8B14860A799888


@given(data=st.binary(max_size=400), start=st.integers(0, 17), value=st.integers(0, 2**64 - 1))
def test_values_continue_from_any_other_at_any_address(kernel, data, start, value):
    """The address of the data does not matter, nor the value to continue from."""
    view = memoryview(bytes(start) + data)[start:]
    assert kernel.crc32(view, value & 0xFFFFFFFF) == zlib.crc32(data, value & 0xFFFFFFFF)
    assert kernel.crc32c(view, value & 0xFFFFFFFF) == checksum._aws().crc32c(data, value & 0xFFFFFFFF)
    assert kernel.crc64_nvme(view, value) == checksum.crc64_nvme(data, value)


@pytest.mark.parametrize("wrong", ["text", None, 7, memoryview(b"abcdef")[::2]])
def test_values_without_contiguous_bytes_are_refused(kernel, wrong):
    """Only contiguous buffers have a checksum."""
    for function in (kernel.crc32, kernel.crc32c, kernel.crc64_nvme):
        with pytest.raises((TypeError, BufferError)):
            function(wrong)
