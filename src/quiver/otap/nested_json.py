"""
Arrays and maps inside AnyValues → JSON, a whole column at a time.

The same text as `columns.json_text` writes for one value: bytes as base64, NaN and infinities as strings, an
unset value as null. Nested values in nested values are one more column, not one more call per value.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quiver.otap.arrays import Odd, counts_of, require_distinct, require_one_arm
from quiver.otap.columns import json_number
from quiver.otap.wire_schema import nested_handler

__all__ = ["json_of_nested", "nested_parts"]

_DEPTH_MAX = 100
_ESCAPED = r'["\\\x00-\x1f]'


def nested_parts(values: Any) -> tuple[pa.Array, pa.Array]:
    """
    Return the raw arrays and the raw maps of AnyValues, null where a value is something else.

    Raises:
        Odd: one came in several parts, which must be merged.
    """
    return _only_part(values.field("array_value")), _only_part(values.field("kvlist_value"))


def _only_part(parts: pa.Array) -> pa.Array:
    counts = counts_of(parts)
    if not len(parts.values):
        return pa.nulls(len(parts), pa.binary())
    if int(counts.max()) > 1:
        raise Odd
    return _spread(parts.values, counts == 0)


def _spread(values: pa.Array, missing: np.ndarray) -> pa.Array:
    """
    Put *values* one by one where nothing is missing, null elsewhere.
    """
    return values.take(pa.array(np.cumsum(~missing) - 1, pa.int64(), mask=missing))


def json_of_nested(raw: pa.Array, message: str, *, depth: int = 0) -> pa.Array:
    """
    Return serialised messages (`ArrayValue`, `KeyValueList`) as JSON, null where they are.

    Raises:
        Odd: one does not parse, has a key twice, or nests deeper than the parser of requests allows.
    """
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), pa.string())
    if depth > _DEPTH_MAX:
        raise Odd
    try:
        lists = nested_handler(message).array_to_record_batch(raw.drop_null()).column("values")
    except ValueError as error:
        raise Odd from error
    elements: Any = lists.values
    if message == "ArrayValue":
        texts, opening, closing = _json_of_values(elements, depth), "[", "]"
    else:
        keys = elements.field("key")
        require_distinct(keys, counts_of(lists))
        values = _json_of_values(elements.field("value"), depth)
        texts, opening, closing = pc.binary_join_element_wise(_quoted(keys), values, ":"), "{", "}"
    joined = pc.binary_join(pa.ListArray.from_arrays(lists.offsets, texts), ",")
    written = pc.binary_join_element_wise(opening, joined, closing, "")
    if raw.null_count == 0:
        return written
    return _spread(written, np.asarray(raw.is_null()))


def _json_of_values(values: Any, depth: int) -> pa.Array:
    arrays, kvlists = nested_parts(values)
    strings, bools, ints = values.field("string_value"), values.field("bool_value"), values.field("int_value")
    doubles, blobs = values.field("double_value"), values.field("bytes_value")
    require_one_arm([strings, bools, ints, doubles, blobs, arrays, kvlists])
    arms = [
        _quoted(strings),
        bools.cast(pa.string()),
        ints.cast(pa.string()),
        pa.array([None if number is None else _number(number) for number in doubles.to_pylist()], pa.string()),
        pa.array([None if blob is None else _blob(blob) for blob in blobs.to_pylist()], pa.string()),
        json_of_nested(arrays, "ArrayValue", depth=depth + 1),
        json_of_nested(kvlists, "KeyValueList", depth=depth + 1),
    ]
    present = [arm for arm in arms if arm.null_count < len(arm)]
    return pc.coalesce(*present, pa.scalar("null")) if present else pa.array(["null"] * len(values), pa.string())


def _number(number: float) -> str:
    return json.dumps(json_number(number))


def _blob(blob: bytes) -> str:
    return f'"{b64encode(blob).decode("ascii")}"'


def _quoted(strings: pa.Array) -> pa.Array:
    if strings.null_count == len(strings):
        return strings
    if pc.any(pc.match_substring_regex(strings, _ESCAPED)).as_py():
        quoted = [None if text is None else json.dumps(text, ensure_ascii=False) for text in strings.to_pylist()]
        return pa.array(quoted, pa.string())
    return pc.binary_join_element_wise('"', strings, '"', "")
