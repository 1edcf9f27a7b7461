"""
A gRPC channel that compresses messages with Zstandard, which that of `grpcio` cannot.

It has the methods of a channel of `grpcio` that the senders use, and raises the same errors. A failure of the
connection has the status UNAVAILABLE: the request may be sent again. So has the answer of a server that does not know
zstd, and later calls are not compressed: the refusal is not about the data.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import queue
import re
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa

from quiver.exporters.certificates import client_context
from quiver.exporters.settings import ExporterSettings
from quiver.exporters.zstd_connection import ClientCall, ClientConnection, ConnectionEndedError
from quiver.receivers.loop_thread import LoopThread

__all__ = ["ZstdChannel"]

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_UNAVAILABLE, _INTERNAL, _UNIMPLEMENTED, _DEADLINE_EXCEEDED, _CANCELLED = 14, 13, 12, 4, 1
_CONNECTIONS_TRIED = 2

_UNKNOWN_ENCODING = {
    _UNIMPLEMENTED: re.compile(r"grpc-encoding|compress", re.IGNORECASE),
    _INTERNAL: re.compile("grpc-encoding", re.IGNORECASE),
}
"""How the gRPC implementations in C, Go, Java and Rust refuse a compression that they do not know."""

Metadata = Iterable[tuple[str, str]]


_Message = tuple[bytes, bool]
"""The bytes to send, and whether they are compressed."""


def _compressed(message: bytes) -> _Message:
    """Compress a message, unless that does not make it smaller."""
    smaller: bytes = pa.compress(message, codec="zstd", asbytes=True) if message else b""
    return (smaller, True) if len(smaller) < len(message) else (message, False)


@dataclass(frozen=True, slots=True)
class _Form:
    """How the messages of a call are sent, and the headers that announce it."""

    message: Callable[[bytes], _Message]
    headers: tuple[tuple[bytes, bytes], ...]


_COMPRESSED = _Form(_compressed, ((b"grpc-encoding", b"zstd"),))
_PLAIN = _Form(lambda message: (message, False), ())


class _CallError(grpc.RpcError):
    """The status of a call that failed, with the methods of `grpc.Call`."""

    def __init__(self, code: int, text: str, metadata: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self._code = code
        self._text = text
        self._metadata = metadata or {}

    def code(self) -> Any:
        """Return the status code."""
        return _CODES.get(self._code, grpc.StatusCode.UNKNOWN)

    def details(self) -> str:
        """Return the message of the status."""
        return self._text

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata."""
        return tuple(
            (name, _decoded(value) if name.endswith("-bin") else value) for name, value in self._metadata.items()
        )


class ZstdChannel:
    """
    A channel with one connection, which is opened on first use, and again when it was closed. Thread-safe.

    Args:
        settings: endpoint, TLS and the name of the compression.
        message_bytes_max: the maximum size of a message of an answer.

    Raises:
        SettingsError: a certificate file cannot be read or is invalid.
    """

    def __init__(self, settings: ExporterSettings, *, message_bytes_max: int) -> None:
        self._target = settings.target
        self._context: ssl.SSLContext | None = None
        if self._target.tls:
            self._context = client_context(settings)
            self._context.set_alpn_protocols(["h2"])
        self._message_bytes_max = message_bytes_max
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._closed = False
        self._sent_as = _COMPRESSED  # until the server refuses it
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Lock | None = None

    def unary_unary(self, path: str) -> Callable[..., bytes]:
        """Return a function that sends one message and returns the answer, or raises `grpc.RpcError`."""

        def call(request: bytes, *, timeout: float, metadata: Metadata = (), compression: object = None) -> bytes:
            del compression
            sent_as = self._sent_as
            return self._started().run(self._unary(path, sent_as, sent_as.message(request), timeout, tuple(metadata)))

        return call

    def stream_stream(self, path: str) -> Callable[..., _StreamCall]:
        """Return a function that sends messages and returns an iterator of the answers."""

        def call(
            requests: Iterator[bytes], *, timeout: float, metadata: Metadata = (), compression: object = None
        ) -> _StreamCall:
            del compression
            answers: queue.SimpleQueue[bytes | _CallError | None] = queue.SimpleQueue()
            stream = self._stream(path, self._sent_as, requests, answers, timeout, tuple(metadata))
            return _StreamCall(self._started().submit(stream), answers)

        return call

    def close(self) -> None:
        """End all calls and close the connection. Idempotent."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._disconnect())
            loop.stop()

    def _error_of(self, call: ClientCall, sent_as: _Form) -> _CallError:
        code = _UNAVAILABLE if call.code is None else call.code
        # How this call was sent: others of that form may be on the way at the first refusal.
        if sent_as is _COMPRESSED and code in _UNKNOWN_ENCODING and _UNKNOWN_ENCODING[code].search(call.text):
            self._sent_as = _PLAIN
            return _CallError(_UNAVAILABLE, f"the server does not accept zstd; sending without it: {call.text}")
        return _CallError(code, call.text, call.metadata)

    def _started(self) -> LoopThread:
        with self._lock:
            if self._closed:
                raise ValueError("the channel is closed")
            if self._loop is None:
                self._loop = LoopThread("quiver-zstd-channel")
            return self._loop

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _opened(
        self, path: str, sent_as: _Form, timeout_s: float, metadata: tuple[tuple[str, str], ...]
    ) -> ClientCall:
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"https" if self._target.tls else b"http"),
            (b":path", path.encode()),
            (b":authority", self._target.address.encode("idna" if ":" not in self._target.host else "ascii")),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"quiver"),
            (b"grpc-accept-encoding", b"identity"),
            (b"grpc-timeout", b"%dm" % max(1, min(99_999_999, round(timeout_s * 1000)))),
            *sent_as.headers,
            *((name.lower().encode(), value.encode()) for name, value in metadata),
        ]
        for _ in range(_CONNECTIONS_TRIED):
            connection = await self._connected()
            # The server may close an idle connection at the moment of a call, which it then has not seen.
            with contextlib.suppress(ConnectionEndedError):
                return await connection.open(headers)
        raise _CallError(_UNAVAILABLE, "the server closes each connection")

    async def _connected(self) -> ClientConnection:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._connection is None or not self._connection.is_usable:
                target = self._target
                try:
                    _, self._connection = await asyncio.get_running_loop().create_connection(
                        lambda: ClientConnection(self._message_bytes_max),
                        target.host,
                        target.port,
                        ssl=self._context,
                        server_hostname=target.host if target.tls else None,
                    )
                except (OSError, ssl.SSLError) as error:
                    raise _CallError(_UNAVAILABLE, f"cannot connect to {target.address}: {error}") from error
            return self._connection

    async def _unary(
        self, path: str, sent_as: _Form, message: _Message, timeout_s: float, metadata: tuple[tuple[str, str], ...]
    ) -> bytes:
        call: ClientCall | None = None
        try:
            async with asyncio.timeout(timeout_s):
                call = await self._opened(path, sent_as, timeout_s, metadata)
                # An answer that comes before the end of the request is the answer.
                with contextlib.suppress(ConnectionEndedError):
                    await call.send(message[0], is_compressed=message[1])
                    call.half_close()
                found = []
                while (answer := await call.messages.get()) is not None:
                    found.append(answer)
        except TimeoutError:
            self._give_up(call, _DEADLINE_EXCEEDED)
            raise _CallError(_DEADLINE_EXCEEDED, f"no answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            raise _CallError(_CANCELLED, "the sender was closed") from None
        if call.code != 0:
            raise self._error_of(call, sent_as)
        return found[0] if found else b""

    def _give_up(self, call: ClientCall | None, code: int) -> None:
        if call is not None:
            call.cancel(code, "")
        if self._connection is not None:
            self._connection.retire()  # it may be dead, without a sign

    async def _stream(
        self,
        path: str,
        sent_as: _Form,
        requests: Iterator[bytes],
        answers: queue.SimpleQueue[bytes | _CallError | None],
        timeout_s: float,
        metadata: tuple[tuple[str, str], ...],
    ) -> None:
        call: ClientCall | None = None
        sending: asyncio.Task[None] | None = None
        end: _CallError | None = _CallError(_CANCELLED, "the call was cancelled")
        try:
            async with asyncio.timeout(timeout_s):
                call = await self._opened(path, sent_as, timeout_s, metadata)
                sending = asyncio.create_task(_send_all(call, map(sent_as.message, requests)))
                while (answer := await call.messages.get()) is not None:
                    answers.put(answer)
            end = None if call.code == 0 else self._error_of(call, sent_as)
        except TimeoutError:
            self._give_up(call, _DEADLINE_EXCEEDED)
            end = _CallError(_DEADLINE_EXCEEDED, "the stream did not end in time")
        except _CallError as error:
            end = error
        finally:
            if call is not None:
                call.cancel(_CANCELLED, "")
            if sending is not None:
                sending.cancel()
            answers.put(end)


class _StreamCall:
    """An iterator of the answers to a stream of messages."""

    def __init__(self, running: Future[None], answers: queue.SimpleQueue[bytes | _CallError | None]) -> None:
        self._running = running
        self._answers = answers

    def __iter__(self) -> Iterator[bytes]:
        while True:
            answer = self._answers.get()
            if answer is None:
                return
            if isinstance(answer, _CallError):
                raise answer
            yield answer

    def cancel(self) -> None:
        """End the call with CANCELLED."""
        self._running.cancel()


async def _send_all(call: ClientCall, messages: Iterator[_Message]) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionEndedError):
        while (found := await loop.run_in_executor(None, next, messages, None)) is not None:
            await call.send(found[0], is_compressed=found[1])
        call.half_close()


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4))
    except binascii.Error:
        return b""
