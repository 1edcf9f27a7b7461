"""
One WebSocket connection to one server. `websockets` implements the protocol; the socket is ours and never blocks.

`WakeUp` ends a wait from another thread. Without it, a newly appended frame would wait for the next answer.
"""

from __future__ import annotations

import itertools
import secrets
import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import websockets.frames
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from quiver.clock import Clock
from quiver.errors import QuiverError, SettingsError
from quiver.primitives.certificates import pem_bytes
from quiver.primitives.disk.file_system import Buffer
from quiver.qwp.conf import Address
from quiver.qwp.connection.session import WRITE_PATH, Accepted, Refused, judge_answer
from quiver.qwp.connection.trust_store import trusted_certificates

__all__ = ["Connection", "ConnectionLostError", "HandshakeError", "WakeUp", "open_connection", "tls_context"]

_RECEIVE_BYTES = 64 * 1024
_ANSWER_BYTES_MAX = 16 << 20
_NO_WORD = 1006
_PING = b"qw"
_apply_mask: Callable[[Buffer, bytes], bytes] = vars(websockets.frames)["apply_mask"]  # in C if available
_BINARY = 0x80 | Opcode.BINARY  # a complete message in one frame
_MASKED = 0x80
_GATHERED_MAX = 64

# A host without power sends nothing, and a missing answer is not an error by itself: without these options frames
# would wait forever. WebSocket pings are only sent while waiting for durability.
_LIVENESS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


class ConnectionLostError(QuiverError):
    """The connection is closed: `code` is 1006 if the server sent no close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


class HandshakeError(QuiverError):
    """The connection was not established; `refused` has the reason and the reaction."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


class WakeUp:
    """A self-pipe: `wake`, from any thread, ends the wait of the watching thread."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self.asleep = False

    def wake(self) -> None:
        """End the current wait, if there is one."""
        if self.asleep:
            self.asleep = False
            try:
                self._writer.send(b"\0")
            except OSError:
                return  # full, so a wake-up is pending; or closed

    def drain(self) -> None:
        """Discard earlier calls of `wake`."""
        try:
            while self.reader.recv(4096):
                continue
        except OSError:
            return

    def close(self) -> None:
        """Close the pipe."""
        self.reader.close()
        self._writer.close()


def tls_context(*, verify: bool, roots: str | None, roots_password: str | None = None) -> ssl.SSLContext:
    """
    Return the context for TLS connections. It trusts the system's roots, those in the PEM file *roots*, or with a
    password those in the trust store *roots*.

    Raises:
        SettingsError: the password does not open the trust store, or the PEM file is missing or invalid.
        OSError: the trust store cannot be read.
    """
    if roots is not None and roots_password is not None:
        context = ssl.create_default_context(cadata=trusted_certificates(roots, roots_password))
    else:
        if roots is not None:
            pem_bytes("tls_roots", roots)  # OpenSSL would block on a pipe
        try:
            context = ssl.create_default_context(cafile=roots)
        except OSError as error:  # it does not name the file
            raise SettingsError(
                f"tls_roots: {roots} has no PEM certificates: {error} (a trust store needs tls_roots_password)"
            ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def open_connection(
    address: Address,
    headers: Sequence[tuple[str, str]],
    *,
    tls: ssl.SSLContext | None,
    durable_ack: bool,
    timeout: float,
    clock: Clock,
) -> tuple[Connection, Accepted]:
    """
    Connect, negotiate TLS, and upgrade, all within *timeout* seconds.

    Raises:
        HandshakeError: the server answered, but did not accept the connection.
        OSError: the server did not answer.
    """
    deadline = clock.monotonic() + timeout
    try:
        sock = socket.create_connection((address.host, address.port), timeout=timeout)
    except UnicodeError as error:
        raise OSError(f"{address.host} is not a valid host name: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _watch(sock)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address.host)
        scheme = "ws" if tls is None else "wss"
        protocol = ClientProtocol(parse_uri(f"{scheme}://{address}{WRITE_PATH}"), max_size=_ANSWER_BYTES_MAX)
        request = protocol.connect()
        for name, value in headers:
            request.headers[name] = value
        protocol.send_request(request)
        for piece in protocol.data_to_send():
            sock.sendall(piece)
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            sock.settimeout(max(0.001, deadline - clock.monotonic()))
            data = sock.recv(_RECEIVE_BYTES)
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
                break
        accepted = _judge(protocol, durable_ack=durable_ack)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return Connection(sock, protocol), accepted


def _watch(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LIVENESS.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _judge(protocol: ClientProtocol, *, durable_ack: bool) -> Accepted:
    response: Any = None
    status = 0
    if protocol.handshake_exc is None:
        events = protocol.events
        response = next((event for event in events if hasattr(event, "status_code")), None)
        protocol.events = [event for event in events if event is not response]
        status = response.status_code if response is not None else 0
    elif isinstance(protocol.handshake_exc, InvalidStatus):
        response = protocol.handshake_exc.response
        status = response.status_code
    if response is None:
        why = protocol.handshake_exc or "closed without an answer"
        raise HandshakeError(Refused("transient", f"no WebSocket handshake: {why}"))
    known: Mapping[str, str] = {name.title(): value for name, value in response.headers.raw_items()}
    judged = judge_answer(status, _Titles(known), durable_ack=durable_ack)
    if isinstance(judged, Refused):
        raise HandshakeError(judged)
    return judged


class _Titles(dict[str, str]):
    """Headers by name, case-insensitive."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key.title(), default)


class Connection:
    """An open connection. For one thread."""

    def __init__(self, sock: socket.socket, protocol: ClientProtocol) -> None:
        self._sock = sock
        self._protocol = protocol
        self._out: deque[memoryview] = deque()
        self._parts: list[bytes] = []
        self._selector = selectors.DefaultSelector()  # `select` alone fails in programs with a thousand open files
        self._selector.register(sock, selectors.EVENT_READ)
        self._wake: WakeUp | None = None
        self._broken: str | None = None
        self.queued_bytes = 0

    def send(self, message: Buffer) -> None:
        """
        Queue one binary message.

        Raises:
            ConnectionLostError: the server has closed the connection.
        """
        self._require_open()
        # As the protocol would encode it, with one copy less.
        self._collect()
        size = len(message)
        mask = secrets.token_bytes(4)
        if size < 126:
            head = struct.pack("!BB", _BINARY, _MASKED | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", _BINARY, _MASKED | 126, size)
        else:
            head = struct.pack("!BBQ", _BINARY, _MASKED | 127, size)
        self._queue(head + mask)
        self._queue(_apply_mask(message, mask))

    def ping(self) -> None:
        """Queue a ping."""
        self._require_open()
        self._protocol.send_ping(_PING)
        self._collect()

    def _require_open(self) -> None:
        if self._protocol.state is not State.OPEN:
            self._raise_close("the connection is closing")

    def _collect(self) -> None:
        for piece in self._protocol.data_to_send():
            if piece:
                self._queue(piece)

    def _queue(self, piece: bytes) -> None:
        self._out.append(memoryview(piece))
        self.queued_bytes += len(piece)

    def flush(self) -> None:
        """
        Send as much as the socket accepts now. `receive` reports a broken socket, after all messages of the server: a
        refusal is the cause, and a broken pipe must not hide it.
        """
        try:
            while self._out and self._broken is None:
                sent = self._send_some()
                self.queued_bytes -= sent
                while sent:
                    first = self._out.popleft()
                    if sent < len(first):
                        self._out.appendleft(first[sent:])
                        break
                    sent -= len(first)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self._broken = f"sending failed: {error}"
            self._out.clear()
            self.queued_bytes = 0

    def _send_some(self) -> int:
        if len(self._out) == 1 or isinstance(self._sock, ssl.SSLSocket) or not hasattr(self._sock, "sendmsg"):
            return self._sock.send(self._out[0])
        return self._sock.sendmsg(list(itertools.islice(self._out, _GATHERED_MAX)))

    def receive(self, wake: WakeUp, timeout: float | None) -> list[bytes | str]:
        """
        Wait until a message arrives, the socket is writable, *wake* is called, or *timeout* seconds have passed. Return
        the messages that have arrived.

        Raises:
            ConnectionLostError: the connection is closed, and every earlier message was returned.
        """
        pending = self._broken is not None or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0)
        if self._wake is not wake:
            self._selector.register(wake.reader, selectors.EVENT_READ)
            self._wake = wake
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if self._selector.get_key(self._sock).events != wanted:
            self._selector.modify(self._sock, wanted)
        ready = {key.fileobj: events for key, events in self._selector.select(0 if pending else timeout)}
        wake.asleep = False
        if wake.reader in ready:
            wake.drain()
        if not ready.get(self._sock, 0) & selectors.EVENT_READ and not pending:
            return []
        messages = self._read()
        self._collect()  # pongs, and the answer to a close
        if not messages and self._protocol.close_rcvd is not None:
            self.flush()
            raise ConnectionLostError(self._protocol.close_rcvd.code, self._protocol.close_rcvd.reason)
        if not messages and self._broken is not None:
            self._raise_close(self._broken)
        return messages

    def _read(self) -> list[bytes | str]:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            data = None
        except OSError as error:
            raise ConnectionLostError(_NO_WORD, str(error)) from error
        if data is not None:
            if not data:
                self._raise_close("the server closed the socket")
            self._protocol.receive_data(data)
        messages = [
            message for event in self._protocol.events_received() if (message := self._message(event)) is not None
        ]
        broken = self._protocol.parser_exc
        if not messages and isinstance(broken, WebSocketException) and self._protocol.close_rcvd is None:
            raise ConnectionLostError(_NO_WORD, f"invalid WebSocket data: {broken}") from broken
        return messages

    def _message(self, event: Any) -> bytes | str | None:
        if not isinstance(event, WebSocketFrame):
            return None
        if event.opcode is Opcode.TEXT:
            return "text"
        if event.opcode not in {Opcode.BINARY, Opcode.CONT}:
            return None
        self._parts.append(bytes(event.data))
        if not event.fin:
            return None
        message = b"".join(self._parts)
        self._parts.clear()
        return message

    def _raise_close(self, reason: str) -> None:
        close = self._protocol.close_rcvd
        if close is not None:
            raise ConnectionLostError(close.code, close.reason)
        raise ConnectionLostError(_NO_WORD, reason)

    def close(self, *, orderly: bool) -> None:
        """Close the socket. If *orderly*, send a close frame first, as far as the socket accepts it."""
        try:
            if orderly and self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._collect()
                self.flush()
        except (ConnectionLostError, WebSocketException):
            pass
        finally:
            self._selector.close()
            self._sock.close()
