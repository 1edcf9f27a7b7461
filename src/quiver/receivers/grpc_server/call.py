"""
One call of a gRPC server: the messages of the client, the answer, and the status.

A `Call` has the methods of the context of `grpc.aio` that the receivers use, so the same handlers serve both libraries.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Any, Protocol, Self
from urllib.parse import quote

from quiver.http2.frames import NO_ERROR, WINDOW_BYTES, data_head, header_frames, reset_frame, window_frame
from quiver.http2.hpack import Headers, encode_headers
from quiver.receivers.intake import Encoding

__all__ = [
    "ACCEPTED_ENCODINGS",
    "STREAM_WINDOW_BYTES",
    "Call",
    "CallAborted",
    "CallClosedError",
    "CallConnection",
]

STREAM_WINDOW_BYTES = 4 * WINDOW_BYTES
"""What a client may send before its message is read. Once it is read, the client may send the rest at once."""

ACCEPTED_ENCODINGS: dict[bytes, Encoding] = {b"identity": "identity", b"gzip": "gzip", b"zstd": "zstd"}
ACCEPTED_ENCODINGS |= {b"zstdarrow%d" % level: "zstd" for level in range(1, 11)}
"""`grpc-encoding` → the compression. The Collector's exporter names its levels of Zstandard `zstdarrow1` to 10."""

_PREFIX = struct.Struct(">BI")
_SMALL_BYTES = 1024
_WRITE_BYTES_MAX = 256 * 1024
"""How much of a message is passed to the transport at once: many frames in one system call."""
_HEAD = [
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip,zstd"),
]
_HEAD_BLOCK = encode_headers(_HEAD)
_OK_BLOCK = encode_headers([(b"grpc-status", b"0")])
_OK, _INTERNAL, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 0, 13, 8, 14
_RESERVED = frozenset({
    b"content-type", b"te", b"grpc-accept-encoding", b"grpc-encoding", b"grpc-message-type", b"grpc-timeout",
})  # fmt: skip
_MESSAGE_CHARS_MAX = 2000


class CallAborted(Exception):  # noqa: N818 - not an error: `abort` ends the handler with it
    """The handler has ended the call with a status."""


class CallClosedError(ConnectionError):
    """The client has ended the call or its connection."""


class CallConnection(Protocol):
    """The part of a connection that a call uses."""

    peer: str

    @property
    def send_room(self) -> int:
        """The number of bytes of messages that may be sent now."""

    @property
    def frame_bytes_max(self) -> int:
        """The maximum number of bytes in one frame."""

    def write(self, data: bytes) -> None:
        """Send frames that flow control does not apply to."""

    def send_data(self, data: bytes, flow_bytes: int) -> None:
        """Send frames that take *flow_bytes* of the connection's window."""

    async def more_room(self) -> None:
        """Wait for a change of the windows."""

    def reserve(self, size: int) -> bool:
        """Reserve memory for a message that arrives. Return whether there is enough."""

    def release(self, size: int) -> None:
        """Release reserved memory."""

    def forget(self, call: Call) -> None:
        """Remove a call that has ended."""


class Call:
    """
    A call. It is an asynchronous iterator of the client's messages, and the context of its handler.

    Args:
        connection: the connection of the call.
        stream: the number of its HTTP/2 stream.
        headers: the headers of the request.
        encoding: the compression of its messages.
        message_bytes_max: the maximum size of a message.
        send_window: the number of bytes that the client accepts on this stream now.

    Attributes:
        message_encoding: the compression of the message that was read last.
        task: runs the handler.
        is_answered: whether it ended with a status of the server.
        is_watch: whether the call waits for changes until its client ends it.
    """

    __slots__ = (
        "_credit", "_encoding", "_ended", "_have", "_head_sent", "_headers", "_length", "_max", "_parts", "_reader",
        "_reserved", "connection", "is_answered", "is_closed", "is_watch", "message_encoding", "send_window", "stream",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        connection: CallConnection,
        stream: int,
        headers: Headers,
        *,
        encoding: Encoding,
        message_bytes_max: int,
        send_window: int,
    ) -> None:
        self.connection = connection
        self.stream = stream
        self.send_window = send_window
        self.message_encoding: Encoding = "identity"
        self.task: asyncio.Task[None] | None = None
        self.is_answered = False
        self.is_closed = False
        self.is_watch = False
        self._headers = headers
        self._encoding = encoding
        self._max = message_bytes_max
        self._credit = STREAM_WINDOW_BYTES
        self._parts: list[bytes | bytearray] = []  # what arrived and was not read
        self._have = 0
        self._length: int | None = None  # of the message that is being read, once its prefix is here
        self._reserved = 0
        self._reader: asyncio.Future[None] | None = None
        self._ended = False
        self._head_sent = False

    # ── what the client sends ────────────────────────────────────────────────────────────────────────

    def receive(self, data: bytes, flow_bytes: int) -> bool:
        """Add *data*, which takes *flow_bytes* of the window. Return whether the client was allowed to send it."""
        self._credit -= flow_bytes
        if self._credit < 0 or self._ended:
            return False
        size = len(data)
        if size:
            last = self._parts[-1] if self._parts else None
            if size >= _SMALL_BYTES:
                self._parts.append(data)
            elif isinstance(last, bytearray):
                last += data  # otherwise a message in frames of one byte would take forty times its size
            else:
                self._parts.append(bytearray(data))
            self._have += size
            self._wake()
        return True

    def receive_end(self) -> None:
        """Note that the client will send nothing more."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done() and (self._ended or self._is_ready()):
            reader.set_result(None)

    def _is_ready(self) -> bool:
        """Return whether the next message is here. Asks for the rest of it otherwise."""
        if self.is_closed:
            return False
        if self._length is None:
            if self._have < _PREFIX.size:
                self._grant(STREAM_WINDOW_BYTES // 2, STREAM_WINDOW_BYTES)
                return False
            self._read_prefix()
            if self._length is None:
                return False  # the call was refused
        missing = self._length - self._have
        if missing > 0:
            self._grant(missing, missing + STREAM_WINDOW_BYTES)
        return missing <= 0

    def _read_prefix(self) -> None:
        if len(self._parts[0]) < _PREFIX.size:
            self._parts = [b"".join(self._parts)]
        first = self._parts[0]
        flag, length = _PREFIX.unpack_from(first)
        if length > self._max:
            self.refuse(_RESOURCE_EXHAUSTED, f"received message larger than max ({length} vs. {self._max})")
            return
        if flag > 1 or (flag == 1 and self._encoding == "identity"):
            self.refuse(_INTERNAL, "the flag of a message says that it is compressed, but grpc-encoding does not")
            return
        reserved = max(0, length - STREAM_WINDOW_BYTES)
        if not self.connection.reserve(reserved):
            self.refuse(_UNAVAILABLE, "too many requests are arriving")
            return
        self._reserved = reserved
        self.message_encoding = self._encoding if flag else "identity"
        self._parts[0] = first[_PREFIX.size :]
        self._have -= _PREFIX.size
        self._length = length

    def _grant(self, least: int, wanted: int) -> None:
        """Allow the client to send *wanted* bytes from now on, unless it may send at least *least*."""
        if self._credit < least and not self._ended:
            self.connection.write(window_frame(self.stream, wanted - self._credit))
            self._credit = wanted

    def _take(self) -> bytes:
        length = self._length
        self._length = None
        joined = bytes(self._parts[0]) if len(self._parts) == 1 else b"".join(self._parts)
        self._have -= length or 0
        if self._have == 0:
            self._parts = []
            message = joined
        else:
            self._parts = [joined[length:]]
            message = joined[:length]
        self._release()
        return message

    def _release(self) -> None:
        self.connection.release(self._reserved)
        self._reserved = 0

    async def read(self) -> bytes | None:
        """Return the next message, or None at the end. Its compression is `message_encoding`."""
        while not self._is_ready():
            if self.is_closed or self._ended:
                # A part of a message at the end is what remains of a client that was interrupted.
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._take()

    @property
    def has_message(self) -> bool:
        """Whether `read` returns the next message without waiting."""
        return self._is_ready()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        message = await self.read()
        if message is None:
            raise StopAsyncIteration
        return message

    # ── the context of a handler ─────────────────────────────────────────────────────────────────────

    def peer(self) -> str:
        """Return the address of the client, in gRPC's notation."""
        return self.connection.peer

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata of the client."""
        return tuple(
            (name.decode("ascii", "replace"), _metadata_value(name, value))
            for name, value in self._headers
            if not name.startswith(b":") and name not in _RESERVED
        )

    async def write(self, *parts: bytes | memoryview) -> None:
        """
        Send a message that consists of *parts*, when the client accepts it.

        Raises:
            CallClosedError: the client has ended the call.
        """
        left = sum(map(len, parts))
        pieces = _Pieces([_PREFIX.pack(0, left), *parts])
        left += _PREFIX.size
        while left:
            size = min(left, self.send_window, self.connection.send_room, _WRITE_BYTES_MAX)
            if self.is_closed:
                raise CallClosedError("the client has ended the call")
            if size <= 0:
                await self.connection.more_room()
                continue
            frames: list[bytes | memoryview] = [self._head()]
            frame_bytes_max = self.connection.frame_bytes_max
            for at in range(0, size, frame_bytes_max):
                length = min(frame_bytes_max, size - at)
                frames.append(data_head(self.stream, length))
                frames += pieces.take(length)
            self.send_window -= size
            self.connection.send_data(b"".join(frames), size)
            left -= size

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        """
        End the call with a status.

        Raises:
            CallAborted: always.
        """
        self.finish(code.value[0], details, trailing_metadata)
        raise CallAborted

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    def _head(self) -> bytes:
        if self._head_sent:
            return b""
        self._head_sent = True
        return header_frames(self.stream, _HEAD_BLOCK, is_last=False)

    def finish(self, code: int, details: str = "", metadata: Any = ()) -> None:
        """End the call with a status. Idempotent."""
        if self.is_closed:
            return
        if code == _OK and not metadata:
            block = _OK_BLOCK if self._head_sent else _HEAD_BLOCK + _OK_BLOCK
        else:
            headers = [] if self._head_sent else list(_HEAD)
            headers.append((b"grpc-status", str(code).encode()))
            if details:
                headers.append((b"grpc-message", quote(details[:_MESSAGE_CHARS_MAX], safe=_MESSAGE_SAFE).encode()))
            headers += [(name.encode(), _header_value(name, value)) for name, value in metadata]
            block = encode_headers(headers)
        self._head_sent = self.is_answered = True
        self.connection.write(header_frames(self.stream, block, is_last=True))
        if not self._ended:
            self.connection.write(reset_frame(self.stream, NO_ERROR))  # the rest of the request is not read
        self.close()

    def refuse(self, code: int, details: str) -> None:
        """End the call with a status, and its handler."""
        self.finish(code, details)
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """Forget the call: nothing more is sent or received. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self._parts, self._have = [], 0
            self._release()
            self.connection.forget(self)
            if self._reader is not None and not self._reader.done():
                self._reader.set_result(None)


class _Pieces:
    """Takes bytes from several buffers in turn, without copying them."""

    __slots__ = ("_at", "_index", "_parts")

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts = [memoryview(part) for part in parts]
        self._index = 0
        self._at = 0

    def take(self, size: int) -> list[memoryview]:
        """Return views of the next *size* bytes."""
        found = []
        while size:
            part = self._parts[self._index]
            view = part[self._at : self._at + size]
            found.append(view)
            size -= len(view)
            self._at += len(view)
            if self._at == len(part):
                self._index, self._at = self._index + 1, 0
        return found


_MESSAGE_SAFE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""The printable ASCII characters; `quote` never encodes letters and digits."""


def _metadata_value(name: bytes, value: bytes) -> str | bytes:
    if name.endswith(b"-bin"):
        try:
            return base64.b64decode(value + b"=" * (-len(value) % 4))
        except binascii.Error:
            return b""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _header_value(name: str, value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return base64.b64encode(data).rstrip(b"=") if name.endswith("-bin") else data
