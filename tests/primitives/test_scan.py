"""Functions that all decoders share."""

from __future__ import annotations

import pytest

from quiver.primitives.scan import is_zero

PIECE = 64 * 1024


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_zeros_are_distinguished_from_other_bytes(size):
    """One other byte is found anywhere from the offset on; bytes before the offset do not count."""
    data = bytearray(size + 1)
    assert is_zero(memoryview(data))
    for at in {0, size // 2, size}:
        data[at] = 1
        assert not is_zero(memoryview(data), at)
        assert is_zero(memoryview(data), at + 1)
        data[at] = 0


def test_an_offset_at_the_end_has_only_zeros():
    """An empty range counts as zeros."""
    assert is_zero(memoryview(b"x"), 1)
    assert is_zero(memoryview(b""))
