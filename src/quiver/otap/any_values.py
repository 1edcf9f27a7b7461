"""
Encoded attributes and AnyValues → keys and values by type (the arms of the oneof), one column at a time.

The request decoder returns them as bytes, at a fifth of the cost of decoding them. They are decoded here in the form
that every encoder writes: the key, then the value, with one arm and nothing after it. Other forms (a value before its
key, an arm in two parts, an unknown field) raise `FallbackNeededError`.

With the compiled kernel, `KernelValues` replaces `AnyValues`, which is the reference: both decode the same messages and
refuse the same messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from quiver.otap.arrays import FallbackNeededError, checked_text, counts_of, placed
from quiver.primitives.kernel import KERNEL

__all__ = [
    "KINDS",
    "AnyValues",
    "KernelValues",
    "Wire",
    "any_values",
    "key_values",
    "key_values_in_kernel",
    "key_values_in_python",
    "optional_values",
    "values_in_kernel",
    "values_in_python",
]

KINDS = {
    "string_value": 1, "int_value": 2, "double_value": 3, "bool_value": 4, "kvlist_value": 5,
    "array_value": 6, "bytes_value": 7,
}  # fmt: skip
"""Arm → its number in OTAP; 0 is an unset value."""

_TYPES = {
    "string_value": pa.string(), "int_value": pa.int64(), "double_value": pa.float64(), "bool_value": pa.bool_(),
    "kvlist_value": pa.binary(), "array_value": pa.binary(), "bytes_value": pa.binary(),
}  # fmt: skip
_WIRE_TYPES = {"int_value": 0, "bool_value": 0, "double_value": 1}
_FORMS = {"int_value": 0, "double_value": 1, "bool_value": 2}
"""How the kernel reads an arm: a varint, eight bytes, or one byte."""
_LENGTH_DELIMITED = 2
_UNUSUAL = 255
_PADDING = 16
_CONTINUES = 0x80
_VARINT_BYTES_MAX = 10
_DOUBLE_BYTES = 8
_RARE, _MANY = 8, 4096
"""If fewer than one of 8 among many values has an arm, its rows are found first, and only they are decoded."""
_FEW = 32
"""Up to this many values, copying them individually is faster than by Arrow."""


def _tag(message: Any, name: str) -> int:
    wire_type = _WIRE_TYPES.get(name, _LENGTH_DELIMITED)
    tag: int = message.DESCRIPTOR.fields_by_name[name].number << 3 | wire_type
    return tag


_KEY_TAG, _VALUE_TAG = _tag(KeyValue, "key"), _tag(KeyValue, "value")
_TAGS = bytes((_KEY_TAG, _VALUE_TAG))
_KIND_OF_TAG = np.full(256, _UNUSUAL, np.uint8)
for _arm, _kind in KINDS.items():
    _KIND_OF_TAG[_tag(AnyValue, _arm)] = _kind


def _places(messages: pa.Array) -> tuple[pa.Buffer, np.ndarray]:
    """Return the bytes of a column, and the offsets of its messages with the end of the last one."""
    _, offsets, data = messages.buffers()
    places = np.zeros(1, np.int32)
    if len(messages):
        places = np.frombuffer(offsets, np.int32)[messages.offset : messages.offset + len(messages) + 1]
    return pa.py_buffer(b"") if data is None else data, places


class Wire:
    """The bytes of all messages of a column, padded with zeros so that reading ahead stays in bounds."""

    def __init__(self, messages: pa.Array) -> None:
        self.data, places = _places(messages)
        self.raw = np.zeros(self.data.size + _PADDING, np.uint8)
        self.raw[: self.data.size] = np.frombuffer(self.data, np.uint8)
        self.starts, self.ends = places[:-1].astype(np.int64), places[1:].astype(np.int64)

    def lengths(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths encoded at these offsets, and the offsets of their contents."""
        first = self.raw.take(at).astype(np.int64)
        if not len(first) or int(first.max()) < _CONTINUES:
            return first, at + 1
        second, third = self.raw.take(at + 1).astype(np.int64), self.raw.take(at + 2).astype(np.int64)
        two = first >= _CONTINUES
        three = two & (second >= _CONTINUES)
        if (three & (third >= _CONTINUES)).any():
            raise FallbackNeededError
        length = (first & 0x7F) + np.where(two, (second & 0x7F) << 7, 0) + np.where(three, third << 14, 0)
        return length, at + 1 + two + three

    def cut(self, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
        """
        Return the bytes between these ascending offsets as a column.

        In an array whose offsets are starts and ends in turn, every other value is such a range.
        """
        if not len(starts):
            return pa.nulls(0, pa.binary())
        if len(starts) <= _FEW:
            view = memoryview(self.data)
            own = [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
            offsets = np.zeros(len(starts) + 1, np.int32)
            np.cumsum(ends - starts, out=offsets[1:])
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(own))]
            return pa.Array.from_buffers(pa.binary(), len(starts), buffers)
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        whole = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), self.data])
        return whole.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32)))

    def text(self, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
        """
        Return the bytes between these ascending offsets as strings.

        Raises:
            FallbackNeededError: they are not UTF-8.
        """
        return checked_text(self.cut(starts, ends))


def _counted(kinds: np.ndarray) -> list[int]:
    """
    Return the number of values of each kind.

    Raises:
        FallbackNeededError: a value has an unusual encoding.
    """
    numbers = range(len(KINDS) + 1)
    if len(kinds) < _MANY:
        counts: list[int] = np.bincount(kinds, minlength=_UNUSUAL + 1)[: len(numbers)].tolist()
    else:  # `bincount` would widen all of them first
        counts = [int(np.count_nonzero(kinds == kind)) for kind in numbers]
    if sum(counts) != len(kinds):
        raise FallbackNeededError
    return counts


class AnyValues:
    """
    A column of values. `field` returns one arm, with null where a value has another one.

    Attributes:
        kinds: the arm of each value, numbered as in `KINDS`.
    """

    def __init__(self, wire: Wire, starts: np.ndarray, ends: np.ndarray) -> None:
        self._wire, self._starts, self._ends = wire, starts, ends
        self.kinds = _KIND_OF_TAG.take(wire.raw.take(starts)) * (ends > starts)
        self._counts = _counted(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def has(self, name: str) -> bool:
        """Return whether any value has this arm."""
        return bool(self._counts[KINDS[name]])

    def field(self, name: str) -> pa.Array:
        """
        Return the arm of this name.

        Raises:
            FallbackNeededError: a value has an unusual encoding, or a string is not UTF-8.
        """
        if not self.has(name):
            return pa.nulls(len(self), _TYPES[name])
        there = self.kinds == KINDS[name]
        rows = np.flatnonzero(there)
        if name not in _WIRE_TYPES:
            return placed(self._bytes(name, rows), there, rows)
        valid = None if len(rows) == len(self) else pa.py_buffer(np.packbits(there, bitorder="little"))
        starts, ends = self._starts[rows] + 1, self._ends[rows]
        if name == "bool_value":
            read = self._wire.raw.take(starts)
            if (ends != starts + 1).any() or int(read.max()) >= _CONTINUES:
                raise FallbackNeededError
            truths = np.zeros(len(self), np.bool_)
            truths[rows] = read != 0
            buffer = pa.py_buffer(np.packbits(truths, bitorder="little"))
        else:
            numbers = np.zeros(len(self), np.int64 if name == "int_value" else np.float64)
            take = self._integers if name == "int_value" else self._doubles
            numbers[rows] = take(starts, ends)
            buffer = pa.py_buffer(numbers)
        return pa.Array.from_buffers(_TYPES[name], len(self), [valid, buffer])

    def nested(self, name: str) -> tuple[pa.Array, np.ndarray]:
        """
        Return the serialized arrays or maps, and their rows.

        Raises:
            FallbackNeededError: a value has an unusual encoding.
        """
        if not self.has(name):
            return pa.nulls(0, pa.binary()), np.zeros(0, np.int64)
        rows = np.flatnonzero(self.kinds == KINDS[name])
        return self._bytes(name, rows), rows

    def _bytes(self, name: str, rows: np.ndarray) -> pa.Array:
        ends = self._ends[rows]
        lengths, starts = self._wire.lengths(self._starts[rows] + 1)
        if (starts + lengths != ends).any():
            raise FallbackNeededError
        return self._wire.text(starts, ends) if name == "string_value" else self._wire.cut(starts, ends)

    def _integers(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        widths = ends - starts
        longest = int(widths.max())
        if int(widths.min()) < 1 or longest > _VARINT_BYTES_MAX:
            raise FallbackNeededError
        widths = widths.astype(np.uint8)
        last = widths - np.uint8(1)
        numbers = np.zeros(len(starts), np.uint64)
        unusual = np.zeros(len(starts), np.bool_)
        for place in range(longest):
            read = self._wire.raw.take(starts + place) * (widths > place)
            unusual |= (read >= _CONTINUES) != (last > place)
            numbers |= (read & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
        if unusual.any():
            raise FallbackNeededError
        return numbers.view(np.int64)

    def _doubles(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        if (ends != starts + _DOUBLE_BYTES).any():
            raise FallbackNeededError
        # One double begins at every byte, as a view without a copy.
        raw = self._wire.raw
        return np.ndarray((len(raw) - _DOUBLE_BYTES + 1,), "<f8", raw, strides=(1,))[starts]


class KernelValues(AnyValues):
    """The same column of values, decoded by the compiled kernel."""

    def __init__(self, data: Any, starts: np.ndarray, ends: np.ndarray, kinds: np.ndarray) -> None:
        self._data, self._places, self.kinds = data, (starts, ends), kinds
        self._counts = _counted(kinds)

    def field(self, name: str) -> pa.Array:
        """
        Return the arm of this name.

        Raises:
            FallbackNeededError: a value has an unusual encoding, or a string is not UTF-8.
        """
        count = self._counts[KINDS[name]]
        if not count:
            return pa.nulls(len(self), _TYPES[name])
        if name not in _WIRE_TYPES:
            if self._is_rare(count):
                there = self.kinds == KINDS[name]
                rows = np.flatnonzero(there)
                return placed(self._bytes(name, rows), there, rows)
            return self._gathered(name, keeps_rows=True)
        found = KERNEL.gather_numbers(self._data, *self._places, self.kinds, KINDS[name], _FORMS[name])
        if found is None:
            raise FallbackNeededError
        valid, content = found
        buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(content)]
        return pa.Array.from_buffers(_TYPES[name], len(self), buffers)

    def _is_rare(self, count: int) -> bool:
        return count * _RARE < len(self) >= _MANY

    def _bytes(self, name: str, rows: np.ndarray) -> pa.Array:
        if self._is_rare(len(rows)):
            starts, ends = self._places
            picked = KernelValues(self._data, starts.take(rows), ends.take(rows), self.kinds.take(rows))
            return picked._gathered(name, keeps_rows=False)
        return self._gathered(name, keeps_rows=False)

    def _gathered(self, name: str, *, keeps_rows: bool) -> pa.Array:
        found = KERNEL.gather_bytes(self._data, *self._places, self.kinds, KINDS[name], keeps_rows)
        if found is None:
            raise FallbackNeededError
        valid, offsets, content = found
        rows = len(self) if keeps_rows else self._counts[KINDS[name]]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        if name == "string_value":
            checked_text(pa.Array.from_buffers(pa.binary(), rows, buffers))
        if keeps_rows and valid is not None:
            buffers[0] = pa.py_buffer(valid)
        return pa.Array.from_buffers(_TYPES[name], rows, buffers)


def key_values_in_python(messages: pa.Array) -> tuple[pa.Array, AnyValues]:
    """
    Return the keys and values of serialized `KeyValue` messages.

    Raises:
        FallbackNeededError: a message has an unusual encoding, or a key is not UTF-8.
    """
    wire = Wire(messages)
    starts, ends = wire.starts, wire.ends
    keyed = (wire.raw.take(starts) == _KEY_TAG) & (ends > starts)
    nothing = wire.data.size  # the offset of the padding, where lengths are 0
    all_keyed = bool(keyed.all())
    lengths, key_starts = wire.lengths(starts + 1 if all_keyed else np.where(keyed, starts + 1, nothing))
    if not all_keyed:
        lengths, key_starts = np.where(keyed, lengths, 0), np.where(keyed, key_starts, starts)
    key_ends = key_starts + lengths
    if (key_ends > ends).any():
        raise FallbackNeededError
    bare = key_ends == ends
    if not (bare | (wire.raw.take(key_ends) == _VALUE_TAG)).all():
        raise FallbackNeededError
    any_bare = bool(bare.any())
    lengths, value_starts = wire.lengths(np.where(bare, nothing, key_ends + 1) if any_bare else key_ends + 1)
    if any_bare:
        lengths, value_starts = np.where(bare, 0, lengths), np.where(bare, ends, value_starts)
    if (value_starts + lengths != ends).any():
        raise FallbackNeededError
    return wire.text(key_starts, key_ends), AnyValues(wire, value_starts, ends)


def key_values_in_kernel(messages: pa.Array) -> tuple[pa.Array, AnyValues]:
    """
    Return the same keys and values, decoded by the compiled kernel.

    Raises:
        FallbackNeededError: a message has an unusual encoding, or a key is not UTF-8.
    """
    data, places = _places(messages)
    found = KERNEL.split_key_values(data, places, _TAGS, _KIND_OF_TAG)
    if found is None:
        raise FallbackNeededError
    offsets, content, kinds, starts = found
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    keys = checked_text(pa.Array.from_buffers(pa.binary(), len(messages), buffers))
    return keys, KernelValues(data, np.frombuffer(starts, np.int32), places[1:], np.frombuffer(kinds, np.uint8))


key_values = key_values_in_python if KERNEL is None else key_values_in_kernel


def values_in_python(messages: pa.Array, first: Any, last: Any) -> AnyValues:
    """Return the values between these elements of the offsets of a column of serialized `AnyValue` messages."""
    wire = Wire(messages)
    places = np.append(wire.starts, wire.ends[-1:] if len(wire.ends) else 0)
    return AnyValues(wire, places[first], places[last])


def values_in_kernel(messages: pa.Array, first: Any, last: Any) -> AnyValues:
    """Return the same values, decoded by the compiled kernel."""
    data, places = _places(messages)
    starts, ends = places[first], places[last]
    filled = ends > starts
    kinds = np.zeros(len(starts), np.uint8)
    kinds[filled] = _KIND_OF_TAG.take(np.frombuffer(data, np.uint8).take(starts[filled]))
    return KernelValues(data, starts, ends, kinds)


_values = values_in_python if KERNEL is None else values_in_kernel


def any_values(messages: pa.Array) -> AnyValues:
    """
    Return serialized `AnyValue` messages as a column of values.

    Raises:
        FallbackNeededError: a value has an unusual encoding.
    """
    return _values(messages, slice(None, -1), slice(1, None))


def optional_values(parts: pa.Array) -> AnyValues:
    """
    Return the values of an optional field: lists of at most one serialized `AnyValue`.

    Raises:
        FallbackNeededError: a value came in several parts, which must be merged, or has an unusual encoding.
    """
    counts = counts_of(parts)
    if int(counts.max(initial=0)) > 1:
        raise FallbackNeededError
    before = np.cumsum(counts) - counts
    return _values(parts.values, before, before + counts)
