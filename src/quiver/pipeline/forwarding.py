"""
The exporters that need no Spark: they run in threads of the ingest process, beside the store.

They only pass requests on as they are stored, so that a process of their own would be one more copy of each, and one
more thing that can die alone. The far side cannot hold up the store: what it does not take stays on the disk.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.clock import SYSTEM_CLOCK
from quiver.errors import WrongUse
from quiver.exporters.forward import BundleForwarder
from quiver.observe import Observer
from quiver.pipeline.graph import Pipeline
from quiver.pipeline.plugins import OtapExporterConfig, OtlpExporterConfig
from quiver.store.store import Store

if TYPE_CHECKING:
    from quiver.exporters.forward import Sender

__all__ = ["Forwarding"]

DRAIN_S = 8.0

_log = logging.getLogger("quiver.pipeline")


class Forwarding:
    """
    All of a pipeline's forwarders: started on entering, and on leaving given a few seconds to send what is sealed.

    Args:
        pipeline: its exporters are registered with *store* already.
        store: open, until after this is left.
        observer: takes counts and events.

    Raises:
        WrongUse: a certificate cannot be read.
    """

    def __init__(self, pipeline: Pipeline, store: Store, observer: Observer) -> None:
        self._names = []
        self._forwarders: list[BundleForwarder] = []
        for name, config in pipeline.forwarders:
            settings = config.settings()
            forwarder = BundleForwarder(
                store.register(name, start="earliest"),
                _sender(name, config),
                in_flight_max=settings.in_flight_max,
                retry=settings.retry,
                observer=observer,
            )
            self._names.append(f"{name} → {config.destination}")
            self._forwarders.append(forwarder)

    def __enter__(self) -> Self:
        for name, forwarder in zip(self._names, self._forwarders, strict=True):
            forwarder.start()
            _log.info("%s runs", name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + (DRAIN_S if kind is None else 0.0)
        for name, forwarder in zip(self._names, self._forwarders, strict=True):
            left = forwarder.stop(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
            if left:
                problem = forwarder.state().problem
                _log.warning("%s: %d bundles stay in the store%s", name, left, f": {problem}" if problem else "")


def _sender(name: str, config: OtlpExporterConfig) -> Sender:
    from quiver.exporters.otap_grpc import OtapGrpcSender  # noqa: PLC0415 - an extra; only what is configured
    from quiver.exporters.otlp_grpc import OtlpGrpcSender  # noqa: PLC0415
    from quiver.exporters.otlp_http import OtlpHttpSender  # noqa: PLC0415

    settings = config.settings()
    try:
        if isinstance(config, OtapExporterConfig):
            return OtapGrpcSender(settings, config.otap())
        return OtlpGrpcSender(settings) if settings.protocol == "grpc" else OtlpHttpSender(settings)
    except OSError as error:
        raise WrongUse(f"{name}: tls: {error}") from error
