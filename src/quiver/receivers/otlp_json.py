"""
OTLP in JSON → OTLP in protobuf, by the rules of the OTLP specification: ids are hexadecimal, enums numbers, 64-bit
integers text or numbers, keys in lowerCamelCase, unknown keys ignored.

What is stored is the protobuf, so that nothing behind a receiver has to know JSON.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from google.protobuf import json_format
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

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")


def _both(*names: str) -> frozenset[str]:
    """
    Return the keys in lowerCamelCase, and as protobuf names the fields.
    """
    return frozenset(names) | {re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name) for name in names}


_IDS = _both("traceId", "spanId", "parentSpanId")
_WAY_TO_IDS = _both(
    "resourceLogs", "scopeLogs", "logRecords",
    "resourceSpans", "scopeSpans", "spans", "links",
    "resourceMetrics", "scopeMetrics", "metrics", "gauge", "sum", "histogram", "exponentialHistogram",
    "dataPoints", "exemplars",
)  # fmt: skip


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
    bad = _ids_to_base64(value)
    if bad is not None:
        return Damage(0, f"not an {name} in JSON: {bad} is not hexadecimal")
    try:
        message = json_format.ParseDict(value, kind(), ignore_unknown_fields=True)
        return bytes(message.SerializeToString())
    except (json_format.ParseError, EncodeError, ValueError, TypeError, RecursionError) as error:
        return Damage(0, f"not an {name} in JSON: {_brief(error)}")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _brief(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]


def _ids_to_base64(top: dict[str, Any]) -> str | None:
    """
    Rewrite the ids where they stand, as protobuf's own JSON wants them; return the key of the first that is wrong.
    """
    waiting: list[Any] = [top]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
            continue
        if not isinstance(value, dict):
            continue
        for key, inner in value.items():
            if key in _IDS and isinstance(inner, str):
                if _HEX.fullmatch(inner) is None:
                    return key
                value[key] = base64.b64encode(bytes.fromhex(inner)).decode()
            elif key in _WAY_TO_IDS:
                waiting.append(inner)
    return None
