"""
Conversion of OTLP/JSON to protobuf, by the rules of the OTLP specification: ids are hexadecimal, enums are numbers,
64-bit integers are text or numbers, keys are in lowerCamelCase, unknown keys are ignored.

The store contains the protobuf, so that only receivers need to support JSON.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal, DecimalException
from functools import cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import EncodeError

from quiver.otap.request_shapes import SHAPES
from quiver.otap.views.schemas import view_name
from quiver.primitives.scan import Damage

__all__ = ["request_from_json"]

_CONTAINERS_MAX = 200_000
"""
The maximum number of objects and lists in one request, counted by their brackets. Each takes three bytes on the wire,
a hundred times as much in memory, and some microseconds. A batch of 8,192 records with ten attributes has about as
many.
"""

_HEX = re.compile(r"[0-9a-fA-F]*")  # a pattern of pairs would store each match, sixty bytes for two
_BASE64 = re.compile(r"[0-9A-Za-z+/_-]*={0,2}")
"""Both alphabets, padded or not, as protobuf's JSON accepts them. Python's decoder ignores invalid characters."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Extensions of Python that no other parser accepts: digits of other scripts, and underscores between digits."""
_NO_NUMBER = re.compile(r"[+-]?[a-zA-Z]+")
_INTEGERS = frozenset({Field.CPPTYPE_INT32, Field.CPPTYPE_INT64, Field.CPPTYPE_UINT32, Field.CPPTYPE_UINT64})
_FLOATS = frozenset({Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT})
_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})


def request_from_json(data: bytes, signal: str) -> bytes | Damage:
    """
    Return an export request in JSON as protobuf, or the damage.

    Raises:
        UsageError: the signal is unknown.
    """
    kind = SHAPES[view_name(signal)].request
    name = kind.DESCRIPTOR.name
    if data.count(b"{") + data.count(b"[") > _CONTAINERS_MAX:
        return Damage(0, f"not an {name} in JSON: more than {_CONTAINERS_MAX} objects and lists")
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_as_written
        )
    except (ValueError, RecursionError) as error:
        return Damage(0, f"not an {name} in JSON: {_brief(error)}")
    if not isinstance(value, dict):
        return Damage(0, f"not an {name} in JSON: not an object")
    bad = _prepare(value, kind.DESCRIPTOR)
    if bad is not None:
        return Damage(0, f"not an {name} in JSON: {bad}")
    try:
        message = json_format.ParseDict(value, kind(), ignore_unknown_fields=True)
        return bytes(message.SerializeToString())
    except (json_format.ParseError, EncodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        return Damage(0, f"not an {name} in JSON: {_brief(error)}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Rejects a repeated key: only its last value would remain."""
    made = dict(pairs)
    if len(made) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key[:100]!r} is repeated in an object")
    return made


class _Rounded(float):
    """A number with a fraction that a float cannot represent: Python alone takes it for an integer."""


def _as_written(text: str) -> float:
    """Return a number as a float; as an integer if it is one and no float is equal to it."""
    value = float(text)
    if not value.is_integer():
        return value
    try:
        exact = Decimal(text)
    except DecimalException:  # an exponent of twenty digits without overflow: the value is zero, or nearly
        return _Rounded(value)
    if exact == value:
        return value
    return int(exact) if exact == exact.to_integral_value() else _Rounded(value)


def _brief(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


@cache
def _to_see(kind: Any) -> Mapping[str, Any]:
    """
    Return the fields of a message that protobuf's JSON parser does not read as OTLP defines them, or that contain such
    fields, by their keys: in lowerCamelCase, and with their protobuf names.
    """
    passed = {Field.TYPE_STRING, Field.TYPE_BOOL}
    fields = [field for field in kind.fields if field.type not in passed]
    return {key: field for field in fields for key in (field.json_name, field.name)}


def _prepare(top: dict[str, Any], kind: Any) -> str | None:
    """
    Rewrite ids and integers in place for protobuf's JSON parser. Return the first error that the parser would not
    detect. Values of unknown keys are not checked.
    """
    waiting: list[tuple[dict[str, Any], Any]] = [(top, kind)]
    while waiting:
        value, kind = waiting.pop()
        fields = _to_see(kind)
        for key, inner in value.items():
            field = fields.get(key)
            if field is None:
                continue
            items = inner if field.is_repeated and isinstance(inner, list) else (inner,)
            if field.type == Field.TYPE_MESSAGE:
                for item in items:
                    if isinstance(item, dict):
                        waiting.append((item, field.message_type))
                    elif item:
                        return f"{key} is not an object"
                continue
            for item in items:
                bad = _bad_value(item, field)
                if bad:
                    return f"{key} {bad}"
            if isinstance(inner, str):
                value[key] = _rewritten(inner, field)
            elif field.is_repeated and isinstance(inner, list):
                value[key] = [_rewritten(item, field) for item in inner]
    return None


def _bad_value(value: Any, field: Any) -> str:
    """Return the error in a number, an enum or bytes that protobuf's JSON parser accepts; empty if there is none."""
    if field.type == Field.TYPE_ENUM:
        return "" if _names_a_number(value, field.enum_type) else f"is not a number of {field.enum_type.name}"
    if field.cpp_type in _INTEGERS:
        return "" if _is_integer(value) else "is not an integer"
    if field.cpp_type in _FLOATS:
        return "" if _is_float(value) else "is not a number"
    if not isinstance(value, str):
        return ""
    if field.name in _IDS:
        return "" if len(value) % 2 == 0 and _HEX.fullmatch(value) else "is not hexadecimal"
    return "" if _BASE64.fullmatch(value) else "is not base64"


def _rewritten(value: Any, field: Any) -> Any:
    """Return a valid text in the form that protobuf's JSON parser expects, and other values unchanged."""
    if not isinstance(value, str):
        return value
    if field.name in _IDS:
        return base64.b64encode(bytes.fromhex(value)).decode()
    if field.cpp_type in _INTEGERS and not _INTEGER.fullmatch(value):
        return _as_written(value)
    return value


def _is_integer(value: Any) -> bool:
    """Return whether a value is valid for an integer; its range is checked later."""
    if isinstance(value, str):
        if _INTEGER.fullmatch(value):
            return True
        return _NUMBER.fullmatch(value) is not None and _is_integer(_as_written(value))
    return not isinstance(value, float) or (value.is_integer() and not isinstance(value, _Rounded))


def _is_float(value: Any) -> bool:
    """Return whether a value is a number or a name of NaN or infinity, and does not overflow."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return math.isfinite(float(value))
        return _NO_NUMBER.fullmatch(value) is not None
    return not isinstance(value, bool)


def _names_a_number(value: Any, kind: Any) -> bool:
    """
    Return whether a value is valid for an enum: a number, as OTLP requires, or a form that clients with protobuf's own
    JSON encoder send.
    """
    if isinstance(value, str):
        return value in kind.values_by_name or _INTEGER.fullmatch(value) is not None
    if isinstance(value, float):
        return value.is_integer() and not isinstance(value, _Rounded)
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
