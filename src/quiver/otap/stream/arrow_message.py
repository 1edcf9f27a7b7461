"""
The protobuf messages of OTAP: `BatchArrowRecords` and its answer `BatchStatus`.

The descriptors are created here in a separate pool, so they do not collide with generated ones in an application.
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
    """The status of a batch, with the numbers of gRPC's codes."""

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
    One table's part of an Arrow IPC stream.

    Attributes:
        schema_id: the IPC stream that it belongs to.
        payload: the payload type.
        record: complete IPC messages.
    """

    schema_id: str
    payload: int
    record: bytes


@dataclass(frozen=True, slots=True)
class ArrowRecords:
    """
    One `BatchArrowRecords`.

    Attributes:
        batch_id: the id for its status.
        payloads: at most one of each payload type.
        headers: HPACK blocks; those of every batch must be passed to the stream's HPACK decoder, in order.
    """

    batch_id: int
    payloads: tuple[ArrowPayload, ...]
    headers: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One `BatchStatus`. A code without a name in this version is a plain number."""

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
    """Decode the message without the contents of its payloads, or return why the bytes are invalid."""
    try:
        message = _class_of("BatchArrowRecords").FromString(bytes(data))
    except DecodeError as error:
        return Damage(0, f"not a BatchArrowRecords: {str(error).rpartition(': ')[2]}")
    found = message.arrow_payloads
    if len(found) > PAYLOADS_MAX:
        return Damage(0, f"{len(found)} payloads in a batch; the limit is {PAYLOADS_MAX}")
    if len(message.headers) > HEADERS_BYTES_MAX:
        return Damage(0, f"{len(message.headers)} bytes of headers; the limit is {HEADERS_BYTES_MAX}")
    for payload in found:
        if len(payload.schema_id.encode()) > SCHEMA_ID_BYTES_MAX:
            return Damage(0, f"a schema id of {len(payload.schema_id)} characters; the limit is {SCHEMA_ID_BYTES_MAX}")
    payloads = tuple(ArrowPayload(payload.schema_id, payload.type, payload.record) for payload in found)
    if len({payload.payload for payload in payloads}) < len(payloads):
        return Damage(0, "two payloads of the same type in one batch")
    return ArrowRecords(message.batch_id, payloads, message.headers)


def encode_records(batch_id: int, payloads: Sequence[ArrowPayload], headers: bytes = b"") -> bytes:
    """Encode the message, with the payloads in the given order."""
    message = _class_of("BatchArrowRecords")(batch_id=batch_id, headers=headers)
    for payload in payloads:
        message.arrow_payloads.add(schema_id=payload.schema_id, type=payload.payload, record=payload.record)
    encoded: bytes = message.SerializeToString()
    return encoded


def decode_status(data: bytes | memoryview) -> BatchStatus:
    """
    Decode a status.

    Raises:
        InvalidBundleError: the bytes are not a `BatchStatus`, or too long for one.
    """
    return or_raise(try_decode_status(data))


def try_decode_status(data: bytes | memoryview) -> BatchStatus | Damage:
    """Decode like `decode_status`, but return the reason instead of raising."""
    if len(data) > STATUS_BYTES_MAX:
        return Damage(0, f"a status of {len(data)} bytes; the limit is {STATUS_BYTES_MAX}")
    try:
        message = _class_of("BatchStatus").FromString(bytes(data))
    except DecodeError as error:
        return Damage(0, f"not a BatchStatus: {str(error).rpartition(': ')[2]}")
    return BatchStatus(message.batch_id, message.status_code, message.status_message)


def encode_status(status: BatchStatus) -> bytes:
    """Encode a status."""
    made = _class_of("BatchStatus")(
        batch_id=status.batch_id, status_code=int(status.code), status_message=status.message
    )
    encoded: bytes = made.SerializeToString()
    return encoded
