"""
Records that commit what exporters wrote: JSON, with a CRC-32 over its body. Pure.

::

    {"crc32": "5a0c…", "record": {"v": 1, …}}

`docs/formats/export-records.md` has their fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError
from quiver.primitives.checksum import crc32

__all__ = ["RECORD_BYTES_MAX", "decode_positions", "decode_record", "encode_positions", "encode_record"]

RECORD_BYTES_MAX = 64 * 1024 * 1024

_T = TypeVar("_T")


def encode_record(version: int, fields: Mapping[str, Any]) -> bytes:
    """Return the record with *fields*."""
    body = {"v": version, **fields}
    return json.dumps({"crc32": _checksum(body), "record": body}, indent=1).encode()


def decode_record(
    data: bytes, path: str, name: str, versions: AbstractSet[int], parse: Callable[[dict[str, Any]], _T]
) -> _T:
    """
    Decode a record.

    Args:
        data: its bytes.
        path: of its file or object, for errors.
        name: of this kind of record, for errors.
        versions: those that this release reads.
        parse: returns the value of a valid body; it may raise whatever a missing key or another type raises.

    Raises:
        CorruptionError: the record is damaged, or has a newer version.
    """
    try:
        value = json.loads(data)
        body = value["record"]
        if value["crc32"] != _checksum(body):
            raise CorruptionError(path, 0, f"the {name} does not match its checksum")
        if body["v"] not in versions:
            raise CorruptionError(
                path, 0, f"the {name} has version {body['v']}; this release reads {max(versions)}: use a newer one"
            )
        return parse(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(path, 0, f"this is not the {name}") from error


def encode_positions(positions: Mapping[str, BundleRef]) -> dict[str, dict[str, int]]:
    """Return the position in each store for a record."""
    return {store: {"seq": position.segment, "idx": position.index} for store, position in positions.items()}


def decode_positions(value: Mapping[str, Mapping[str, int]]) -> dict[str, BundleRef]:
    """Return the position in each store of a record."""
    return {str(store): BundleRef(place["seq"], place["idx"]) for store, place in value.items()}


def _checksum(body: Any) -> str:
    return f"{crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"
