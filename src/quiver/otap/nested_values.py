"""
Arrays and maps inside AnyValues → another notation, one column at a time.

A value that occurs often is converted once. Values inside nested values are another column, not another call for each
value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from quiver.otap.any_values import KINDS, any_values, key_values
from quiver.otap.arrays import FallbackNeededError, counts_of, placed, require_distinct
from quiver.otap.wire_schema import decode_compiled, nested_handler

__all__ = ["Notation", "nested_column"]

_DEPTH_MAX = 20
"""Deeper values are converted by way of objects, whose parser has the exact limit."""

_FEW = 40
"""Up to this many distinct values, converting them individually is faster than by column."""

_NESTED = {"array_value": "ArrayValue", "kvlist_value": "KeyValueList"}


@dataclass(frozen=True, slots=True)
class Notation:
    """
    A notation of nested values.

    Attributes:
        leaves: arm → the function that converts its non-null values.
        type: the Arrow type of the result.
        brackets: message → the text before and after its elements.
        nothing: the empty text of that type.
        between: the text between two elements.
        after_key: the text between a key and its value.
        unset: the text of an unset value.
        unique_keys: whether a duplicate key in a map needs the fallback.
        one: converts a single `AnyValue`; used for a few distinct values.
    """

    leaves: Mapping[str, Callable[[pa.Array], pa.Array]]
    type: pa.DataType
    brackets: Mapping[str, tuple[str | bytes, str | bytes]]
    nothing: str | bytes
    between: str | bytes
    after_key: str | bytes
    unset: str | bytes
    unique_keys: bool
    one: Callable[[Any], str | bytes]


def nested_column(values: Any, notation: Notation) -> pa.Array:
    """
    Return arrays and maps among *values* in *notation*, and null for other values.

    Raises:
        FallbackNeededError: a value is invalid, has a duplicate key where keys must be unique, or nests too deep.
    """
    parts: list[pa.Array] = []
    places: list[np.ndarray] = []
    for arm, message in _NESTED.items():
        raw, rows = values.nested(arm)
        if len(raw):
            parts.append(_written(raw, message, notation))
            places.append(rows)
    if not parts:
        return pa.nulls(len(values), notation.type)
    rows, made = places[0], parts[0]
    if len(parts) > 1:
        rows = np.concatenate(places)
        order = np.argsort(rows, kind="stable")
        rows, made = rows[order], pa.concat_arrays(parts).take(pa.array(order))
    there = np.zeros(len(values), np.bool_)
    there[rows] = True
    return placed(made, there, rows)


def _written(raw: pa.Array, message: str, notation: Notation, *, depth: int = 0) -> pa.Array:
    """
    Return serialized messages (`ArrayValue`, `KeyValueList`), without nulls, in *notation*.

    Raises:
        FallbackNeededError: a value is invalid, has a duplicate key where keys must be unique, or nests too deep.
    """
    if depth > _DEPTH_MAX:
        raise FallbackNeededError
    encoded = raw.dictionary_encode()
    if len(encoded.dictionary) <= _FEW:
        made = [_one(data.as_py(), message, notation, depth) for data in encoded.dictionary]
        return pa.array(made, notation.type).take(encoded.indices)
    try:
        lists = decode_compiled(nested_handler(message).array_to_record_batch, encoded.dictionary).column("values")
    except (ImportError, ValueError) as error:
        raise FallbackNeededError from error
    elements: Any = lists.values
    if message == "ArrayValue":
        texts = _values(any_values(elements), notation, depth)
    else:
        keys, values = key_values(elements)
        if notation.unique_keys:
            require_distinct(keys, counts_of(lists))
        write_key = notation.leaves["string_value"]
        texts = pc.binary_join_element_wise(write_key(keys), _values(values, notation, depth), notation.after_key)
    joined = pc.binary_join(pa.ListArray.from_arrays(lists.offsets, texts), notation.between)
    opening, closing = notation.brackets[message]
    return pc.binary_join_element_wise(opening, joined, closing, notation.nothing).take(encoded.indices)


def _one(data: bytes, message: str, notation: Notation, depth: int) -> str | bytes:
    value = AnyValue()
    arm = value.array_value if message == "ArrayValue" else value.kvlist_value
    arm.SetInParent()
    try:
        arm.MergeFromString(data)
    except DecodeError as error:
        raise FallbackNeededError from error
    left = _DEPTH_MAX - depth
    if len(data) > 2 * left and _depth(value) > left:  # a level takes at least two bytes
        raise FallbackNeededError
    return notation.one(value)


def _depth(value: Any) -> int:
    inner = [*value.array_value.values, *(pair.value for pair in value.kvlist_value.values)]
    return 1 + max(map(_depth, inner), default=-1)


def _values(values: Any, notation: Notation, depth: int) -> pa.Array:
    """Convert each arm for the rows that have it, and restore the order of the rows."""
    parts: list[pa.Array] = []
    places: list[np.ndarray] = []
    for arm, kind in KINDS.items():
        if not values.has(arm):
            continue
        if arm in _NESTED:
            raw, _ = values.nested(arm)
            parts.append(_written(raw, _NESTED[arm], notation, depth=depth + 1))
        else:
            parts.append(notation.leaves[arm](values.field(arm).drop_null()))
        places.append(np.flatnonzero(values.kinds == kind))
    unset = np.flatnonzero(values.kinds == 0)
    if len(unset):
        parts.append(pa.array([notation.unset] * len(unset), notation.type))
        places.append(unset)
    if not parts:
        return pa.array([], notation.type)
    if len(parts) == 1:
        return parts[0]
    order = np.empty(len(values), np.int64)
    order[np.concatenate(places)] = np.arange(len(values))
    return pa.concat_arrays(parts).take(pa.array(order))
