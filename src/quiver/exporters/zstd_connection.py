"""The client side of one HTTP/2 connection, for gRPC calls. Used in one event loop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from quiver.http2 import frames as h2
from quiver.http2.frames import FRAME_BYTES_MAX, HEAD, PREFACE, WINDOW_BYTES, WINDOW_BYTES_MAX
from quiver.http2.hpack import HeaderDecoder, Headers, encode_headers
from quiver.primitives.scan import Damage

__all__ = ["ClientCall", "ClientConnection", "ConnectionEndedError"]

_BLOCK_BYTES_MAX = 64 * 1024
_LIST_BYTES_MAX = 96 * 1024
_FRAME_BYTES = 64 * 1024
"""The size of the frames that are sent, if the server accepts it."""
_OK, _UNKNOWN, _PERMISSION_DENIED, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = 0, 2, 7, 12, 13, 14, 16
_HTTP_CODES = {400: _INTERNAL, 401: _UNAUTHENTICATED, 403: _PERMISSION_DENIED, 404: _UNIMPLEMENTED}
_HTTP_CODES |= dict.fromkeys((429, 502, 503, 504), _UNAVAILABLE)
_PREFIX = struct.Struct(">BI")


class ConnectionEndedError(ConnectionError):
    """The connection was closed, or does not accept further calls."""


class ClientCall:
    """
    One call: its answer as far as it has arrived.

    Attributes:
        messages: the messages of the answer; None is the end.
        code: the status; None before the end.
        text: the message of the status.
        metadata: the headers and trailers of the answer.
    """

    def __init__(self, connection: ClientConnection, stream: int, send_window: int, message_bytes_max: int) -> None:
        self.stream = stream
        self.send_window = send_window
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.code: int | None = None
        self.text = ""
        self.metadata: dict[str, str] = {}
        self._connection = connection
        self._message_bytes_max = message_bytes_max
        self._data = bytearray()

    async def send(self, message: bytes, *, is_compressed: bool) -> None:
        """
        Send a message, when the server accepts it.

        Raises:
            ConnectionEndedError: the call has ended.
        """
        data = _PREFIX.pack(is_compressed, len(message)) + message
        at = 0
        while at < len(data):
            if self.code is not None:
                raise ConnectionEndedError
            size = min(len(data) - at, self.send_window, self._connection.send_room)
            if size <= 0:
                await self._connection.more_room()
                continue
            self.send_window -= size
            self._connection.send_data(h2.data_frame(self.stream, data[at : at + size]), size)
            at += size

    def half_close(self) -> None:
        """Send nothing more."""
        if self.code is None:
            self._connection.write(h2.data_frame(self.stream, b"", is_last=True))

    def receive(self, data: bytes) -> None:
        """Add data of the answer."""
        self._data += data
        while len(self._data) >= _PREFIX.size:
            _, length = _PREFIX.unpack_from(self._data)
            if length > self._message_bytes_max:
                self.end(_UNAVAILABLE, f"an answer of {length} bytes")
                return
            end = _PREFIX.size + length
            if len(self._data) < end:
                return
            self.messages.put_nowait(bytes(self._data[_PREFIX.size : end]))
            del self._data[:end]

    def receive_headers(self, headers: Headers, *, is_last: bool) -> None:
        """Add headers or trailers of the answer."""
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self.metadata.update(found)
        status = found.get("grpc-status", "")
        if status.isascii() and status.isdecimal() and len(status) <= 3:
            self.end(int(status), unquote(found.get("grpc-message", "")))
        elif is_last:
            http = self.metadata.get(":status", "")
            code = _HTTP_CODES.get(int(http) if http.isdecimal() else 0, _UNKNOWN)
            self.end(code, f"the answer has no gRPC status; its HTTP status is {http}")

    def end(self, code: int, text: str = "") -> None:
        """End the call. Idempotent."""
        if self.code is None:
            self.code, self.text = code, text
            self.messages.put_nowait(None)
            self._connection.forget(self)

    def cancel(self, code: int, text: str) -> None:
        """End the call, and let the server know."""
        if self.code is None:
            self._connection.write(h2.reset_frame(self.stream, h2.CANCEL))
            self.end(code, text)


class ClientConnection(asyncio.Protocol):
    """
    A connection to a gRPC server.

    Args:
        message_bytes_max: the maximum size of a message of an answer.

    Attributes:
        is_usable: whether further calls may be sent on it.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self.is_usable = True
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._calls: dict[int, ClientCall] = {}
        self._decoder = HeaderDecoder(list_bytes_max=_LIST_BYTES_MAX)
        self._rest = b""
        self._block: tuple[int, int, bytearray] | None = None
        self._next_stream = 1
        self._calls_max = 0  # until the server has sent its settings
        self._send_window = self._stream_window = WINDOW_BYTES
        self._frame_max = FRAME_BYTES_MAX
        self._is_paused = False
        self._waiting: list[asyncio.Future[None]] = []

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────

    async def open(self, headers: Iterable[tuple[bytes, bytes]]) -> ClientCall:
        """
        Send the headers of a call, once the server accepts one more.

        Raises:
            ConnectionEndedError: the connection does not accept further calls.
        """
        while self.is_usable and len(self._calls) >= self._calls_max:
            await self.more_room()
        if not self.is_usable:
            raise ConnectionEndedError
        stream = self._next_stream
        self._next_stream += 2
        self.is_usable = self._next_stream < WINDOW_BYTES_MAX
        call = ClientCall(self, stream, self._stream_window, self._message_bytes_max)
        self._calls[stream] = call
        self.write(h2.header_frames(stream, encode_headers(headers), is_last=False))
        return call

    def forget(self, call: ClientCall) -> None:
        """Remove a call that has ended."""
        self._calls.pop(call.stream, None)
        self._wake()
        if not self.is_usable and not self._calls and self._transport is not None:
            self._transport.close()

    def retire(self) -> None:
        """Send no further calls; close the connection after the current ones."""
        self.is_usable = False
        self._wake()
        if not self._calls and self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Close the connection now."""
        self._fail("the sender was closed")

    def write(self, data: bytes) -> None:
        """Send frames that flow control does not apply to."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def send_room(self) -> int:
        """The number of bytes of a message that may be sent now."""
        return 0 if self._is_paused else min(self._send_window, self._frame_max)

    def send_data(self, data: bytes, flow_bytes: int) -> None:
        """Send frames that take *flow_bytes* of the connection's window."""
        self._send_window -= flow_bytes
        self.write(data)

    async def more_room(self) -> None:
        """Wait for a change of the windows, the calls or the connection."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    # ── asyncio ──────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: Any) -> None:
        """Send the settings."""
        self._transport = transport
        transport.write(PREFACE + h2.settings_frame([(h2.ENABLE_PUSH, 0), (h2.MAX_HEADER_LIST_SIZE, _BLOCK_BYTES_MAX)]))

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls; their requests may be sent again."""
        self._transport = None
        self._fail(f"the connection was closed{f': {error}' if error else ''}")

    def pause_writing(self) -> None:
        """Send no messages until the server reads."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Continue."""
        self._is_paused = False
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Handle the frames that are complete."""
        buffer = self._rest + data
        at = 0
        while len(buffer) - at >= HEAD.size:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, at)
            length = high << 8 | low
            start = at + HEAD.size
            if length > FRAME_BYTES_MAX:
                self._fail("the server does not speak HTTP/2")
                return
            if len(buffer) - start < length:
                break
            at = start + length
            reason = self._on_frame(kind, flags, stream & WINDOW_BYTES_MAX, buffer[start:at])
            if reason:
                self._fail(reason)
                return
        self._rest = buffer[at:]

    def _fail(self, reason: str) -> None:
        self.is_usable = False
        transport = self._transport
        for call in list(self._calls.values()):
            call.end(_UNAVAILABLE, reason)
        self._wake()
        if transport is not None:
            transport.close()

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> str:
        """Handle a frame. Return why the connection must end; empty if it need not."""
        if self._block is not None and kind != h2.CONTINUATION:
            return "another frame within a header block"
        if kind == h2.DATA:
            self._on_data(stream, flags, payload)
        elif kind == h2.HEADERS:
            block = h2.without_padding(payload, flags)
            if block is None:
                return "the padding is longer than its frame"
            block = block[5:] if flags & h2.HAS_PRIORITY else block
            self._block = stream, flags, bytearray(block)
        elif kind == h2.CONTINUATION and self._block is not None:
            self._block[2].extend(payload)
        else:
            self._on_control(kind, flags, stream, payload)
        if kind in {h2.HEADERS, h2.CONTINUATION}:
            return self._on_block(flags)
        return ""

    def _on_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == h2.RST_STREAM and len(payload) == 4:
            call = self._calls.get(stream)
            if call is not None:
                call.end(_UNAVAILABLE, f"the server reset the call with code {int.from_bytes(payload, 'big')}")
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            self._on_settings(payload)
        elif kind == h2.PING and not flags & h2.ACK:
            self.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.GOAWAY and len(payload) >= 8:
            last = int.from_bytes(payload[:4], "big") & WINDOW_BYTES_MAX
            for number, call in list(self._calls.items()):
                if number > last:
                    call.end(_UNAVAILABLE, "the server closes the connection")
            self.retire()
        elif kind == h2.WINDOW_UPDATE and len(payload) == 4:
            self._on_window(stream, int.from_bytes(payload, "big") & WINDOW_BYTES_MAX)

    def _on_data(self, stream: int, flags: int, payload: bytes) -> None:
        if payload:
            self.write(h2.window_frame(0, len(payload)))
        call = self._calls.get(stream)
        data = h2.without_padding(payload, flags)
        if call is None:
            return
        if payload and not flags & h2.END_STREAM:
            self.write(h2.window_frame(stream, len(payload)))
        call.receive(data or b"")
        if flags & h2.END_STREAM:
            call.receive_headers([], is_last=True)

    def _on_block(self, flags: int) -> str:
        if self._block is None:
            return "CONTINUATION without HEADERS"
        stream, head_flags, block = self._block
        if len(block) > _BLOCK_BYTES_MAX:
            return "the header block is too large"
        if flags & h2.END_HEADERS:
            self._block = None
            headers = self._decoder.try_decode(bytes(block))
            if isinstance(headers, Damage):
                return headers.reason
            call = self._calls.get(stream)
            if call is not None:
                call.receive_headers(headers, is_last=bool(head_flags & h2.END_STREAM))
        return ""

    def _on_settings(self, payload: bytes) -> None:
        values = dict(struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]))
        if h2.INITIAL_WINDOW_SIZE in values:
            for call in self._calls.values():
                call.send_window += values[h2.INITIAL_WINDOW_SIZE] - self._stream_window
            self._stream_window = values[h2.INITIAL_WINDOW_SIZE]
        self._frame_max = min(_FRAME_BYTES, values.get(h2.MAX_FRAME_SIZE, self._frame_max))
        self._calls_max = values.get(h2.MAX_CONCURRENT_STREAMS, self._calls_max or WINDOW_BYTES_MAX)
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._wake()

    def _on_window(self, stream: int, credit: int) -> None:
        if stream == 0:
            self._send_window += credit
        elif stream in self._calls:
            self._calls[stream].send_window += credit
        self._wake()
