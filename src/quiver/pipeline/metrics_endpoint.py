"""
Where a running pipeline tells its metrics: Prometheus text over HTTP.
"""

from __future__ import annotations

import threading
from typing import Any

from quiver.errors import RetryLater
from quiver.metrics import ObservedStore, OpenTelemetryObserver, observe_store
from quiver.receivers.settings import split_address

__all__ = ["MetricsEndpoint"]


class MetricsEndpoint:
    """
    An observer for the store, and the port that answers with what it took.

    Attributes:
        address: where it listens, ``host:port``; of port 0, once it is started, the one that was free.
        observer: for the store and the receivers.

    Raises:
        ModuleNotFoundError: the extra `metrics` is not installed.
    """

    def __init__(self, address: str) -> None:
        # An extra; only what is configured is imported.
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from prometheus_client import CollectorRegistry  # noqa: PLC0415

        self.address = address
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("quiver")
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.observer = OpenTelemetryObserver(self._meter)

    def start(self, store: ObservedStore) -> None:
        """
        Answer from now on, with the figures of *store* too.

        Raises:
            RetryLater: the address is taken or not ours.
        """
        from prometheus_client import start_http_server  # noqa: PLC0415

        observe_store(store, self._meter)
        host, port = split_address(self.address)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise RetryLater(f"cannot listen on {self.address}: {error}") from error
        self.address = f"{host}:{self._server.server_port}"

    def stop(self) -> None:
        """
        Answer no more. Idempotent.
        """
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()
            self._provider.shutdown()
