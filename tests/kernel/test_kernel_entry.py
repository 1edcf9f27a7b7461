"""Entries of the log that the compiled kernel lays out have the bytes of their twin, and are decoded."""

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.otap import iter_bundles
from quiver.primitives.scan import Frame
from quiver.store.encode import SlotEncoder
from quiver.store.entries import ENTRY_OVERHEAD, write_entry_in_python
from quiver.store.format.wal_entry import decode_entry

TESTS = Path(__file__).parents[1]
BATCHES = (
    pa.record_batch({"id": [1, 2, 3], "body": ["a", "b", None]}),
    pa.record_batch({"id": pa.array([], pa.int64())}),
    pa.record_batch({"kind": pa.array(["x", "y", "x"]).dictionary_encode()}),
    pa.record_batch({"blob": [b"\xff" * 100_000]}),
)


def laid_out(write, slots, stamp, sequence):
    """The entry, and the messages that its slots then have."""
    encoded = SlotEncoder().encode(slots)
    region = memoryview(bytearray(encoded.nbytes + ENTRY_OVERHEAD)).cast("b")
    write(region, stamp, sequence, encoded.bitmap, encoded.slots)
    return bytes(region), [bytes(slot.message) for slot in encoded.slots]


@given(
    picks=st.dictionaries(st.integers(0, 63), st.sampled_from(range(len(BATCHES))), max_size=5),
    stamp=st.integers(0, 2**63 - 1),
    sequence=st.integers(0, 2**64 - 1),
)
def test_any_bundle(kernel, picks, stamp, sequence):
    """Any slots, with dictionaries and without, small and large, at any time and sequence number."""
    slots = {slot: BATCHES[pick] for slot, pick in sorted(picks.items())}
    entry, messages = laid_out(kernel.write_entry, slots, stamp, sequence)
    expected, expected_messages = laid_out(write_entry_in_python, slots, stamp, sequence)
    assert entry == expected
    assert messages == expected_messages
    decoded = decode_entry(memoryview(entry), 0)
    assert isinstance(decoded, Frame)
    assert [(slot.slot, slot.row_count) for slot in decoded.value.slots] == [
        (number, batch.num_rows) for number, batch in slots.items()
    ]


@pytest.mark.parametrize("path", sorted((TESTS / "vectors" / "otlp").glob("*.pb")), ids=lambda path: path.stem)
def test_recorded_requests(kernel, path):
    """The bundles of requests that other programs sent."""
    for bundle in iter_bundles(path.read_bytes(), path.stem.partition("_")[0]):
        entry, messages = laid_out(kernel.write_entry, bundle.batches, 5, 7)
        expected, expected_messages = laid_out(write_entry_in_python, bundle.batches, 5, 7)
        assert (entry, messages) == (expected, expected_messages)


@pytest.mark.parametrize("wrong", [-100, -8, -4, -1, 1, 4, 100])
def test_regions_of_another_size_are_refused(kernel, wrong):
    """Nothing is written after a region that is too small, and one that is too large is not an entry."""
    encoded = SlotEncoder().encode({3: BATCHES[0]})
    size = encoded.nbytes + ENTRY_OVERHEAD + wrong
    around = bytearray(b"\xee" * (size + 64))
    with pytest.raises(ValueError, match="do not fill"):
        kernel.write_entry(memoryview(around)[32 : 32 + size], 1, 1, encoded.bitmap, encoded.slots)
    assert around[:32] == around[32 + size :] == b"\xee" * 32


def test_regions_for_nothing_are_refused(kernel):
    """A region smaller than an entry without slots."""
    for size in range(ENTRY_OVERHEAD):
        with pytest.raises(ValueError, match="do not fill"):
            kernel.write_entry(memoryview(bytearray(size)), 1, 1, 0, [])


class Slot:
    """A slot with any attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def slot_with(**changes):
    stream = {"fingerprint": bytes(32), "schema_bytes": b"schema", "has_dictionaries": False}
    slot = {"slot": 1, "row_count": 1, "message": b"message!", "payload_bytes": 8}
    stream |= {name: changes.pop(name) for name in list(changes) if name in stream}
    return Slot(**slot | changes, stream_schema=Slot(**stream))


WRONG = {
    "slot": (-1, 2**16, None), "row_count": (-1, 2**32), "payload_bytes": (2**32, 2**64), "message": ("text", None),
    "fingerprint": (bytes(31), bytes(33), b""), "schema_bytes": (None,),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_slots_with_wrong_attributes_are_refused(kernel, name, value):
    """Numbers that do not fit, and bytes that are none."""
    with pytest.raises((ValueError, TypeError, OverflowError)):
        kernel.write_entry(memoryview(bytearray(200)), 1, 1, 2, [slot_with(**{name: value})])


def test_slots_without_an_attribute_are_refused(kernel):
    """Each attribute is needed."""
    for name in ("slot", "row_count", "message", "payload_bytes", "stream_schema"):
        slot = slot_with()
        delattr(slot, name)
        with pytest.raises(AttributeError, match=name):
            kernel.write_entry(memoryview(bytearray(200)), 1, 1, 2, [slot])


def test_regions_that_cannot_be_written_are_refused(kernel):
    """Bytes, text, and lists of slots that are none."""
    for region, slots in itertools.product((bytes(33), "text", None), ([], None)):
        with pytest.raises((TypeError, BufferError)):
            kernel.write_entry(region, 1, 1, 0, slots)
    with pytest.raises(TypeError, match="at most 64"):
        kernel.write_entry(memoryview(bytearray(33)), 1, 1, 0, [slot_with()] * 65)
