"""
One connection of a gRPC server: HTTP/2 frames, flow control, and the limits of a client.

A client that does not read its answers is not read either, so it cannot fill the memory with answers to its frames.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any, Protocol

from quiver.http2 import frames as h2
from quiver.http2.frames import FRAME_BYTES_MAX, HEAD, PREFACE, WINDOW_BYTES, WINDOW_BYTES_MAX
from quiver.http2.hpack import HeaderDecoder, Headers
from quiver.primitives.scan import Damage
from quiver.receivers.grpc_server.call import STREAM_WINDOW_BYTES, Call
from quiver.receivers.settings import KeepaliveSettings

__all__ = ["HEADER_LIST_BYTES_MAX", "Connection", "ConnectionServer"]

HEADER_LIST_BYTES_MAX = 16 * 1024
"""A call with more metadata is refused. The client is asked not to send more."""

_BLOCK_BYTES_MAX = 128 * 1024
_LIST_BYTES_MAX = 192 * 1024
"""A connection with a larger header block, or list of headers, is closed: larger blocks are only built to do harm."""

_WINDOW_BYTES = 4 * 1024 * 1024
_PING_STRIKES_MAX = 2
_RESETS_MAX = 500
"""How many more calls a client may reset than it completes."""

_DRAIN_PING = b"draining"
_KEEPALIVE_PING = b"alive???"
_AGE_JITTER = 0.1
_OVERHEAD = {h2.SETTINGS, h2.PING, h2.GOAWAY}


class _ProtocolError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ConnectionServer(Protocol):
    """The part of a server that a connection uses."""

    keepalive: KeepaliveSettings
    streams_max: int
    connections: set[Connection]

    def greeted(self, connection: Connection) -> None:
        """Note that a client has sent its settings."""

    def note_change(self) -> None:
        """Note that a connection was closed."""

    def reserve(self, size: int) -> bool:
        """Reserve memory for a message that arrives. Return whether there is enough."""

    def release(self, size: int) -> None:
        """Release reserved memory."""

    def begin(self, connection: Connection, stream: int, headers: Headers, send_window: int) -> Call | None:
        """Start a call, or refuse it. Return the call if it was started."""


class Connection(asyncio.Protocol):
    """
    A connection. Created by the server for each client.

    Attributes:
        transport: the transport; None once the connection is lost.
        peer: the address of the client, in gRPC's notation.
    """

    def __init__(self, server: ConnectionServer) -> None:
        self.server = server
        self.transport: Any = None
        self.peer = ""
        self.calls: dict[int, Call] = {}
        self._loop = asyncio.get_running_loop()
        self._decoder = HeaderDecoder(list_bytes_max=_LIST_BYTES_MAX)
        self._rest = b""
        self._preface = PREFACE
        self._greeted = False
        self._block: tuple[int, int, bytearray] | None = None
        self._last_stream = 0
        self._refund = 0
        self._window = _WINDOW_BYTES
        self._send_window = WINDOW_BYTES
        self._peer_window = WINDOW_BYTES
        self._peer_frame_max = FRAME_BYTES_MAX
        self._is_paused = False
        self._room: list[asyncio.Future[None]] = []
        self._out: list[bytes] | None = None
        self._resets = 0
        self._ping_strikes = 0
        self._last_ping = float("-inf")
        self._received_at = self._born = self._idle_since = self._loop.time()
        self._pinged_at: float | None = None
        self._drained_at: float | None = None
        self._is_refusing = False
        age_s = server.keepalive.max_connection_age_s
        self._age_s = None if age_s is None else age_s * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)  # noqa: S311

    # ── asyncio ──────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: Any) -> None:
        """Send the settings."""
        self.transport = transport
        self.peer = _peer_name(transport.get_extra_info("peername"))
        self.server.connections.add(self)
        transport.write(
            h2.settings_frame(
                [
                    (h2.MAX_CONCURRENT_STREAMS, self.server.streams_max),
                    (h2.INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
                    (h2.MAX_HEADER_LIST_SIZE, HEADER_LIST_BYTES_MAX),
                ]
            )
            + h2.window_frame(0, _WINDOW_BYTES - WINDOW_BYTES)
        )

    def connection_lost(self, _error: Exception | None) -> None:
        """End all calls."""
        self.transport = None
        self.server.connections.discard(self)
        for call in list(self.calls.values()):
            self._cancel(call)
        self._wake()
        self.server.note_change()

    def pause_writing(self) -> None:
        """Stop reading as well: each frame of the client may need an answer."""
        self._is_paused = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue."""
        self._is_paused = False
        if self.transport is not None:
            self.transport.resume_reading()
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Handle the frames that are complete."""
        self._received_at = self._loop.time()
        self._pinged_at = None
        out = self._out = []
        try:
            self._receive(data)
        except _ProtocolError as error:
            out.append(h2.goaway_frame(self._last_stream, error.code, str(error).encode()))
            self._is_refusing = True
            self._rest = b""
            for call in list(self.calls.values()):
                self._cancel(call)
            if self.transport is not None:
                self._out = None
                self.transport.write(b"".join(out))
                self.transport.close()
            return
        finally:
            self._out = None
        if out and self.transport is not None:
            self.transport.write(b"".join(out))
        self._close_if_done()

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        buffer = self._rest + data if self._rest else data
        at = 0
        if self._preface:
            wanted = len(self._preface)
            if buffer[:wanted] != self._preface[: len(buffer)]:
                # Another protocol: an answer in HTTP/2 would confuse its client.
                self.transport.close()
                return
            at = min(wanted, len(buffer))
            self._preface = self._preface[at:]
        end = len(buffer)
        while end - at >= HEAD.size:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, at)
            length = high << 8 | low
            if length > FRAME_BYTES_MAX:
                raise _ProtocolError(h2.FRAME_SIZE_ERROR, "a frame is too large")
            start = at + HEAD.size
            if end - start < length:
                break
            at = start + length
            stream &= WINDOW_BYTES_MAX
            if kind == h2.DATA and self._block is None and self._greeted:
                self._on_data(stream, flags, buffer[start:at])
            else:
                self._on_frame(kind, flags, stream, buffer[start:at])
            if self.transport is None:
                return
        self._rest = buffer[at:]

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != h2.CONTINUATION or stream != self._block[0]):
            raise _ProtocolError(h2.PROTOCOL_ERROR, "another frame within a header block")
        if not self._greeted:
            if kind != h2.SETTINGS or flags & h2.ACK:
                raise _ProtocolError(h2.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._greeted = True
            self.server.greeted(self)
        if (stream == 0) != (kind in _OVERHEAD) and kind <= h2.CONTINUATION and kind != h2.WINDOW_UPDATE:
            raise _ProtocolError(h2.PROTOCOL_ERROR, "a frame on the wrong stream")
        if kind == h2.HEADERS:
            self._on_headers(stream, flags, payload)
        elif kind == h2.CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == h2.RST_STREAM:
            self._on_reset(stream, payload)
        elif kind == h2.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == h2.PING:
            self._on_ping(flags, payload)
        elif kind == h2.WINDOW_UPDATE:
            self._on_window(stream, payload)
        elif kind == h2.PUSH_PROMISE:
            raise _ProtocolError(h2.PROTOCOL_ERROR, "a client cannot push")
        # PRIORITY, GOAWAY and unknown frames need nothing.

    def _on_data(self, stream: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._window -= size
        if self._window < 0:
            raise _ProtocolError(h2.FLOW_CONTROL_ERROR, "more data than the connection allows")
        self._refund += size
        if self._refund >= _WINDOW_BYTES // 2:
            # Each stream has its own limit; data of streams that are gone is dropped.
            self.write(h2.window_frame(0, self._refund))
            self._window += self._refund
            self._refund = 0
        call = self.calls.get(stream)
        if call is None:
            if stream == 0 or (stream > self._last_stream and not self._is_refusing):
                raise _ProtocolError(h2.PROTOCOL_ERROR, "data without a call")
            return
        if not call.receive(_unpadded(payload, flags), size):
            raise _ProtocolError(h2.FLOW_CONTROL_ERROR, "more data than the stream allows")
        if flags & h2.END_STREAM:
            call.receive_end()

    def _on_headers(self, stream: int, flags: int, payload: bytes) -> None:
        block = _unpadded(payload, flags)
        if flags & h2.HAS_PRIORITY:
            if len(block) < 5:
                raise _ProtocolError(h2.FRAME_SIZE_ERROR, "HEADERS is too short")
            block = block[5:]
        if flags & h2.END_HEADERS:
            self._on_block(stream, flags, block)
        else:
            self._block = stream, flags, bytearray(block)

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise _ProtocolError(h2.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        stream, head_flags, block = self._block
        block += payload
        # An empty one costs time and adds nothing.
        if len(block) > _BLOCK_BYTES_MAX or not (payload or flags & h2.END_HEADERS):
            raise _ProtocolError(h2.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & h2.END_HEADERS:
            self._block = None
            self._on_block(stream, head_flags, bytes(block))

    def _on_block(self, stream: int, flags: int, block: bytes) -> None:
        headers = self._decoder.try_decode(block)
        if isinstance(headers, Damage):
            raise _ProtocolError(h2.COMPRESSION_ERROR, headers.reason)
        call = self.calls.get(stream)
        if call is not None:
            if not flags & h2.END_STREAM:
                raise _ProtocolError(h2.PROTOCOL_ERROR, "a second header block")
            call.receive_end()
            return
        if stream % 2 == 0:
            raise _ProtocolError(h2.PROTOCOL_ERROR, "a client opens streams with odd numbers")
        if stream <= self._last_stream or self._is_refusing:
            return  # trailers of a call that has ended, or a call after the last one that is served
        self._last_stream = stream
        if len(self.calls) >= self.server.streams_max:
            self._strike_reset()
            self.write(h2.reset_frame(stream, h2.REFUSED_STREAM))
            return
        self._begin(stream, headers, ended=bool(flags & h2.END_STREAM))

    def _begin(self, stream: int, headers: Headers, *, ended: bool) -> None:
        call = self.server.begin(self, stream, headers, self._peer_window)
        if call is not None and ended:
            call.receive_end()

    def _on_reset(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ProtocolError(h2.FRAME_SIZE_ERROR, "RST_STREAM has another size")
        if stream > self._last_stream:
            raise _ProtocolError(h2.PROTOCOL_ERROR, "a stream is reset before it is opened")
        call = self.calls.get(stream)
        if call is not None:
            self._strike_reset()
            self._cancel(call)

    def _strike_reset(self) -> None:
        self._resets += 1
        if self._resets > _RESETS_MAX:
            raise _ProtocolError(h2.ENHANCE_YOUR_CALM, "too many calls are reset")

    def _cancel(self, call: Call) -> None:
        call.close()
        if call.task is not None:
            call.task.cancel()

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & h2.ACK:
            return
        if len(payload) % 6:
            raise _ProtocolError(h2.FRAME_SIZE_ERROR, "SETTINGS has another size")
        for name, value in struct.iter_unpack(">HI", payload):
            if name == h2.INITIAL_WINDOW_SIZE:
                if value > WINDOW_BYTES_MAX:
                    raise _ProtocolError(h2.FLOW_CONTROL_ERROR, "the initial window is too large")
                for call in self.calls.values():
                    call.send_window += value - self._peer_window
                self._peer_window = value
            elif name == h2.MAX_FRAME_SIZE:
                if not FRAME_BYTES_MAX <= value < 1 << 24:
                    raise _ProtocolError(h2.PROTOCOL_ERROR, "the maximum frame size is out of range")
                self._peer_frame_max = value
        self.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._wake()

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise _ProtocolError(h2.FRAME_SIZE_ERROR, "PING has another size")
        if flags & h2.ACK:
            if payload == _DRAIN_PING and self._drained_at is not None:
                self.refuse_calls()
            return
        now = self._loop.time()
        if now - self._last_ping < self.server.keepalive.ping_interval_min_s:
            self._ping_strikes += 1
            if self._ping_strikes > _PING_STRIKES_MAX:
                raise _ProtocolError(h2.ENHANCE_YOUR_CALM, "too_many_pings")
        self._last_ping = now
        self.write(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _on_window(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ProtocolError(h2.FRAME_SIZE_ERROR, "WINDOW_UPDATE has another size")
        credit = int.from_bytes(payload, "big") & WINDOW_BYTES_MAX
        if credit == 0:
            raise _ProtocolError(h2.PROTOCOL_ERROR, "a window grows by nothing")
        if stream == 0:
            self._send_window += credit
            window = self._send_window
        else:
            call = self.calls.get(stream)
            if call is None:
                return
            call.send_window += credit
            window = call.send_window
        if window > WINDOW_BYTES_MAX:
            raise _ProtocolError(h2.FLOW_CONTROL_ERROR, "a window is too large")
        self._wake()

    # ── what calls need ──────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        """Send frames that flow control does not apply to."""
        if self._out is not None:
            self._out.append(data)
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    @property
    def send_room(self) -> int:
        """The number of bytes of messages that may be sent now."""
        return 0 if self._is_paused else self._send_window

    @property
    def frame_bytes_max(self) -> int:
        """The maximum number of bytes in one frame."""
        return self._peer_frame_max

    def send_data(self, data: bytes, flow_bytes: int) -> None:
        """Send frames that take *flow_bytes* of the connection's window."""
        self._send_window -= flow_bytes
        self._ping_strikes = 0  # clients measure the network while they receive data
        self.write(data)

    def reserve(self, size: int) -> bool:
        """Reserve memory for a message that arrives. Return whether there is enough."""
        return self.server.reserve(size)

    def release(self, size: int) -> None:
        """Release reserved memory."""
        self.server.release(size)

    async def more_room(self) -> None:
        """Wait for a change of the windows."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._room.append(waiter)
        await waiter

    def _wake(self) -> None:
        if self._room:
            room, self._room = self._room, []
            for waiter in room:
                if not waiter.done():
                    waiter.set_result(None)

    def forget(self, call: Call) -> None:
        """Remove a call that has ended."""
        if self.calls.pop(call.stream, None) is not None:
            self._ping_strikes = 0
            self._idle_since = self._loop.time()
            self._resets = max(0, self._resets - 1) if call.is_answered else self._resets
            self._wake()
            if self._out is None:
                self._close_if_done()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────

    def tick(self) -> None:
        """Check age, idle time and keepalive. Called from time to time."""
        if not self._greeted or self.transport is None:
            return
        keepalive, now = self.server.keepalive, self._loop.time()
        idle_s, grace_s = keepalive.max_connection_idle_s, keepalive.max_connection_age_grace_s
        if self._drained_at is None:
            is_old = self._age_s is not None and now - self._born >= self._age_s
            if is_old or (idle_s is not None and not self.calls and now - self._idle_since >= idle_s):
                self.drain()
        elif grace_s is not None and now - self._drained_at >= grace_s:
            self.transport.close()
            return
        if self._pinged_at is not None:
            if now - self._pinged_at >= keepalive.ping_timeout_s:
                self.transport.abort()
        elif now - self._received_at >= keepalive.ping_interval_s:
            self._pinged_at = now
            self.write(h2.frame(h2.PING, 0, 0, _KEEPALIVE_PING))

    def drain(self) -> None:
        """Ask the client to reconnect. Calls that are on their way are served; afterwards the connection is closed."""
        self._drained_at = self._loop.time()
        self.write(h2.goaway_frame(WINDOW_BYTES_MAX, h2.NO_ERROR) + h2.frame(h2.PING, 0, 0, _DRAIN_PING))

    def refuse_calls(self) -> None:
        """Serve no further calls, and close the connection after the current ones."""
        if not self._is_refusing:
            self._is_refusing = True
            self.write(h2.goaway_frame(self._last_stream, h2.NO_ERROR))
            for call in list(self.calls.values()):
                if call.is_watch:
                    call.refuse(14, "the receiver is stopping")
        if self._out is None:
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_refusing and not self.calls and self.transport is not None:
            self.transport.close()


def _unpadded(payload: bytes, flags: int) -> bytes:
    found = h2.without_padding(payload, flags)
    if found is None:
        raise _ProtocolError(h2.PROTOCOL_ERROR, "the padding is longer than its frame")
    return found


def _peer_name(address: Any) -> str:
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
