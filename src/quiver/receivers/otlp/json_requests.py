"""
OTLP in JSON → OTLP in protobuf, by the rules of the OTLP specification: ids are hexadecimal, enums numbers, 64-bit
integers text or numbers, keys in lowerCamelCase, unknown keys ignored.

What is stored is the protobuf, so that nothing behind a receiver has to know JSON.
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
Objects and lists in one request, counted by their brackets. In three bytes each one takes a hundred times as much in
memory, and some microseconds; a batch of 8,192 records with ten attributes has about so many.
"""

_HEX = re.compile(r"[0-9a-fA-F]*")  # of pairs it would keep a note of each, sixty bytes for two
_BASE64 = re.compile(r"[0-9A-Za-z+/_-]*={0,2}")
"""Both alphabets, padded or not, as protobuf's JSON takes them. Python's own decoder passes over what is neither."""
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""What Python takes as well, numerals of other scripts and underscores between digits, nobody else reads so."""
_NO_NUMBER = re.compile(r"[+-]?[a-zA-Z]+")
_INTEGERS = frozenset({Field.CPPTYPE_INT32, Field.CPPTYPE_INT64, Field.CPPTYPE_UINT32, Field.CPPTYPE_UINT64})
_FLOATS = frozenset({Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT})
_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})


def request_from_json(data: bytes, signal: str) -> bytes | Damage:
    """
    Return an export request that is written in JSON as protobuf, or what is wrong with it.

    Raises:
        UsageError: no such signal.
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
    """Return an object, in which no key may stand twice: of its values only the last one would be left."""
    made = dict(pairs)
    if len(made) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key[:100]!r} stands twice in an object")
    return made


class _Rounded(float):
    """A number with a fraction that a float has no room for: an integer to Python, and to nobody else."""


def _as_written(text: str) -> float:
    """Return a number as a float; as an integer where it is one and no float is equal to it."""
    value = float(text)
    if not value.is_integer():
        return value
    try:
        exact = Decimal(text)
    except DecimalException:  # an exponent of twenty digits, and yet no infinity: it is zero, or nearly
        return _Rounded(value)
    if exact == value:
        return value
    return int(exact) if exact == exact.to_integral_value() else _Rounded(value)


def _brief(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]


@cache
def _to_see(kind: Any) -> Mapping[str, Any]:
    """
    Return the fields of a message that protobuf's own JSON would not take as OTLP means them, or that lead to such,
    by their keys: in lowerCamelCase, and as protobuf names them.
    """
    passed = {Field.TYPE_STRING, Field.TYPE_BOOL}
    fields = [field for field in kind.fields if field.type not in passed]
    return {key: field for field in fields for key in (field.json_name, field.name)}


def _prepare(top: dict[str, Any], kind: Any) -> str | None:
    """
    Rewrite ids and integers where they stand, as protobuf's own JSON wants them; return what is wrong with the first
    value that protobuf's would take for another one. What stands under unknown keys is not looked at.
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
    """Return what is wrong with a number, an enum or bytes; empty when nothing is that protobuf's own JSON passes."""
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
    """Return a text of which nothing is wrong as protobuf's own JSON wants it, and anything else as it is."""
    if not isinstance(value, str):
        return value
    if field.name in _IDS:
        return base64.b64encode(bytes.fromhex(value)).decode()
    if field.cpp_type in _INTEGERS and not _INTEGER.fullmatch(value):
        return _as_written(value)
    return value


def _is_integer(value: Any) -> bool:
    """Say whether a value is one for an integer; how large it may be is asked later."""
    if isinstance(value, str):
        if _INTEGER.fullmatch(value):
            return True
        return _NUMBER.fullmatch(value) is not None and _is_integer(_as_written(value))
    return not isinstance(value, float) or (value.is_integer() and not isinstance(value, _Rounded))


def _is_float(value: Any) -> bool:
    """Say whether a value is a number, or names what is none, and does not become infinite for being too large."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return math.isfinite(float(value))
        return _NO_NUMBER.fullmatch(value) is not None
    return not isinstance(value, bool)


def _names_a_number(value: Any, kind: Any) -> bool:
    """
    Say whether an enum may be written so: a number, as OTLP demands, or what senders write who leave it to
    protobuf.
    """
    if isinstance(value, str):
        return value in kind.values_by_name or _INTEGER.fullmatch(value) is not None
    if isinstance(value, float):
        return value.is_integer() and not isinstance(value, _Rounded)
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
