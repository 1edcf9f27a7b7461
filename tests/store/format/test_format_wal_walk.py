"""The walk over the entries of a log in bulk has the results of a walk by entry: for torn and damaged logs, too."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

import format_feeding as feeding
from quiver.primitives.checksum import crc32
from quiver.primitives.scan import Frame
from quiver.store.format.wal_entry import (
    CRC,
    ENTRY_TYPE_BUNDLE,
    WalEntry,
    WalSlot,
    check_entry,
    encode_entry,
    valid_bundles,
)


def one_by_one(view: memoryview, offset: int) -> tuple[list[tuple[int, int, int]], int]:
    """The walk of `valid_bundles`, written with `check_entry`."""
    found = []
    while isinstance(answer := check_entry(view, offset), Frame) and answer.value.entry_type == ENTRY_TYPE_BUNDLE:
        found.append((offset, answer.end, answer.value.sequence))
        offset = answer.end
    return found, offset


def in_bulk(view: memoryview, offset: int) -> tuple[list[tuple[int, int, int]], int]:
    starts, ends, sequences = array("Q"), array("Q"), array("Q")
    end = valid_bundles(view, offset, starts, ends, sequences)
    return list(zip(starts, ends, sequences, strict=True)), end


slots = st.builds(
    WalSlot,
    st.integers(0, 63),
    st.sampled_from([bytes(32), b"\xff" * 32]),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=40).map(memoryview),
)
entries = st.builds(
    WalEntry,
    st.just(0),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(slots, max_size=3, unique_by=lambda slot: slot.slot).map(tuple),
)


def with_checksum(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body + CRC.pack(crc32(body))


pieces = st.one_of(
    entries.map(encode_entry),
    st.binary(min_size=1, max_size=80).map(with_checksum),  # other types, and bundles whose slots contradict each other
    st.binary(max_size=40),
    st.integers(0, 100).map(bytes),
)


@settings(max_examples=200)
@given(st.lists(entries.map(encode_entry), max_size=40), st.lists(pieces, max_size=4), st.data())
def test_the_walk_in_bulk_stops_where_the_walk_by_entry_does(whole, rest, data):
    """Logs of valid entries, then anything; truncated anywhere, and with any byte changed."""
    log = bytearray(b"".join([*whole, *rest]))
    assert in_bulk(memoryview(log), 0) == one_by_one(memoryview(log), 0)
    if log:
        at = data.draw(st.integers(0, len(log) - 1))
        truncated = memoryview(bytes(log[:at]))
        assert in_bulk(truncated, 0) == one_by_one(truncated, 0)
        assert in_bulk(memoryview(log), at) == one_by_one(memoryview(log), at)
        log[at] ^= data.draw(st.integers(1, 255))
        assert in_bulk(memoryview(log), 0) == one_by_one(memoryview(log), 0)


def test_the_walk_in_bulk_at_every_byte():
    """A log of more entries than the first group: truncated at every byte, and with every byte flipped."""
    kinds = [
        WalEntry(
            0, 5, number, tuple(WalSlot(slot, bytes(32), 1, memoryview(b"abcdefgh")) for slot in range(number % 3))
        )
        for number in range(12)
    ]
    log = b"".join(map(encode_entry, kinds))
    assert len(in_bulk(memoryview(log), 0)[0]) == 12
    for end in range(len(log)):
        view = memoryview(log)[:end]
        assert in_bulk(view, 0) == one_by_one(view, 0)
    for _, damaged in feeding.flips(log):
        assert in_bulk(memoryview(damaged), 0) == one_by_one(memoryview(damaged), 0)
