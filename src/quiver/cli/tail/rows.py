"""Rows of a slot or a view as plain values, and as lines of text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_line", "plain_rows", "printable"]

_LEFT_OUT = frozenset({"severity_number", "attributes", "resource_attributes", "flags"})
_REPEATS = ("_unix_nano", "_schema_url", "dropped_attributes_count")
"""Columns that are shown in another form, or are of no use in a terminal; `--json` prints them."""


def plain_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return the rows of *batch* as values of JSON: attributes as mappings, and any value of OTLP as itself."""
    return [{name: _plain(value) for name, value in row.items()} for row in batch.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):  # a map
            return {str(key): _plain(inside) for key, inside in value}
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        if value and all(name.endswith("_value") for name in value):  # any value of OTLP: at most one field is set
            return next((_plain(inside) for inside in value.values() if inside is not None), None)
        return {name: _plain(inside) for name, inside in value.items()}
    return value


def as_line(row: Mapping[str, Any]) -> str:
    """
    Return *row* as one line: time, severity, body or name, then all other values that are set, as ``name=value``.

    Control characters are escaped: a terminal must not interpret text from other machines.
    """
    main = ("time", "severity_text", "body") if "body" in row else ("time", "start_time", "name")
    shown = [_text(row[name]) for name in main if _is_set(row.get(name))]
    rest = {
        name: value for name, value in row.items() if name not in {*main, *_LEFT_OUT} and not name.endswith(_REPEATS)
    }
    rest |= {**(row.get("attributes") or {}), **(row.get("resource_attributes") or {})}
    shown += [f"{name}={_text(value)}" for name, value in rest.items() if _is_set(value)]
    return printable("  ".join(shown))


def _is_set(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def printable(text: str) -> str:
    """Return *text* with control characters escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
