"""
Arrays and maps inside AnyValues → another notation, a whole column at a time.

A value that is there often is written once. Nested values in nested values are one more column, not one more call
per value.
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
from quiver.otap.wire_schema import nested_handler

__all__ = ["Notation", "nested_column"]

_DEPTH_MAX = 20
"""Deeper ones are left to the objects, whose parser knows how deep is too deep."""

_FEW = 40
"""So many different values are written one by one in less time than the steps for a column take."""

_NESTED = {"array_value": "ArrayValue", "kvlist_value": "KeyValueList"}


@dataclass(frozen=True, slots=True)
class Notation:
    """
    How values are written.

    Attributes:
        leaves: arm → what writes those of its values that are there.
        type: what is written.
        brackets: message → what stands before and behind its elements.
        nothing: no text of that type.
        between: what stands between two elements.
        behind_key: what stands between a key and its value.
        unset: a value that is not set.
        keys_once: a key that is twice in one map is odd.
        one: writes a single value, an `AnyValue`; what a handful of different ones are written with.
    """

    leaves: Mapping[str, Callable[[pa.Array], pa.Array]]
    type: pa.DataType
    brackets: Mapping[str, tuple[str | bytes, str | bytes]]
    nothing: str | bytes
    between: str | bytes
    behind_key: str | bytes
    unset: str | bytes
    keys_once: bool
    one: Callable[[Any], str | bytes]


def nested_column(values: Any, notation: Notation) -> pa.Array:
    """
    Return what of *values* is an array or a map in *notation*, null where a value is something else.

    Raises:
        FallbackNeededError: one does not parse, has a key twice where that matters, or nests very deep.
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
    there = np.zeros(len(values), np.bool_)
    there[np.concatenate(places)] = True
    if len(parts) == 1:
        return placed(parts[0], there)
    order = np.argsort(np.concatenate(places), kind="stable")
    return placed(pa.concat_arrays(parts).take(pa.array(order)), there)


def _written(raw: pa.Array, message: str, notation: Notation, *, depth: int = 0) -> pa.Array:
    """
    Return serialised messages (`ArrayValue`, `KeyValueList`) in *notation*; none of them is null.

    Raises:
        FallbackNeededError: one does not parse, has a key twice where that matters, or nests very deep.
    """
    if depth > _DEPTH_MAX:
        raise FallbackNeededError
    encoded = raw.dictionary_encode()
    if len(encoded.dictionary) <= _FEW:
        made = [_one(data.as_py(), message, notation, depth) for data in encoded.dictionary]
        return pa.array(made, notation.type).take(encoded.indices)
    try:
        lists = nested_handler(message).array_to_record_batch(encoded.dictionary).column("values")
    except (ImportError, ValueError) as error:
        raise FallbackNeededError from error
    elements: Any = lists.values
    if message == "ArrayValue":
        texts = _values(any_values(elements), notation, depth)
    else:
        keys, values = key_values(elements)
        if notation.keys_once:
            require_distinct(keys, counts_of(lists))
        write_key = notation.leaves["string_value"]
        texts = pc.binary_join_element_wise(write_key(keys), _values(values, notation, depth), notation.behind_key)
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
    if len(data) > 2 * left and _depth(value) > left:  # a level takes two bytes, or more
        raise FallbackNeededError
    return notation.one(value)


def _depth(value: Any) -> int:
    inner = [*value.array_value.values, *(pair.value for pair in value.kvlist_value.values)]
    return 1 + max(map(_depth, inner), default=-1)


def _values(values: Any, notation: Notation, depth: int) -> pa.Array:
    """Write each arm for the rows that have it, and bring the rows back into order."""
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
