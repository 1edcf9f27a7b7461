"""
CBOR (RFC 8949) of arrays and maps in OTAP: `AnyValue` ↔ bytes.

Encoding uses arrays and maps of indefinite length and 64-bit floats, like other producers. Decoding accepts definite
and indefinite lengths and floats of 16, 32 and 64 bits. It refuses tags, keys that are not text, integers beyond 64
signed bits, chunked strings, bytes after the value, and nesting beyond the limit of protobuf readers. The order and
duplicate keys of maps are preserved.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from quiver.otap.conversion_errors import ConversionError

__all__ = ["ITEMS_MAX", "LEVELS_MAX", "decode_value", "encode_value", "measure_value"]

LEVELS_MAX = 100
"""The nesting limit of protobuf readers in messages: an array takes two, a map three."""

ITEMS_MAX = 1 << 23
"""The maximum number of values in arrays and maps of one request: one byte may become an object."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _OTHER = range(8)
_BREAK = 0xFF
_INDEFINITE = 31
_INT64_END = 1 << 63
_ARMS = {_ARRAY: "array_value", _MAP: "kvlist_value"}
_NAMES = ("integer", "integer", "byte string", "text", "array", "map", "tag", "simple value")


def encode_value(value: Any) -> bytes:
    """Encode an `AnyValue` message; an unset value is null."""
    out = bytearray()
    _encode(value, out)
    return bytes(out)


def _head(major: int, number: int, out: bytearray) -> None:
    if number < 24:
        out.append(major << 5 | number)
    elif number < 1 << 8:
        out += bytes((major << 5 | 24, number))
    elif number < 1 << 16:
        out += struct.pack(">BH", major << 5 | 25, number)
    elif number < 1 << 32:
        out += struct.pack(">BI", major << 5 | 26, number)
    else:
        out += struct.pack(">BQ", major << 5 | 27, number)


def _text(text: str, out: bytearray) -> None:
    raw = text.encode()
    _head(_TEXT, len(raw), out)
    out += raw


def _encode(value: Any, out: bytearray) -> None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        _text(value.string_value, out)
    elif kind == "int_value":
        number = value.int_value
        _head(_UNSIGNED if number >= 0 else _NEGATIVE, number if number >= 0 else -1 - number, out)
    elif kind == "double_value":
        out += struct.pack(">Bd", 0xFB, value.double_value)
    elif kind == "bool_value":
        out.append(0xF5 if value.bool_value else 0xF4)
    elif kind == "bytes_value":
        _head(_BYTES, len(value.bytes_value), out)
        out += value.bytes_value
    elif kind == "array_value":
        out.append(0x9F)
        for item in value.array_value.values:
            _encode(item, out)
        out.append(_BREAK)
    elif kind == "kvlist_value":
        out.append(0xBF)
        for pair in value.kvlist_value.values:
            _text(pair.key, out)
            _encode(pair.value, out)
        out.append(_BREAK)
    else:
        out.append(0xF6)


def decode_value(data: bytes, value: Any, *, levels: int, items: int = ITEMS_MAX) -> int:
    """
    Decode *data* into *value*, an `AnyValue` message. Return the number of values, at most *items*.

    *levels* is the remaining nesting limit.

    Raises:
        ConversionError: the bytes are invalid or exceed a limit.
    """
    reader = _Reader(data, items)
    reader.value(value, levels)
    if reader.at != len(data):
        raise ConversionError(f"CBOR: {len(data) - reader.at} bytes after the value, at byte {reader.at}")
    return items - reader.items


def measure_value(data: bytes, *, levels: int, items: int = ITEMS_MAX) -> tuple[str, int]:
    """
    Return the arm that `decode_value` would set and the number of values, without creating objects.

    Raises:
        ConversionError: as for `decode_value`.
    """
    try:
        at, left = _skip(data, 0, levels, items)
    except (_UnusualCborError, IndexError, UnicodeDecodeError):
        at, left = -1, items
    arm = _ARMS.get(data[0] >> 5) if data else None
    if at == len(data) and arm is not None:
        return arm, items - left
    value = AnyValue()
    count = decode_value(data, value, levels=levels, items=items)  # raises the error, or decodes an unusual encoding
    return value.WhichOneof("value") or "", count


class _UnusualCborError(Exception):
    """The encoding is not one that encoders usually write."""


def _skip(data: bytes, at: int, levels: int, items: int) -> tuple[int, int]:
    """Return the end of the value at *at*, and how many of *items* are left."""
    if not items:
        raise _UnusualCborError
    first = data[at]
    major, low = first >> 5, first & 31
    if major in {_ARRAY, _MAP}:
        return _skip_within(data, at, levels - (3 if major == _MAP else 2), items - 1)
    length = 0 if low < 24 else 1 << (low - 24) if low < 28 else -1
    number = low if not length else int.from_bytes(data[at + 1 : at + 1 + length], "big")
    end = at + 1 + length
    if major in {_BYTES, _TEXT}:
        end += number
        if major == _TEXT:
            data[end - number : end].decode()
    elif major == _OTHER:
        if not 20 <= low <= 27 or low == 24:
            raise _UnusualCborError
    elif major not in {_UNSIGNED, _NEGATIVE} or number >= _INT64_END:
        raise _UnusualCborError
    if length < 0 or end > len(data):
        raise _UnusualCborError
    return end, items - 1


def _skip_within(data: bytes, at: int, levels: int, items: int) -> tuple[int, int]:
    """Like `_skip`, for an array or map of indefinite length or with the length in its first byte."""
    major, low = data[at] >> 5, data[at] & 31
    if levels < 0 or (low >= 24 and low != _INDEFINITE):
        raise _UnusualCborError
    at += 1
    done = 0
    while done != low if low != _INDEFINITE else data[at] != _BREAK:
        if major == _MAP:
            if data[at] >> 5 != _TEXT:
                raise _UnusualCborError
            at, _ = _skip(data, at, 0, 1)
        at, items = _skip(data, at, levels, items)
        done += 1
    return at + (low == _INDEFINITE), items


class _Reader:
    """A position in the bytes. Every length is compared with the remaining bytes before it is used."""

    __slots__ = ("at", "data", "items")

    def __init__(self, data: bytes, items: int) -> None:
        self.data = data
        self.items = items
        self.at = 0

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise ConversionError(f"CBOR: {length} bytes needed at byte {self.at}, {len(self.data) - self.at} are left")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def head(self) -> tuple[int, int, int]:
        """Return the major type, the five low bits, and the number after them (0 for indefinite lengths)."""
        first = self.take(1)[0]
        major, low = first >> 5, first & 31
        if low < 24:
            return major, low, low
        if low <= 27:
            return major, low, int.from_bytes(self.take(1 << (low - 24)), "big")
        if low == _INDEFINITE and major not in {_UNSIGNED, _NEGATIVE, _TAG}:
            return major, low, 0
        raise ConversionError(f"CBOR: byte {first:#04x} at byte {self.at - 1} is invalid")

    def value(self, value: Any, levels: int) -> None:
        start = self.at
        self.items -= 1
        if self.items < 0:
            raise ConversionError("CBOR: too many values")
        major, low, number = self.head()
        if major in {_UNSIGNED, _NEGATIVE}:
            if number >= _INT64_END:
                raise ConversionError(f"CBOR: the integer at byte {start} does not fit into 64 signed bits")
            value.int_value = number if major == _UNSIGNED else -1 - number
        elif major == _TEXT:
            value.string_value = self.text(low, number, start)
        elif major == _BYTES:
            self.definite(low, start, major)
            value.bytes_value = self.take(number)
        elif major == _ARRAY:
            self.array(value, low, number, levels)
        elif major == _MAP:
            self.map(value, low, number, levels)
        elif major == _OTHER:
            self.simple(value, low, number, start)
        else:
            raise ConversionError(f"CBOR: unexpected tag at byte {start}")

    def text(self, low: int, length: int, start: int) -> str:
        self.definite(low, start, _TEXT)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise ConversionError(f"CBOR: the text at byte {start} is not UTF-8") from None

    @staticmethod
    def definite(low: int, start: int, major: int) -> None:
        if low == _INDEFINITE:
            raise ConversionError(f"CBOR: the {_NAMES[major]} at byte {start} is chunked")

    def simple(self, value: Any, low: int, number: int, start: int) -> None:
        if low in {20, 21}:
            value.bool_value = low == 21
        elif low in {25, 26, 27}:
            value.double_value = _float(low, number)
        elif low not in {22, 23}:  # null and undefined stay unset
            raise ConversionError(f"CBOR: byte {self.data[start]:#04x} at byte {start} is not a value")

    def ended(self, low: int, number: int, done: int) -> bool:
        """Return whether an array or map ends after *done* items; skip its end mark."""
        if low != _INDEFINITE:
            return done == number
        if self.at < len(self.data) and self.data[self.at] == _BREAK:
            self.at += 1
            return True
        return False

    def descend(self, low: int, number: int, levels: int, cost: int) -> int:
        if levels < cost:
            raise ConversionError(f"CBOR: nested too deep at byte {self.at}; protobuf readers stop at 100 levels")
        if low != _INDEFINITE and number > len(self.data) - self.at:
            raise ConversionError(f"CBOR: {number} items at byte {self.at}, {len(self.data) - self.at} bytes are left")
        return levels - cost

    def array(self, value: Any, low: int, number: int, levels: int) -> None:
        left = self.descend(low, number, levels, 2)
        value.array_value.SetInParent()
        values = value.array_value.values
        while not self.ended(low, number, len(values)):
            self.value(values.add(), left)

    def map(self, value: Any, low: int, number: int, levels: int) -> None:
        left = self.descend(low, number, levels, 3)
        value.kvlist_value.SetInParent()
        values = value.kvlist_value.values
        while not self.ended(low, number, len(values)):
            start = self.at
            major, key_low, length = self.head()
            if major != _TEXT:
                raise ConversionError(f"CBOR: the key at byte {start} is a {_NAMES[major]}, not text")
            pair = values.add()
            pair.key = self.text(key_low, length, start)
            pair.value.SetInParent()
            self.value(pair.value, left)


def _float(low: int, number: int) -> float:
    code = {25: "e", 26: "f", 27: "d"}[low]
    value: float = struct.unpack(f">{code}", number.to_bytes(1 << (low - 24), "big"))[0]
    return math.nan if math.isnan(value) and low != 27 else value
