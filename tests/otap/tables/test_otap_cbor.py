"""CBOR of nested values: the bytes of the standard in both directions, and errors for all else."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from quiver.otap.conversion_errors import ConversionError
from quiver.otap.tables.cbor import decode_value, encode_value


def array(*values) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def value_of(data: bytes) -> AnyValue:
    value = AnyValue()
    decode_value(data, value, levels=90)
    return value


@pytest.mark.parametrize(
    ("value", "hexadecimal"),
    [
        (array(), "9fff"),
        (AnyValue(kvlist_value=KeyValueList()), "bfff"),
        (array(AnyValue()), "9ff6ff"),
        (array(AnyValue(bool_value=False), AnyValue(bool_value=True)), "9ff4f5ff"),
        (array(AnyValue(int_value=23), AnyValue(int_value=24)), "9f171818ff"),
        (array(AnyValue(int_value=-1), AnyValue(int_value=-257)), "9f20390100ff"),
        (array(AnyValue(int_value=2**63 - 1)), "9f1b7fffffffffffffffff"),
        (array(AnyValue(int_value=-(2**63))), "9f3b7fffffffffffffffff"),
        (array(AnyValue(int_value=70_000)), "9f1a00011170ff"),
        (array(AnyValue(double_value=1.5)), "9ffb3ff8000000000000ff"),
        (array(AnyValue(string_value="é"), AnyValue(bytes_value=b"")), "9f62c3a940ff"),
        (AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="a", value=array())])), "bf61619fffff"),
    ],
)
def test_checklist_13_golden_bytes(value, hexadecimal):
    data = bytes.fromhex(hexadecimal)
    assert encode_value(value) == data
    assert value_of(data) == value


@pytest.mark.parametrize(
    ("hexadecimal", "value"),
    [
        ("820102", array(AnyValue(int_value=1), AnyValue(int_value=2))),
        ("80", array()),
        ("a16161f6", AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="a", value=AnyValue())]))),
        ("81f93e00", array(AnyValue(double_value=1.5))),
        ("81fa3fc00000", array(AnyValue(double_value=1.5))),
        ("81f97c00", array(AnyValue(double_value=math.inf))),
        ("81f7", array(AnyValue())),
        ("811901f4", array(AnyValue(int_value=500))),
        ("816161", array(AnyValue(string_value="a"))),
    ],
)
def test_checklist_13_definite_lengths_and_short_floats_are_decoded(hexadecimal, value):
    assert value_of(bytes.fromhex(hexadecimal)) == value


def test_nan_is_decoded_in_every_width():
    for data in (b"\xf9\x7e\x00", b"\xfa\x7f\xc0\x00\x00", b"\xfb" + struct.pack(">d", math.nan)):
        assert math.isnan(value_of(data).double_value)


@pytest.mark.parametrize(
    ("hexadecimal", "reason"),
    [
        ("", "1 bytes needed at byte 0, 0 are left"),
        ("9f", "1 bytes needed at byte 1"),
        ("1bffffffffffffffff", "the integer at byte 0 does not fit into 64 signed bits"),
        ("3b8000000000000000", "the integer at byte 0 does not fit into 64 signed bits"),
        ("c100", "unexpected tag at byte 0"),
        ("7f6161ff", "the text at byte 0 is chunked"),
        ("5f4161ff", "the byte string at byte 0 is chunked"),
        ("62c328", "the text at byte 0 is not UTF-8"),
        ("a10101", "the key at byte 1 is a integer, not text"),
        ("9b7fffffffffffffff", "9223372036854775807 items at byte 9, 0 bytes are left"),
        ("bb7fffffffffffffff", "9223372036854775807 items at byte 9, 0 bytes are left"),
        ("5b7fffffffffffffff", "9223372036854775807 bytes needed at byte 9, 0 are left"),
        ("0000", "1 bytes after the value, at byte 1"),
        ("ff", "byte 0xff at byte 0 is not a value"),
        ("1f", "byte 0x1f at byte 0 is invalid"),
        ("1c", "byte 0x1c at byte 0 is invalid"),
        ("e0", "byte 0xe0 at byte 0 is not a value"),
        ("f820", "byte 0xf8 at byte 0 is not a value"),
        ("81" * 46 + "00", "nested too deep at byte 46"),
        ("a160" * 31 + "00", "nested too deep"),
    ],
)
def test_invalid_cbor_is_refused(hexadecimal, reason):
    with pytest.raises(ConversionError) as refused:
        value_of(bytes.fromhex(hexadecimal))
    assert reason in str(refused.value)


def test_values_are_counted_and_bounded():
    value = AnyValue()
    assert decode_value(bytes.fromhex("9f0102ff"), value, levels=90, items=3) == 3
    with pytest.raises(ConversionError, match="too many values"):
        decode_value(bytes.fromhex("9f010203ff"), value, levels=90, items=3)


@settings(max_examples=300, deadline=None, database=None)
@given(st.binary(max_size=24))
def test_checklist_20_any_bytes_are_a_value_or_refused(data):
    try:
        value = value_of(data)
    except ConversionError:
        return
    assert value_of(encode_value(value)).SerializeToString() == value.SerializeToString()


def test_checklist_20_truncated_bytes_are_refused_and_flipped_bytes_do_not_crash():
    data = encode_value(array(AnyValue(string_value="text"), array(AnyValue(double_value=2.5)), AnyValue(int_value=9)))
    for end in range(len(data)):
        with pytest.raises(ConversionError):
            value_of(data[:end])
    for at in range(len(data)):
        for flip in range(1, 256):
            try:
                value_of(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
            except ConversionError as refused:
                assert str(refused).startswith("CBOR: ")
