"""
Arrays and maps inside AnyValues → JSON.

The same text as `columns.json_text` returns for one value: bytes as base64, NaN and infinities as strings, an unset
value as null.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.nested_values import Notation, nested_column
from quiver.otap.views.columns import json_number, json_text

__all__ = ["JSON", "json_values"]

_QUOTE, _BACKSLASH, _SPACE = b'"\\ '


def json_values(values: Any) -> pa.Array:
    """
    Return arrays and maps among *values* as JSON, and null for other values.

    Raises:
        FallbackNeededError: a value is invalid, has a duplicate key, or nests too deep.
    """
    return nested_column(values, JSON)


def _quoted(strings: pa.Array) -> pa.Array:
    if _need_escapes(strings):
        return pa.array([json.dumps(text, ensure_ascii=False) for text in strings.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', strings, '"', "")


def _need_escapes(strings: pa.Array) -> bool:
    """Return whether any of *strings* has a quote, a backslash or a control character."""
    _, offsets, data = strings.buffers()
    if not len(strings) or data is None:
        return False
    places = np.frombuffer(offsets, np.int32)
    raw = np.frombuffer(data, np.uint8)[places[strings.offset] : places[strings.offset + len(strings)]]
    return bool(len(raw) and (raw.min() < _SPACE or (raw == _QUOTE).any() or (raw == _BACKSLASH).any()))


def _numbers(doubles: pa.Array) -> pa.Array:
    return pa.array([json.dumps(json_number(number)) for number in doubles.to_pylist()], pa.string())


def _base64(blobs: pa.Array) -> pa.Array:
    return pa.array([f'"{b64encode(blob).decode("ascii")}"' for blob in blobs.to_pylist()], pa.string())


JSON = Notation(
    leaves={
        "string_value": _quoted,
        "int_value": lambda ints: ints.cast(pa.string()),
        "bool_value": lambda bools: bools.cast(pa.string()),
        "double_value": _numbers,
        "bytes_value": _base64,
    },
    type=pa.string(),
    brackets={"ArrayValue": ("[", "]"), "KeyValueList": ("{", "}")},
    nothing="",
    between=",",
    after_key=":",
    unset="null",
    unique_keys=True,
    one=json_text,
)
