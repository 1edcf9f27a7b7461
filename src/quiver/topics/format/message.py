"""
The payload of a frame: one message, in the fixed-width bincode layout that the document used.

::

    u64 request_id   u64 producer_id   string topic   string broker_address   u64 offset
    bytes payload    u64 publish_time (ms)   string producer_name
    option<string> subscription_name   map<string, string> attributes

A string, bytes or map is a u64 count and that many bytes or pairs; an option is a byte 0 or 1 before its value. There
is no version byte: the layouts of later releases are rejected unless they parse as this one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from quiver.primitives.packing import Cursor, ShortageError
from quiver.primitives.scan import Damage

__all__ = [
    "ATTRIBUTES_MAX",
    "KEY_ATTRIBUTE",
    "NS_PER_MS",
    "SIGNAL_ATTRIBUTE",
    "Message",
    "MessageCodec",
    "decode_message",
]

SIGNAL_ATTRIBUTE = "otlp_signal"
"""The attribute with the kind of an export request: logs, traces or metrics."""


NS_PER_MS = 1_000_000
KEY_ATTRIBUTE = "routing_key"
"""The attribute with a message's key: the layout has no field for one."""

ATTRIBUTES_MAX = 65_536

LAYOUT_PAYLOAD_BYTES_MAX = 2048
"""Payloads up to this length have a cached layout for each length that occurs."""

_U64 = struct.Struct("<Q")
_TWO = struct.Struct("<QQ")
_TAG = struct.Struct("<B")
_NONE: Mapping[str, str] = {}


class Message(NamedTuple):
    """
    One message of a topic. A tuple, because a reader creates some hundred thousand of them per second.

    Attributes:
        offset: its place in the topic.
        payload: its bytes.
        attributes: texts by name.
        publish_time_ns: when it was published, in whole milliseconds, which is the precision of the format.
        producer_name: of the producer.
        topic: ``/namespace/topic``.
        request_id: the producer's number for it.
        producer_id: the producer's own number.
        broker_address: where it was published.
        subscription_name: empty for what producers publish.
    """

    offset: int
    payload: bytes
    attributes: Mapping[str, str]
    publish_time_ns: int
    producer_name: str = ""
    topic: str = ""
    request_id: int = 0
    producer_id: int = 0
    broker_address: str = ""
    subscription_name: str | None = None

    @property
    def key(self) -> str | None:
        """The key with which it was published, or None."""
        return self.attributes.get(KEY_ATTRIBUTE)


class MessageCodec:
    """
    Encodes and decodes the messages of one topic; parts that are the same in all messages are encoded once.

    Args:
        topic: ``namespace/topic``; written with a slash before it.
        producer_name, producer_id, broker_address: written into each message.
    """

    __slots__ = ("_after_offset", "_head", "_packs", "_producer_name", "_producer_tail", "_tail", "_values")

    def __init__(self, topic: str, *, producer_name: str = "", producer_id: int = 0, broker_address: str = "") -> None:
        name = "/" + topic.removeprefix("/")
        self._head = _TWO.pack(0, producer_id) + _text(name) + _text(broker_address)
        self._packs: dict[int, Callable[..., bytes]] = {}
        self._after_offset = len(self._head)
        self._producer_name = producer_name
        self._producer_tail = _text(producer_name) + b"\0"
        self._tail = self._producer_tail + _U64.pack(0)
        self._values = (name, 0, producer_id, broker_address)

    def tail_of(self, attributes: Mapping[str, str] | None) -> bytes:
        """Return the part of a message after its publish time."""
        if not attributes:
            return self._tail
        pairs = [_text(key) + _text(value) for key, value in attributes.items()]
        return b"".join((self._producer_tail, _U64.pack(len(pairs)), *pairs))

    def encode(self, offset: int, payload: bytes, publish_time_ms: int, tail: bytes) -> bytes:
        """Return the bytes of a message; *tail* comes from `tail_of`."""
        size = len(payload)
        if tail is self._tail and size <= LAYOUT_PAYLOAD_BYTES_MAX:
            # One call instead of six: without attributes only the length of the payload varies.
            pack = self._packs.get(size) or self._pack_of(size)
            return pack(self._head, offset, size, payload, publish_time_ms, tail)
        return b"".join((self._head, _TWO.pack(offset, len(payload)), payload, _U64.pack(publish_time_ms), tail))

    def _pack_of(self, size: int) -> Callable[..., bytes]:
        pack = struct.Struct(f"<{len(self._head)}sQQ{size}sQ{len(self._tail)}s").pack
        self._packs[size] = pack
        return pack

    def decode(self, body: bytes) -> Message | Damage:
        """Decode a message, including messages of other topics and other writers."""
        at = self._after_offset
        if not body.startswith(self._head) or len(body) < at + 24:
            return decode_message(body)
        offset, size = _TWO.unpack_from(body, at)
        start = at + 16
        end = start + size
        if end + 8 > len(body) or body[end + 8 :] != self._tail:
            return decode_message(body)
        (time_ms,) = _U64.unpack_from(body, end)
        return Message(offset, body[start:end], _NONE, time_ms * NS_PER_MS, self._producer_name, *self._values)


def decode_message(body: bytes) -> Message | Damage:
    """Decode a message of any writer."""
    cursor = Cursor(body)
    try:
        request_id, producer_id = cursor.take(_TWO)
        topic = _take_text(cursor)
        broker_address = _take_text(cursor)
        (offset,) = cursor.take(_U64)
        (size,) = cursor.take(_U64)
        payload = bytes(cursor.view(size))
        (time_ms,) = cursor.take(_U64)
        producer_name = _take_text(cursor)
        subscription_name = _take_option(cursor)
        attributes = _take_pairs(cursor)
    except ShortageError as shortage:
        return Damage(shortage.offset, f"a message ends {shortage.missing} bytes too early")
    except _InvalidMessageError as unlawful:
        return Damage(cursor.offset, str(unlawful))
    if cursor.remaining:
        return Damage(cursor.offset, f"{cursor.remaining} bytes after the message: it has another layout")
    return Message(
        offset, payload, attributes, time_ms * NS_PER_MS, producer_name, topic, request_id, producer_id,
        broker_address, subscription_name,
    )  # fmt: skip


class _InvalidMessageError(ValueError):
    pass


def _text(value: str) -> bytes:
    data = value.encode()
    return _U64.pack(len(data)) + data


def _take_text(cursor: Cursor) -> str:
    (size,) = cursor.take(_U64)
    try:
        return str(cursor.view(size), "utf-8")
    except UnicodeDecodeError as error:
        raise _InvalidMessageError("a text that is not UTF-8") from error


def _take_option(cursor: Cursor) -> str | None:
    (tag,) = cursor.take(_TAG)
    if tag > 1:
        raise _InvalidMessageError(f"an option starts with {tag} instead of 0 or 1")
    return _take_text(cursor) if tag else None


def _take_pairs(cursor: Cursor) -> Mapping[str, str]:
    (count,) = cursor.take(_U64)
    if count > min(ATTRIBUTES_MAX, cursor.remaining // 16):
        raise _InvalidMessageError(f"the count of attributes, {count}, exceeds the remaining bytes")
    return {_take_text(cursor): _take_text(cursor) for _ in range(count)} if count else _NONE
