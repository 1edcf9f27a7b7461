"""A cursor never leaves its view."""

from __future__ import annotations

import struct

import pytest

from quiver.primitives.packing import Cursor, ShortageError, align_up, padding
from quiver.primitives.scan import Damage, Frame, NeedMore

HEAD = struct.Struct("<HI")


def test_fields_are_read_in_order():
    """Each step returns a field and moves after it."""
    cursor = Cursor(HEAD.pack(1, 2) + b"name" + bytes(6) + b"!")

    assert cursor.take(HEAD) == (1, 2)
    assert cursor.view(4) == b"name"
    assert cursor.skip_padding(8)
    assert cursor.offset == 16
    assert cursor.remaining == 1
    assert cursor.view(1) == b"!"
    assert cursor.view(0) == b""
    assert cursor.skip_padding(1)


@pytest.mark.parametrize("length", range(13))
def test_a_truncated_record_reports_the_missing_bytes(length):
    """A record truncated at any byte raises ShortageError with their number, and the cursor does not move."""
    complete = HEAD.pack(1, 2) + b"payload"
    cursor = Cursor(complete[:length])

    def decode():
        cursor.take(HEAD)
        cursor.view(7)

    with pytest.raises(ShortageError) as caught:
        decode()

    assert caught.value.offset == cursor.offset == (6 if length >= 6 else 0)
    assert length + caught.value.missing == (13 if length >= 6 else 6)


@pytest.mark.parametrize("size", [-1, 5, 2**64])
def test_sizes_from_disk_are_bounded(size):
    """Neither a negative nor an enormous size moves the cursor or allocates anything."""
    cursor = Cursor(b"1234")

    for step in (cursor.skip, cursor.view):
        with pytest.raises(ShortageError):
            step(size)
    assert cursor.offset == 0


def test_views_are_read_only_and_not_copied():
    """A view shares the buffer's memory and cannot write to it."""
    data = bytearray(b"abcd")
    view = Cursor(data, 1).view(2)
    data[1] = ord("B")

    assert view == b"Bc"
    assert view.readonly
    with pytest.raises(ShortageError):
        Cursor(data, 5)


def test_wide_buffers_count_in_bytes():
    """A buffer of 8-byte items has eight bytes for each item."""
    assert Cursor(memoryview(bytes(16)).cast("Q")).remaining == 16


def test_padding_must_be_zero_and_present():
    """A byte that is not zero is reported; a view that ends inside the padding is too short."""
    assert not Cursor(b"x\0\0\1", 1).skip_padding(4)
    with pytest.raises(ShortageError):
        Cursor(b"x\0\0", 1).skip_padding(4)


@pytest.mark.parametrize(("size", "missing"), [(0, 0), (1, 63), (63, 1), (64, 0), (65, 63)])
def test_padding_to_64(size, missing):
    """Aligned sizes stay; others are rounded up to the next multiple."""
    assert padding(size, 64) == missing
    assert align_up(size, 64) == size + missing


def test_answers_are_values():
    """The three answers of a decoder compare by contents and cannot be changed."""
    assert Frame(1, 2) == Frame(value=1, end=2)
    assert NeedMore(3) != NeedMore(4)
    assert Damage(5, "why") == Damage(offset=5, reason="why")
    with pytest.raises(AttributeError):
        NeedMore(3).missing = 4
