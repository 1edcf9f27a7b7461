"""What all decoders share."""

from __future__ import annotations

import pytest

from quiver.primitives.scan import is_zero

PIECE = 64 * 1024


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_zeros_are_told_from_anything_else(size):
    """One byte that is not zero is seen wherever it stands from the offset on; before it, it does not count."""
    data = bytearray(size + 1)
    assert is_zero(memoryview(data))
    for at in {0, size // 2, size}:
        data[at] = 1
        assert not is_zero(memoryview(data), at)
        assert is_zero(memoryview(data), at + 1)
        data[at] = 0


def test_behind_the_end_there_is_nothing():
    """No bytes are zeros, too."""
    assert is_zero(memoryview(b"x"), 1)
    assert is_zero(memoryview(b""))
