"""
Encoding of the messages in OTLP answers: `google.rpc.Status`, `google.rpc.RetryInfo`, partial success.

They have at most three fields each, so no further package is needed to encode them.
"""

from __future__ import annotations

__all__ = ["encode_partial_success", "encode_retry_info", "encode_status"]

_RETRY_INFO_URL = "type.googleapis.com/google.rpc.RetryInfo"
_NANOS = 1_000_000_000


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def encode_retry_info(retry_after_s: float) -> bytes:
    """Return ``RetryInfo{retry_delay = 1: Duration{seconds = 1, nanos = 2}}``."""
    seconds, nanos = divmod(round(max(0.0, retry_after_s) * _NANOS), _NANOS)
    return _block(1, _number(1, seconds) + _number(2, nanos))


def encode_status(code: int, message: str, *, retry_after_s: float | None = None) -> bytes:
    """
    Return ``Status{code = 1, message = 2, details = 3: Any{type_url = 1, value = 2}}``.

    Args:
        code: the gRPC status code.
        message: a description for humans.
        retry_after_s: adds a RetryInfo to the details.
    """
    status = _number(1, code) + _block(2, message.encode())
    if retry_after_s is not None:
        detail = _block(1, _RETRY_INFO_URL.encode()) + _block(2, encode_retry_info(retry_after_s))
        status += _block(3, detail)
    return status


def encode_partial_success(message: str) -> bytes:
    """
    Return ``Export…ServiceResponse{partial_success = 1: {rejected = 1, error_message = 2}}``, the same for all signals.

    Nothing was rejected: the OTLP specification defines such a message as a warning.
    """
    return _block(1, _block(2, message.encode()))
