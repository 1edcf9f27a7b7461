"""
OTLP in JSON → OTLP in protobuf, by the rules of the OTLP specification: ids are hexadecimal, enums numbers, 64-bit
integers text or numbers, keys in lowerCamelCase, unknown keys ignored.

What is stored is the protobuf, so that nothing behind a receiver has to know JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import EncodeError

from quiver.otap.request_shapes import SHAPES
from quiver.otap.view_schema import view_name
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
_NUMBER = re.compile(r"-?[0-9]+")
_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})


def request_from_json(data: bytes, signal: str) -> bytes | Damage:
    """
    Return an export request that is written in JSON as protobuf, or what is wrong with it.

    Raises:
        WrongUse: no such signal.
    """
    kind = SHAPES[view_name(signal)].request
    name = kind.DESCRIPTOR.name
    if data.count(b"{") + data.count(b"[") > _CONTAINERS_MAX:
        return Damage(0, f"not an {name} in JSON: more than {_CONTAINERS_MAX} objects and lists")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
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
    except (json_format.ParseError, EncodeError, ValueError, TypeError, RecursionError) as error:
        return Damage(0, f"not an {name} in JSON: {_brief(error)}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _brief(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]


@cache
def _to_see(kind: Any) -> Mapping[str, Any]:
    """
    Return the fields of a message that protobuf's own JSON would not take as OTLP means them, or that lead to such,
    by their keys: in lowerCamelCase, and as protobuf names them.
    """
    seen = {Field.TYPE_MESSAGE, Field.TYPE_BYTES, Field.TYPE_ENUM}
    fields = [field for field in kind.fields if field.type in seen]
    return {key: field for field in fields for key in (field.json_name, field.name)}


def _prepare(top: dict[str, Any], kind: Any) -> str | None:
    """
    Rewrite the ids where they stand, as protobuf's own JSON wants them; return what is wrong with the first value that
    protobuf's would take for another one. What stands under unknown keys is not looked at.
    """
    waiting: list[tuple[Any, Any]] = [(top, kind)]
    while waiting:
        value, kind = waiting.pop()
        if isinstance(value, list):
            waiting += [(item, kind) for item in value]
            continue
        if not isinstance(value, dict):
            continue
        fields = _to_see(kind)
        for key, inner in value.items():
            field = fields.get(key)
            if field is None:
                continue
            if field.type == Field.TYPE_MESSAGE:
                waiting.append((inner, field.message_type))
                continue
            bad = _bad_value(inner, field)
            if bad:
                return f"{key} {bad}"
            if field.name in _IDS and isinstance(inner, str):
                value[key] = base64.b64encode(bytes.fromhex(inner)).decode()
    return None


def _bad_value(value: Any, field: Any) -> str:
    """
    Return what is wrong with the value of an enum or of bytes; empty when nothing is that protobuf's own JSON passes.
    """
    if field.type == Field.TYPE_ENUM:
        return "" if _names_a_number(value, field.enum_type) else f"is not a number of {field.enum_type.name}"
    if not isinstance(value, str):
        return ""
    if field.name in _IDS:
        return "" if len(value) % 2 == 0 and _HEX.fullmatch(value) else "is not hexadecimal"
    return "" if _BASE64.fullmatch(value) else "is not base64"


def _names_a_number(value: Any, kind: Any) -> bool:
    """
    Say whether an enum may be written so: a number, as OTLP demands, or what senders write who leave it to protobuf.
    """
    if isinstance(value, str):
        return value in kind.values_by_name or _NUMBER.fullmatch(value) is not None
    if isinstance(value, float):
        return value.is_integer()
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
