"""
A topic's subscriptions in the metadata store, so that they move with the topic.

::

    <namespace>/topics/<topic>/subscriptions/<name>            its settings, as JSON
    <namespace>/topics/<topic>/subscriptions/<name>/cursor     the last offset up to which all is confirmed: a number
    <namespace>/topics/<topic>/subscriptions/<name>/progress   ours: all confirmed offsets, and which owner wrote them

The first two are the document's. There is no cursor until an offset is confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.primitives.scan import Answer, Damage, Frame, as_damage
from quiver.topics.format.names import check_subscription
from quiver.topics.format.subscription import SavedSubscription, decode_subscription, encode_subscription

__all__ = [
    "PROGRESS_BYTES_MAX",
    "decode_cursor",
    "decode_progress",
    "encode_progress",
    "encode_subscription_keys",
    "parse_progress_key",
    "subscription_keys",
    "subscriptions_prefix",
]

PROGRESS_BYTES_MAX = 1 << 20
_KINDS = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}
_PROGRESS = "/progress"
_OFFSET_MAX = (1 << 64) - 1


def subscriptions_prefix(namespace: str, topic: str) -> str:
    """Return the prefix of the keys of all subscriptions of *topic*."""
    return f"{namespace}/topics/{topic}/subscriptions/"


def subscription_keys(prefix: str, name: str) -> tuple[str, str, str]:
    """Return the keys of the subscription, its cursor, and its progress."""
    return f"{prefix}{name}", f"{prefix}{name}/cursor", f"{prefix}{name}{_PROGRESS}"


def parse_progress_key(prefix: str, key: str) -> str | None:
    """Return the name of the subscription whose progress *key* holds, or None."""
    if not (key.startswith(prefix) and key.endswith(_PROGRESS)):
        return None
    try:
        return check_subscription(key.removeprefix(prefix).removesuffix(_PROGRESS), internal=True)
    except UsageError:
        return None


def encode_subscription_keys(prefix: str, saved: SavedSubscription, owner: str) -> Mapping[str, bytes | None]:
    """Return the values to write for a subscription; None removes a key."""
    what, cursor, progress = subscription_keys(prefix, saved.name)
    fields = {
        "subscription_name": saved.name,
        "subscription_type": _KINDS[saved.kind],
        "consumer_id": None,
        "consumer_name": "",
    }
    return {
        what: json.dumps(fields, separators=(",", ":")).encode(),
        cursor: b"%d" % (saved.next_offset - 1) if saved.next_offset else None,
        progress: encode_progress(saved, owner),
    }


def encode_progress(saved: SavedSubscription, owner: str) -> bytes:
    """
    Encode a progress. If it is too large, offsets confirmed above the cursor are omitted: those messages are delivered
    again.
    """
    for one in (saved, replace(saved, attempts={}), replace(saved, attempts={}, acked=())):
        data = json.dumps({"owner": owner, "saved": encode_subscription(one).decode()}).encode()
        if len(data) <= PROGRESS_BYTES_MAX:
            break
    return data


def decode_progress(data: Buffer) -> Answer[tuple[str, SavedSubscription]]:
    """Decode a progress: the owner that wrote it, and the confirmed offsets."""
    try:
        fields = json.loads(bytes(data))
        owner, text = fields["owner"], fields["saved"]
        answer = decode_subscription(text.encode())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Damage(0, f"not a progress: {type(error).__name__}: {error}")
    if not isinstance(answer, Frame):
        return as_damage(answer, len(data))
    if not isinstance(owner, str):
        return Damage(0, "the owner of the progress is not text")
    return Frame((owner, answer.value), len(data))


def decode_cursor(data: Buffer) -> Answer[int]:
    """Decode a cursor."""
    text = bytes(data)
    if not text.isdigit() or len(text) > len(str(_OFFSET_MAX)) or int(text) > _OFFSET_MAX:
        return Damage(0, "a cursor must be a number")
    return Frame(int(text), len(text))
