"""
One connection of the QWP receiver. `websockets` implements the protocol; the bytes come from the event loop.

Messages wait in order. A worker takes all that have arrived, so that one sync confirms many. The event loop never waits
for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Protocol

from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CLOSED, CLOSING, OPEN
from websockets.server import ServerProtocol

from quiver.primitives.scan import Frame as Decoded
from quiver.qwp.wire.message import MESSAGE_VERSION
from quiver.qwp.wire.queries import decode_query, encode_query_error, encode_server_info
from quiver.qwp.wire.responses import (
    DurableAck,
    Ok,
    Refusal,
    Status,
    encode_durable_ack,
    encode_ok,
    encode_refusal,
)
from quiver.receivers.qwp.intake import IntakeProgress, QwpClient, QwpIntake
from quiver.receivers.qwp.replay import sender_key
from quiver.receivers.qwp.settings import QwpSettings

__all__ = ["QUERY_PATH", "WRITE_PATHS", "Host", "QwpConnection"]

WRITE_PATHS = frozenset({"/write/v4", "/api/v4/write"})
QUERY_PATH = "/read/v1"
_NODE = "quiver"
_NO_QUERIES = "this is a Quiver receiver: it stores rows and answers no queries; read the store instead"
_log = logging.getLogger("quiver.receiver.qwp")
_log.setLevel(logging.ERROR)  # invalid data from clients is counted, not logged
_TURN_MESSAGES_MAX = 64
_NORMAL, _GOING_AWAY, _PROTOCOL_ERROR, _UNSUPPORTED, _TRY_LATER = 1000, 1001, 1002, 1003, 1013
_CLOSING_S = 5.0
"""Also how long a client may take to close."""
_PROOF_PING_S = 0.1
_REFUSED_S = 10.0
"""How long a refused client may keep its connection, on which nothing more is read."""


class Host(Protocol):
    """The part of the receiver that a connection needs."""

    intake: QwpIntake
    settings: QwpSettings
    pool: ThreadPoolExecutor
    receiving_bytes: int

    def is_authorized(self, authorization: list[str]) -> bool:
        """Return whether these headers have a known credential."""

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate`."""

    @property
    def is_stopping(self) -> bool:
        """Whether new clients are refused."""

    def opened(self, connection: QwpConnection) -> None:
        """Handle a completed handshake."""

    def joined(self, connection: QwpConnection) -> None:
        """Handle a new connection."""

    def left(self, connection: QwpConnection) -> None:
        """Handle a closed connection."""

    def ask(self, numbers: frozenset[int]) -> None:
        """Ping the connections *numbers*, unless they were just pinged for this."""


class QwpConnection(asyncio.Protocol):
    """A connection. Everything except `QwpClient` runs in the event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._settings = host.settings
        self.transport: asyncio.Transport | None = None
        self._websocket = ServerProtocol(max_size=host.settings.max_request_bytes, logger=_log)
        self._client: QwpClient | None = None  # once it is accepted
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._partial_bytes = 0
        self._partial_since: float | None = None
        self._work: asyncio.Task[None] | None = None
        self._sequence = -1  # of the last message whose storage was confirmed
        self._tables: dict[str, int] = {}  # stored, and not yet confirmed
        self._undurable: dict[str, int] = {}
        self._undurable_since: float | None = None
        self._confirmed_durable = -1
        self._is_durable = False
        self._refused_at: float | None = None
        self._closing_since: float | None = None
        self._broken = False
        self._is_deaf = False
        now = asyncio.get_running_loop().time()
        self._opened_at = self._heard = self._message_at = now
        self._ping_sent_at: float | None = None
        self._proof_requested_at: float | None = None  # when another connection asked whether this one is alive
        self._proof_pinged_at = 0.0
        self._received_close = False

    # ── asyncio's side ───────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the open socket, including TLS."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport
        self._host.joined(self)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        self._heard = asyncio.get_running_loop().time()
        self._ping_sent_at = None
        self._websocket.receive_data(data)
        self._react()
        self._count_partial(len(self._websocket.reader.buffer))

    def eof_received(self) -> bool:
        """Handle the end of the client's data."""
        self._received_close = True
        self._websocket.receive_eof()
        self._react()
        return False

    def pause_writing(self) -> None:
        """Stop reading: the client does not read its answers."""
        self._is_deaf = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading: the client reads again."""
        self._is_deaf = False
        if not self._is_backlogged and self.transport is not None:
            self._resume(self.transport)

    @property
    def _is_backlogged(self) -> bool:
        # A connection that is asked for a sign of life must be read.
        return self._waiting_bytes > self._settings.max_request_bytes and self._proof_requested_at is None

    def connection_lost(self, _exc: Exception | None) -> None:
        """
        Handle the end of the connection. Complete messages are stored nevertheless, without an answer, unless the
        client reconnects and sends them again.
        """
        self._broken = True
        self._received_close = self._received_close and not self._partial_bytes and self._refused_at is None
        if self._client is not None:
            self._client.silence()
        self._host.receiving_bytes -= self._partial_bytes
        self._partial_bytes = 0
        self._host.left(self)
        if self._work is None:
            self._end()

    def _end(self) -> None:
        in_order = self._received_close and not self._waiting
        self._forget_waiting()
        if self._client is not None:
            self._client.close(in_order=in_order)

    # ── the WebSocket ────────────────────────────────────────────────────────────────────────────────

    def _react(self) -> None:
        websocket = self._websocket
        for event in websocket.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame):
                self._frame(event)
        if websocket.close_rcvd is not None:
            self._received_close = True  # even if the socket fails: many clients close it without waiting for an answer
            if websocket.close_rcvd_then_sent is False and self._client is not None:
                self._client.knows_all()  # it answers our close frame, so it has received everything before that
        self._write()

    def _write(self) -> None:
        if self._websocket.state in {CLOSING, CLOSED} and self._client is not None:
            self._client.silence()
        transport = self.transport
        pieces = self._websocket.data_to_send()
        if transport is None or transport.is_closing():
            return
        # In one write: a client that answers the ping before a confirmation has the confirmation, too.
        data = b"".join(pieces)
        if data:
            transport.write(data)
        if pieces and not pieces[-1]:
            if transport.can_write_eof():
                # Not closed yet: unread bytes would cause a reset, which discards what was just written.
                transport.write_eof()
            else:
                transport.close()

    def _answer(self, request: Request) -> None:
        websocket = self._websocket
        host = self._host
        path = request.path.partition("?")[0]
        response: Response
        if not host.is_authorized(request.headers.get_all("Authorization")):
            response = websocket.reject(HTTPStatus.UNAUTHORIZED, "the authorization header is missing or unknown\n")
            response.headers["WWW-Authenticate"] = host.challenge
            host.intake.observer.count("quiver.receiver.unauthorized_total", protocol="qwp")
        elif path not in {*WRITE_PATHS, QUERY_PATH}:
            response = websocket.reject(HTTPStatus.NOT_FOUND, f"QWP paths are {' and '.join(sorted(WRITE_PATHS))}\n")
        elif host.is_stopping or not host.intake.is_available:
            response = websocket.reject(HTTPStatus.SERVICE_UNAVAILABLE, "the store is not available\n")
            response.headers["Retry-After"] = "5"
        else:
            response = websocket.accept(request)
        if response.status_code == 101:
            response.headers["X-QWP-Version"] = str(MESSAGE_VERSION)
            if path != QUERY_PATH:
                self._welcome(request, response)
        websocket.send_response(response)
        if response.status_code == 101:
            host.opened(self)
            if path == QUERY_PATH:
                websocket.send_binary(encode_server_info(host.intake.clock.now_ns(), _NODE))

    def _welcome(self, request: Request, response: Response) -> None:
        response.headers["X-QWP-Max-Batch-Size"] = str(self._settings.max_request_bytes)
        values = request.headers.get_all("X-QWP-Request-Durable-Ack")
        self._is_durable = any(value.strip().lower() == "true" for value in values)
        if self._is_durable:
            response.headers["X-QWP-Durable-Ack"] = "enabled"
        host = self.transport.get_extra_info("peername") if self.transport is not None else None
        client_id = request.headers.get("X-QWP-Client-Id")
        credentials = request.headers.get_all("Authorization")
        self._client = self._host.intake.open(sender_key(client_id, str(host[0]) if host else "", credentials))

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self._fail(_UNSUPPORTED, "messages are binary")
        elif frame.opcode is Opcode.CONT or (frame.opcode is Opcode.BINARY and not frame.fin):
            self._fail(_PROTOCOL_ERROR, "a message must be one frame")
        elif frame.opcode is Opcode.BINARY and self._client is None:
            self._refuse_query(bytes(frame.data))
        elif frame.opcode is Opcode.BINARY:
            self._message(bytes(frame.data))
        elif frame.opcode is Opcode.PONG and self._client is not None:
            self._client.pong(bytes(frame.data))
            self._proof_requested_at = None

    def _message(self, data: bytes) -> None:
        self._message_at = self._heard
        self._partial_since = None
        if self._refused_at is not None or self._websocket.state is not OPEN:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._host.receiving_bytes += len(data)
        if self._is_backlogged and self.transport is not None:
            self.transport.pause_reading()
        self._go_on()

    def _refuse_query(self, data: bytes) -> None:
        """Answer a query connection. Clients that pool both kinds of connection send no rows without it."""
        self._message_at = self._heard
        answer = decode_query(memoryview(data))
        if not isinstance(answer, Decoded):
            self._fail(_PROTOCOL_ERROR, "not a query")
        elif answer.value is not None and self._websocket.state is OPEN:
            self._websocket.send_binary(encode_query_error(answer.value, Status.PARSE_ERROR, _NO_QUERIES))

    def _count_partial(self, size: int) -> None:
        """Count the received bytes of an incomplete message."""
        self._host.receiving_bytes += size - self._partial_bytes
        self._partial_bytes = size
        if not size:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self._heard
        if self._host.receiving_bytes > self._settings.receiving_bytes_max:
            self._fail(_TRY_LATER, "all arriving messages together exceed the limit")

    def _fail(self, code: int, reason: str) -> None:
        if self._websocket.state is OPEN:
            self._websocket.fail(code, reason)
            self._write()
        elif self.transport is not None:
            self.transport.abort()

    # ── storing ──────────────────────────────────────────────────────────────────────────────────────

    def _go_on(self) -> None:
        if self._work is None and self._waiting:
            self._work = asyncio.get_running_loop().create_task(self._store())
            self._work.add_done_callback(self._worked)

    def _worked(self, work: asyncio.Task[None]) -> None:
        self._work = None
        if self._broken or work.cancelled():
            self._end()
        else:
            self._go_on()

    async def _store(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._refused_at is None:
            turn = [message for message, _ in zip(self._waiting, range(_TURN_MESSAGES_MAX), strict=False)]
            progress = await loop.run_in_executor(self._host.pool, self._client.take, turn)  # type: ignore[union-attr]
            for _ in range(progress.taken):
                self._forget(self._waiting.popleft())
            if self._broken and progress.outcome == "full":
                return  # the connection is closed, and the client will send it again
            self._send_confirmation(progress)
            if progress.outcome == "unproven":
                self._host.ask(progress.asked)
            if progress.outcome in {"full", "unproven"}:
                await asyncio.sleep(progress.retry_after_s)
            elif progress.outcome != "going":
                self._forget_waiting()
                return

    def _forget(self, message: bytes) -> None:
        self._waiting_bytes -= len(message)
        self._host.receiving_bytes -= len(message)
        if not self._is_backlogged and self.transport is not None:
            self._resume(self.transport)

    def _resume(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing() and not transport.is_reading() and not self._is_deaf:
            transport.resume_reading()

    def _forget_waiting(self) -> None:
        while self._waiting:
            self._forget(self._waiting.popleft())

    def _send_confirmation(self, progress: IntakeProgress) -> None:
        client = self._client
        if self._broken or self._websocket.state is not OPEN or client is None:
            return
        for table, transaction in progress.tables.items():
            self._tables[table] = max(transaction, self._tables.get(table, transaction))
        if progress.confirmed - 1 > self._sequence:
            self._sequence = progress.confirmed - 1
            client.record_confirmation(durable=self._is_durable)
            self._ping(client)
            self._websocket.send_binary(encode_ok(Ok(self._sequence, self._tables)))
            if self._is_durable:
                self._await_durable(self._tables)
            self._tables = {}
        if progress.outcome == "refused":
            self._refused_at = asyncio.get_running_loop().time()
            refusal = Refusal(progress.status, progress.done, progress.message)
            self._websocket.send_binary(encode_refusal(refusal))
        elif progress.outcome == "unavailable":
            self._websocket.fail(_GOING_AWAY, "the store failed")
        elif progress.outcome == "replaced":
            self._websocket.fail(_GOING_AWAY, progress.message)
        elif progress.outcome == "crowded":
            self._websocket.fail(_TRY_LATER, progress.message)
        self._write()

    def _ping(self, client: QwpClient) -> None:
        payload = client.ping()
        if payload is not None:
            self._websocket.send_ping(payload)

    # ── is it there? ─────────────────────────────────────────────────────────────────────────────────

    @property
    def client(self) -> QwpClient | None:
        """The state of the connection; None before its handshake."""
        return self._client

    def prove(self, now: float) -> None:
        """Ping the client, because another connection may be its successor."""
        if self._websocket.state is not OPEN or self._client is None or self.transport is None:
            return
        if self._proof_requested_at is None:
            self._proof_requested_at = now
        elif now - self._proof_pinged_at < _PROOF_PING_S:
            return
        self._proof_pinged_at = now
        self._resume(self.transport)
        self._ping(self._client)
        self._write()

    def _tick_proof(self, now: float) -> None:
        requested_at, client = self._proof_requested_at, self._client
        if requested_at is None or client is None or now - requested_at <= self._settings.keepalive.ping_timeout_s:
            return
        self._proof_requested_at = None
        if self._heard > requested_at:
            client.is_alive()  # it does not answer pings, but sends data
        elif self.transport is not None:
            self._fail(_GOING_AWAY, "no answer to a ping")
            self.transport.abort()

    # ── durable ─────────────────────────────────────────────────────────────────────────────────────

    def _await_durable(self, tables: dict[str, int]) -> None:
        for table, newest in tables.items():
            self._undurable[table] = max(newest, self._undurable.get(table, newest))
        if self._undurable and self._undurable_since is None:
            self._undurable_since = asyncio.get_running_loop().time()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def durable_since(self) -> float | None:
        """Since when, in the loop's time, the client has waited for a durable acknowledgement, or None."""
        return self._undurable_since

    def made_durable(self, through: int) -> None:
        """Report to the client what has become durable."""
        covered = {table for table, newest in self._undurable.items() if newest <= through}
        if self._websocket.state is not OPEN or not (
            covered or (self._undurable and through > self._confirmed_durable)
        ):
            return
        durable = {table: min(newest, through) for table, newest in self._undurable.items()}
        if self._client is not None:
            self._client.record_durable(through)
            self._ping(self._client)
        self._websocket.send_binary(encode_durable_ack(DurableAck(durable)))
        self._confirmed_durable = through
        self._undurable = {table: newest for table, newest in self._undurable.items() if table not in covered}
        self._undurable_since = asyncio.get_running_loop().time() if self._undurable else None
        self._write()

    def tick(self, now: float) -> None:
        """Run the timers: close slow, old or dead connections, and ping silent ones."""
        settings, keepalive = self._settings, self._settings.keepalive
        if self._websocket.state is not OPEN:
            self._closing_since = self._closing_since or now
            if now - self._closing_since > _CLOSING_S and self.transport is not None:
                self.transport.abort()
            return
        self._tick_proof(now)
        quiet = self._work is None and not self._waiting
        idle, age = keepalive.max_connection_idle_s, keepalive.max_connection_age_s
        grace = keepalive.max_connection_age_grace_s
        if self._partial_since is not None and now - self._partial_since > settings.body_timeout_s and quiet:
            self._fail(_TRY_LATER, "the message did not arrive in time")
        elif self._refused_at is not None and now - self._refused_at > _REFUSED_S:
            self.leave(_NORMAL, "nothing is read after a refusal")
        elif idle is not None and quiet and now - self._message_at > idle:
            self.leave(_GOING_AWAY, "idle")
        elif (
            age is not None
            and now - self._opened_at > age
            and (quiet or (grace and now - self._opened_at > age + grace))
        ):
            self.leave(_GOING_AWAY, "the connection has reached its maximum age")
        elif self._ping_sent_at is not None and now - self._ping_sent_at > keepalive.ping_timeout_s:
            self._fail(_GOING_AWAY, "no answer to a ping")
            if self.transport is not None:
                self.transport.abort()
        elif self._ping_sent_at is None and quiet and now - self._heard > keepalive.ping_interval_s:
            self._ping_sent_at = now
            self._websocket.send_ping(b"quiver")
            self._write()

    def leave(self, code: int = _GOING_AWAY, reason: str = "shutting down") -> None:
        """Close the connection with a close frame."""
        if self._websocket.state is OPEN:
            self._websocket.send_close(code, reason)
            self._write()
        elif self.transport is not None:
            self.transport.abort()

    def drop(self) -> None:
        """Close the socket after everything is written."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the socket immediately."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def work(self) -> asyncio.Task[None] | None:
        """The task that is storing messages."""
        return self._work
