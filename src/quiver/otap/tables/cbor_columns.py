"""
CBOR of flat arrays and maps, one column at a time: validation, number of values, conversion to a notation.

Most nested values have a few plain elements. Here they are read in steps: the first element of all values, then the
second, and so on. `cbor.py` decodes values that nest deeper, are longer, or use an unusual encoding, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.any_values import Wire
from quiver.otap.arrays import FallbackNeededError, require_distinct
from quiver.otap.nested_values import Notation

__all__ = ["count_flat", "written_flat"]

_BYTES, _TEXT, _ARRAY, _MAP = 2, 3, 4, 5
_FALSE, _TRUE, _NULL, _UNDEFINED = 0xF4, 0xF5, 0xF6, 0xF7
_FLOATS = {0xF9: ">f2", 0xFA: ">f4", 0xFB: ">f8"}
_BREAK = 0xFF
_INDEFINITE = 31
_STEPS_MAX = 32
"""The maximum number of elements, including keys, of one array or map; longer ones are rare."""

_UNUSUAL = 255
_WIDE_INTEGER, _EITHER_SIGN = 0x1B, 0xDF


def _argument_sizes() -> Any:
    """Return, by first byte, the size of an element's number or length; `_UNUSUAL` for other encodings."""
    sizes = np.full(256, _UNUSUAL, np.uint8)
    for major in (0, 1, _BYTES, _TEXT):
        head = major << 5
        sizes[head : head + 24] = 0
        sizes[head + 24 : head + 28] = (1, 2, 4, 8)
        if major in {_BYTES, _TEXT}:
            sizes[head + 26 : head + 28] = _UNUSUAL
    sizes[_FALSE : _UNDEFINED + 1] = 0
    sizes[0xF9:0xFC] = (2, 4, 8)
    return sizes


_SIZES = _argument_sizes()


@dataclass(frozen=True, slots=True)
class _Elements:
    """The elements of arrays and maps, including keys: the value they belong to, first byte, start and end of text."""

    rows: Any
    heads: Any
    begins: Any
    ends: Any

    def where(self, picked: Any) -> _Elements:
        return _Elements(self.rows[picked], self.heads[picked], self.begins[picked], self.ends[picked])


def count_flat(values: pa.Array, are_maps: Any) -> Any:
    """
    Return the number of values in each array (or map where *are_maps*), including itself, like `measure_value`.

    0 means that the value was not checked. *values* are bytes without nulls.
    """
    wire = Wire(values)
    counts, found = _scanned(wire, are_maps)
    texts = found.where(found.heads >> 5 == _TEXT)
    try:
        wire.text(texts.begins, texts.ends)
    except FallbackNeededError:
        counts[:] = 0
    return counts


def written_flat(values: pa.Array, notation: Notation) -> pa.Array:
    """
    Return arrays and maps in *notation*; null for a value that is not flat or has an unusual encoding.

    Raises:
        FallbackNeededError: text is not UTF-8, or a map has a duplicate key where keys must be unique.
    """
    wire = Wire(values)
    are_maps = (wire.raw.take(wire.starts) >> 5 == _MAP) & (wire.ends > wire.starts)
    counts, found = _scanned(wire, are_maps)
    found = found.where(counts[found.rows] > 0)
    texts = _written(wire, found, notation)
    parts, places = [pa.nulls(1, notation.type)], np.zeros(len(values), np.int64)
    for message, which in (("ArrayValue", ~are_maps), ("KeyValueList", are_maps)):
        rows = np.flatnonzero((counts > 0) & which)
        lengths = counts[rows] - 1
        elements = texts.filter(pa.array(which[found.rows]))
        if message == "KeyValueList":
            keys = elements.take(pa.array(np.arange(0, len(elements), 2)))
            if notation.unique_keys:
                require_distinct(keys, lengths)
            elements = elements.take(pa.array(np.arange(1, len(elements), 2)))
            elements = pc.binary_join_element_wise(keys, elements, notation.after_key)
        lists = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), elements)
        opening, closing = notation.brackets[message]
        joined = pc.binary_join(lists, notation.between)
        places[rows] = sum(map(len, parts)) + np.arange(len(rows))
        parts.append(pc.binary_join_element_wise(opening, joined, closing, notation.nothing))
    return pa.concat_arrays(parts).take(pa.array(places))


def _scanned(wire: Wire, are_maps: Any) -> tuple[Any, _Elements]:
    """Return the counts of `count_flat` without checking text, and the elements read, also of unchecked values."""
    raw, starts, ends = wire.raw, wire.starts, wire.ends
    heads = raw.take(starts)
    lows = (heads & 31).astype(np.int64)
    usual = (heads >> 5 == np.where(are_maps, _MAP, _ARRAY)) & ((lows < 24) | (lows == _INDEFINITE)) & (ends > starts)
    counts = np.zeros(len(starts), np.int64)
    rows = np.flatnonzero(usual)
    is_map, ends, at = are_maps[rows], ends[rows], starts[rows] + 1
    left = np.where(lows[rows] == _INDEFINITE, -1, lows[rows] * (1 + is_map))
    passed: list[tuple[Any, ...]] = []
    for step in range(_STEPS_MAX):
        heads = raw.take(at)
        closed = (left == 0) | ((left < 0) & (heads == _BREAK))
        if closed.any():
            # Nothing follows, and a map does not end with a key.
            whole = closed & (at + (left < 0) == ends) & ~(is_map & bool(step % 2))
            counts[rows[whole]] = 1 + step // (1 + is_map[whole])
            rows, at, ends, left, is_map, heads = (part[~closed] for part in (rows, at, ends, left, is_map, heads))
        if not len(rows):
            break
        begins, at, is_valid = _past(raw, at, heads, ends)
        if step % 2 == 0:
            is_valid &= (heads >> 5 == _TEXT) | ~is_map
        left -= left > 0
        if not is_valid.all():
            parts = (rows, at, ends, left, is_map, heads, begins)
            rows, at, ends, left, is_map, heads, begins = (part[is_valid] for part in parts)
        passed.append((rows, heads, begins, at))
    if not passed:
        return counts, _Elements(*(np.zeros(0, np.int64) for _ in range(4)))
    found = _Elements(*(np.concatenate(parts) for parts in zip(*passed, strict=True)))
    return counts, found.where(np.argsort(found.rows, kind="stable"))


def _past(raw: Any, at: Any, heads: Any, ends: Any) -> tuple[Any, Any, Any]:
    """Return the start of each element's content, its end, and whether its encoding is supported here."""
    sizes = _SIZES.take(heads)
    begins = at + 1 + sizes
    second = raw.take(at + 1)
    majors = heads >> 5
    lengths = np.where(sizes == 0, heads & 31, second).astype(np.int64)
    two = sizes == 2
    if two.any():
        lengths = np.where(two, lengths << 8 | raw.take(at + 2), lengths)
    past = begins + np.where((majors == _BYTES) | (majors == _TEXT), lengths, 0)
    is_valid = (sizes != _UNUSUAL) & (past <= ends)
    # An integer of 64 bits must fit into a signed one.
    return begins, past, is_valid & ~((heads & _EITHER_SIGN == _WIDE_INTEGER) & (second >= 0x80))


# -- conversion to a notation ---------------------------------------------------------------------------------


def _written(wire: Wire, found: _Elements, notation: Notation) -> pa.Array:
    """Return each element in *notation*."""
    majors = found.heads >> 5
    parts: list[pa.Array] = []
    places: list[Any] = []
    for arm, which in (
        ("string_value", majors == _TEXT),
        ("bytes_value", majors == _BYTES),
        ("int_value", majors < _BYTES),
        ("bool_value", (found.heads == _FALSE) | (found.heads == _TRUE)),
        ("double_value", (found.heads >= min(_FLOATS)) & (found.heads <= max(_FLOATS))),
        ("", (found.heads == _NULL) | (found.heads == _UNDEFINED)),
    ):
        rows = np.flatnonzero(which)
        if len(rows):
            values = _values(wire, found.where(rows), arm)
            parts.append(notation.leaves[arm](values) if arm else pa.array([notation.unset] * len(rows)))
            places.append(rows)
    if not parts:
        return pa.array([], notation.type)
    order = np.empty(len(majors), np.int64)
    order[np.concatenate(places)] = np.arange(len(majors))
    return pa.concat_arrays(parts).take(pa.array(order))


def _values(wire: Wire, found: _Elements, arm: str) -> pa.Array:
    if arm == "string_value":
        return wire.text(found.begins, found.ends)
    if arm == "bytes_value":
        return wire.cut(found.begins, found.ends)
    if arm == "bool_value":
        return pa.array(found.heads == _TRUE)
    if arm == "double_value":
        return pa.array(_doubles(wire.raw, found))
    return pa.array(_integers(wire.raw, found)) if arm else pa.nulls(0)


def _doubles(raw: Any, found: _Elements) -> Any:
    numbers = np.zeros(len(found.heads), np.float64)
    for head, kind in _FLOATS.items():
        rows = np.flatnonzero(found.heads == head)
        size = np.dtype(kind).itemsize
        numbers[rows] = raw[found.begins[rows][:, None] + np.arange(-size, 0)].view(kind).ravel()
    return numbers


def _integers(raw: Any, found: _Elements) -> Any:
    sizes = _SIZES.take(found.heads)
    numbers = (found.heads & 31).astype(np.int64)
    for size in (1, 2, 4, 8):
        rows = np.flatnonzero(sizes == size)
        if len(rows):
            begins = found.begins[rows]
            read = np.zeros(len(rows), np.int64)
            for back in range(size, 0, -1):
                read = read << 8 | raw.take(begins - back)
            numbers[rows] = read
    return np.where(found.heads >> 5 == 0, numbers, -1 - numbers)
