"""Attributes and values are decoded like protobuf decodes them, or need the fallback."""

import random

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from quiver.otap.any_values import KINDS, any_values, key_values, optional_values
from quiver.otap.arrays import FallbackNeededError

PLAIN = [
    AnyValue(), AnyValue(string_value=""), AnyValue(string_value="é"), AnyValue(string_value="x" * 127),
    AnyValue(string_value="x" * 128), AnyValue(string_value="y" * 20_000), AnyValue(int_value=0),
    AnyValue(int_value=127), AnyValue(int_value=128), AnyValue(int_value=-1), AnyValue(int_value=-(2**63)),
    AnyValue(int_value=2**63 - 1), AnyValue(double_value=-0.0), AnyValue(double_value=1e300),
    AnyValue(bool_value=False), AnyValue(bool_value=True), AnyValue(bytes_value=b""), AnyValue(bytes_value=b"\xff\0"),
]  # fmt: skip


def read(values) -> list:
    """Return each value as (arm, content), from the columns of all arms."""
    columns = {arm: values.field(arm).to_pylist() for arm in KINDS}
    found = []
    for row, kind in enumerate(values.kinds.tolist()):
        arms = {arm: column[row] for arm, column in columns.items() if column[row] is not None}
        assert len(arms) == (kind > 0)
        assert all(KINDS[arm] == kind for arm in arms)
        found.append(next(iter(arms.items()), None))
    return found


def expected(value: AnyValue):
    arm = value.WhichOneof("value")
    if arm is None:
        return None
    held = getattr(value, arm)
    return arm, held.SerializeToString() if arm in {"array_value", "kvlist_value"} else held


def test_values_of_every_kind_and_length_are_decoded():
    nested = [AnyValue(), AnyValue()]
    nested[0].array_value.values.add(int_value=3)
    nested[1].kvlist_value.SetInParent()
    values = [*PLAIN, *nested]
    assert read(any_values(pa.array([value.SerializeToString() for value in values]))) == [*map(expected, values)]
    pairs = [KeyValue(key="k" * at, value=value) for at, value in enumerate(values)] + [
        KeyValue(key="bare"),
        KeyValue(),
    ]
    keys, found = key_values(pa.array([pair.SerializeToString() for pair in pairs]))
    assert keys.to_pylist() == [pair.key for pair in pairs]
    assert read(found) == [expected(pair.value) for pair in pairs]


def test_a_slice_of_a_column_is_decoded():
    column = pa.array([value.SerializeToString() for value in PLAIN])
    assert read(any_values(column.slice(3, 9))) == [*map(expected, PLAIN[3:12])]
    assert read(any_values(column.slice(0, 0))) == []


def test_optional_fields_are_decoded():
    parts = [[], [AnyValue(int_value=1).SerializeToString()], [], [b""]]
    assert read(optional_values(pa.array(parts, pa.list_(pa.binary())))) == [None, ("int_value", 1), None, None]
    with pytest.raises(FallbackNeededError):
        optional_values(pa.array([[b"", b""]], pa.list_(pa.binary())))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x01a\x18\x01",  # two arms
        b"\x18\x01\x18\x01",  # one arm twice
        b"\x0a\x05a",  # past the end
        b"\x0a\x80\x80\x80\x01" + b"a",  # a length of four bytes
        b"\x18",  # nothing after the tag
        b"\x18" + b"\xff" * 10 + b"\x01",  # a number of eleven bytes
        b"\x18\xff",  # a number without an end
        b"\x10\x81\x00",  # a boolean of two bytes
        b"\x21\0\0\0\0\0\0\0",  # seven bytes of a double
        b"\x40\x01",  # a field that is not known here
        b"\x0a\x01\xff",  # not UTF-8
    ],
)
def test_unusual_values_need_the_fallback(data):
    with pytest.raises(FallbackNeededError):
        read(any_values(pa.array([AnyValue(int_value=1).SerializeToString(), data])))


@pytest.mark.parametrize(
    "data",
    [
        b"\x12\x02\x18\x01\x0a\x01k",  # the value first
        b"\x0a\x01k\x12\x02\x18\x01\x12\x02\x18\x01",  # two values
        b"\x0a\x01k\x0a\x01k",  # two keys
        b"\x0a\x01\xff",  # not UTF-8
        b"\x0a\x09k",  # past the end
        b"\x0a\x01k\x12\x09",  # past the end
        b"\x0a\x01k\x18\x01",  # a field that is not known here
    ],
)
def test_unusual_attributes_need_the_fallback(data):
    with pytest.raises(FallbackNeededError):
        key_values(pa.array([KeyValue(key="k").SerializeToString(), data, KeyValue(key="l").SerializeToString()]))


def test_flipped_bytes_need_the_fallback_or_decode_like_protobuf():
    dice = random.Random(5)
    pairs = [KeyValue(key="key", value=value).SerializeToString() for value in PLAIN if value.ByteSize() < 100]
    agreed = 0
    for _ in range(3000):
        data = bytearray(dice.choice(pairs))
        for _ in range(dice.randrange(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            keys, values = key_values(pa.array([pairs[0], bytes(data), pairs[1]]))
            found = read(values)
        except FallbackNeededError:
            continue
        try:
            pair = KeyValue.FromString(bytes(data))
        except DecodeError:
            arm = found[1][0]
            assert arm in {"array_value", "kvlist_value"}  # opaque bytes until they are decoded
            continue
        if repr(expected(pair.value)) != repr(found[1]):
            assert found[1][0] in {"array_value", "kvlist_value"}
        assert keys[1].as_py() == pair.key
        agreed += 1
    assert agreed > 300
