"""
The durability snapshot: how far each unsealed segment was synced when it was written. JSON text, values in and out.

A compact array of ``{"segment_id":0,"requested_bytes":1024,"durable_bytes":1024}``; bytes count from the beginning of
the segment's file. It may be outdated: at least this much was durable. Recovery concludes two things from it: the bytes
before `durable_bytes` need not be rewritten, and if they do not parse, they are damaged and not a torn tail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.primitives.scan import Answer, Damage, Frame

__all__ = ["DURABILITY_BYTES_MAX", "SegmentDurability", "decode_durability", "encode_durability"]

DURABILITY_BYTES_MAX = 1 << 20
_KEYS = ("segment_id", "requested_bytes", "durable_bytes")


@dataclass(frozen=True, slots=True)
class SegmentDurability:
    """One segment: bytes for which a flush was requested, and bytes that were synced."""

    segment_id: int
    requested_bytes: int
    durable_bytes: int


def encode_durability(segments: Iterable[SegmentDurability]) -> bytes:
    """Return the text of a snapshot."""
    rows = [dict(zip(_KEYS, (one.segment_id, one.requested_bytes, one.durable_bytes), strict=True)) for one in segments]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_durability(view: memoryview) -> Answer[tuple[SegmentDurability, ...]]:
    """Decode a complete snapshot file."""
    try:
        rows = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not a durability snapshot: it is not JSON text")
    if not isinstance(rows, list):
        return Damage(0, "not a durability snapshot: it is not an array")
    found = []
    for row in rows:
        values = [row.get(key) for key in _KEYS] if isinstance(row, dict) else []
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
        if len(numbers) != len(_KEYS) or numbers[2] > numbers[1]:
            return Damage(
                0, "not a durability snapshot: an entry lacks a number, or has more durable bytes than requested ones"
            )
        found.append(SegmentDurability(*numbers))
    return Frame(tuple(found), len(view))
