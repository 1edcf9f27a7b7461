"""
The commands that clients send as tickets and descriptors: JSON objects, checked (pure).

A command names a store or a topic of the server and what to do with it. All keys are listed in `docs/howto/flight.md`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from quiver.errors import UsageError
from quiver.receivers.flight.messages import Descriptor

__all__ = ["COMMAND_BYTES_MAX", "COMMAND_VERSION", "Command", "command_of", "encode_command", "time_of"]

COMMAND_VERSION = 1
COMMAND_BYTES_MAX = 64 * 1024
_COLUMNS_MAX = 4096
_TEXT_MAX = 1024
_IN_FLIGHT_MAX = 256
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Command:
    """
    A checked command. A key that the client left out is None.

    Attributes:
        store: the name of the store.
        slot: the name or the number of a slot.
        view: `logs`, `spans` or `metrics`.
        table: the name of a QWP table.
        columns: the columns to read, in this order.
        start: where to begin: nanoseconds since 1970, or a word.
        end: the end of the range, exclusive.
        by: whether times are those of ingestion or of the events.
        strict: whether damage ends a scan, or only damaged rows are left out.
        subscriber: the name of a subscriber of a store.
        follow: whether a subscription waits for new data.
        in_flight: the maximum number of unanswered batches.
        bundles: whether batches are complete bundles.
        topic: the name of a topic.
        offset: the offset of the first message.
        limit: the maximum number of messages.
        producer: the name of a producer, which numbers its messages.
        subscription: the name of a subscription of a topic.
        kind: how its messages are divided among consumers.
        given: the keys that the client sent.
    """

    store: str | None = None
    slot: str | int | None = None
    view: str | None = None
    table: str | None = None
    columns: list[str] | None = None
    start: int | str | None = None
    end: int | None = None
    by: str | None = None
    strict: bool | None = None
    subscriber: str | None = None
    follow: bool | None = None
    in_flight: int | None = None
    bundles: bool | None = None
    topic: str | None = None
    offset: int | None = None
    limit: int | None = None
    producer: str | None = None
    subscription: str | None = None
    kind: str | None = None
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def ticket(self, store: str) -> bytes:
        """Return the command as a ticket, with the name of its *store*."""
        return encode_command({**{name: getattr(self, name) for name in self.given}, "store": store})

    def only(self, purpose: str, *allowed: str) -> None:
        """
        Refuse keys that have no effect for *purpose*.

        Raises:
            UsageError: there is one.
        """
        extra = sorted(self.given - {"store", *allowed})
        if extra:
            raise UsageError(f"{purpose} does not use {', '.join(extra)}; its keys are store, {', '.join(allowed)}")


def command_of(source: bytes | Descriptor) -> Command:
    """
    Return the command in a ticket, or in a descriptor.

    A path is a slot or a topic, after the name of the store if there are two elements. A topic has a slash in its name.

    Raises:
        UsageError: it is too large, not JSON, or has an unknown key or a value of another type.
    """
    if isinstance(source, Descriptor):
        if source.path:
            return _command_of_path(source.path)
        source = source.command
    if len(source) > COMMAND_BYTES_MAX:
        raise UsageError(f"the command has {len(source)} bytes; the maximum is {COMMAND_BYTES_MAX}")
    try:
        found = json.loads(source)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError('the command is not a JSON object such as {"version": 1, "slot": "logs"}')
    version = found.pop("version", COMMAND_VERSION)
    if version != COMMAND_VERSION:
        raise UsageError(f"version {str(version)[:20]} of commands is unknown; this server has {COMMAND_VERSION}")
    for name in found:
        if name not in _CHECKS:
            near = difflib.get_close_matches(name, _CHECKS, 1)
            hint = f"do you mean {near[0]}?" if near else f"known are {', '.join(_CHECKS)}"
            raise UsageError(f"the command has an unknown key {name[:64]!r}; {hint}")
    checked: dict[str, Any] = {name: _CHECKS[name](name, value) for name, value in found.items()}
    return Command(**checked, given=frozenset(checked))


def encode_command(values: Mapping[str, Any]) -> bytes:
    """Return a command as JSON, the same bytes for the same values. None means left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return json.dumps({"version": COMMAND_VERSION, **given}, sort_keys=True, separators=(",", ":")).encode()


def _command_of_path(path: tuple[str, ...]) -> Command:
    if len(path) > 2:
        raise UsageError(f"the path has {len(path)} elements: write a slot or a topic, or a store and one of them")
    what = "topic" if "/" in path[-1] else "slot"
    found = {what: path[-1]} if len(path) == 1 else {"store": path[0], what: path[-1]}
    checked: dict[str, Any] = {name: _CHECKS[name](name, value) for name, value in found.items()}
    return Command(**checked, given=frozenset(checked))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT_MAX:
        raise UsageError(f"{name} must be a text of 1 to {_TEXT_MAX} characters")
    return value


def _slot(name: str, value: Any) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = _text(name, value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else text


def _columns(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > _COLUMNS_MAX:
        raise UsageError(f"{name} must be a list of at most {_COLUMNS_MAX} column names")
    return [_text(name, item) for item in value]


def _time(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    try:
        moment = datetime.fromisoformat(_text(name, value))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(f"{name} must be nanoseconds since 1970, or a time such as 2026-01-31T12:00:00Z")
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1_000


def _start(name: str, value: Any) -> int | str:
    return str(value) if value in ("earliest", "latest") else _time(name, value)


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false")
    return value


def time_of(time_ns: int) -> datetime:
    """Return the time that a command gives in nanoseconds since 1970, in 64 bits."""
    return _EPOCH + timedelta(microseconds=time_ns // 1000)


def _offset(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise UsageError(f"{name} must be a number that is not negative")
    return value


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _IN_FLIGHT_MAX:
        raise UsageError(f"{name} must be a number from 1 to {_IN_FLIGHT_MAX}")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "store": _text, "slot": _slot, "view": _text, "table": _text, "columns": _columns, "start": _start, "end": _time,
    "by": _text, "strict": _switch, "subscriber": _text, "follow": _switch, "in_flight": _count, "bundles": _switch,
    "topic": _text, "offset": _offset, "limit": _offset, "producer": _text, "subscription": _text, "kind": _text,
}  # fmt: skip
