"""A proxy in front of an object store that counts requests and bytes, and can answer later."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}


class CountingProxy:
    """
    Requests by kind, such as ``PUT``, ``LIST`` or ``GET range``, and the bytes of their bodies in both directions.

    The Host header is passed on unchanged, so signatures remain valid.
    """

    def __init__(self, endpoint: str, *, delay_s: float = 0.0) -> None:
        self.requests: Counter[str] = Counter()
        self.sent_bytes = 0
        self.received_bytes = 0
        self.delay_s = delay_s
        self.target = urlsplit(endpoint).netloc
        self._guard = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def count(self, kind: str, sent_bytes: int, received_bytes: int) -> None:
        """Add a request."""
        with self._guard:
            self.requests[kind] += 1
            self.sent_bytes += sent_bytes
            self.received_bytes += received_bytes

    def reset(self) -> None:
        """Start at zero."""
        with self._guard:
            self.requests.clear()
            self.sent_bytes = self.received_bytes = 0

    @contextmanager
    def running(self) -> Iterator[CountingProxy]:
        """Serve during the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


def kind_of(method: str, path: str, headers: http.client.HTTPMessage) -> str:
    """Return the name under which a request is counted."""
    url = urlsplit(path)
    if method == "GET" and "list-type" in url.query:
        return "LIST"
    if method == "POST" and "delete" in url.query.split("&")[0]:
        return "DELETE"
    if method == "GET" and "Range" in headers:
        return "GET range"
    return method


def _handler(proxy: CountingProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if proxy.delay_s:
                time.sleep(proxy.delay_s)
            upstream = http.client.HTTPConnection(proxy.target, timeout=60)
            try:
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP_BY_HOP:
                        upstream.putheader(name, value)
                upstream.endheaders(body)
                answer = upstream.getresponse()
                data = answer.read()
            except OSError:
                self.close_connection = True  # the client sees what it would see without the proxy
                return
            finally:
                upstream.close()
            proxy.count(kind_of(self.command, self.path, self.headers), len(body), len(data))
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815 - the names of the base class

        def log_message(self, *_: object) -> None:
            pass

    return Handler
