"""A QWP server in the test's own process, on a real socket, with behavior that the test defines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import serve

from quiver.primitives.scan import Frame
from quiver.qwp.wire.decoder import DecodedMessage, SymbolDictionary, decode_message
from quiver.qwp.wire.responses import Ok, encode_ok

Answer = Callable[["Life", int, bytes], "bytes | list[bytes] | Close | None"]


@dataclass
class Close:
    """End the connection with this code; 1006 closes the socket without a close frame."""

    code: int
    reason: str = ""


@dataclass
class Life:
    """One connection, and its messages."""

    number: int
    headers: dict[str, str]
    frames: list[bytes] = field(default_factory=list)
    pings: int = 0
    dictionary: SymbolDictionary = field(default_factory=SymbolDictionary)
    socket: Any = None

    def drop(self) -> None:
        """Shut the connection down without a close frame. A plain close would wait for the thread that reads."""
        with suppress(OSError):
            self.socket.socket.shutdown(SHUT_RDWR)

    def decode(self, frame: bytes) -> DecodedMessage:
        """Return the message; its symbols are added to the connection's dictionary."""
        answer = decode_message(memoryview(frame), self.dictionary)
        assert isinstance(answer, Frame), answer
        return answer.value


def confirm(_life: Life, sequence: int, _frame: bytes) -> bytes:
    """Answer with OK."""
    return encode_ok(Ok(sequence))


class QwpServer:
    """Listens from the start; `answer` decides what follows each message, `refuse` what a new connection gets."""

    def __init__(self, answer: Answer = confirm, *, headers: dict[str, str] | None = None, tls: Any = None) -> None:
        self.answer = answer
        self.headers = {"X-QWP-Version": "1", **(headers or {})}
        self.refuse: tuple[int, dict[str, str]] | None = None
        self.lives: list[Life] = []
        self.requests = 0
        self.changed = threading.Condition()
        quiet = logging.getLogger("qwp-test-server")
        quiet.setLevel(logging.CRITICAL)
        self._server = serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=tls,
            process_request=self._request,
            process_response=self._response,
            max_size=None,
            compression=None,
            ping_interval=None,
            logger=quiet,
            open_timeout=5,
            close_timeout=1,
        )
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def frames(self) -> list[bytes]:
        """All messages of all connections, in order."""
        return [frame for life in self.lives for frame in life.frames]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until the condition is true; fail after a timeout."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the condition did not become true in time"

    def _request(self, connection: Any, request: Any) -> Response | None:
        with self.changed:
            self.requests += 1
            self.changed.notify_all()
        if self.refuse is None:
            return None
        status, headers = self.refuse
        response = connection.respond(status, "refused\n")
        for name, value in headers.items():
            response.headers[name] = value
        return response

    def _response(self, _connection: Any, request: Any, response: Response) -> Response | None:
        for name, value in self.headers.items():
            response.headers[name] = value
        return None

    def _serve(self, socket: Any) -> None:
        life = Life(len(self.lives), {name.title(): value for name, value in socket.request.headers.raw_items()})
        life.headers["path"] = socket.request.path
        life.socket = socket
        with self.changed:
            self.lives.append(life)
            self.changed.notify_all()
        pong = socket.protocol.recv_frame

        def count_pings(frame: Any) -> None:
            if frame.opcode == 9:
                with self.changed:
                    life.pings += 1
                    self.changed.notify_all()
            pong(frame)

        socket.protocol.recv_frame = count_pings
        try:
            while True:
                frame = socket.recv()
                with self.changed:
                    sequence = len(life.frames)
                    life.frames.append(frame)
                    reported = self.answer(life, sequence, frame)
                    self.changed.notify_all()
                if isinstance(reported, Close):
                    if reported.code == 1006:
                        life.drop()
                    else:
                        socket.close(reported.code, reported.reason)
                    return
                for one in reported if isinstance(reported, list) else [reported]:
                    if one is not None:
                        socket.send(one)
        except (ConnectionClosed, OSError):
            return

    def close(self) -> None:
        """Stop listening and drop all connections."""
        self._server.shutdown()
        for life in self.lives:
            life.drop()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
