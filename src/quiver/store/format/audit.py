"""
The audit trail: the outcome of bundles, one JSON object per line. Bytes only.

::

    {"at":"2026-01-31T12:00:00.000000000Z","subscriber":"a","segment":5,"bundles":[[0,3],[7,7]],"outcome":"acked"}

Ranges of bundles include both ends. ``why`` is present only if a reason was given. A line that is incomplete or not
such an object does no harm: readers skip it, and a writer starts a new line after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

__all__ = [
    "AUDIT_RANGES_MAX",
    "AUDIT_WHY_LENGTH_MAX",
    "AuditOutcome",
    "AuditRecord",
    "decode_audit",
    "encode_audit_record",
    "ranges_of",
]

AuditOutcome = Literal["acked", "rejected", "dropped"]

AUDIT_WHY_LENGTH_MAX = 100
"""The maximum length of a reason, in characters; the rest is cut."""

AUDIT_RANGES_MAX = 32
"""Ranges of bundles in one line. More ranges continue on another line, so that no line is longer than 2 KiB."""

_NS = 1_000_000_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """
    The outcome of some bundles of one segment for one subscriber.

    Attributes:
        at_ns: wall-clock time of the outcome.
        subscriber: the id of the subscriber.
        segment: the segment's number.
        bundles: ranges of bundles, first and last included, ascending.
        outcome: how the bundles were resolved.
        why: the reason that was given; empty if there was none.
    """

    at_ns: int
    subscriber: str
    segment: int
    bundles: tuple[tuple[int, int], ...]
    outcome: AuditOutcome
    why: str = ""


def ranges_of(bits: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of set bits, first and last included."""
    found: list[tuple[int, int]] = []
    at = 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        bits >>= length
        at += skipped + length
        found.append((at - length, at - 1))
    return tuple(found)


def encode_audit_record(record: AuditRecord) -> bytes:
    """Return the line, including its line end."""
    seconds, ns = divmod(record.at_ns, _NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    fields: dict[str, Any] = {
        "at": f"{moment:%Y-%m-%dT%H:%M:%S}.{ns:09}Z",
        "subscriber": record.subscriber,
        "segment": record.segment,
        "bundles": record.bundles,
        "outcome": record.outcome,
    }
    if record.why:
        fields["why"] = record.why[:AUDIT_WHY_LENGTH_MAX]
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"


def decode_audit(data: bytes) -> Iterator[AuditRecord]:
    """Iterate over the records in *data*; lines that are not records are skipped."""
    for line in data.split(b"\n"):
        record = _decode_line(line)
        if record is not None:
            yield record


def _decode_line(line: bytes) -> AuditRecord | None:
    try:
        fields = json.loads(line)
        moment = _TIME.fullmatch(fields["at"])
        if moment is None or fields["outcome"] not in get_args(AuditOutcome):
            return None
        seconds = int((datetime.fromisoformat(f"{moment[1]}+00:00") - _EPOCH).total_seconds())
        bundles = tuple((int(first), int(last)) for first, last in fields["bundles"])
        return AuditRecord(
            seconds * _NS + int(moment[2]),
            str(fields["subscriber"]),
            int(fields["segment"]),
            bundles,
            fields["outcome"],
            str(fields.get("why", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
