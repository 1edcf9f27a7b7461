"""The HTTP port of a running pipeline: `/metrics` for Prometheus, `/livez` and `/readyz` for supervisors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import TransientError
from quiver.metrics import (
    ObservedExporters,
    ObservedStore,
    OpenTelemetryObserver,
    observe_exporters,
    observe_store,
    observe_stores,
)
from quiver.pipeline.health import Health
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.receivers.settings import split_address

__all__ = ["MetricsEndpoint"]

_REQUEST_TIMEOUT_S = 10.0
"""A client that sends no request in this time is disconnected: otherwise it could hold a thread indefinitely."""
_TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))


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


class MetricsEndpoint:
    """
    An observer for the store, and the port that serves its metrics.

    =========== ======================================================================================
    path        answer
    =========== ======================================================================================
    `/livez`    200 as long as the process answers
    `/readyz`   200 when the process accepts requests, else 503; a line for each check, with its reason
    `/metrics`  the metrics, in Prometheus' text format
    others      404
    =========== ======================================================================================

    Attributes:
        address: ``host:port``; for port 0, the port that was chosen at the start.
        observer: the observer for the store and the receivers.
        health: what `/readyz` reports.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """

    def __init__(self, address: str, health: Health | None = None) -> None:
        # These packages are an extra; import them only if metrics are configured.
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from prometheus_client import CollectorRegistry, make_wsgi_app  # noqa: PLC0415

        self.address = address
        self.health = Health() if health is None else health
        registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
        self._metrics = make_wsgi_app(registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("quiver")
        self._server: _Server | None = None
        self._worker: Worker | None = None
        self.observer = OpenTelemetryObserver(self._meter)

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
        self._server.set_app(self._answer)
        # If the thread dies, probes must be refused: a probe that waits for an answer reports nothing.
        self._worker = Worker(
            "quiver-metrics",
            partial(_serve, self._server),
            every=0.0,
            on_death=self._refuse,
            clock=SYSTEM_CLOCK,
            observer=self.observer,
        )
        self._worker.start()
        self.address = f"{f'[{host}]' if ':' in host else host}:{self._server.server_port}"

    def observe(self, store: ObservedStore) -> None:
        """Add the figures of *store* to the metrics."""
        observe_store(store, self._meter)

    def observe_buffers(self, stores: Mapping[str, ObservedStore]) -> None:
        """Add the figures of several *stores* to the metrics, with their names as the attribute `buffer`."""
        observe_stores(stores, self._meter)

    def observe_exporters(self, exporters: ObservedExporters) -> None:
        """Add the figures of *exporters* to the metrics, without keeping a reference to them."""
        observe_exporters(exporters, self._meter)

    def stop(self) -> None:
        """Stop serving. Idempotent."""
        server, self._server = self._server, None
        if server is not None and self._worker is not None:
            server.shutdown()
            server.server_close()
            self._worker.stop()
            self._provider.shutdown()

    def _refuse(self, _died: WorkerDiedError) -> None:
        if self._server is not None:
            self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            start_response("405 Method Not Allowed", [*_TEXT, ("Allow", "GET, HEAD")])
            return [b"use GET\n"]
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path == "/livez":
            start_response("200 OK", [*_TEXT])
            return [b"ok\n"]
        if path == "/readyz":
            return self._readiness(start_response)
        start_response("404 Not Found", [*_TEXT])
        return [b"not found; there are /metrics, /livez and /readyz\n"]

    def _readiness(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        checks = self.health.checks()
        is_ready = not any(checks.values())
        start_response("200 OK" if is_ready else "503 Service Unavailable", [*_TEXT])
        lines = [f"[-] {name}: {'; '.join(why)}" if why else f"[+] {name}" for name, why in checks.items()]
        return ["\n".join([*lines, "ready" if is_ready else "not ready", ""]).encode()]


def _serve(server: _Server) -> Finished:
    server.serve_forever()
    return FINISHED


def _bound(host: str, port: int) -> _Server:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    server_class = type("_Bound", (_Server,), {"address_family": family})
    made: _Server = server_class(address[:2], _Handler)
    return made
