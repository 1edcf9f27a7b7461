"""Descriptors, keys and names of objects: exactly the document's, and nothing else is taken for one."""

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


def test_the_documents_example():
    """Read as printed; written with the same keys in the same order."""
    assert decode_descriptor(DOCUMENT.encode()) == Frame(VALUE, len(DOCUMENT))
    assert json.loads(encode_descriptor(VALUE)) == json.loads(DOCUMENT)
    assert list(json.loads(encode_descriptor(VALUE))) == list(json.loads(DOCUMENT))


def test_golden_bytes():
    """What we write, byte for byte."""
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


def test_keys():
    """As the document prints them; numbers sort as offsets."""
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
def test_names_are_parsed_as_they_are_built(start, end, compression):
    """And say how the object is packed."""
    assert parse_object_id(object_id(start, end, compression)) == (start, end, compression)


@pytest.mark.parametrize(
    "name",
    [
        "", "data-0-pending.dnb1", "data-0-1.dnb1.gz", "data-0-1", "data--1-1.dnb1", "data-01-2.dnb1", "data-0-1.zst",
        "data-0-1.dnb1/..", "../data-0-1.dnb1", "data-0-1.dnb1\n", "data-0-1.dnb1.zst.lz4", "x/data-0-1.dnb1",
        "DATA-0-1.dnb1",
    ],
)  # fmt: skip
def test_other_names_are_somebody_elses(name):
    """They are not read, not named, and not removed."""
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
def test_what_is_no_descriptor_is_damage(data):
    """It raises nothing, and leads nowhere outside its topic."""
    assert isinstance(decode_descriptor(data), Damage)


def test_every_prefix_is_damage_and_every_flip_raises_nothing():
    """Cut off anywhere it is none; changed anywhere it is another one, or none."""
    data = encode_descriptor(VALUE)

    for cut in range(len(data)):
        assert isinstance(decode_descriptor(data[:cut]), Damage)
        flipped = bytearray(data)
        flipped[cut] ^= 1
        answer = decode_descriptor(flipped)
        if isinstance(answer, Frame):
            assert answer.value != VALUE
    assert isinstance(decode_descriptor(data + b"x"), Damage)


def test_a_later_writers_keys_are_passed_over():
    """And a name that ends in the second it was made, as later releases write it, is one."""
    answer = decode_descriptor(changed(schema_version=2, object_id="data-1000-1703001234.dnb1", etag=None))

    assert answer.value.object_id == "data-1000-1703001234.dnb1"
    assert answer.value.etag is None


def test_states():
    """−1 is a topic in which nothing was committed; anything else that is no offset is damage."""
    for value in (SealedState(True, -1, "b", 1), SealedState(False, 2**64 - 1, "", 0), SealedState(True, 9, "", 0, 7)):
        assert decode_sealed_state(encode_sealed_state(value)).value == value
    for data in (b"", b"{}", b"[]", b'{"sealed":true,"last_committed_offset":-2,"broker_id":"","timestamp":0}'):
        assert isinstance(decode_sealed_state(data), Damage)


def test_the_place_of_an_offset():
    """The last entry at or before it; without an index the beginning."""
    assert VALUE.place_of(1000) == (1000, 0)
    assert VALUE.place_of(1999) == (1000, 0)
    assert VALUE.place_of(2000) == (2000, 131072)
    assert VALUE.place_of(5000) == (4000, 393216)
    assert ObjectDescriptor("data-3-9.dnb1", 3, 9, 10, None, 0).place_of(7) == (3, 0)


def test_the_page_says_what_the_code_does():
    """Its example is a descriptor of ours, its table has every key, its limits are the code's."""
    page = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"```json\n(.*?)\n```", page, re.DOTALL)
    keys = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)

    assert json.loads(examples[0]) == json.loads(DOCUMENT)
    assert keys == [*json.loads(DOCUMENT), "compression"]
    assert json.loads(examples[1]) == json.loads(encode_current(1000))
    assert json.loads(examples[2]) == json.loads(encode_sealed_state(SealedState(True, 5000, "b7f3", 1703001240)))
    for name, value in re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+) \|", page, re.MULTILINE):
        assert getattr(format_, name) == int(value.replace(",", ""))
