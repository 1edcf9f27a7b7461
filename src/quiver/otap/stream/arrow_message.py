"""
The protobuf messages of OTAP: `BatchArrowRecords` in, `BatchStatus` back.

The descriptions are made here, from the few fields that there are, in a pool of their own: an application that has
the generated ones does not collide with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from quiver.otap.conversion_errors import or_raise
from quiver.primitives.scan import Damage

__all__ = [
    "HEADERS_BYTES_MAX",
    "PAYLOADS_MAX",
    "SCHEMA_ID_BYTES_MAX",
    "ArrowPayload",
    "ArrowRecords",
    "BatchStatus",
    "StatusCode",
    "decode_records",
    "decode_status",
    "encode_records",
    "encode_status",
    "try_decode_status",
]

PAYLOADS_MAX = 19
"""No signal has more payload types."""

SCHEMA_ID_BYTES_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
STATUS_BYTES_MAX = 64 * 1024

_PACKAGE = "opentelemetry.proto.experimental.arrow.v1"
_MESSAGES = {
    "ArrowPayload": (("schema_id", "STRING"), ("type", "INT32"), ("record", "BYTES")),
    "BatchArrowRecords": (("batch_id", "INT64"), ("arrow_payloads", "ArrowPayload"), ("headers", "BYTES")),
    "BatchStatus": (("batch_id", "INT64"), ("status_code", "INT32"), ("status_message", "STRING")),
}


class StatusCode(IntEnum):
    """What became of a batch: the numbers of gRPC's codes."""

    OK = 0
    CANCELED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class ArrowPayload:
    """
    One table's piece of an Arrow IPC stream.

    Attributes:
        schema_id: which IPC stream it belongs to.
        payload: the payload type.
        record: whole IPC messages.
    """

    schema_id: str
    payload: int
    record: bytes


@dataclass(frozen=True, slots=True)
class ArrowRecords:
    """
    One `BatchArrowRecords`.

    Attributes:
        batch_id: what its status answers to.
        payloads: at most one of a payload type.
        headers: HPACK blocks; every batch's must be given to the stream's one HPACK decoder, in order.
    """

    batch_id: int
    payloads: tuple[ArrowPayload, ...]
    headers: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One `BatchStatus`. A code that this version has no name for is a plain number."""

    batch_id: int
    code: int
    message: str = ""


@cache
def _class_of(name: str) -> Any:
    file = FileDescriptorProto(name="otap.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields, start=1):
            nested = kind in _MESSAGES
            described.field.add(
                name=field,
                number=number,
                label=FieldDescriptorProto.LABEL_REPEATED if nested else FieldDescriptorProto.LABEL_OPTIONAL,
                type=FieldDescriptorProto.TYPE_MESSAGE if nested else getattr(FieldDescriptorProto, f"TYPE_{kind}"),
                type_name=f".{_PACKAGE}.{kind}" if nested else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def decode_records(data: bytes | memoryview) -> ArrowRecords | Damage:
    """Return the message, or why these bytes are none or are refused. What is inside the payloads is not looked at."""
    try:
        message = _class_of("BatchArrowRecords").FromString(bytes(data))
    except DecodeError as error:
        return Damage(0, f"not a BatchArrowRecords: {str(error).rpartition(': ')[2]}")
    found = message.arrow_payloads
    if len(found) > PAYLOADS_MAX:
        return Damage(0, f"{len(found)} payloads in a batch; the most is {PAYLOADS_MAX}")
    if len(message.headers) > HEADERS_BYTES_MAX:
        return Damage(0, f"{len(message.headers)} bytes of headers; the most is {HEADERS_BYTES_MAX}")
    for payload in found:
        if len(payload.schema_id.encode()) > SCHEMA_ID_BYTES_MAX:
            return Damage(0, f"a schema id of {len(payload.schema_id)} characters; the most is {SCHEMA_ID_BYTES_MAX}")
    payloads = tuple(ArrowPayload(payload.schema_id, payload.type, payload.record) for payload in found)
    if len({payload.payload for payload in payloads}) < len(payloads):
        return Damage(0, "two payloads of the same type in one batch")
    return ArrowRecords(message.batch_id, payloads, message.headers)


def encode_records(batch_id: int, payloads: Sequence[ArrowPayload], headers: bytes = b"") -> bytes:
    """Return the message as bytes, payloads in the order given."""
    message = _class_of("BatchArrowRecords")(batch_id=batch_id, headers=headers)
    for payload in payloads:
        message.arrow_payloads.add(schema_id=payload.schema_id, type=payload.payload, record=payload.record)
    encoded: bytes = message.SerializeToString()
    return encoded


def decode_status(data: bytes | memoryview) -> BatchStatus:
    """
    Return the status that *data* encodes.

    Raises:
        InvalidBundleError: the bytes are not a `BatchStatus`, or are too long for one.
    """
    return or_raise(try_decode_status(data))


def try_decode_status(data: bytes | memoryview) -> BatchStatus | Damage:
    """Return what `decode_status` returns, or the reason why it would raise."""
    if len(data) > STATUS_BYTES_MAX:
        return Damage(0, f"a status of {len(data)} bytes; the most is {STATUS_BYTES_MAX}")
    try:
        message = _class_of("BatchStatus").FromString(bytes(data))
    except DecodeError as error:
        return Damage(0, f"not a BatchStatus: {str(error).rpartition(': ')[2]}")
    return BatchStatus(message.batch_id, message.status_code, message.status_message)


def encode_status(status: BatchStatus) -> bytes:
    """Return the status as bytes."""
    made = _class_of("BatchStatus")(
        batch_id=status.batch_id, status_code=int(status.code), status_message=status.message
    )
    encoded: bytes = made.SerializeToString()
    return encoded
