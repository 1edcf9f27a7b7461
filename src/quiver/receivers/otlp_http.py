"""
OTLP over HTTP: protobuf bodies, plain or gzip, on a thread and event loop of its own.

A full buffer and a failed or closed store answer 503 with Retry-After, bytes that are no request 400, a request over
the limits 413, another content type or encoding 415. Bodies of errors are `google.rpc.Status`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import PayloadEncodingError

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import RetryLater, StoreClosed
from quiver.observe import Observer
from quiver.receivers.intake import IntakeStore, OtlpIntake, Verdict
from quiver.receivers.rpc_status import encode_status
from quiver.receivers.settings import HTTP_ADDRESS, OtlpSettings, split_address

__all__ = ["PATHS", "PROTOBUF", "OtlpHttpReceiver"]

PROTOBUF = "application/x-protobuf"

PATHS = {"/v1/logs": "logs", "/v1/traces": "traces", "/v1/metrics": "metrics"}
"""Path → the signal that is posted there."""

_HTTP_STATUS = {"invalid": 400, "too_large": 413, "full": 503, "unavailable": 503}
_RPC_CODES = {400: 3, 408: 4, 413: 8, 415: 3, 503: 14}
_IDENTITY = {"", "identity"}
_BROKEN_OFF = (ConnectionError, web.RequestPayloadError, PayloadEncodingError)
_BUSY_RETRY_S = 1.0
_SHUTDOWN_S = 0.5
"""What connections get to close themselves, after the requests had their grace."""


def _refusal(status: int, message: str, *, retry_after_s: float | None = None) -> web.Response:
    headers = {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    body = encode_status(_RPC_CODES[status], message)
    return web.Response(status=status, body=body, content_type=PROTOBUF, headers=headers)


class OtlpHttpReceiver:
    """
    Listens for OTLP/HTTP and feeds one store. A context manager: started inside, stopped on leaving.

    Args:
        store: where requests go.
        settings: where to listen (127.0.0.1:4318 unless told otherwise), sizes, ack and window.
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
        self.settings = replace(OtlpSettings(), listening_addr=HTTP_ADDRESS) if settings is None else settings
        self.intake = intake or OtlpIntake(store, self.settings, clock=clock, observer=observer)
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._runner: web.AppRunner | None = None
        self._handling = 0  # requests between their first byte of body and their answer; the loop's own
        self._idle: asyncio.Event | None = None
        self._stopping = False

    def start(self) -> int:
        """
        Listen. Returns the bound port, which is also `port` from now on.

        Raises:
            RetryLater: the address is taken or not ours.
            StoreClosed: the receiver was stopped; make another.
        """
        if self._stopping:
            raise StoreClosed("this receiver was stopped; make another")
        if self._thread is not None:
            return self.port
        self._pool = ThreadPoolExecutor(self.settings.workers, thread_name_prefix="quiver-otlp-http-worker")
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="quiver-otlp-http", daemon=True)
        self._thread.start()
        try:
            self.port = asyncio.run_coroutine_threadsafe(self._listen(), loop).result()
        except OSError as error:
            self.stop(0)
            raise RetryLater(f"cannot listen on {self.settings.listening_addr}: {error}") from error
        return self.port

    def stop(self, grace_s: float = 5.0) -> None:
        """
        Refuse new requests at once and give those being handled *grace_s* seconds. Idempotent.
        """
        self._stopping = True
        thread, loop, pool = self._thread, self._loop, self._pool
        self._thread = None
        if thread is None or loop is None or pool is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(grace_s), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> int:
        self._idle = asyncio.Event()
        self._idle.set()
        app = web.Application()
        for path, signal in PATHS.items():
            app.router.add_post(path, self._exporter(signal))
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            auto_decompress=False,  # inflated in a worker, within bounds
            shutdown_timeout=_SHUTDOWN_S,
        )
        self._runner = runner
        await runner.setup()
        host, port = split_address(self.settings.listening_addr)
        await web.TCPSite(runner, host, port).start()
        return int(runner.addresses[0][1])

    async def _close(self, grace_s: float) -> None:
        runner = self._runner
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        if self._idle is not None:
            try:
                async with asyncio.timeout(grace_s):
                    await self._idle.wait()
            except TimeoutError:
                pass
        await runner.cleanup()

    # ── one request ──────────────────────────────────────────────────────────────────────────────────

    def _exporter(self, signal: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def export(request: web.Request) -> web.Response:
            if self._stopping or self._handling >= self.settings.requests_waiting_max:
                return _refusal(503, "busy or shutting down", retry_after_s=_BUSY_RETRY_S)
            self._handling += 1
            if self._idle is not None:
                self._idle.clear()
            try:
                return await self._export(signal, request)
            finally:
                self._handling -= 1
                if self._handling == 0 and self._idle is not None:
                    self._idle.set()

        return export

    async def _export(self, signal: str, request: web.Request) -> web.Response:
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if request.content_type != PROTOBUF:
            return _closing(_refusal(415, f"content type {request.content_type} is not {PROTOBUF}"))
        if encoding not in _IDENTITY and encoding != "gzip":
            return _closing(_refusal(415, f"content encoding {encoding} is not gzip"))
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                data = await self._body(request)
        except TimeoutError:
            return _closing(_refusal(408, "the request did not arrive in time"))
        except _BROKEN_OFF as error:
            return _closing(_refusal(400, f"the request broke off: {error}"))
        if data is None:
            return _closing(_answer(self.intake.too_large(request.content_length)))
        accept = partial(self.intake.accept, signal, data, gzipped=encoding == "gzip")
        return _answer(await asyncio.get_running_loop().run_in_executor(self._pool, accept))

    async def _body(self, request: web.Request) -> bytes | None:
        """
        Return the body as it is on the wire; None, having read no more than the limit, when it is larger.
        """
        size_max = self.settings.max_request_bytes
        if request.content_length is not None and request.content_length > size_max:
            return None
        parts: list[bytes] = []
        size = 0
        async for part in request.content.iter_any():
            size += len(part)
            if size > size_max:
                return None
            parts.append(part)
        return b"".join(parts)


def _answer(verdict: Verdict) -> web.Response:
    if verdict.confirmed:
        return web.Response(status=200, body=b"", content_type=PROTOBUF)
    return _refusal(_HTTP_STATUS[verdict.outcome], verdict.message, retry_after_s=verdict.retry_after_s)


def _closing(response: web.Response) -> web.Response:
    """
    Close the connection behind the answer: what is left of the body is not read.
    """
    response.force_close()
    return response
