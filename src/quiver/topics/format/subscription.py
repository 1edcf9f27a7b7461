"""
A saved subscription and the offsets that it has confirmed. Two lines of text: JSON, and the CRC-32 of that line.

::

    {"name": "billing", "kind": "shared", "next_offset": 1200, "acked": [[1210, 1215]], "attempts": {"1201": 2}}
    9f1c02ab
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, NeedMore

__all__ = [
    "SUBSCRIPTION_BYTES_MAX",
    "SavedSubscription",
    "SubscriptionKind",
    "decode_subscription",
    "encode_subscription",
]

SubscriptionKind = Literal["exclusive", "shared", "failover", "key_shared"]

SUBSCRIPTION_BYTES_MAX = 16 * 1024 * 1024

_CHECKSUM_LINE_BYTES = 9
_FIELDS = frozenset({"name", "kind", "next_offset", "acked", "attempts"})


@dataclass(frozen=True, slots=True)
class SavedSubscription:
    """
    The state of a subscription.

    Attributes:
        name: of the subscription.
        kind: how consumers share it.
        next_offset: everything below it is confirmed.
        acked: confirmed ranges above it: the first offset, and the offset after the last.
        attempts: how often each unconfirmed message was delivered.
    """

    name: str
    kind: SubscriptionKind
    next_offset: int
    acked: tuple[tuple[int, int], ...] = ()
    attempts: Mapping[int, int] = field(default_factory=dict)


def encode_subscription(saved: SavedSubscription) -> bytes:
    """Encode a subscription."""
    line = json.dumps(
        {
            "name": saved.name,
            "kind": saved.kind,
            "next_offset": saved.next_offset,
            "acked": [list(one) for one in saved.acked],
            "attempts": {str(offset): count for offset, count in sorted(saved.attempts.items())},
        }
    ).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


def decode_subscription(data: Buffer) -> Answer[SavedSubscription]:
    """Decode a subscription. Fields of later versions are ignored."""
    content = bytes(data)
    if len(content) > SUBSCRIPTION_BYTES_MAX:
        return Damage(0, f"a subscription of {len(content)} bytes")
    line, newline, rest = content.partition(b"\n")
    if not newline:
        return NeedMore(1 + _CHECKSUM_LINE_BYTES)
    if len(rest) < _CHECKSUM_LINE_BYTES:
        return NeedMore(_CHECKSUM_LINE_BYTES - len(rest))
    if rest[:_CHECKSUM_LINE_BYTES] != b"%08x\n" % crc32(line):
        return Damage(len(line) + 1, "the checksum of the subscription differs")
    try:
        value = _subscription(json.loads(line))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return Damage(0, f"not a subscription: {error!r}")
    return Frame(value, len(line) + 1 + _CHECKSUM_LINE_BYTES)


def _subscription(fields: dict[str, Any]) -> SavedSubscription:
    missing = _FIELDS - set(fields)
    if missing:
        raise KeyError(*sorted(missing))
    if fields["kind"] not in get_args(SubscriptionKind) or not isinstance(fields["name"], str):
        raise ValueError("an unknown kind, or no name")
    acked = tuple((_offset(first), _offset(after)) for first, after in fields["acked"])
    if any(first >= after for first, after in acked):
        raise ValueError("an empty range")
    attempts = {_offset(int(offset)): _offset(count) for offset, count in fields["attempts"].items()}
    return SavedSubscription(fields["name"], fields["kind"], _offset(fields["next_offset"]), acked, attempts)


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not an offset")
    return value
