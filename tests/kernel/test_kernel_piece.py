"""Messages that the compiled kernel copies to a region have the bytes of their twin, and keep the memory alive."""

import gc
import mmap
import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.store.encode import copy_message_in_python


@given(message=st.binary(max_size=300), before=st.integers(0, 20), after=st.integers(0, 20))
def test_any_message(kernel, message, before, after):
    """The bytes around the region stay, and what reads a message reads the same from a piece as from its twin."""
    copies = []
    for copy in (kernel.copy_message, copy_message_in_python):
        around = bytearray(b"\xee" * (before + len(message) + after))
        copies.append(copy(memoryview(around)[before : before + len(message)], message))
        assert around == b"\xee" * before + message + b"\xee" * after
    for copied in copies:
        assert len(copied) == len(message)
        assert b"".join((b"<", copied, b">")) == b"<" + message + b">"
        assert memoryview(copied).cast("B")[1:] == message[1:]
        assert pa.py_buffer(copied).to_pybytes() == message
        assert zlib.crc32(copied) == zlib.crc32(message)
        if len(message) >= 8:
            assert struct.unpack_from("<4xi", copied) == struct.unpack_from("<4xi", message)


def test_pieces_keep_their_memory(kernel):
    """Neither the view nor its object can take the memory away, until the last piece is gone."""
    memory = mmap.mmap(-1, 4096)
    with memoryview(memory) as whole:
        piece = kernel.copy_message(whole[100:105], b"bytes")
    with pytest.raises(BufferError):
        memory.close()
    view = memoryview(piece)
    del piece
    assert bytes(view) == b"bytes"
    with pytest.raises(BufferError):
        memory.close()
    view.release()
    memory.close()


def test_the_collector_does_not_visit_pieces(kernel):
    """A segment keeps tens of thousands of them."""
    assert not gc.is_tracked(kernel.copy_message(memoryview(bytearray(5)), b"bytes"))


def test_pieces_are_read_only(kernel):
    """The message of a segment must not change."""
    piece = kernel.copy_message(memoryview(bytearray(5)), b"bytes")
    assert memoryview(piece).readonly
    with pytest.raises(TypeError):
        piece[0] = 1


def test_pieces_are_only_made_by_copies(kernel):
    """A piece without memory would be a null pointer."""
    with pytest.raises(TypeError):
        type(kernel.copy_message(memoryview(bytearray(1)), b"a"))()


@pytest.mark.parametrize("region", [bytes(5), memoryview(bytes(5)), bytearray(5), "text", None])
def test_regions_that_are_no_writable_views_are_refused(kernel, region):
    """Read-only memory, and objects that own their memory."""
    with pytest.raises((TypeError, BufferError, AttributeError)):
        kernel.copy_message(region, b"bytes")


def test_messages_that_do_not_fill_the_region_are_refused(kernel):
    """Nothing is written."""
    for size in (4, 6):
        memory = bytearray(size)
        with pytest.raises(ValueError, match="does not fill"):
            kernel.copy_message(memoryview(memory), b"bytes")
        assert memory == bytes(size)
    with pytest.raises(TypeError):
        kernel.copy_message(memoryview(bytearray(4)), "text")
