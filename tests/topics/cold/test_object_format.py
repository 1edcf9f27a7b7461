"""Descriptors, keys and names of objects have exactly the documented form, and other bytes are rejected."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.primitives.scan import Damage, Frame
from quiver.topics.format import descriptor as format_
from quiver.topics.format.descriptor import (
    DESCRIPTOR_BYTES_MAX,
    ObjectDescriptor,
    SealedState,
    current_key,
    decode_descriptor,
    decode_sealed_state,
    descriptor_key,
    encode_current,
    encode_descriptor,
    encode_sealed_state,
    object_id,
    object_key,
    owner_key,
    parse_object_id,
    state_key,
)

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "topic-object.md"

DOCUMENT = """{
  "object_id": "data-1000-5000.dnb1",
  "start_offset": 1000,
  "end_offset": 5000,
  "size": 524288,
  "etag": "abc123def456",
  "created_at": 1703001234,
  "completed": true,
  "offset_index": [
    [1000, 0],
    [2000, 131072],
    [3000, 262144],
    [4000, 393216]
  ]
}"""

VALUE = ObjectDescriptor(
    "data-1000-5000.dnb1", 1000, 5000, 524288, "abc123def456", 1703001234,
    offset_index=((1000, 0), (2000, 131072), (3000, 262144), (4000, 393216)),
)  # fmt: skip


def test_the_example_of_the_document_is_decoded_and_encoded():
    """It is read as printed, and written with the same keys in the same order."""
    assert decode_descriptor(DOCUMENT.encode()) == Frame(VALUE, len(DOCUMENT))
    assert json.loads(encode_descriptor(VALUE)) == json.loads(DOCUMENT)
    assert list(json.loads(encode_descriptor(VALUE))) == list(json.loads(DOCUMENT))


def test_descriptors_have_golden_bytes():
    """The encoded bytes are fixed."""
    assert encode_descriptor(VALUE) == (
        b'{"object_id":"data-1000-5000.dnb1","start_offset":1000,"end_offset":5000,"size":524288,'
        b'"etag":"abc123def456","created_at":1703001234,"completed":true,'
        b'"offset_index":[[1000,0],[2000,131072],[3000,262144],[4000,393216]]}'
    )
    plain = ObjectDescriptor("data-0-0.dnb1", 0, 0, 17, None, 0)
    assert encode_descriptor(plain) == (
        b'{"object_id":"data-0-0.dnb1","start_offset":0,"end_offset":0,"size":17,"etag":null,"created_at":0,'
        b'"completed":true}'
    )
    assert encode_current(1000) == b'{"start":"00000000000000001000"}'
    assert encode_sealed_state(SealedState(True, 41, "b1", 7)) == (
        b'{"sealed":true,"last_committed_offset":41,"broker_id":"b1","timestamp":7}'
    )


def test_keys_have_the_documented_form():
    """They sort by offset."""
    assert descriptor_key("/danube", "ns/topic", 1000) == (
        "/danube/storage/topics/ns/topic/objects/00000000000000001000"
    )
    assert current_key("/danube", "ns/topic") == "/danube/storage/topics/ns/topic/objects/cur"
    assert encode_sealed_state(SealedState(True, 41, "b1", 7, 12)) == (
        b'{"sealed":true,"last_committed_offset":41,"broker_id":"b1","timestamp":7,"start_offset":12}'
    )
    assert state_key("/danube", "ns/topic") == "/danube/storage/topics/ns/topic/state"
    assert owner_key("/danube", "ns/topic") == "/danube/storage/topics/ns/topic/owner"
    assert object_key("ns/topic", "data-1000-5000.dnb1") == "storage/topics/ns/topic/objects/data-1000-5000.dnb1"
    assert descriptor_key("", "a/b", 9) < descriptor_key("", "a/b", 10) < descriptor_key("", "a/b", 2**64 - 1)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from(["none", "zstd", "lz4"]))
def test_object_names_round_trip(start, end, compression):
    """The name includes the compression."""
    assert parse_object_id(object_id(start, end, compression)) == (start, end, compression)


@pytest.mark.parametrize(
    "name",
    [
        "", "data-0-pending.dnb1", "data-0-1.dnb1.gz", "data-0-1", "data--1-1.dnb1", "data-01-2.dnb1", "data-0-1.zst",
        "data-0-1.dnb1/..", "../data-0-1.dnb1", "data-0-1.dnb1\n", "data-0-1.dnb1.zst.lz4", "x/data-0-1.dnb1",
        "DATA-0-1.dnb1",
    ],
)  # fmt: skip
def test_foreign_names_are_rejected(name):
    """Such files are not read, listed or removed."""
    assert parse_object_id(name) is None


def changed(**fields):
    return json.dumps({**json.loads(DOCUMENT), **fields}).encode()


def without(key):
    return json.dumps({name: value for name, value in json.loads(DOCUMENT).items() if name != key}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff", b"[" * 100_000,
        *(without(key) for key in ("object_id", "start_offset", "end_offset", "size", "created_at")),
        changed(start_offset=-1), changed(start_offset=2**64), changed(start_offset="0"), changed(start_offset=True),
        changed(start_offset=1.0), changed(end_offset=999), changed(size=-1), changed(created_at=None),
        changed(object_id="../../secret"), changed(object_id="data-1-pending.dnb1"), changed(object_id=7),
        changed(offset_index=[[1000]]), changed(offset_index=[[1000, 0, 0]]), changed(offset_index="x"),
        changed(offset_index=[[2000, 5], [1000, 9]]), changed(offset_index=[[1000, 9], [2000, 5]]),
        changed(offset_index=[[999, 0]]), changed(offset_index=[[5001, 0]]), changed(offset_index=[[1000, 524288]]),
        changed(offset_index=[["1000", 0]]), changed(compression="brotli"), changed(compression=None),
        b" " * (DESCRIPTOR_BYTES_MAX + 1),
    ],
)  # fmt: skip
def test_an_invalid_descriptor_is_damage(data):
    """The decoder raises nothing, and no path leads outside the topic."""
    assert isinstance(decode_descriptor(data), Damage)


def test_a_truncated_or_flipped_descriptor_never_raises():
    """Truncated anywhere it is damage; changed anywhere it is another descriptor, or damage."""
    data = encode_descriptor(VALUE)

    for cut in range(len(data)):
        assert isinstance(decode_descriptor(data[:cut]), Damage)
        flipped = bytearray(data)
        flipped[cut] ^= 1
        answer = decode_descriptor(flipped)
        if isinstance(answer, Frame):
            assert answer.value != VALUE
    assert isinstance(decode_descriptor(data + b"x"), Damage)


def test_unknown_keys_of_later_versions_are_ignored():
    """A name that ends with the second of its creation, as later releases write it, is accepted."""
    answer = decode_descriptor(changed(schema_version=2, object_id="data-1000-1703001234.dnb1", etag=None))

    assert answer.value.object_id == "data-1000-1703001234.dnb1"
    assert answer.value.etag is None


def test_the_state_of_a_topic_is_decoded():
    """−1 means that no message was committed; any other value that is not an offset is damage."""
    for value in (SealedState(True, -1, "b", 1), SealedState(False, 2**64 - 1, "", 0), SealedState(True, 9, "", 0, 7)):
        assert decode_sealed_state(encode_sealed_state(value)).value == value
    for data in (b"", b"{}", b"[]", b'{"sealed":true,"last_committed_offset":-2,"broker_id":"","timestamp":0}'):
        assert isinstance(decode_sealed_state(data), Damage)


def test_the_index_finds_the_last_entry_before_an_offset():
    """The entry at or before the offset; without an index the start of the object."""
    assert VALUE.place_of(1000) == (1000, 0)
    assert VALUE.place_of(1999) == (1000, 0)
    assert VALUE.place_of(2000) == (2000, 131072)
    assert VALUE.place_of(5000) == (4000, 393216)
    assert ObjectDescriptor("data-3-9.dnb1", 3, 9, 10, None, 0).place_of(7) == (3, 0)


def test_the_page_matches_the_code():
    """Its example is a valid descriptor, its table has every key, and its limits are the code's."""
    page = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    keys = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)

    assert json.loads(examples[0]) == json.loads(DOCUMENT)
    assert keys == [*json.loads(DOCUMENT), "compression"]
    assert json.loads(examples[1]) == json.loads(encode_current(1000))
    assert json.loads(examples[2]) == json.loads(encode_sealed_state(SealedState(True, 5000, "b7f3", 1703001240)))
    for name, value in re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+) \|", page, re.MULTILINE):
        assert getattr(format_, name) == int(value.replace(",", ""))
