"""Frames of HTTP/2 (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

__all__ = [
    "FRAME_BYTES_MAX",
    "HEAD",
    "PREFACE",
    "WINDOW_BYTES",
    "WINDOW_BYTES_MAX",
    "data_frame",
    "data_head",
    "frame",
    "goaway_frame",
    "header_frames",
    "reset_frame",
    "settings_frame",
    "window_frame",
    "without_padding",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct(">HBBBI")
"""The head of a frame: 24 bits of length as two numbers, type, flags, stream."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x01, 0x01, 0x04, 0x08, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 2, 3, 4, 5, 6

FRAME_BYTES_MAX = 16_384
"""The maximum payload of a frame unless a setting says otherwise."""
WINDOW_BYTES = 65_535
"""The flow control window unless a setting says otherwise."""
WINDOW_BYTES_MAX = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """Return SETTINGS."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values))


def window_frame(stream: int, credit: int) -> bytes:
    """Return WINDOW_UPDATE: the sender may send *credit* more bytes."""
    return frame(WINDOW_UPDATE, 0, stream, credit.to_bytes(4, "big"))


def reset_frame(stream: int, code: int) -> bytes:
    """Return RST_STREAM."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway_frame(last_stream: int, code: int, reason: bytes = b"") -> bytes:
    """Return GOAWAY."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + reason)


def data_frame(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
    """Return DATA."""
    return frame(DATA, END_STREAM if is_last else 0, stream, data)


def data_head(stream: int, length: int) -> bytes:
    """Return the head of DATA with *length* bytes, which the caller sends after it."""
    return HEAD.pack(length >> 8, length & 0xFF, DATA, 0, stream)


def header_frames(stream: int, block: bytes, *, is_last: bool) -> bytes:
    """Return HEADERS, with CONTINUATION if the block needs it."""
    last = END_STREAM if is_last else 0
    if len(block) <= FRAME_BYTES_MAX:
        return frame(HEADERS, last | END_HEADERS, stream, block)
    parts = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
    frames = [frame(HEADERS, last, stream, parts[0])]
    frames += [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    frames.append(frame(CONTINUATION, END_HEADERS, stream, parts[-1]))
    return b"".join(frames)


def without_padding(payload: bytes, flags: int) -> bytes | None:
    """Return the payload of DATA or HEADERS without its padding, or None if that is longer than the frame."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        return None
    return payload[1 : len(payload) - payload[0]]
