"""Counting flat arrays and maps by column agrees with decoding them individually, and no invalid one is counted."""

import random

import numpy as np
import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from quiver.otap.arrays import FallbackNeededError
from quiver.otap.conversion_errors import ConversionError
from quiver.otap.tables.cbor import decode_value, encode_value, measure_value
from quiver.otap.tables.cbor_columns import count_flat, written_flat
from quiver.otap.views.columns import json_text
from quiver.otap.views.nested_json import JSON

ARM = {False: "array_value", True: "kvlist_value"}


def counted(data: list[bytes], *, is_map: bool) -> list[int]:
    """Count values in the middle of a longer column."""
    column = pa.array([b"\xff\x61", *data, b"\x61\x61\x61"], pa.binary()).slice(1, len(data))
    return count_flat(column, np.full(len(data), is_map)).tolist()


def measured(data: bytes) -> tuple[str, int]:
    """Return the arm and the count; none for a refused value."""
    try:
        return measure_value(data, levels=90)
    except ConversionError:
        return "", 0


def some_value(dice: random.Random) -> AnyValue:
    return dice.choice(
        [
            AnyValue(),
            AnyValue(string_value=dice.choice(["", "a", "é" * 20, "x" * 300])),
            AnyValue(int_value=dice.choice([0, 23, 24, -1, -257, 70_000, 2**63 - 1, -(2**63)])),
            AnyValue(double_value=dice.random()),
            AnyValue(bool_value=dice.random() < 0.5),
            AnyValue(bytes_value=dice.randbytes(dice.choice([0, 5, 30, 300]))),
        ]
    )


def nested(dice: random.Random, *, is_map: bool) -> bytes:
    """Return a value with either kind of length; keys are like values."""
    values = [some_value(dice) for _ in range(dice.randrange(5))]
    complete = AnyValue()
    complete.array_value.SetInParent() if not is_map else complete.kvlist_value.SetInParent()
    for at, value in enumerate(values):
        if is_map:
            complete.kvlist_value.values.add(key=f"key {at}" * (at + 1), value=value)
        else:
            complete.array_value.values.add().CopyFrom(value)
    data = encode_value(complete)
    return data if dice.random() < 0.5 else bytes([data[0] & 0xE0 | len(values)]) + data[1:-1]


@pytest.mark.parametrize("is_map", [False, True])
def test_counts_of_flat_values_agree_with_decoding(is_map):
    dice = random.Random(1)
    data = [nested(dice, is_map=is_map) for _ in range(200)]
    expected = [measured(one) for one in data]
    assert all(arm == ARM[is_map] for arm, _ in expected)
    assert counted(data, is_map=is_map) == [count for _, count in expected]


def test_arrays_and_maps_are_counted_together():
    dice = random.Random(3)
    maps = np.array([dice.random() < 0.5 for _ in range(100)])
    data = [nested(dice, is_map=bool(one)) for one in maps]
    assert count_flat(pa.array(data), maps).tolist() == [measured(one)[1] for one in data]
    assert not count_flat(pa.array(data), ~maps).any()


@pytest.mark.parametrize("is_map", [False, True])
def test_only_valid_values_are_counted(is_map):
    """With bytes flipped, cut off and added, each in its own column, because invalid text affects an entire one."""
    dice = random.Random(2)
    known = 0
    for _ in range(30):
        complete = nested(dice, is_map=is_map)
        changed = [complete[:at] for at in range(min(len(complete), 40))] + [complete + b"\x00", complete + b"\xff"]
        for at in range(min(len(complete), 25)):
            flipped = bytearray(complete)
            flipped[at] ^= 1 << dice.randrange(8)
            changed.append(bytes(flipped))
        for data in changed:
            (count,) = counted([data], is_map=is_map)
            known += count > 0
            assert count in {0, measured(data)[1] if measured(data)[0] == ARM[is_map] else -1}
    assert known > 200


def test_a_nested_value_does_not_affect_others():
    inner = AnyValue(array_value={"values": [AnyValue(int_value=1)]})
    deep = encode_value(AnyValue(array_value={"values": [inner]}))
    many = encode_value(AnyValue(array_value={"values": [AnyValue()] * 40}))
    flat = encode_value(inner)
    assert counted([flat, deep, many, b"", flat], is_map=False) == [2, 0, 0, 0, 2]
    assert counted([flat], is_map=True) == [0]


def test_invalid_text_leaves_the_column_uncounted():
    assert counted([b"\x81\x61a", b"\x81\x61\xff"], is_map=False) == [0, 0]
    assert counted([b"\x81\x41\xff", b"\x81\x61a"], is_map=False) == [2, 2]


def as_json(data: bytes) -> str:
    """Convert individually."""
    value = AnyValue()
    decode_value(data, value, levels=90)
    return json_text(value)


def test_json_of_flat_values_agrees_with_individual_conversion():
    dice = random.Random(4)
    data = [nested(dice, is_map=dice.random() < 0.5) for _ in range(300)]
    deep = encode_value(AnyValue(array_value={"values": [AnyValue(array_value={})]}))
    floats = bytes.fromhex("84f93e00fa7fc00000fbfff0000000000000f7")
    column = pa.array([b"", *data[:150], deep, *data[150:], floats, b"\x81", b"\x00"], pa.binary()).slice(1)
    written = written_flat(column, JSON).to_pylist()
    assert written == [*map(as_json, data[:150]), None, *map(as_json, data[150:]), as_json(floats), None, None]


def test_duplicate_keys_and_invalid_text_need_the_fallback():
    twice = bytes.fromhex("a2616101616102")
    for data in (twice, b"\x81\x61\xff"):
        with pytest.raises(FallbackNeededError):
            written_flat(pa.array([encode_value(AnyValue(array_value={})), data]), JSON)
