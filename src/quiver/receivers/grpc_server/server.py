"""The gRPC server: methods, connections, draining, keepalive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from quiver.http2.frames import header_frames
from quiver.http2.hpack import Headers, encode_headers, list_bytes
from quiver.observe import Observer
from quiver.receivers.grpc_server.call import ACCEPTED_ENCODINGS, Call, CallAborted, CallClosedError
from quiver.receivers.grpc_server.connection import HEADER_LIST_BYTES_MAX, Connection
from quiver.receivers.otlp.http_listener import ConnectionLimits, HttpListener
from quiver.receivers.settings import KeepaliveSettings, split_address

__all__ = ["GrpcServer", "Method"]

_OK, _RESOURCE_EXHAUSTED, _UNIMPLEMENTED, _INTERNAL, _UNAVAILABLE = 0, 8, 12, 13, 14
_CONNECTION_SHARE = 4
_TICK_S_MAX = 1.0
_CLOSING_S = 1.0
_ENCODINGS_REPORTED_MAX = 16
_ENCODING_CHARS_MAX = 40
_NEVER_S = 365 * 24 * 3600.0
_NOT_GRPC = encode_headers([(b":status", b"415")])


@dataclass(frozen=True, slots=True)
class Method:
    """
    A method of a service.

    Attributes:
        serve: handles a call. Its result, if it has one, is the last message of the answer.
        is_watch: whether calls only end with their client: they do not delay a shutdown.
    """

    serve: Callable[[Call], Awaitable[bytes | None]]
    is_watch: bool = False


class _ServerSettings(Protocol):
    """The settings of a server; see `OtlpSettings`."""

    @property
    def listening_addr(self) -> str: ...

    @property
    def max_request_bytes(self) -> int: ...

    @property
    def receiving_bytes_max(self) -> int: ...

    @property
    def requests_waiting_max(self) -> int: ...

    @property
    def connections_max(self) -> int: ...

    @property
    def head_timeout_s(self) -> float: ...

    @property
    def keepalive(self) -> KeepaliveSettings: ...

    @property
    def share_port(self) -> bool: ...


class GrpcServer:
    """
    Serves gRPC on one address. Runs entirely in one event loop.

    Args:
        methods: path → method.
        settings: the address, sizes, limits and keepalive.
        context: TLS, or None.
        observer: counts rejected connections; receives events about clients that use an unknown compression.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        settings: _ServerSettings,
        context: ssl.SSLContext | None,
        observer: Observer,
    ) -> None:
        self.keepalive: KeepaliveSettings = settings.keepalive
        self.connections: set[Connection] = set()
        self.streams_max = max(1, settings.requests_waiting_max // _CONNECTION_SHARE)
        self._methods = {path.encode(): method for path, method in methods.items()}
        self._settings = settings
        self._observer = observer
        self._listener = HttpListener(
            self,
            ConnectionLimits(
                connections_max=settings.connections_max,
                head_timeout_s=settings.head_timeout_s,
                idle_timeout_s=_NEVER_S,
            ),
            context,
            self._one_too_many,
            share_port=settings.share_port,
        )
        self._reserved = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None
        self._encodings: set[bytes] = set()

    async def start(self) -> int:
        """
        Listen. Returns the port.

        Raises:
            OSError: the address is taken, unknown, or not on this machine.
        """
        self._changed = asyncio.Event()
        port = await self._listener.listen(*split_address(self._settings.listening_addr))
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return port

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls immediately, and give current ones *grace_s* seconds."""
        await self._listener.close()
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        for connection in list(self.connections):
            connection.refuse_calls()
        await self._wait_for_end(grace_s)
        for connection in list(self.connections):
            for call in list(connection.calls.values()):
                call.refuse(_UNAVAILABLE, "the receiver is stopping")
            if connection.transport is not None:
                connection.transport.close()
        # A client that does not read would keep its connection open.
        await self._wait_for_end(_CLOSING_S)
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_for_end(self, seconds: float) -> None:
        """Wait until all connections are closed, at most *seconds*."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections and self._changed is not None:
                    self._changed.clear()
                    await self._changed.wait()

    async def _tick(self) -> None:
        keepalive = self.keepalive
        times = (
            keepalive.max_connection_age_s, keepalive.max_connection_idle_s, keepalive.max_connection_age_grace_s,
            keepalive.ping_interval_s, keepalive.ping_timeout_s,
        )  # fmt: skip
        interval_s = min(_TICK_S_MAX, max(0.01, min(time_s for time_s in times if time_s is not None) / 4))
        while True:
            await asyncio.sleep(interval_s)
            for connection in list(self.connections):
                connection.tick()

    # ── what connections need ────────────────────────────────────────────────────────────────────────

    def __call__(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self)

    def greeted(self, connection: Connection) -> None:
        """Note that a client has sent its settings: from now on the connection has its own time limits."""
        self._listener.release(connection)

    def note_change(self) -> None:
        """Note that a connection was closed."""
        if self._changed is not None:
            self._changed.set()

    def reserve(self, size: int) -> bool:
        """Reserve memory for a message that arrives. Return whether there is enough."""
        if self._reserved + size > self._settings.receiving_bytes_max:
            return False
        self._reserved += size
        return True

    def release(self, size: int) -> None:
        """Release reserved memory."""
        self._reserved -= size

    def begin(self, connection: Connection, stream: int, headers: Headers, send_window: int) -> Call | None:
        """Start a call, or refuse it. Return the call if it was started."""
        first = dict(reversed(headers))
        if first.get(b":method") != b"POST" or not first.get(b"content-type", b"").startswith(b"application/grpc"):
            connection.write(header_frames(stream, _NOT_GRPC, is_last=True))
            return None
        name = first.get(b"grpc-encoding", b"identity")
        encoding = ACCEPTED_ENCODINGS.get(name)
        call = Call(
            connection,
            stream,
            headers,
            encoding=encoding or "identity",
            message_bytes_max=self._settings.max_request_bytes,
            send_window=send_window,
        )
        connection.calls[stream] = call
        method = self._methods.get(first.get(b":path", b""))
        if list_bytes(headers) > HEADER_LIST_BYTES_MAX:
            call.finish(_RESOURCE_EXHAUSTED, f"the metadata has more than {HEADER_LIST_BYTES_MAX} bytes")
        elif method is None:
            call.finish(_UNIMPLEMENTED, "Method not found!")
        elif encoding is None:
            self._report_encoding(name, connection)
            call.finish(_UNIMPLEMENTED, f"grpc-encoding {_shown(name)} is not supported; use gzip, zstd or none")
        else:
            call.is_watch = method.is_watch
            call.task = asyncio.get_running_loop().create_task(self._serve(call, method))
            self._tasks.add(call.task)
            call.task.add_done_callback(self._tasks.discard)
            return call
        return None

    async def _serve(self, call: Call, method: Method) -> None:
        try:
            answer = await method.serve(call)
            if answer is not None:
                await call.write(answer)
            call.finish(_OK)
        except (CallAborted, CallClosedError):
            pass
        except asyncio.CancelledError:
            call.finish(_UNAVAILABLE, "the receiver is stopping")
            raise
        except Exception as error:  # noqa: BLE001 - one call must not affect the others
            self._observer.event("quiver.receiver.call_failed", level=logging.ERROR, reason=repr(error))
            call.finish(_INTERNAL, "the receiver failed")

    def _one_too_many(self) -> None:
        self._observer.count("quiver.receiver.connections_refused_total", protocol="grpc")

    def _report_encoding(self, name: bytes, connection: Connection) -> None:
        if name not in self._encodings and len(self._encodings) < _ENCODINGS_REPORTED_MAX:
            self._encodings.add(name)
            self._observer.event(
                "quiver.receiver.unsupported_encoding",
                level=logging.WARNING,
                encoding=_shown(name),
                peer=connection.peer,
                remedy="set the compression of this client to zstd, gzip or none",
            )


def _shown(name: bytes) -> str:
    text = name[:_ENCODING_CHARS_MAX].decode("ascii", "replace")
    return "".join(one if one.isprintable() else " " for one in text)
