"""Producers and a destination for the soak of deliveries: which requests were confirmed, and which arrived."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

POISON_EVERY = 97
"""Each request of such a number is one that the far side never takes."""


FIRST_NS = 1_700_000_000_000_000_000
"""The time of the record with number 0; each number is a nanosecond later."""


def request_of(number: int) -> bytes:
    """Return an export request with one record, whose body and time are its number."""
    made = ExportLogsServiceRequest()
    record = made.resource_logs.add().scope_logs.add().log_records.add()
    record.time_unix_nano = FIRST_NS + number
    record.body.int_value = number
    return made.SerializeToString()


def numbers_of(data: bytes) -> list[int]:
    """Return the numbers in an export request."""
    request = ExportLogsServiceRequest.FromString(data)
    return [
        record.body.int_value
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def is_poison(number: int) -> bool:
    """Return whether the destination refuses the request of that number permanently."""
    return number % POISON_EVERY == POISON_EVERY - 1


class FarSide:
    """An OTLP/HTTP endpoint that can be stopped and started again on its port, and records all requests."""

    def __init__(self) -> None:
        self.arrived: dict[int, int] = {}
        """Number → how often it was confirmed."""
        self.batch_ids: dict[int, set[str]] = {}
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def up(self) -> None:
        far = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                status = far.take(numbers_of(data), self.headers.get("X-Quiver-Batch-Id", ""))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def take(self, numbers: list[int], batch_id: str) -> int:
        with self._lock:
            if self._server is None:
                return 503
            for number in numbers:
                self.batch_ids.setdefault(number, set()).add(batch_id)
            if any(is_poison(number) for number in numbers):
                return 400
            for number in numbers:
                self.arrived[number] = self.arrived.get(number, 0) + 1
        return 200


class Producer(threading.Thread):
    """Posts numbers in order; each once, regardless of the response, so that nothing is stored twice."""

    def __init__(self, port: int, first: int, step: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.confirmed: set[int] = set()
        self.unknown: set[int] = set()
        """Neither confirmed nor refused: it may be stored, once."""
        self.stopping = threading.Event()
        self._url = f"http://127.0.0.1:{port}/v1/logs"
        self._next, self._step, self._pause_s = first, step, pause_s

    @property
    def tried(self) -> int:
        """How many numbers were posted."""
        return len(self.confirmed) + len(self.unknown)

    def run(self) -> None:
        while not self.stopping.wait(self._pause_s):
            number, self._next = self._next, self._next + self._step
            self.unknown.add(number)
            post = urllib.request.Request(self._url, request_of(number), {"Content-Type": "application/x-protobuf"})
            with contextlib.suppress(OSError), urllib.request.urlopen(post, timeout=30) as answer:
                if answer.status == 200:
                    self.confirmed.add(number)
                    self.unknown.discard(number)
