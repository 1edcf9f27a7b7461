"""
OTLP over HTTP: protobuf or JSON bodies, plain, gzip or zstd, in a separate thread and event loop.

A full, failed or closed store answers 503 with Retry-After. Invalid requests get 400, unknown credentials 401, a
request over the limits 413, an unknown content type or encoding 415. Bodies of errors are `google.rpc.Status`, in the
format of the request.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pyarrow as pa
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, PayloadEncodingError

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError, StoreClosedError
from quiver.observe import Observer
from quiver.receivers.intake import Encoding, IntakeResult, IntakeStore, OtlpIntake
from quiver.receivers.otlp.http_listener import ConnectionLimits, HttpListener
from quiver.receivers.places import Place, Places, network_of
from quiver.receivers.port import PortReceiver
from quiver.receivers.rpc_status import encode_partial_success, encode_status
from quiver.receivers.security import server_context
from quiver.receivers.settings import HTTP_ADDRESS, HTTP_IDLE_S, OtlpSettings, split_address

__all__ = ["JSON", "PATHS", "PROTOBUF", "OtlpHttpReceiver"]

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

PATHS = {"/v1/logs": "logs", "/v1/traces": "traces", "/v1/metrics": "metrics"}
"""Path → the signal of its requests."""

_HTTP_STATUS = {"invalid": 400, "too_large": 413, "full": 503, "unavailable": 503}
_RPC_CODES = {400: 3, 401: 16, 408: 4, 413: 8, 415: 3, 503: 14}
_ENCODINGS: dict[str, Encoding] = {"": "identity", "identity": "identity", "gzip": "gzip", "zstd": "zstd"}
_BROKEN_OFF = (ConnectionError, web.RequestPayloadError, PayloadEncodingError)
_BUSY_RETRY_S = 1.0
_ARRIVING = "OTLP requests that are arriving"
_BODY_PATIENCE_S = 10.0
"""How long the first bytes of a body may take. Each further byte adds time, up to the request's time-out."""
_BODY_BYTES_PER_S_MIN = 1024.0
"""The minimum rate of a body after the first seconds."""
_SHUTDOWN_S = 0.5
"""How long connections may take to close, after the grace period of their requests."""


class _ClientDataFilter(logging.Filter):
    """Keeps client data out of the log: an invalid head is the client's error, and may have credentials."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


_log = logging.getLogger("quiver.receiver.http")
_log.addFilter(_ClientDataFilter())


class _Body:
    """The number of bytes of a request that have arrived."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class _Reply:
    """Answers to one request, in its format, compressed if it accepts that."""

    def __init__(self, request: web.Request) -> None:
        self._json = request.content_type == JSON
        self._accepted = request.headers.get("Accept-Encoding", "")

    def refusal(self, status: int, message: str, *, retry_after_s: float | None = None) -> web.Response:
        code = _RPC_CODES[status]
        # It may repeat a header, in which invalid UTF-8 appears as lone surrogates.
        message = message.encode("utf-8", "replace").decode()
        answer = json.dumps({"code": code, "message": message}).encode() if self._json else encode_status(code, message)
        response = self._response(status, answer)
        if retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(retry_after_s))
        return response

    def verdict(self, verdict: IntakeResult) -> web.Response:
        if not verdict.confirmed:
            status = _HTTP_STATUS[verdict.outcome]
            return self.refusal(status, verdict.message, retry_after_s=verdict.retry_after_s)
        if self._json:
            partial_success = {"partialSuccess": {"errorMessage": verdict.warning}} if verdict.warning else {}
            return self._response(200, json.dumps(partial_success).encode())
        return self._response(200, encode_partial_success(verdict.warning) if verdict.warning else b"")

    def _response(self, status: int, body: bytes) -> web.Response:
        encoding = _best_encoding(self._accepted) if body else ""
        headers = {}
        if encoding:
            headers["Content-Encoding"] = encoding
            body = gzip.compress(body, mtime=0) if encoding == "gzip" else _zstd(body)
        return web.Response(status=status, body=body, content_type=JSON if self._json else PROTOBUF, headers=headers)


def _zstd(body: bytes) -> bytes:
    packed: bytes = pa.compress(body, codec="zstd", asbytes=True)
    return packed


def _best_encoding(accepted: str) -> str:
    """Return gzip or zstd if an `Accept-Encoding` header accepts it; otherwise the empty string."""
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if name.strip() in {"gzip", "zstd"} and weight.replace(" ", "").rstrip("0.") != "q=":
            return name.strip()
    return ""


class OtlpHttpReceiver(PortReceiver):
    """
    Listens for OTLP/HTTP, for one store. A context manager: started inside, stopped on leaving.

    Args:
        store: the destination of requests.
        settings: address (default 127.0.0.1:4318), sizes, acknowledgement, window and security.
        clock: passed to the intake.
        observer: passed to the intake; receives events about an exposed port and about rejected clients.
        intake: another receiver's intake, to share it and its window.

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
    ) -> None:
        self.settings = replace(OtlpSettings(), listening_addr=HTTP_ADDRESS) if settings is None else settings
        self.intake = intake or OtlpIntake(store, self.settings, clock=clock, observer=observer)
        super().__init__("otlp-http", self.settings, observer or self.intake.observer)
        tls = self.settings.security.tls
        self._context = None if tls is None else server_context(tls, self._observer)
        self._runner: web.AppRunner | None = None
        self._listener: HttpListener | None = None
        self._in_hand = 0  # requests between their head and their answer; only used in the loop
        self._handling = 0  # of these, those whose body has arrived
        self._reading = Places(self.settings.requests_waiting_max)
        self._receiving_bytes = 0  # of the bodies of current requests; only used in the loop
        self._idle: asyncio.Event | None = None

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> int:
        self._idle = asyncio.Event()
        self._idle.set()
        app = web.Application()
        for path, signal in PATHS.items():
            app.router.add_post(path, self._exporter(signal))
        self._runner = runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            logger=_log,
            auto_decompress=False,  # decompressed in a worker, within limits
            shutdown_timeout=_SHUTDOWN_S,
        )
        await runner.setup()
        if runner.server is None:
            raise StoreClosedError("the server was closed while it started")
        settings = self.settings
        limits = ConnectionLimits(
            connections_max=settings.connections_max,
            head_timeout_s=settings.head_timeout_s,
            idle_timeout_s=settings.keepalive.max_connection_idle_s or HTTP_IDLE_S,
            age_s=settings.keepalive.max_connection_age_s,
        )
        self._listener = HttpListener(
            runner.server, limits, self._context, self._one_too_many, share_port=settings.share_port
        )
        return await self._listener.listen(*split_address(settings.listening_addr))

    def _one_too_many(self) -> None:
        self._observer.count("quiver.receiver.connections_refused_total", protocol="http")

    async def _close(self, grace_s: float) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._idle is not None:
            try:
                async with asyncio.timeout(grace_s):
                    await self._idle.wait()
            except TimeoutError:
                pass
        if self._runner is not None:
            await self._runner.cleanup()

    # ── one request ──────────────────────────────────────────────────────────────────────────────────

    def _exporter(self, signal: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def export(request: web.Request) -> web.Response:
            reply = _Reply(request)
            if not self._is_authorized(request):
                self._observer.count("quiver.receiver.unauthorized_total", protocol="http")
                return self._unauthorized(reply)
            if self.is_stopping or self._handling >= self.settings.requests_waiting_max:
                return _closing(reply.refusal(503, "busy or shutting down", retry_after_s=_BUSY_RETRY_S))
            self._in_hand += 1
            if self._idle is not None:
                self._idle.clear()
            body = _Body()
            try:
                with nullcontext() if self._listener is None else self._listener.handling(request):
                    response = await self._export(signal, request, reply, body)
                is_old = self._listener is not None and self._listener.is_old(request)
                return _closing(response) if is_old else response
            finally:
                self._receiving_bytes -= body.size
                self._in_hand -= 1
                if self._in_hand == 0 and self._idle is not None:
                    self._idle.set()

        return export

    def _is_authorized(self, request: web.Request) -> bool:
        if self._authenticator is None:
            return True
        return self._authenticator.check(request.headers.getall("Authorization", ()))

    def _unauthorized(self, reply: _Reply) -> web.Response:
        response = reply.refusal(401, "the authorization header is missing or unknown")
        if self._authenticator is not None:
            response.headers["WWW-Authenticate"] = self._authenticator.challenge
        return _closing(response)

    async def _export(self, signal: str, request: web.Request, reply: _Reply, body: _Body) -> web.Response:
        name = request.headers.get("Content-Encoding", "").strip().lower()
        encoding = _ENCODINGS.get(name)
        if request.content_type not in {PROTOBUF, JSON}:
            reason = f"content type {request.content_type} is not {PROTOBUF} or {JSON}"
            return _closing(reply.refusal(415, reason))
        if encoding is None:
            return _closing(reply.refusal(415, f"content encoding {name} is not gzip or zstd"))
        try:
            data = await self._read(request, body)
        except TimeoutError:
            return _closing(reply.refusal(408, "the request did not arrive in time"))
        except CapacityError as crowded:
            return _closing(reply.refusal(503, str(crowded), retry_after_s=crowded.retry_after_s))
        except _BROKEN_OFF as error:
            return _closing(reply.refusal(400, f"the request ended early: {error}"))
        if data is None:
            return _closing(reply.verdict(self.intake.too_large(request.content_length)))
        accept = partial(
            self.intake.accept,
            signal,
            data,
            encoding=encoding,
            json=request.content_type == JSON,
            headers=tuple(request.headers.items()) if self.settings.capture_headers else (),
        )
        if self._handling >= self.settings.requests_waiting_max:
            return _closing(reply.refusal(503, "busy", retry_after_s=_BUSY_RETRY_S))
        self._handling += 1
        try:
            return reply.verdict(await asyncio.get_running_loop().run_in_executor(self.pool, accept))
        finally:
            self._handling -= 1

    async def _read(self, request: web.Request, body: _Body) -> bytes | None:
        """
        Return the body as it is on the wire, or None if it exceeds the limit; no more than the limit is read.

        A body takes a place once its first bytes arrive. It must arrive at a minimum rate, and within the time-out.

        Raises:
            CapacityError: all arriving bodies together exceed the limit, or there is no place for one more.
            TimeoutError: the body is too slow.
        """
        if request.content_length is not None and request.content_length > self.settings.max_request_bytes:
            return None
        began = asyncio.get_running_loop().time()
        place: Place | None = None
        try:
            async with asyncio.timeout(self._patience_s) as timer:
                first = await request.content.readany()
                with self._reading.take(network_of(request.remote or "")) as place:
                    if place is None:
                        raise CapacityError(_ARRIVING, retry_after_s=_BUSY_RETRY_S)
                    with place.waiting(timer):
                        return await self._read_on(
                            request, body, first, partial(self._extend, place, timer, began, body)
                        )
        except TimeoutError:
            if place is not None and place.is_evicted:
                raise CapacityError(_ARRIVING, retry_after_s=_BUSY_RETRY_S) from None
            raise

    @property
    def _patience_s(self) -> float:
        return min(self.settings.body_timeout_s, _BODY_PATIENCE_S)

    def _extend(self, place: Place, timer: asyncio.Timeout, began: float, body: _Body) -> None:
        """Extend the time of a body according to the bytes received so far."""
        if not place.is_evicted:
            earned_s = self._patience_s + body.size / _BODY_BYTES_PER_S_MIN
            timer.reschedule(began + min(self.settings.body_timeout_s, earned_s))

    async def _read_on(
        self, request: web.Request, body: _Body, first: bytes, extend: Callable[[], None]
    ) -> bytes | None:
        size_max = self.settings.max_request_bytes
        parts: list[bytes] = []
        part = first
        while part:
            body.size += len(part)
            self._receiving_bytes += len(part)
            if body.size > size_max:
                return None
            if self._receiving_bytes > self.settings.receiving_bytes_max:
                raise CapacityError(_ARRIVING, retry_after_s=_BUSY_RETRY_S)
            parts.append(part)
            extend()
            part = await request.content.readany()
        return b"".join(parts)


def _closing(response: web.Response) -> web.Response:
    """Close the connection after the answer: the rest of the body is not read."""
    response.force_close()
    return response
