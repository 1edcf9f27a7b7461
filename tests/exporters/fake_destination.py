"""A scripted subscriber, sender and destination."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pyarrow as pa

from quiver.bundle import OTLP_SCHEMA, OTLP_SLOTS, Bundle, BundleRef
from quiver.exporters.reply import Reply
from quiver.store.subscribers.records import SubscriberLag

COLLECTOR = "opentelemetry.proto.collector"
SERVICES = {
    "logs": f"{COLLECTOR}.logs.v1.LogsService",
    "traces": f"{COLLECTOR}.trace.v1.TraceService",
    "metrics": f"{COLLECTOR}.metrics.v1.MetricsService",
}


def otlp_bundle(*requests: bytes, signal: str = "logs") -> Bundle:
    batch = pa.record_batch([pa.array(requests, pa.binary())], schema=OTLP_SCHEMA)
    return Bundle({OTLP_SLOTS[signal]: batch})


class FakeHandle:
    def __init__(self, source, ref, bundle) -> None:
        self.source, self.ref, self._bundle = source, ref, bundle

    @property
    def bundle(self):
        if isinstance(self._bundle, Exception):
            raise self._bundle
        return self._bundle

    def ack(self):
        self.source.settled(self, "acked")

    def reject(self, reason=""):
        self.source.settled(self, f"rejected: {reason}")

    def nack(self, delay=0.0):
        self.source.deferred(self, delay)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.source.given_back(self)


class FakeRun:
    segment = 0
    unreadable = ()

    def __init__(self, handles) -> None:
        self.left = {handle.ref.index: handle for handle in handles}
        self.first, self.last = min(self.left), max(self.left)

    def __iter__(self):
        for position, handle in list(self.left.items()):
            try:
                yield position, handle.bundle
            except Exception:
                self.unreadable += (position,)
                raise

    def split(self, position):
        return self.left.pop(position)

    def ack(self, *, through=None):
        for position in [position for position in self.left if through is None or position <= through]:
            self.left.pop(position).ack()


class FakeSource:
    """Bundles in a queue, oldest first; a deferred one returns when its time has come."""

    id = "out"

    def __init__(self, clock, *bundles) -> None:
        self.clock = clock
        self.free = deque(FakeHandle(self, BundleRef(0, number), bundle) for number, bundle in enumerate(bundles))
        self.waiting: list[tuple[float, FakeHandle]] = []
        self.outcomes: dict[int, str] = {}
        self.delays: dict[int, list[float]] = {}
        self.lock = threading.Lock()

    def add(self, bundle) -> int:
        index = len(self.free) + len(self.waiting) + len(self.outcomes)
        self.free.append(FakeHandle(self, BundleRef(0, index), bundle))
        return index

    def next_bundles(self, count, timeout=None):
        with self.lock:
            now = self.clock.monotonic()
            due = sorted((one for one in self.waiting if one[0] <= now), key=lambda one: one[1].ref)
            self.waiting = [one for one in self.waiting if one[0] > now]
            self.free.extendleft(handle for _, handle in reversed(due))
            return [self.free.popleft() for _ in range(min(count, len(self.free)))]

    def next_run(self, count_max, timeout=None):
        handles = self.next_bundles(count_max, timeout)
        length = next(
            (at for at, one in enumerate(handles) if one.ref.index != handles[0].ref.index + at), len(handles)
        )
        for handle in reversed(handles[length:]):
            self.given_back(handle)
        return FakeRun(handles[:length]) if handles else None

    def settled(self, handle, outcome):
        with self.lock:
            assert handle.ref.index not in self.outcomes
            self.outcomes[handle.ref.index] = outcome

    def deferred(self, handle, seconds):
        with self.lock:
            self.delays.setdefault(handle.ref.index, []).append(seconds)
            self.waiting.append((self.clock.monotonic() + seconds, handle))

    def given_back(self, handle):
        with self.lock:
            self.free.appendleft(handle)

    def pending_bundles_in_range(self, first_segment, last_segment):
        return [handle.ref for handle in (*self.free, *(one for _, one in self.waiting))]

    def lag(self):
        pending = len(self.free) + len(self.waiting)
        return SubscriberLag(pending, 0, 0, (0,) if pending else (), 0, 0.0)


class FakeSender:
    """Answers with `answer(signal, request)`; confirms everything while that is None."""

    def __init__(self, answer=None) -> None:
        self.answer = answer
        self.sent: list[tuple[str, bytes]] = []
        self.batch_ids: list[str] = []
        self.closed = 0

    def send(self, signal, request, batch_id="") -> Reply:
        self.sent.append((signal, request))
        self.batch_ids.append(batch_id)
        return Reply("confirmed") if self.answer is None else self.answer(signal, request)

    def close(self):
        self.closed += 1


class FakeGrpcDestination:
    """
    A real gRPC server.

    `answers` are used in order: bytes are the response; a tuple of code, message and trailing metadata ends the call.
    Then the answer is an empty success.
    """

    def __init__(self, *answers, port=0, credentials=None, bytes_max=None) -> None:
        self.answers = deque(answers)
        self.got: list[tuple[str, bytes, dict]] = []
        self.gate: threading.Event | None = None
        self.entered = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(8)
        limits = [] if bytes_max is None else [("grpc.max_receive_message_length", bytes_max)]
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0), *limits])
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    service, {"Export": grpc.unary_unary_rpc_method_handler(self._exporter(signal))}
                )
                for signal, service in SERVICES.items()
            ]
        )
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    def _exporter(self, signal):
        def export(data, context):
            self.got.append((signal, data, dict(context.invocation_metadata())))
            self.entered.release()
            if self.gate is not None:
                self.gate.wait(30)
            answer = self.answers.popleft() if self.answers else b""
            if isinstance(answer, bytes):
                return answer
            code, message, metadata = answer
            context.set_trailing_metadata(metadata)
            context.abort(code, message)
            return None

        return export

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        if self.gate is not None:
            self.gate.set()
        self._server.stop(0).wait()
        self._pool.shutdown()


@contextmanager
def fake_http_destination(*answers, tls=None):
    """
    A real HTTP server.

    Each answer is (status, headers, body); then an empty 200. `None` closes the connection instead of answering.
    """
    waiting = deque(answers)
    got: list[tuple[str, dict, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, dict(self.headers), body))
            answer = waiting.popleft() if waiting else (200, {}, b"")
            if answer is None:
                self.close_connection = True
                return
            status, headers, content = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.got = got
    server.connections = 0
    accept = server.get_request

    def counted():
        server.connections += 1
        return accept()

    server.get_request = counted
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
