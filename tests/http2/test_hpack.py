"""HPACK: the examples of RFC 7541, round trips, and damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.http2.hpack import HeaderDecoder, encode_headers, list_bytes
from quiver.http2.huffman import huffman_decode
from quiver.primitives.scan import Damage

FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    (b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]  # fmt: skip
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)
"""RFC 7541, appendices C.3 and C.4: three requests on one connection."""


def decoder() -> HeaderDecoder:
    return HeaderDecoder(list_bytes_max=10_000)


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_the_examples_of_the_standard(blocks):
    found = decoder()
    for block, headers in zip(blocks, (FIRST, SECOND, THIRD), strict=True):
        assert found.try_decode(bytes.fromhex(block)) == headers


def test_a_block_without_new_entries_is_the_same_until_the_table_changes():
    found = decoder()
    assert found.try_decode(bytes.fromhex(PLAIN[0])) == FIRST
    refers = bytes.fromhex("be")
    assert found.try_decode(refers) == found.try_decode(refers) == [(b":authority", b"www.example.com")]
    assert found.try_decode(bytes.fromhex("400161" + "0162")) == [(b"a", b"b")]
    assert found.try_decode(refers) == [(b"a", b"b")]
    assert found.try_decode(bytes.fromhex("20")) == []  # a table of size 0
    assert isinstance(found.try_decode(refers), Damage)


def test_old_entries_leave_a_full_table():
    found = decoder()
    for number in range(10):
        entry = (b"name", bytes([number]) * 1_000)
        assert found.try_decode(b"\x40\x04name\x7f\xe9\x06" + entry[1]) == [entry]
    assert found.try_decode(b"\xc0") == [(b"name", b"\x07" * 1_000)]
    assert isinstance(found.try_decode(b"\xc1"), Damage)
    assert found.try_decode(b"\x40\x04name\x7f\xe1\x1f" + bytes(4_064 + 128))  # larger than the table: nothing is left
    assert isinstance(found.try_decode(b"\xbe"), Damage)


@pytest.mark.parametrize("block", [
    b"\x80",  # the index 0
    b"\xff\x00\x01",  # an index outside of the tables
    b"\xff\x80\x80\x80\x80\x80\x80\x01",  # an integer that is too long
    b"\x00\x01a\x05b",  # a text longer than its block
    b"\x00\x01a\x82\xff\xff",  # padding of more than seven bits
    b"\x00\x01a\x84\xff\xff\xff\xff",  # the end of text as a symbol
    b"\x3f\xe2\x1f",  # a table of 4,097 bytes
    b"\x82\x20",  # the table changes after a header
    b"\x40",  # nothing after a first byte
])  # fmt: skip
def test_damage_is_reported(block):
    assert isinstance(decoder().try_decode(block), Damage)


def test_a_list_is_bounded():
    """Each byte may refer to an entry of four thousand."""
    assert isinstance(decoder().try_decode(b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000 + b"\xbe" * 3), Damage)


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), max_size=8))
def test_what_is_encoded_is_decoded(headers):
    assert HeaderDecoder(list_bytes_max=1 << 20).try_decode(encode_headers(headers)) == headers
    assert list_bytes(headers) == sum(len(name) + len(value) + 32 for name, value in headers)


@given(st.binary(max_size=200))
def test_any_bytes_are_headers_or_damage(block):
    assert isinstance(decoder().try_decode(block), list | Damage)
    assert isinstance(huffman_decode(block), bytes | None)
