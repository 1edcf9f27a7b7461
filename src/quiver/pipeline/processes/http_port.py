"""A WSGI application on a port of this machine, with a thread for each request."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import TransientError
from quiver.observe import Observer
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.receivers.settings import split_address

__all__ = ["Application", "HttpPort"]

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_REQUEST_TIMEOUT_S = 10.0
"""A client that sends no request in this time is disconnected: otherwise it could hold a thread indefinitely."""


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its base's name
        # A probe every few seconds would fill the log.
        del format, args


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # The base class resolves the name of this machine, which can be slow and is not needed.
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        super(WSGIServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # The client disconnected or was too slow.
        del request, client_address


class HttpPort:
    """
    Serves *application* between `start` and `stop`.

    Args:
        address: ``host:port``; port 0 selects a free port.
        application: called in a thread of its own for each request.
        name: of the thread that accepts connections.
        observer: receives the report if that thread dies. The port is closed then, so clients are refused.

    Attributes:
        address: ``host:port``; for port 0, the port that was chosen at the start.
    """

    def __init__(self, address: str, application: Application, *, name: str, observer: Observer) -> None:
        self.address = address
        self._application = application
        self._name = name
        self._observer = observer
        self._server: _Server | None = None
        self._worker: Worker | None = None

    def start(self) -> None:
        """
        Start to serve requests.

        Raises:
            TransientError: the address is in use or does not belong to this machine.
        """
        host, port = split_address(self.address)
        try:
            self._server = _bound(host, port)
        except OSError as error:
            raise TransientError(f"cannot listen on {self.address}: {error}") from error
        self._server.set_app(self._application)
        self._worker = Worker(
            self._name,
            partial(_serve, self._server),
            every=0.0,
            on_death=self._refuse,
            clock=SYSTEM_CLOCK,
            observer=self._observer,
        )
        self._worker.start()
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.server_port}"

    def stop(self) -> bool:
        """Stop serving; return whether it was serving. Idempotent."""
        server, self._server = self._server, None
        if server is None or self._worker is None:
            return False
        server.shutdown()
        server.server_close()
        self._worker.stop()
        return True

    def _refuse(self, _died: WorkerDiedError) -> None:
        if self._server is not None:
            self._server.server_close()


def _serve(server: _Server) -> Finished:
    server.serve_forever()
    return FINISHED


def _bound(host: str, port: int) -> _Server:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    server_class = type("_Bound", (_Server,), {"address_family": family})
    made: _Server = server_class(address[:2], _Handler)
    return made
