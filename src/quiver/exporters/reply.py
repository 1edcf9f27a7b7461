"""
What the far side's answer to an OTLP request means. Pure: bytes and numbers in, a `Reply` out.

By the OTLP specification a request is confirmed (also partly, and then what was rejected is never sent again), or to
be sent again later, or never to be sent again:

=========  ==========================================================================  ======================
protocol   sent again                                                                  given up
=========  ==========================================================================  ======================
gRPC       CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE,           every other code
           DATA_LOSS, and RESOURCE_EXHAUSTED when RetryInfo comes with it
HTTP       429, 502, 503, 504, and 408: the request did not arrive; 1xx, which is no   every other status
           answer yet
=========  ==========================================================================  ======================

Two kinds of refusals have nothing to do with the data. A request that is refused for who sent it (no permission) is
sent again later, and so is one for where it was sent (no such service), if so set. A request that is refused for its
size (`Reply.is_too_large`) may be sent in parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as a_field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

__all__ = ["Denied", "Outcome", "Reply", "confirmed_reply", "grpc_reply", "http_reply", "retry_delay_s"]

Outcome = Literal["confirmed", "retry", "refused"]
Denied = Literal["credentials", "retry", "drop"]
"""Which refusals that are not about the data are retried: those for credentials, also those for an address, none."""

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
_TOO_LARGE_AS_A_WHOLE = re.compile(r"\b(?:request|message|batch|bundle) is too large", re.IGNORECASE)
_SIZE_LIMIT = re.compile(
    r"(?:\bvs\.?|limit(?: is)?:?|larger than max|maximum size(?: of)?) (\d{1,15})\b", re.IGNORECASE
)
"""How gRPC for C, Go, Java and Rust say which size they take."""
_GRPC_SIZED = frozenset({"OUT_OF_RANGE", "UNKNOWN"})
"""Codes that say of a request that it is too large only in the message: that of Rust, and that of an HTTP proxy."""

_RETRY_INFO = b"google.rpc.RetryInfo"
_NANOS = 1e9


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What became of one request.

    Attributes:
        outcome: `confirmed`: the far side has it; `retry`: send it again later; `refused`: never again.
        reason: a short name for counting, such as ``UNAVAILABLE`` or ``HTTP 503``; empty when all was taken.
        message: what the far side said, for people.
        retry_after_s: how long it wants to be left alone; None when it did not say.
        rejected_items: records, spans or points that it did not take of a confirmed request.
        left_out: what a confirmed request was sent without → how often it was there.
        is_denied: it was refused for who sent it, or where to.
        is_too_large: it was refused for its size; a smaller one may be taken.
        limit_bytes: the size that the far side says it takes.
    """

    outcome: Outcome
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
    Return what an Export…ServiceResponse says: all was taken, or how much was not.

    Bytes that are no such response change nothing: the status was success, and the data must not be sent again.
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
    Return what a gRPC status other than OK means.

    Args:
        code: the status code's number.
        message: the status message.
        details: `grpc-status-details-bin` of the trailing metadata: a google.rpc.Status.
        denied: which requests are retried that were refused for who sent them, or where to.
    """
    name = _GRPC_NAMES[code] if 0 <= code < len(_GRPC_NAMES) else f"CODE_{code}"
    after_s = None if details is None else retry_delay_s(details)
    is_exhausted = name == "RESOURCE_EXHAUSTED"
    # Without a time it says that no waiting helps: whatever is exhausted, a smaller request needs less of it.
    is_sized = (name in _GRPC_SIZED and _TOO_LARGE.search(message)) or (
        # The same code refuses single values: only what names the whole is about the size of the request.
        name == "INVALID_ARGUMENT" and _TOO_LARGE_AS_A_WHOLE.search(message)
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
    Return what an HTTP status means.

    Args:
        status: 200 to 299 confirm; below, nobody waited for the answer.
        body: the response in protobuf: Export…ServiceResponse, or a google.rpc.Status.
        retry_after: the header, in seconds or as a date.
        now_ns: the wall clock, for a date.
        denied: which requests are retried that were refused for who sent them, or where to.
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
    """Return the delay of the RetryInfo in a google.rpc.Status; None when there is none, or when it is not readable."""
    if len(details) > DETAILS_BYTES_MAX:
        return None
    for field, value in _fields(details):
        if field != 3 or not isinstance(value, memoryview):
            continue
        parts = [part for part in _fields(value) if isinstance(part[1], memoryview)]
        kind = b"".join(bytes(content) for inner, content in parts if inner == 1 and isinstance(content, memoryview))
        if kind.rpartition(b"/")[2] == _RETRY_INFO:
            # A RetryInfo without a delay is a delay of nothing: an empty message has no bytes.
            return sum(_duration_s(content) for inner, content in parts if inner == 2)
    return None


def _duration_s(retry_info: int | memoryview) -> float:
    seconds = 0.0
    for field, value in _fields(retry_info):
        if field == 1:
            for inner, number in _fields(value):
                if isinstance(number, int) and number < 1 << 63:  # beyond it stands for a negative one
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
    # It ends in a log, where a line of the far side's own making has no business.
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
    """Yield number and value of each field of a protobuf message, as far as it can be read."""
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
    """Return a number and where it ends: beyond the end of *view* when it is cut off or too long."""
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
    return 0, len(view) + 1
