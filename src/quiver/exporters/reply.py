"""
Classification of a server's answer to an OTLP request. Pure: bytes and numbers in, a `Reply` out.

By the OTLP specification, a request is confirmed (partial success included: rejected items are never sent again),
retried later, or never sent again:

=========  ==========================================================================  ======================
protocol   retried                                                                     refused
=========  ==========================================================================  ======================
gRPC       CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE,           every other code
           DATA_LOSS, and RESOURCE_EXHAUSTED with RetryInfo
HTTP       429, 502, 503, 504; 408, because the request did not arrive; 1xx, which     every other status
           is not a final answer
=========  ==========================================================================  ======================

Two kinds of refusals are not about the data. A request with refused credentials (no permission) is retried, and, if
configured, so is one to a wrong address (no such service). A request that is refused as too large
(`Reply.is_too_large`) may be sent in parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as a_field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

__all__ = ["Denied", "Reply", "ReplyOutcome", "confirmed_reply", "grpc_reply", "http_reply", "retry_delay_s"]

ReplyOutcome = Literal["confirmed", "retry", "refused"]
Denied = Literal["credentials", "retry", "drop"]
"""Which refusals that are not about the data are retried: of credentials, also of the address, or none."""

DETAILS_BYTES_MAX = 64 * 1024
MESSAGE_CHARS_MAX = 500

_GRPC_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
_GRPC_RETRIED = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
_GRPC_CREDENTIALS = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
_GRPC_ADDRESS = frozenset({"UNIMPLEMENTED"})
_HTTP_RETRIED = frozenset({408, 429, 502, 503, 504})
_HTTP_CREDENTIALS = frozenset({401, 403, 407})
_HTTP_ADDRESS = frozenset({301, 302, 303, 307, 308, 404, 405})

_TOO_LARGE = re.compile(
    r"larger than (?:the )?max|exceed(?:s|ed|ing)? (?:the )?(?:max|limit)|too (?:large|big)|status:? 413", re.IGNORECASE
)
_REQUEST_TOO_LARGE = re.compile(r"\b(?:request|message|batch|bundle) is too large", re.IGNORECASE)
_SIZE_LIMIT = re.compile(
    r"(?:\bvs\.?|limit(?: is)?:?|larger than max|maximum size(?: of)?) (\d{1,15})\b", re.IGNORECASE
)
"""How the gRPC implementations in C, Go, Java and Rust state their size limit."""
_GRPC_SIZED = frozenset({"OUT_OF_RANGE", "UNKNOWN"})
"""Codes of refusals that mention the size only in the message: from Rust, and from an HTTP proxy."""

_RETRY_INFO = b"google.rpc.RetryInfo"
_NANOS = 1e9


@dataclass(frozen=True, slots=True)
class Reply:
    """
    The outcome of one request.

    Attributes:
        outcome: `confirmed`: the server has it; `retry`: send it again later; `refused`: never send it again.
        reason: a short name for metrics, such as ``UNAVAILABLE`` or ``HTTP 503``; empty if everything was accepted.
        message: the server's human-readable message.
        retry_after_s: the delay that the server asked for; None if it did not.
        rejected_items: the number of records, spans or points that were rejected in a confirmed request.
        left_out: the kinds of data that a confirmed request was sent without → how many there were.
        is_denied: the credentials or the address were refused, not the data.
        is_too_large: it was refused as too large; a smaller request may be accepted.
        limit_bytes: the size limit that the server stated.
    """

    outcome: ReplyOutcome
    reason: str = ""
    message: str = ""
    retry_after_s: float | None = None
    rejected_items: int = 0
    left_out: Mapping[str, int] = a_field(default_factory=dict, hash=False)
    is_denied: bool = False
    is_too_large: bool = False
    limit_bytes: int | None = None


def confirmed_reply(response: bytes | memoryview) -> Reply:
    """
    Decode an Export…ServiceResponse: full or partial success.

    Bytes that cannot be decoded count as full success: the status was success, so the data must not be sent again.
    """
    rejected, message = 0, b""
    for field, value in _fields(response):
        if field == 1 and isinstance(value, memoryview):
            for inner, content in _fields(value):
                if inner == 1 and isinstance(content, int):
                    rejected = content if content < 1 << 63 else 0
                elif inner == 2 and isinstance(content, memoryview):
                    message = bytes(content)
    reason = "PARTIAL_SUCCESS" if rejected else ""
    return Reply("confirmed", reason, _text(message), rejected_items=rejected)


def grpc_reply(code: int, message: str, details: bytes | None, *, denied: Denied = "credentials") -> Reply:
    """
    Classify a gRPC status other than OK.

    Args:
        code: the status code's number.
        message: the status message.
        details: `grpc-status-details-bin` of the trailing metadata: a google.rpc.Status.
        denied: which refusals that are not about the data are retried.
    """
    name = _GRPC_NAMES[code] if 0 <= code < len(_GRPC_NAMES) else f"CODE_{code}"
    after_s = None if details is None else retry_delay_s(details)
    is_exhausted = name == "RESOURCE_EXHAUSTED"
    # Without a delay, waiting does not help; a smaller request needs less of the exhausted resource.
    is_sized = (name in _GRPC_SIZED and _TOO_LARGE.search(message)) or (
        # The same code refuses single values: only a message about the entire request is about its size.
        name == "INVALID_ARGUMENT" and _REQUEST_TOO_LARGE.search(message)
    )
    if is_sized or (is_exhausted and after_s is None):
        return Reply("refused", name, _clean(message), is_too_large=True, limit_bytes=_limit_bytes(message))
    if name in _GRPC_CREDENTIALS or name in _GRPC_ADDRESS:
        retried = denied == "retry" or (denied == "credentials" and name in _GRPC_CREDENTIALS)
        return Reply(
            "retry" if retried else "refused", name, _clean(message), after_s if retried else None, is_denied=True
        )
    retried = name in _GRPC_RETRIED or is_exhausted
    return Reply("retry" if retried else "refused", name, _clean(message), after_s if retried else None)


def http_reply(
    status: int, body: bytes, retry_after: str | None, *, now_ns: int, denied: Denied = "credentials"
) -> Reply:
    """
    Classify an HTTP status.

    Args:
        status: 200 to 299 confirm; lower ones are interim answers.
        body: the response in protobuf: Export…ServiceResponse, or a google.rpc.Status.
        retry_after: the header, in seconds or as a date.
        now_ns: the wall clock, for a date.
        denied: which refusals that are not about the data are retried.
    """
    if 200 <= status < 300:
        return confirmed_reply(body)
    reason, message = f"HTTP {status}", _status_message(body)
    text = body[:MESSAGE_CHARS_MAX].decode("utf-8", "replace")
    if status == 413 or (status == 400 and _TOO_LARGE.search(text)):
        return Reply("refused", reason, message, is_too_large=True, limit_bytes=_limit_bytes(text))
    is_denied = status in _HTTP_CREDENTIALS or status in _HTTP_ADDRESS
    if is_denied:
        retried = denied == "retry" or (denied == "credentials" and status in _HTTP_CREDENTIALS)
    else:
        retried = status < 200 or status in _HTTP_RETRIED
    after_s = _retry_after_s(retry_after, now_ns=now_ns) if retried else None
    return Reply("retry" if retried else "refused", reason, message, after_s, is_denied=is_denied)


def _limit_bytes(message: str) -> int | None:
    found = _SIZE_LIMIT.search(message)
    return None if found is None else int(found[1])


def retry_delay_s(details: bytes) -> float | None:
    """Return the delay of the RetryInfo in a google.rpc.Status; None if it is missing or invalid."""
    if len(details) > DETAILS_BYTES_MAX:
        return None
    for field, value in _fields(details):
        if field != 3 or not isinstance(value, memoryview):
            continue
        parts = [part for part in _fields(value) if isinstance(part[1], memoryview)]
        kind = b"".join(bytes(content) for inner, content in parts if inner == 1 and isinstance(content, memoryview))
        if kind.rpartition(b"/")[2] == _RETRY_INFO:
            # A RetryInfo without bytes has a delay of zero.
            return sum(_duration_s(content) for inner, content in parts if inner == 2)
    return None


def _duration_s(retry_info: int | memoryview) -> float:
    seconds = 0.0
    for field, value in _fields(retry_info):
        if field == 1:
            for inner, number in _fields(value):
                if isinstance(number, int) and number < 1 << 63:  # larger numbers are negative ones
                    seconds += number if inner == 1 else number / _NANOS if inner == 2 else 0.0
    return seconds


def _status_message(body: bytes) -> str:
    for field, value in _fields(body[:DETAILS_BYTES_MAX]):
        if field == 2 and isinstance(value, memoryview):
            return _text(bytes(value))
    return ""


def _text(data: bytes) -> str:
    return _clean(data[:MESSAGE_CHARS_MAX].decode("utf-8", "replace"))


def _clean(message: str) -> str:
    # The message is logged, and the server must not be able to forge log lines.
    return "".join(one if one.isprintable() else " " for one in message[:MESSAGE_CHARS_MAX])


def _retry_after_s(header: str | None, *, now_ns: int) -> float | None:
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now_ns / _NANOS)


def _fields(data: int | bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a protobuf message, up to the first invalid one."""
    if isinstance(data, int):
        return
    view = memoryview(data)
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(view, at)
            if at <= len(view):
                yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(view, at)
        elif kind in {1, 5}:
            length = 8 if kind == 1 else 4
        else:
            return
        if at + length > len(view):
            return
        yield tag >> 3, view[at : at + length]
        at += length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number and its end, which is beyond the end of *view* if the number is truncated or too long."""
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    return 0, len(view) + 1
