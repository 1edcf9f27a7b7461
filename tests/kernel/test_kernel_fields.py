"""The decoder of attributes in the compiled kernel returns the columns of its twin, and refuses the same messages."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from quiver.otap import any_values
from quiver.otap.any_values import KINDS
from quiver.otap.arrays import FallbackNeededError
from quiver.otap.wire_schema import narrow_handler

VECTORS = Path(__file__).parents[1] / "vectors" / "otlp"
INT64 = st.integers(-(2**63), 2**63 - 1)

plain = st.one_of(
    st.just(AnyValue()),
    st.builds(AnyValue, string_value=st.text(max_size=200)),
    st.builds(AnyValue, string_value=st.sampled_from([127, 128, 16_383, 16_384]).map("x".__mul__)),
    st.builds(AnyValue, int_value=INT64),
    st.builds(AnyValue, double_value=st.floats()),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, bytes_value=st.binary(max_size=40)),
)


def _array(values):
    value = AnyValue()
    value.array_value.values.extend(values)
    return value


nested = st.one_of(plain, st.lists(plain, max_size=3).map(_array))
pairs = st.builds(KeyValue, key=st.text(max_size=30), value=nested).map(KeyValue.SerializeToString)


@st.composite
def damaged(draw):
    """A serialized pair with a few bytes changed, removed or added."""
    data = bytearray(draw(pairs))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


some_pairs = st.lists(pairs, max_size=5)
others = st.lists(st.one_of(damaged(), st.binary(max_size=20)), max_size=1)
messages = st.tuples(some_pairs, others, some_pairs).map(lambda parts: [data for part in parts for data in part])


def answer(read, *args):
    """Return the columns of *read*, with None for those that need the fallback; None if all of it does."""
    try:
        found = read(*args)
    except FallbackNeededError:
        return None
    keys, values = found if isinstance(found, tuple) else (None, found)
    columns = {"kinds": values.kinds.tolist(), "keys": None if keys is None else checked(keys)}
    for arm in KINDS:
        columns[arm] = column(values.field, arm)
        columns[f"has {arm}"] = values.has(arm)
    for arm in ("array_value", "kvlist_value"):
        columns[f"nested {arm}"] = column(lambda arm: values.nested(arm)[0], arm)
        columns[f"rows of {arm}"] = values.nested(arm)[1].tolist() if isinstance(columns[arm], tuple) else None
    return columns


def column(make, arm):
    try:
        return checked(make(arm))
    except FallbackNeededError:
        return "fallback"


def checked(array):
    array.validate(full=True)
    # By their bits, so NaN equals itself and -0.0 differs from 0.0.
    bits = array.view(pa.int64()) if array.type == pa.float64() else array
    return array.type, bits.to_pylist()


def assert_same_pairs(contents, start=0, count=None):
    column_of = pa.array(contents, pa.binary()).slice(start, count)
    in_kernel = answer(any_values.key_values_in_kernel, column_of)
    assert in_kernel == answer(any_values.key_values_in_python, column_of)
    return in_kernel


@settings(max_examples=400)
@given(contents=messages, start=st.integers(0, 3), count=st.integers(0, 12))
@example(contents=[b"", b"\x80\x80\x80\x80"], start=0, count=12)
@example(contents=[b"\x0a\x80", b"\x0a\x80\x80", b"\x0a\x01"], start=0, count=12)
@example(contents=[b"\x0a\x80\x80\x80\x00"], start=0, count=12)
@example(contents=[b"\x0a\x80\x80\x00\x12\x80\x80\x00"], start=0, count=12)
@example(contents=[b"\x0a\x00\x12\x0b\x18" + b"\xff" * 9 + b"\x7f"], start=0, count=12)
def test_attributes(kernel, contents, start, count):
    """Pairs, changed pairs and other bytes have the same keys, kinds and values, in a slice as well."""
    assert_same_pairs(contents, start, count)


@settings(max_examples=400)
@given(contents=messages)
def test_values(kernel, contents):
    """Serialized values, and lists of at most one, are decoded alike."""
    column_of = pa.array(contents, pa.binary())
    places = slice(None, -1), slice(1, None)
    in_python = answer(any_values.values_in_python, column_of, *places)
    assert answer(any_values.values_in_kernel, column_of, *places) == in_python
    values = [KeyValue.FromString(data).value.SerializeToString() for data in contents if is_pair(data)]
    counts = np.array([number % 2 for number in range(2 * len(values))], np.int64)
    before = np.cumsum(counts) - counts
    column_of = pa.array(values, pa.binary())
    in_python = answer(any_values.values_in_python, column_of, before, before + counts)
    assert answer(any_values.values_in_kernel, column_of, before, before + counts) == in_python


def is_pair(data):
    try:
        KeyValue.FromString(data)
    except Exception:
        return False
    return True


def test_every_flipped_bit_and_every_cut(kernel):
    """A value of each kind between two others, with any bit flipped, and cut anywhere, has the answer of the twin."""
    values = [
        AnyValue(), AnyValue(string_value="é"), AnyValue(int_value=-300), AnyValue(double_value=-0.0),
        AnyValue(bool_value=True), AnyValue(bytes_value=b"\xff\x80"), _array([AnyValue(int_value=3)]),
    ]  # fmt: skip
    encoded = [KeyValue(key="key", value=value).SerializeToString() for value in values]
    decoded = 0
    for data in encoded:
        for cut in range(len(data) + 1):
            assert_same_pairs([encoded[1], data[:cut], encoded[2]])
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            decoded += assert_same_pairs([encoded[1], bytes(flipped), encoded[2]]) is not None
    assert decoded > 100


def test_attributes_of_recorded_requests(kernel):
    """The attributes of every recorded request are decoded in one column and one by one."""
    found = []
    for path in sorted(VECTORS.glob("logs*.pb")):
        records = narrow_handler("logs").list_to_record_batch([path.read_bytes()]).column(0)
        records = records.values.field("scope_logs").values.field("log_records").values
        found += records.field("attributes").values.to_pylist()
    assert len(found) > 50
    assert_same_pairs(found)
    for data in found[:200]:
        assert assert_same_pairs([data]) is not None


def test_more_bytes_than_the_kernel_reads_with_the_gil(kernel):
    """A column of 300 KB, with values of every kind, is decoded alike."""
    dice = random.Random(3)
    contents = []
    for number in range(20_000):
        some = (
            AnyValue(int_value=number),
            AnyValue(string_value="v" * (number % 40)),
            AnyValue(bool_value=number % 3 > 0),
        )
        value = dice.choice(some)
        contents.append(KeyValue(key=f"key {number % 7}", value=value).SerializeToString())
    assert assert_same_pairs(contents) is not None
    assert assert_same_pairs([*contents, b"\x0a\x02k"]) is None


@pytest.mark.parametrize("one_of", [8, 9, 1000])
def test_rare_values_among_many(kernel, one_of):
    """A value of each kind of bytes is decoded alike, however rare it is; an invalid one needs the fallback in both."""
    rare = [AnyValue(bytes_value=b"\xff\x00"), AnyValue(string_value="é" * 70), _array([AnyValue(int_value=1)])]
    for value in rare:
        common = AnyValue(int_value=one_of)
        values = [common if number % one_of else value for number in range(8_000)]
        pairs = [KeyValue(key="k", value=value).SerializeToString() for value in values]
        assert assert_same_pairs(pairs) is not None
        assert_same_pairs([*pairs, b"\x0a\x01k\x12\x03\x0a\x01\xff", b"\x0a\x01k\x12\x03\x3a\x02\x01"])


def numbers(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (b"abc", numbers(0, 4)),
        (b"abc", numbers(-1, 3)),
        (b"abc", numbers(2, 1)),
        (b"abc", b""),
        (b"", numbers(0, 2**30)),
    ],
)
def test_places_outside_of_the_data_are_refused(kernel, data, places):
    """The kernel reads nothing outside of the data."""
    with pytest.raises(ValueError, match="outside of the data|other sizes"):
        kernel.split_key_values(data, places, b"\x0a\x12", bytes(256))


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        (numbers(0), numbers(99)),
        (numbers(-1), numbers(3)),
        (numbers(3), numbers(2)),
        (numbers(0, 1), numbers(1)),
        (numbers(2**31 - 1), numbers(2**31 - 1)),
    ],
)
def test_ranges_outside_of_the_data_are_refused(kernel, starts, ends):
    """Neither function reads outside of the data or the columns."""
    for gather in (kernel.gather_bytes, kernel.gather_numbers):
        with pytest.raises(ValueError, match="outside of the data|other sizes"):
            gather(b"\x0a\x01k", starts, ends, b"\x01", 1, 0)


def test_ranges_that_overlap_are_refused(kernel):
    """The content never has more bytes than the data."""
    with pytest.raises(ValueError, match="overlap"):
        kernel.gather_bytes(b"\x0a\x02kk", numbers(0, 0, 0), numbers(4, 4, 4), b"\x01\x01\x01", 1, 0)
