"""The HTTP port of a running pipeline: `/metrics` for Prometheus, `/livez` and `/readyz` for supervisors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quiver.clock import SYSTEM_CLOCK
from quiver.metrics import (
    ObservedExporters,
    ObservedStore,
    OpenTelemetryObserver,
    observe_exporters,
    observe_store,
    observe_stores,
)
from quiver.pipeline.health import Health
from quiver.pipeline.processes.http_port import HttpPort

__all__ = ["MetricsEndpoint"]

_TEXT = (("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store"))


class MetricsEndpoint:
    """
    An observer for the store, and the port that serves its metrics.

    =========== ======================================================================================
    path        answer
    =========== ======================================================================================
    `/livez`    200, or 503 when the process hangs and should be restarted
    `/readyz`   200 when the process accepts requests, else 503; a line for each check, with its reason
    `/metrics`  the metrics, in Prometheus' text format
    others      404
    =========== ======================================================================================

    Attributes:
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

        self.health = Health() if health is None else health
        registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
        self._metrics = make_wsgi_app(registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("quiver")
        self.observer = OpenTelemetryObserver(self._meter)
        # If its thread dies, probes must be refused: a probe that waits for an answer reports nothing.
        self._port = HttpPort(address, self._answer, name="quiver-metrics", observer=self.observer)

    @property
    def address(self) -> str:
        """``host:port``; for port 0, the port that was chosen at the start."""
        return self._port.address

    def start(self) -> None:
        """
        Start to serve requests.

        Raises:
            TransientError: the address is in use or does not belong to this machine.
        """
        self._port.start()

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
        if self._port.stop():
            self._provider.shutdown()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            start_response("405 Method Not Allowed", [*_TEXT, ("Allow", "GET, HEAD")])
            return [b"use GET\n"]
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path == "/livez":
            return self._liveness(start_response)
        if path == "/readyz":
            return self._readiness(start_response)
        start_response("404 Not Found", [*_TEXT])
        return [b"not found; there are /metrics, /livez and /readyz\n"]

    def _liveness(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        reason = self.health.hang(SYSTEM_CLOCK.monotonic())
        start_response("200 OK" if reason is None else "503 Service Unavailable", [*_TEXT])
        return [b"ok\n" if reason is None else f"{reason}\n".encode()]

    def _readiness(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        checks = self.health.checks()
        is_ready = not any(checks.values())
        start_response("200 OK" if is_ready else "503 Service Unavailable", [*_TEXT])
        lines = [f"[-] {name}: {'; '.join(why)}" if why else f"[+] {name}" for name, why in checks.items()]
        return ["\n".join([*lines, "ready" if is_ready else "not ready", ""]).encode()]
