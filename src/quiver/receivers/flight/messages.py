"""
The protobuf messages of Arrow Flight: bytes in, values out.

They have a few fields each, so no generated code is needed, and the body of a batch is never copied. Unknown fields are
skipped, as protobuf requires. A decoder returns `Damage` for bytes that are not such a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quiver.primitives.scan import Damage

__all__ = [
    "SERVICE",
    "Descriptor",
    "FlightData",
    "decode_action",
    "decode_bytes",
    "decode_descriptor",
    "decode_flight_data",
    "encode_action_type",
    "encode_bytes",
    "encode_descriptor",
    "encode_flight_data",
    "encode_flight_info",
]

SERVICE = "arrow.flight.protocol.FlightService"

_PATH_MAX = 16
_VARINT_BYTES_MAX = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PATH, _COMMAND = 1, 2
_BODY_FIELD = 1000


@dataclass(frozen=True, slots=True)
class Descriptor:
    """
    The name of a stream: either a command or a path.

    Attributes:
        command: opaque bytes, empty for a path.
        path: the elements of a path, empty for a command.
    """

    command: bytes = b""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlightData:
    """
    One message of a stream.

    Attributes:
        descriptor: the name of the stream, in its first message.
        header: the metadata of an Arrow IPC message, empty if there is none.
        metadata: what the application added.
        body: the body of the Arrow IPC message.
    """

    descriptor: Descriptor | None = None
    header: bytes | memoryview = b""
    metadata: bytes = b""
    body: bytes | memoryview = b""


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


def decode_flight_data(data: bytes) -> FlightData | Damage:
    """Return a `FlightData`. Its views point into *data*."""
    descriptor: Descriptor | None = None
    header: bytes | memoryview = b""
    body: bytes | memoryview = b""
    metadata = b""
    for field in _fields(data):
        if isinstance(field, Damage):
            return field
        number, value = field
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            named = decode_descriptor(value)
            if isinstance(named, Damage):
                return named
            descriptor = named
        elif number == 2:
            header = value
        elif number == 3:
            metadata = bytes(value)
        elif number == _BODY_FIELD:
            body = value
    return FlightData(descriptor, header, metadata, body)


def decode_descriptor(data: bytes | memoryview) -> Descriptor | Damage:
    """Return a `FlightDescriptor`."""
    kind, command = 0, b""
    path: list[str] = []
    for field in _fields(data):
        if isinstance(field, Damage):
            return field
        number, value = field
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, memoryview):
            command = bytes(value)
        elif number == 3 and isinstance(value, memoryview):
            if len(path) == _PATH_MAX:
                return Damage(0, f"the path of the descriptor has more than {_PATH_MAX} elements")
            try:
                path.append(str(value, "utf-8"))
            except UnicodeDecodeError:
                return Damage(0, "the path of the descriptor is not UTF-8")
    if kind == _PATH and path:
        return Descriptor(path=tuple(path))
    if kind == _COMMAND:
        return Descriptor(command=command)
    return Damage(0, "the descriptor has neither a path nor a command")


def decode_bytes(data: bytes) -> bytes | Damage:
    """Return the only field of a `Ticket`, `Criteria` or `Result`."""
    found = b""
    for field in _fields(data):
        if isinstance(field, Damage):
            return field
        if field[0] == 1 and isinstance(field[1], memoryview):
            found = bytes(field[1])
    return found


def decode_action(data: bytes) -> tuple[str, bytes] | Damage:
    """Return type and body of an `Action`."""
    kind, body = b"", b""
    for field in _fields(data):
        if isinstance(field, Damage):
            return field
        number, value = field
        if isinstance(value, memoryview) and number == 1:
            kind = bytes(value)
        elif isinstance(value, memoryview) and number == 2:
            body = bytes(value)
    return kind.decode("utf-8", "replace"), body


def _fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview] | Damage]:
    """Yield number and value of each field; `Damage` is the last item."""
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        start = at
        tag, at = _varint(view, at)
        kind = tag & 7
        if tag < 8 or kind not in {_VARINT, _FIXED64, _BYTES, _FIXED32}:
            yield Damage(start, f"no protobuf field starts at byte {start}")
            return
        value, at = (0, at) if kind in {_FIXED64, _FIXED32} else _varint(view, at)
        size = {_VARINT: 0, _FIXED64: 8, _FIXED32: 4, _BYTES: value}[kind]
        if at < 0 or value < 0 or size > end - at:
            yield Damage(start, f"the protobuf field at byte {start} ends after the message")
            return
        yield tag >> 3, view[at : at + size] if kind == _BYTES else value
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the offset after it; -1 for both if there is none."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if not 0 <= at + index < len(view):
            break
        byte = view[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return -1, -1


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _head(field: int, size: int) -> bytes:
    return _number(field << 3 | _BYTES) + _number(size)


def _block(field: int, data: bytes) -> bytes:
    return _head(field, len(data)) + data if data else b""


def encode_flight_data(
    header: bytes | memoryview,
    body: Sequence[bytes | memoryview],
    metadata: bytes = b"",
    descriptor: Descriptor | None = None,
) -> list[bytes | memoryview]:
    """Return a `FlightData` in parts, without copying *body*."""
    first = b"" if descriptor is None else _block(1, encode_descriptor(descriptor))
    head = first + (_head(2, len(header)) + header if header else b"") + _block(3, metadata)
    size = sum(map(len, body))
    return [head + _head(_BODY_FIELD, size), *body] if size else [head]


def encode_bytes(data: bytes) -> bytes:
    """Return a `Ticket`, `SchemaResult`, `PutResult` or `Result` with *data*."""
    return _block(1, data)


def encode_descriptor(descriptor: Descriptor) -> bytes:
    """Return a `FlightDescriptor`."""
    if descriptor.path:
        path = b"".join(_head(3, len(item)) + item for item in (item.encode() for item in descriptor.path))
        return b"\x08" + _number(_PATH) + path
    return b"\x08" + _number(_COMMAND) + _block(2, descriptor.command)


def encode_flight_info(schema: bytes, descriptor: Descriptor, tickets: Sequence[bytes]) -> bytes:
    """
    Return a `FlightInfo` with an endpoint for each of *tickets*, which are read from the same server.

    The numbers of rows and bytes are -1, which means unknown.
    """
    unknown = _number(2**64 - 1)
    endpoints = b"".join(_block(3, _block(1, encode_bytes(ticket))) for ticket in tickets)
    return (
        _block(1, schema) + _block(2, encode_descriptor(descriptor)) + endpoints + b"\x20" + unknown + b"\x28" + unknown
    )


def encode_action_type(name: str, description: str) -> bytes:
    """Return an `ActionType`."""
    return _block(1, name.encode()) + _block(2, description.encode())
