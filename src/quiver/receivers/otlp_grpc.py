"""
OTLP over gRPC: the three export services, bytes in and bytes out.

A full buffer answers UNAVAILABLE with RetryInfo, a failed or closed store the same with a longer delay, bytes that
are no request INVALID_ARGUMENT, and a request over the limits RESOURCE_EXHAUSTED without RetryInfo, which by the
OTLP specification is final.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import RetryLater, StoreClosed
from quiver.observe import Observer
from quiver.receivers.inflate import GZIP_MAGIC
from quiver.receivers.intake import IntakeStore, OtlpIntake, Verdict
from quiver.receivers.rpc_status import encode_retry_info, encode_status
from quiver.receivers.settings import OtlpSettings, split_address

__all__ = ["SERVICES", "OtlpGrpcReceiver"]

SERVICES = {
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
"""Signal → the service whose `Export` takes it."""

_CODES = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "full": grpc.StatusCode.UNAVAILABLE,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}

_IDENTITY_AND_GZIP = 1 << 0 | 1 << 2


@dataclass(frozen=True, slots=True)
class _Status:
    """
    What `ServicerContext.abort_with_status` reads.
    """

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def _status(verdict: Verdict) -> _Status:
    code = _CODES[verdict.outcome]
    status = encode_status(code.value[0], verdict.message, retry_after_s=verdict.retry_after_s)
    metadata: tuple[tuple[str, bytes], ...] = (("grpc-status-details-bin", status),)
    if verdict.retry_after_s is not None:
        # Where the Python SDK's exporter looks for it.
        metadata += (("google.rpc.retryinfo-bin", encode_retry_info(verdict.retry_after_s)),)
    return _Status(code, verdict.message, metadata)


class OtlpGrpcReceiver:
    """
    Listens for OTLP/gRPC and feeds one store. A context manager: started inside, stopped on leaving.

    Args:
        store: where requests go.
        settings: where to listen, sizes, ack and window.
        clock: handed to the intake.
        observer: handed to the intake.
        intake: share another receiver's intake, and so its window, instead of making one.

    Raises:
        StoreFailed: the store could not be synced after the dedupe window was rebuilt.
    """

    def __init__(
        self,
        store: IntakeStore,
        settings: OtlpSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        intake: OtlpIntake | None = None,
    ) -> None:
        self.settings = OtlpSettings() if settings is None else settings
        self.intake = intake or OtlpIntake(store, self.settings, clock=clock, observer=observer)
        self.port = 0
        self._server: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._stopped = False

    def start(self) -> int:
        """
        Listen. Returns the bound port, which is also `port` from now on.

        Raises:
            RetryLater: the address is taken or not ours.
            StoreClosed: the receiver was stopped; make another.
        """
        if self._stopped:
            raise StoreClosed("this receiver was stopped; make another")
        if self._server is not None:
            return self.port
        settings = self.settings
        pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="quiver-otlp-grpc")
        server = grpc.server(
            pool,
            options=[
                ("grpc.max_receive_message_length", settings.max_request_bytes),
                ("grpc.max_concurrent_streams", settings.requests_waiting_max),
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
                # Two processes on one port would each get half of the requests.
                ("grpc.so_reuseport", 0),
                # Requests arrive as they are on the wire, so that they are inflated here, within bounds.
                ("grpc.per_message_decompression", 0),
            ],
        )
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    service, {"Export": grpc.unary_unary_rpc_method_handler(self._exporter(signal))}
                )
                for signal, service in SERVICES.items()
            ]
        )
        split_address(settings.listening_addr)
        try:
            port = server.add_insecure_port(settings.listening_addr)
        except RuntimeError as error:
            pool.shutdown(wait=False)
            raise RetryLater(f"cannot listen on {settings.listening_addr}: {error}") from error
        server.start()
        self._server, self._pool, self.port = server, pool, port
        return port

    def stop(self, grace_s: float = 5.0) -> None:
        """
        Refuse new requests at once and give those being handled *grace_s* seconds. Idempotent.
        """
        server, pool = self._server, self._pool
        self._server = self._pool = None
        self._stopped = True
        if server is not None:
            server.stop(grace_s).wait()
        if pool is not None:
            pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _exporter(self, signal: str) -> Callable[[bytes, Any], bytes]:
        def export(data: bytes, context: Any) -> bytes:
            verdict = self.intake.accept(signal, data, gzipped=data.startswith(GZIP_MAGIC))
            if not verdict.confirmed:
                context.abort_with_status(_status(verdict))
            return b""  # an Export…ServiceResponse without partial success: all of it was taken

        return export
