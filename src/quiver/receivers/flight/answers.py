"""The metadata that clients add to messages, as JSON: numbers of batches, and answers to deliveries (pure)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from quiver.errors import UsageError

__all__ = ["Answer", "answer_of", "encode_metadata", "sequence_of"]

_METADATA_BYTES_MAX = 64 * 1024
_SEQUENCE_MAX = 2**63 - 1
_DELAY_S_MAX = 7 * 24 * 3600.0
_TEXT_MAX = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The answers of one message.

    Attributes:
        ack: the addresses of what was processed.
        reject: the addresses of what can never be processed, for the reason `reason`.
        nack: the addresses of what is to be delivered again after `delay_s` seconds.
    """

    ack: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    nack: tuple[str, ...] = ()
    reason: str = ""
    delay_s: float = 0.0


def sequence_of(metadata: bytes, default: int) -> int:
    """
    Return the number in ``{"sequence": 7}``; *default* without metadata.

    Raises:
        UsageError: the metadata is something else.
    """
    if not metadata:
        return default
    found = _object(metadata, '{"sequence": 7}', {"sequence"}).get("sequence", default)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _SEQUENCE_MAX:
        raise UsageError(f"sequence must be a number from 0 to {_SEQUENCE_MAX}")
    return found


def answer_of(metadata: bytes) -> Answer:
    """
    Return the answers in ``{"ack": ["12:0"], "reject": [], "reason": "", "nack": [], "delay": 30}``.

    Raises:
        UsageError: the metadata is something else.
    """
    found = _object(metadata, '{"ack": ["12:0"]}', {"ack", "reject", "nack", "reason", "delay"})
    reason, delay_s = found.get("reason", ""), found.get("delay", 0.0)
    if not isinstance(reason, str) or len(reason) > _TEXT_MAX:
        raise UsageError(f"reason must be a text of at most {_TEXT_MAX} characters")
    if not isinstance(delay_s, int | float) or isinstance(delay_s, bool) or not 0 <= delay_s <= _DELAY_S_MAX:
        raise UsageError(f"delay must be a number of seconds from 0 to {_DELAY_S_MAX:g}")
    ack, reject, nack = (_addresses(name, found.get(name, [])) for name in ("ack", "reject", "nack"))
    return Answer(ack, reject, nack, reason, delay_s)


def encode_metadata(**values: Any) -> bytes:
    """Return *values* as JSON. None means left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return json.dumps(given, separators=(",", ":")).encode()


def _object(metadata: bytes, example: str, keys: set[str]) -> dict[str, Any]:
    if len(metadata) > _METADATA_BYTES_MAX:
        raise UsageError(f"the metadata has {len(metadata)} bytes; the maximum is {_METADATA_BYTES_MAX}")
    try:
        found = json.loads(metadata)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found.keys() <= keys:
        raise UsageError(f"the metadata of a message must be JSON such as {example}")
    return found


def _addresses(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{name} must be a list of addresses")
    return tuple(value)
