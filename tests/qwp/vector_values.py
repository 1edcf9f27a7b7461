"""The recorded vectors: the input of the official client, as Quiver's values."""

from __future__ import annotations

import datetime
import ipaddress
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from quiver.qwp.rows import RowTable
from quiver.qwp.values import Char, DateMillis, Geohash, Long256, TimestampMicros, TimestampNanos

VECTORS = Path(__file__).parents[1] / "vectors" / "qwp"
GROUPS: dict[str, dict[str, Any]] = {
    one["group"]: one for one in json.loads((VECTORS / "vectors.json").read_text(encoding="utf-8"))
}

_SENT = {
    "f64": float.fromhex,
    "int": int,
    "ts_us": lambda text: TimestampMicros(int(text)),
    "ts_ns": lambda text: TimestampNanos(int(text)),
    "datetime": datetime.datetime.fromisoformat,
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "bytes": bytes.fromhex,
    "char": Char,
    "date_ms": lambda text: DateMillis(int(text)),
    "long256": lambda text: Long256(int(text, 16)),
    "geohash": lambda one: Geohash(int(one["bits"]), one["precision"]),
    "array": lambda one: np.array([float.fromhex(text) for text in one["data"]]).reshape(one["shape"]),
}


def frame(name: str) -> bytes:
    """The bytes of a recorded frame."""
    return (VECTORS / name).read_bytes()


def sent_value(value: Any) -> Any:
    """Convert a recorded input value."""
    if not isinstance(value, dict):
        return value
    ((kind, said),) = value.items()
    return _SENT[kind](said)


def row_tables(batch: list[dict[str, Any]]) -> list[RowTable]:
    """The rows of one flush, as our sender buffers them."""
    tables: dict[str, RowTable] = {}
    for row in batch:
        table = tables.setdefault(row["table"], RowTable(row["table"]))
        at = None if row["at"] == "ServerTimestamp" else sent_value(row["at"])
        columns = {name: sent_value(value) for name, value in (row["columns"] or {}).items()}
        table.append(row["symbols"] or {}, columns, at, bytes_max=1 << 20)
    return list(tables.values())


def decoded_value(value: Any, kind: str) -> Any:
    """Convert a cell of the recorded decoding, for comparison with `comparable`."""
    if isinstance(value, list):
        return [value[0], [decoded_value(one, "DOUBLE") for one in value[1]]]
    if isinstance(value, dict):
        ((form, said),) = value.items()
        if form == "f64":
            return repr(float.fromhex(said))
        return bytes.fromhex(said) if form == "hex" else int(said)
    if kind in {"DOUBLE", "FLOAT"} and value is not None:
        return repr(float(value))
    return value


def comparable(value: Any, scale: int = 0) -> Any:
    """Convert a decoded cell to the form of the recording; floats as text, so that NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return [list(value.shape), [repr(float(one)) for one in value.reshape(-1)]]
    if isinstance(value, Decimal):
        return int(value.scaleb(scale))
    return repr(value) if isinstance(value, float) else value
