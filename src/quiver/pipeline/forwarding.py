"""
The exporters that need no Spark: they run in threads of the ingest process, beside the store.

They only pass requests on as they are stored, so that a process of their own would be one more copy of each, and one
more thing that can die alone. The far side cannot hold up the store: what it does not take stays on the disk. Attempts
and the times of the next ones stand in the exporter's retry set, what it gives up goes to its dead letters.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.dead_letters import DeadLetters
from quiver.delivery.policy import RetryPolicy
from quiver.delivery.retry_set import RetrySet
from quiver.delivery.undelivered import Undelivered
from quiver.errors import SettingsInvalid, StoreFailed, WrongUse
from quiver.exporters.forward import BundleForwarder
from quiver.observe import Observer
from quiver.pipeline.child import DRAIN_S
from quiver.pipeline.graph import Pipeline
from quiver.pipeline.plugins import OtapExporterConfig, OtlpExporterConfig
from quiver.primitives.real_files import REAL_FILES
from quiver.primitives.scan import Frame
from quiver.store.format.identity import decode_identity
from quiver.store.format.names import STORE_ID
from quiver.store.store import Store

if TYPE_CHECKING:
    from quiver.exporters.forward import Sender

__all__ = ["Forwarding", "sender_of"]

_ID_BYTES_MAX = 200

_log = logging.getLogger("quiver.pipeline")


class Forwarding:
    """
    All of a pipeline's forwarders: started on entering, and on leaving given a few seconds to send what is sealed.

    Args:
        pipeline: its exporters are registered with *store* already.
        store: open, until after this is left.
        observer: takes counts and events.

    Attributes:
        drain_s: the few seconds.

    Raises:
        WrongUse: a certificate cannot be read.
    """

    def __init__(self, pipeline: Pipeline, store: Store, observer: Observer) -> None:
        self.drain_s = DRAIN_S
        self._names: list[str] = []
        self._forwarders: list[BundleForwarder] = []
        try:
            for name, config in pipeline.forwarders:
                self._forwarders.append(_forwarder(name, config, store, observer))
                self._names.append(f"{name} → {config.destination}")
        except BaseException:
            self._break_off()
            raise

    def __enter__(self) -> Self:
        try:
            for name, forwarder in zip(self._names, self._forwarders, strict=True):
                forwarder.start()
                _log.info("%s runs", name)
        except BaseException:
            self._break_off()
            raise
        return self

    def require_alive(self) -> None:
        """
        Return when no thread of an exporter has died.

        Raises:
            StoreFailed: one has; start the process again.
        """
        for forwarder in self._forwarders:
            if forwarder.died is not None:
                raise StoreFailed(f"an exporter failed: {forwarder.died}")

    def _break_off(self) -> None:
        # Whoever tries again needs their retry sets, which one at a time may hold.
        for forwarder in self._forwarders:
            forwarder.stop(0.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = SYSTEM_CLOCK.monotonic() + (self.drain_s if kind is None else 0.0)
        for name, forwarder in zip(self._names, self._forwarders, strict=True):
            left = forwarder.stop(max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))
            if left:
                state = forwarder.state()
                problem = state.halted or state.problem
                _log.warning("%s: %d bundles stay in the store%s", name, left, f": {problem}" if problem else "")


def _forwarder(name: str, config: OtlpExporterConfig, store: Store, observer: Observer) -> BundleForwarder:
    return BundleForwarder(
        store.register(name, start="earliest"),
        sender_of(name, config),
        origin=_identity(store),
        sizes=config.sizes(),
        in_flight_max=config.settings().in_flight_max,
        undelivered=_undelivered(name, config.policy(), store, observer),
        observer=observer,
    )


def _identity(store: Store) -> str:
    """
    Return the id of the store, by which a far side knows a request that it gets again; empty when it is unreadable.
    """
    try:
        answer = decode_identity(memoryview(REAL_FILES.read_all(f"{store.path}/{STORE_ID}", size_max=_ID_BYTES_MAX)))
    except OSError:
        return ""
    return answer.value if isinstance(answer, Frame) else ""


def _undelivered(name: str, policy: RetryPolicy, store: Store, observer: Observer) -> Undelivered:
    letters = DeadLetters(store.path, name, adapter=store.adapter) if policy.on_exhausted == "dead_letter" else None
    retries = RetrySet.open(REAL_FILES, store.path, name)
    return Undelivered(name, policy, retries=retries, letters=letters, observer=observer)


def sender_of(name: str, config: OtlpExporterConfig) -> Sender:
    """
    Return what sends as *config* says; *name* is that of the node.

    Raises:
        WrongUse: a certificate cannot be read.
    """
    from quiver.exporters.otap_grpc import OtapGrpcSender  # noqa: PLC0415 - an extra; only what is configured
    from quiver.exporters.otlp_grpc import OtlpGrpcSender  # noqa: PLC0415
    from quiver.exporters.otlp_http import OtlpHttpSender  # noqa: PLC0415

    settings = config.settings()
    try:
        if isinstance(config, OtapExporterConfig):
            return OtapGrpcSender(settings, config.otap())
        return OtlpGrpcSender(settings) if settings.protocol == "grpc" else OtlpHttpSender(settings)
    except SettingsInvalid as invalid:
        raise WrongUse(f"{name}: {invalid}") from invalid
