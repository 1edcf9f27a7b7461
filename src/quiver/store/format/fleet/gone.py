"""
The record that segments of a node cannot be read any more. JSON text; values in and out.

::

    {"kind":"fleet gone","version":1,"first":…,"last":…,"reason":"age","gone_at_ns":…,"segments":[[number,bundles],…]}

It closes the chain of the node, so that readers continue after it and count what was lost. Numbers between `first` and
`last` that are not in `segments` were never used; if the reason is `damaged`, their bundles could not be counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, get_args

from quiver.errors import UsageError
from quiver.primitives.scan import Damage, Frame
from quiver.store.format.names import U64_MAX

__all__ = [
    "GONE_BYTES_MAX",
    "GONE_SEGMENTS_MAX",
    "GONE_VERSION",
    "GoneReason",
    "GoneSegments",
    "decode_gone",
    "encode_gone",
]

GoneReason = Literal["size", "age", "skipped", "damaged", "unused"]

GONE_VERSION = 1
GONE_SEGMENTS_MAX = 10_000
GONE_BYTES_MAX = 1 << 20
"""Well above the size of a valid record: a larger object is not read."""

_KIND = "fleet gone"
_REASONS: tuple[GoneReason, ...] = get_args(GoneReason)
_BUNDLES_MAX = (1 << 32) - 1
_TIME_NS_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class GoneSegments:
    """
    Segments of a node that cannot be read any more.

    Attributes:
        first: the first number.
        last: the last number.
        reason: `size`, `age` and `skipped` as in the drop ledger; `damaged`: the file was corrupt or missing before it
            was uploaded; `unused`: no segment had any of these numbers.
        gone_at_ns: wall-clock time of the node, in nanoseconds since the epoch.
        segments: number and bundle count of each segment, ascending; without damaged ones that could not be counted.
    """

    first: int
    last: int
    reason: GoneReason
    gone_at_ns: int
    segments: tuple[tuple[int, int], ...] = ()

    def bundles_from(self, position: int) -> int:
        """Return how many bundles are lost for a reader that has read everything below segment *position*."""
        return sum(bundles for number, bundles in self.segments if number >= position)


def encode_gone(gone: GoneSegments) -> bytes:
    """
    Return the text of a record.

    Raises:
        UsageError: it could not be read again: more than 10,000 segments, or numbers that are not ascending within the
            range.
    """
    value = {
        "kind": _KIND,
        "version": GONE_VERSION,
        "first": gone.first,
        "last": gone.last,
        "reason": gone.reason,
        "gone_at_ns": gone.gone_at_ns,
        "segments": gone.segments,
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    answer = decode_gone(memoryview(data))
    if not isinstance(answer, Frame):
        raise UsageError(f"a record of gone segments cannot be written: {answer.reason}")
    return data


def decode_gone(view: memoryview) -> Frame[GoneSegments] | Damage:
    """Decode a complete record. Unknown members are skipped."""
    if len(view) > GONE_BYTES_MAX:
        return Damage(0, f"not a record of gone segments: it has more than {GONE_BYTES_MAX} bytes")
    try:
        found = json.loads(bytes(view))
    except (ValueError, RecursionError):
        return Damage(0, "not a record of gone segments: it is not JSON text")
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        return Damage(0, "not a record of gone segments: `kind` is missing or different")
    if found.get("version") != GONE_VERSION:
        return Damage(0, f"unsupported version {str(found.get('version'))[:20]!r}")
    members: dict[str, Any] = found
    first, last = members.get("first"), members.get("last")
    if not (_is_number(first, U64_MAX - 1) and _is_number(last, U64_MAX - 1)) or first > last:
        return Damage(0, "not a record of gone segments: first and last are not a range of segment numbers")
    reason = next((known for known in _REASONS if known == members.get("reason")), None)
    if reason is None:
        return Damage(0, f"unsupported reason {str(members.get('reason'))[:20]!r}")
    gone_at_ns = members.get("gone_at_ns")
    if not _is_number(gone_at_ns, _TIME_NS_MAX):
        return Damage(0, "not a record of gone segments: gone_at_ns is not a time")
    pairs = _segments(members.get("segments"), first, last)
    if isinstance(pairs, Damage):
        return pairs
    return Frame(GoneSegments(first, last, reason, gone_at_ns, pairs), len(view))


def _segments(found: Any, first: int, last: int) -> tuple[tuple[int, int], ...] | Damage:
    if not isinstance(found, list) or len(found) > GONE_SEGMENTS_MAX:
        return Damage(0, f"not a record of gone segments: segments is not a list of at most {GONE_SEGMENTS_MAX}")
    pairs: list[tuple[int, int]] = []
    lowest = first
    for pair in found:
        if not (isinstance(pair, list) and len(pair) == 2):
            return Damage(0, "not a record of gone segments: a segment is not a pair of numbers")
        number, bundles = pair
        if not (_is_number(number, last) and number >= lowest and _is_number(bundles, _BUNDLES_MAX)):
            return Damage(0, f"not a record of gone segments: {str(pair)[:60]} is not in order, or out of range")
        pairs.append((number, bundles))
        lowest = number + 1
    return tuple(pairs)


def _is_number(value: Any, highest: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= highest
