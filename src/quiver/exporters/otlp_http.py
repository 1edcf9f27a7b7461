"""An OTLP client over HTTP: protobuf, a few persistent connections, requests sent as they are stored."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import ssl
import threading

import pyarrow as pa

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.exporters.certificates import client_context
from quiver.exporters.reply import Reply, http_reply
from quiver.exporters.settings import ExporterSettings

__all__ = ["OtlpHttpSender"]

_PATHS = {"logs": "/v1/logs", "traces": "/v1/traces", "metrics": "/v1/metrics"}
_BATCH_ID_HEADER = "X-Quiver-Batch-Id"
_RESPONSE_BYTES_MAX = 64 * 1024
_READ_BYTES = 8 * 1024
_GZIP_LEVEL = 1
"""Telemetry is repetitive: higher levels take several times as long and gain a few percent."""

_Connection = http.client.HTTPConnection


class OtlpHttpSender:
    """
    Sends export requests over HTTP/1.1. Thread-safe. `send` does not raise for failures of network or destination.

    Redirects are not followed: they would send the headers, which may contain a token, to another host.

    Args:
        settings: endpoint and options. Certificates are read once, here.
        clock: measures the timeout and interprets dates in ``Retry-After``.

    Raises:
        SettingsError: a certificate file cannot be read or is invalid.
    """

    def __init__(self, settings: ExporterSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self._clock = clock
        self._target = settings.target
        self._tls = client_context(settings) if self._target.tls else None
        self._headers = {"User-Agent": "quiver", **settings.headers, "Content-Type": "application/x-protobuf"}
        if settings.compression_method != "none":
            self._headers["Content-Encoding"] = settings.compression_method
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    def send(self, signal: str, request: bytes, batch_id: str = "") -> Reply:
        """Send one request and wait about `timeout_s` seconds for the answer."""
        headers = {**self._headers, _BATCH_ID_HEADER: batch_id} if batch_id else self._headers
        body = request
        if self.settings.compression_method == "gzip":
            body = gzip.compress(request, compresslevel=_GZIP_LEVEL, mtime=0)
        elif self.settings.compression_method == "zstd":
            body = pa.compress(request, codec="zstd", asbytes=True)
        deadline = self._clock.monotonic() + self.settings.timeout_s
        while True:
            connection, is_used = self._take()
            if connection is None:
                return Reply("retry", "CLOSED", "the sender was closed")
            try:
                return self._exchange(connection, signal, body, headers, deadline)
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
                if is_used and isinstance(error, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
                    continue  # the server closed the idle connection
                reason = "TIMEOUT" if isinstance(error, TimeoutError) else "CONNECTION"
                return Reply("retry", reason, f"{type(error).__name__}: {error}")

    def _exchange(
        self, connection: _Connection, signal: str, body: bytes, headers: dict[str, str], deadline: float
    ) -> Reply:
        self._limit(connection, deadline)
        is_sent = True
        try:
            connection.request("POST", self._target.path + _PATHS[signal], body, headers)
        except ConnectionError:
            # A server that finds the request too large may answer and close before it has read all of it.
            is_sent = False
            if connection.sock is None:
                raise
        with connection.getresponse() as response:
            content = self._read(connection, response, deadline)
            is_complete = response.isclosed() if response.chunked else response.length == 0
        # After an interim answer the final one still follows: it must not be read as the answer to another request.
        may_keep = is_sent and is_complete and not response.will_close and response.status >= 200
        if may_keep:
            self._keep(connection)
        else:
            self._drop(connection)
        if 200 <= response.status < 300 and "html" in (response.getheader("Content-Type") or "").lower():
            # A portal, a proxy or a wrong port: it accepts everything and stores nothing.
            return Reply("retry", "NOT_OTLP", f"{self._target.address} answered with a web page")
        retry_after = response.getheader("Retry-After")
        now_ns = self._clock.now_ns()
        return http_reply(response.status, content, retry_after, now_ns=now_ns, denied=self.settings.denied)

    def _read(self, connection: _Connection, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """Return the body, truncated at the limit. A server that sends it byte by byte runs into the deadline."""
        content = b""
        while len(content) < _RESPONSE_BYTES_MAX:
            self._limit(connection, deadline)
            data = response.read1(_READ_BYTES)
            if not data:
                break
            content += data
        return content

    def _limit(self, connection: _Connection, deadline: float) -> None:
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self.settings.timeout_s:g} s")
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────

    def _take(self) -> tuple[_Connection | None, bool]:
        with self._lock:
            if self._closed:
                return None, False
            is_used = bool(self._idle)
            connection = self._idle.pop() if self._idle else self._new()
            self._busy.add(connection)
            return connection, is_used

    def _new(self) -> _Connection:
        target = self._target
        if self._tls is not None:
            return http.client.HTTPSConnection(target.host, target.port, context=self._tls)
        return _Connection(target.host, target.port)

    def _keep(self, connection: _Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if not self._closed and len(self._idle) < self.settings.in_flight_max:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close all connections; requests in flight get the outcome `retry`. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            sock = connection.sock
            if sock is not None:
                # Do not close it here: the waiting thread would use a descriptor that may be reused by then.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
