"""The part of the query protocol that a server without queries needs."""

import pytest

from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.qwp.wire.queries import decode_query, encode_query_error, encode_server_info
from quiver.qwp.wire.responses import Status

QUERY = bytes.fromhex("10 2a00000000000000 08") + b"select 1" + b"\0\0"
"""As the official client 6.0 sends it."""


def test_the_first_message_describes_a_single_server():
    """It is not part of a cluster."""
    assert encode_server_info(1_700_000_000_000_000_000, "n1") == bytes.fromhex(
        "51575031 01 00 0000 1c000000 18 00 0000000000000000 00000000 00002a36fe9c9717 0000 0200 6e31"
    )


def test_a_query_is_refused_with_its_number():
    """A long text is truncated between two characters."""
    assert encode_query_error(42, Status.PARSE_ERROR, "no") == bytes.fromhex(
        "51575031 01 00 0000 0e000000 13 2a00000000000000 05 0200 6e6f"
    )
    assert encode_query_error(1, 5, "ä" * 600).endswith("ä".encode() * 512)


@pytest.mark.parametrize("header", [b"", bytes.fromhex("51575031 01 00 0000 13000000")], ids=["bare", "header"])
def test_the_number_of_a_query_is_decoded(header):
    """Complete, truncated at every byte, and with every first byte."""
    assert decode_query(memoryview(header + QUERY)).value == 42
    for size in range(len(header) + 9):
        assert isinstance(decode_query(memoryview((header + QUERY)[:size])), NeedMore)
    for kind in range(256):
        answer = decode_query(memoryview(header + bytes([kind]) + QUERY[1:]))
        if kind in {0x10, 0x14, 0x15}:
            assert isinstance(answer, Frame)
            assert answer.value == (42 if kind == 0x10 else None)
        else:
            assert isinstance(answer, Damage)
