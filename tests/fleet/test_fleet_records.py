"""The two records in JSON: exact text, bounds, and other bytes."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.fleet.gone import (
    GONE_BYTES_MAX,
    GONE_SEGMENTS_MAX,
    GoneSegments,
    decode_gone,
    encode_gone,
)
from quiver.store.format.fleet.node_record import (
    NODE_RECORD_BYTES_MAX,
    NodeRecord,
    decode_node_record,
    encode_node_record,
)
from quiver.store.format.fleet.rejected import (
    REJECTED_BYTES_MAX,
    RejectedSegment,
    decode_rejected,
    encode_rejected,
)

GONE = GoneSegments(3, 9, "age", 1_700_000_000_000_000_000, ((3, 12), (4, 7)))
GONE_TEXT = (
    b'{"kind":"fleet gone","version":1,"first":3,"last":9,"reason":"age","gone_at_ns":1700000000000000000,'
    b'"segments":[[3,12],[4,7]]}'
)
NODE = NodeRecord(
    "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11", "edge-17", "9f2c", "running", "0.1.0", 1_700_000_600_000_000_000,
    1_700_000_000_000_000_000, 8, 2, 8_400_000, 21_000_000, oldest_waiting_ns=1_700_000_590_000_000_000,
    disk_cap_bytes=10_000_000_000, subscribers=("lake",), labels={"site": "Graz"},
)  # fmt: skip
NODE_TEXT = (
    b'{"kind":"fleet node","record_version":1,"identity":"3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11","name":"edge-17",'
    b'"boot":"9f2c","state":"running","version":"0.1.0","written_at_ns":1700000600000000000,'
    b'"started_at_ns":1700000000000000000,"next_segment":8,"waiting_segments":2,"waiting_bytes":8400000,'
    b'"disk_bytes":21000000,"oldest_waiting_ns":1700000590000000000,"disk_cap_bytes":10000000000,'
    b'"disk_free_bytes":null,"problem":null,"subscribers":["lake"],"labels":{"site":"Graz"}}'
)
REJECTED = RejectedSegment(
    "3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11", 7, 0xA1B2C3D4, 5000, "damaged", "the object's checksum is not a1b2c3d4"
)
REJECTED_TEXT = (
    b'{"kind":"fleet rejected","version":1,"identity":"3e0b6f0a-5d3c-4f63-9a43-0c9d6c0c5a11","segment":7,'
    b'"crc32":"a1b2c3d4","size_bytes":5000,"cause":"damaged","reason":"the object\'s checksum is not a1b2c3d4"}'
)
RECORDS = [
    (decode_gone, GONE_TEXT, GONE_BYTES_MAX),
    (decode_node_record, NODE_TEXT, NODE_RECORD_BYTES_MAX),
    (decode_rejected, REJECTED_TEXT, REJECTED_BYTES_MAX),
]


def test_golden():
    assert encode_gone(GONE) == GONE_TEXT
    assert decode_gone(memoryview(GONE_TEXT)) == Frame(GONE, len(GONE_TEXT))
    assert encode_node_record(NODE) == NODE_TEXT
    assert decode_node_record(memoryview(NODE_TEXT)) == Frame(NODE, len(NODE_TEXT))
    assert encode_rejected(REJECTED) == REJECTED_TEXT
    assert decode_rejected(memoryview(REJECTED_TEXT)) == Frame(REJECTED, len(REJECTED_TEXT))


def test_lost_bundles_from_a_position():
    """A reader in the middle of the range has lost only the rest."""
    assert [GONE.bundles_from(position) for position in (0, 3, 4, 5, 9)] == [19, 19, 7, 0, 0]


@pytest.mark.parametrize(("decode", "text", "bytes_max"), RECORDS)
def test_mistreated(decode, text, bytes_max):
    """A part, junk, or too much is damage; later members are skipped."""
    for size in range(len(text)):
        assert isinstance(decode(memoryview(text[:size])), Damage)
    for data in (text + b"x", b"[]", b"1", b"[" * 40_000, b"\xff", b'{"kind":"other"}', text + b" " * bytes_max):
        assert isinstance(decode(memoryview(data)), Damage)
    later = text[:-1] + b',"added":{"a":[1]}}'
    expected = decode(memoryview(text))
    assert isinstance(expected, Frame)
    assert decode(memoryview(later)) == Frame(expected.value, len(later))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(("decode", "text", "bytes_max"), RECORDS)
@given(st.data())
def test_any_value_of_a_member_is_answered(decode, text, bytes_max, data):
    """A value is read as it is, or it is damage; nothing raises."""
    members = json.loads(text)
    name = data.draw(st.sampled_from(sorted(members)))
    members[name] = data.draw(JSON)
    answer = decode(memoryview(json.dumps(members).encode()))
    assert isinstance(answer, Damage | Frame)
    if isinstance(answer, Frame) and name not in {"kind", "version", "record_version", "segments", "subscribers"}:
        found = getattr(answer.value, "written_at_ns" if name == "record_version" else name)
        assert found == members[name]
    assert bytes_max


@pytest.mark.parametrize("change", [
    {"first": 4}, {"last": 3}, {"first": -1}, {"last": 2**64 - 1}, {"gone_at_ns": -1}, {"reason": "other"},
    {"segments": ((4, 1), (3, 1))}, {"segments": ((3, 1), (3, 1))}, {"segments": ((10, 1),)},
    {"segments": ((3, 2**32),)}, {"last": 2**60, "segments": tuple((3 + at, 1) for at in range(GONE_SEGMENTS_MAX + 1))},
])  # fmt: skip
def test_gone_segments_that_could_not_be_read_are_not_written(change):
    with pytest.raises(UsageError, match="gone segments"):
        encode_gone(dataclasses.replace(GONE, **change))


@pytest.mark.parametrize(("name", "value"), [
    ("identity", "edge"), ("name", "a/b"), ("name", ""), ("boot", ""), ("state", "asleep"), ("next_segment", -1),
    ("waiting_bytes", 2**64), ("disk_bytes", True), ("problem", "two\nlines"), ("problem", "x" * 401),
    ("subscribers", ("a b",)), ("subscribers", ("a",) * 65), ("labels", {"": "x"}), ("labels", {"a": "x" * 257}),
    ("labels", {str(at): "" for at in range(65)}), ("labels", {"a": 1}), ("oldest_waiting_ns", -1),
])  # fmt: skip
def test_a_node_that_could_not_be_read_is_not_written(name, value):
    with pytest.raises(UsageError, match=name):
        encode_node_record(dataclasses.replace(NODE, **{name: value}))


def test_the_largest_record_is_below_the_limit():
    """Labels in the widest characters, in every place."""
    labels = {f"{at:02d}{'€' * 254}": "€" * 256 for at in range(40)}
    assert len(encode_node_record(dataclasses.replace(NODE, labels=labels))) < NODE_RECORD_BYTES_MAX
    too_many = {f"{at:02d}{'€' * 254}": "€" * 256 for at in range(60)}
    with pytest.raises(UsageError, match="bytes"):
        encode_node_record(dataclasses.replace(NODE, labels=too_many))


def test_reasons_of_rejected_segments_are_cut():
    """An error may be long, and have line breaks and bytes of a hostile node."""
    long = dataclasses.replace(REJECTED, reason="a\nb\x1b" + "c" * 5000)
    answer = decode_rejected(memoryview(encode_rejected(long)))
    assert answer.value.reason.startswith("a b?cc")
    assert len(answer.value.reason) == 1000


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("kind", "x"), ("version", 2), ("identity", "x"), ("segment", -1), ("segment", True), ("size_bytes", 2**70),
        ("crc32", "A1B2C3D4"), ("crc32", 7), ("cause", "x"), ("reason", "\n"), ("reason", None),
    ],
)  # fmt: skip
def test_invalid_rejected_segments(member, value):
    text = json.dumps({**json.loads(REJECTED_TEXT), member: value}).encode()
    assert isinstance(decode_rejected(memoryview(text)), Damage)
