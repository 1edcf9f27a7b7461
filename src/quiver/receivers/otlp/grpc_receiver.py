"""
OTLP over gRPC: the three export services, bytes in and bytes out.

A full buffer answers UNAVAILABLE with RetryInfo; a failed or closed store does the same with a longer delay. Invalid
requests get INVALID_ARGUMENT, unknown credentials UNAUTHENTICATED. A request over the limits gets RESOURCE_EXHAUSTED
without RetryInfo, which is final by the OTLP specification.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import grpc
from grpc import aio

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.observe import Observer
from quiver.receivers.grpc_health import HealthService
from quiver.receivers.grpc_server.call import Call
from quiver.receivers.grpc_server.server import GrpcServer, Method
from quiver.receivers.inflate import GZIP_MAGIC
from quiver.receivers.intake import Encoding, IntakeResult, IntakeStore, OtlpIntake
from quiver.receivers.places import Places, address_of_peer, network_of
from quiver.receivers.port import PortReceiver, try_to_bind
from quiver.receivers.rpc_status import encode_partial_success, encode_retry_info, encode_status
from quiver.receivers.security import grpc_credentials, server_context
from quiver.receivers.settings import OtlpSettings

__all__ = ["SERVICES", "Handler", "OtlpGrpcReceiver", "encoding_of", "refuse_call", "server_options"]

SERVICES = {
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}
"""Signal → the service whose `Export` receives it."""

EXPORT_PATHS = {signal: f"/{service}/Export" for signal, service in SERVICES.items()}

Handler = Callable[[AsyncIterator[bytes], Any], Coroutine[Any, Any, bytes | None]]
"""Handles a call, given its messages and its context, which is that of `grpc.aio` or a `Call`."""

_CODES = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "full": grpc.StatusCode.UNAVAILABLE,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}

CONNECTION_SHARE = 4
"""The maximum share of calls of one connection: a quarter. A client with more to send waits on its side."""
_IDENTITY_AND_GZIP = 1 << 0 | 1 << 2
_BUSY = IntakeResult("unavailable", "busy or shutting down", 1.0)


def server_options(settings: OtlpSettings) -> list[tuple[str, int]]:
    """Return the gRPC server options for these limits."""
    keepalive = settings.keepalive
    options = [
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_concurrent_streams", max(1, settings.requests_waiting_max // CONNECTION_SHARE)),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
        # Two processes on one port would each get half of the requests; that must be intended.
        ("grpc.so_reuseport", int(settings.share_port)),
        # Deliver requests compressed, so that they are decompressed here, within limits.
        ("grpc.per_message_decompression", 0),
        ("grpc.max_allowed_incoming_connections", settings.connections_max),
        ("grpc.server_handshake_timeout_ms", _ms(settings.head_timeout_s)),
        ("grpc.keepalive_time_ms", _ms(keepalive.ping_interval_s)),
        ("grpc.keepalive_timeout_ms", _ms(keepalive.ping_timeout_s)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(keepalive.ping_interval_min_s)),
    ]
    for name in ("max_connection_idle", "max_connection_age", "max_connection_age_grace"):
        seconds = getattr(keepalive, f"{name}_s")
        if seconds is not None:
            options.append((f"grpc.{name}_ms", _ms(seconds)))
    return options


def _ms(seconds: float) -> int:
    return min(math.ceil(seconds * 1000), 2**31 - 1)


def encoding_of(message: bytes, context: Any) -> Encoding:
    """Return the compression of the message that was just read."""
    if isinstance(context, Call):
        return context.message_encoding
    return "gzip" if message.startswith(GZIP_MAGIC) else "identity"


async def _call_handler(handler: Handler, call: Call) -> bytes | None:
    return await handler(call, call)


async def refuse_call(context: Any, verdict: IntakeResult) -> None:
    """End a call with the status and retry delay of *verdict*."""
    code = _CODES[verdict.outcome]
    status = encode_status(code.value[0], verdict.message, retry_after_s=verdict.retry_after_s)
    metadata: tuple[tuple[str, bytes], ...] = (("grpc-status-details-bin", status),)
    if verdict.retry_after_s is not None:
        # The Python SDK's exporter reads it from here.
        metadata += (("google.rpc.retryinfo-bin", encode_retry_info(verdict.retry_after_s)),)
    await context.abort(code, verdict.message, metadata)


class OtlpGrpcReceiver(PortReceiver):
    """
    Listens for OTLP/gRPC, for one store. A context manager: started inside, stopped on leaving.

    Args:
        store: the destination of requests.
        settings: address, sizes, acknowledgement, window and security.
        clock: passed to the intake.
        observer: passed to the intake; receives events about an exposed port and about rejected clients.
        intake: another receiver's intake, to share it and its window.
        problems: returns why the receiver is not ready; the health service reports SERVING while there are none.

    Raises:
        StoreFailedError: the store could not be synced after the dedupe window was rebuilt.
        SettingsError: certificates or credentials cannot be read.
    """

    def __init__(
        self,
        store: IntakeStore,
        settings: OtlpSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        intake: OtlpIntake | None = None,
        problems: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.settings = OtlpSettings() if settings is None else settings
        self.intake = intake or OtlpIntake(store, self.settings, clock=clock, observer=observer)
        super().__init__("otlp-grpc", self.settings, observer or self.intake.observer)
        tls = self.settings.security.tls
        self._credentials: Any = None
        if tls is not None and self.settings.transport == "grpcio":
            self._credentials = grpc_credentials(tls, self._observer)
        elif tls is not None:
            self._credentials = server_context(tls, self._observer, protocols=["h2"])
        self._server: Any = None
        self._problems = problems
        self._health: HealthService | None = None
        self._handling = 0  # requests that wait for the pool or are in it; only used in the loop
        self._reading = Places(self.settings.requests_waiting_max)

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> int:
        health = self._health = HealthService(self._problems, self._services())
        await health.start()
        if self.settings.transport == "grpcio":
            return await self._listen_with_grpcio(health)
        methods = health.methods()
        for path, handler in self._handlers().items():
            methods[path] = Method(partial(_call_handler, handler))
        self._server = server = GrpcServer(methods, self.settings, self._credentials, self._observer)
        return await server.start()

    async def _listen_with_grpcio(self, health: HealthService) -> int:
        self._server = server = aio.server(options=server_options(self.settings))
        for path, handler in self._handlers().items():
            _, service, method = path.split("/")
            # On the wire, one message is a stream of one. Declared as a stream, it is not read before this receiver
            # has checked the credentials, and the wait for it is limited.
            is_unary = path in EXPORT_PATHS.values()
            kind = grpc.stream_unary_rpc_method_handler if is_unary else grpc.stream_stream_rpc_method_handler
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: kind(handler)})])
        health.add_to(server)
        address = self.settings.listening_addr
        try:
            if self._credentials is None:
                port: int = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError:
            # gRPC reports the failure without its reason.
            try_to_bind(address)
            raise
        await server.start()
        return port

    def _services(self) -> list[str]:
        """Return the names of the services on this port."""
        return list(SERVICES.values())

    def _handlers(self) -> dict[str, Handler]:
        """Return the handlers of calls by path; a receiver of more protocols on this port adds its own."""
        return {path: self._exporter(signal) for signal, path in EXPORT_PATHS.items()}

    async def _close(self, grace_s: float) -> None:
        health, self._health = self._health, None
        if health is not None:
            await health.stop()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)

    def _exporter(self, signal: str) -> Callable[[AsyncIterator[bytes], Any], Coroutine[Any, Any, bytes]]:
        async def export(messages: AsyncIterator[bytes], context: Any) -> bytes:
            if not self._is_authorized(context):
                self._observer.count("quiver.receiver.unauthorized_total", protocol="grpc")
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the authorization header is missing or unknown")
            if self.is_stopping or self._handling >= self.settings.requests_waiting_max:
                await refuse_call(context, _BUSY)
            return await self._export(signal, await self._read(messages, context), context)

        return export

    def _handled(self, _accepted: object) -> None:
        self._handling -= 1

    def _is_authorized(self, context: Any) -> bool:
        if self._authenticator is None:
            return True
        return self._authenticator.check(
            value for key, value in context.invocation_metadata() if key == "authorization"
        )

    async def _read(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        """Return the call's one message. A call without a message, or a slow one, is ended."""
        data = b""
        with self._reading.take(network_of(address_of_peer(context.peer()))) as place:
            if place is None:
                await refuse_call(context, _BUSY)
                return data
            try:
                async with asyncio.timeout(self.settings.body_timeout_s) as timer:
                    with place.waiting(timer):
                        data = await anext(aiter(messages))
            except StopAsyncIteration:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
            except TimeoutError:
                if place.is_evicted:
                    await refuse_call(context, _BUSY)
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")
        return data

    async def _export(self, signal: str, data: bytes, context: Any) -> bytes:
        accept = partial(
            self.intake.accept,
            signal,
            data,
            encoding=encoding_of(data, context),
            headers=tuple(context.invocation_metadata()) if self.settings.capture_headers else (),
        )
        accepted = asyncio.get_running_loop().run_in_executor(self.pool, accept)
        # Requests of cancelled calls still count: otherwise they could fill the pool's queue.
        self._handling += 1
        accepted.add_done_callback(self._handled)
        verdict = await asyncio.shield(accepted)
        if not verdict.confirmed:
            await refuse_call(context, verdict)
        # Empty means an Export…ServiceResponse without partial success: everything was accepted.
        return encode_partial_success(verdict.warning) if verdict.warning else b""
