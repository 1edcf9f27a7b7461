"""Requests compressed with zstd: over gRPC to our own receivers, and to servers that break the protocol; over HTTP."""

import contextlib
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from quiver.exporters.otap_grpc import OtapGrpcSender
from quiver.exporters.otlp_grpc import OtlpGrpcSender
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.settings import ExporterSettings
from quiver.http2 import frames as h2
from quiver.http2.hpack import encode_headers
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import OtlpHttpReceiver
from quiver.receivers.settings import KeepaliveSettings, OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)


class Kept:
    """A store in memory."""

    def __init__(self) -> None:
        self.kept = []

    def ingest(self, bundle, *, durable=False, timeout=None):
        self.kept.append(bundle)

    def sync(self) -> None:
        pass

    def recent_wal_entries(self):
        return iter(())

    def requests(self) -> list[bytes]:
        return [bundle.batches[60].column(0)[0].as_py() for bundle in self.kept]


def log_request(text: str = "x", size: int = 0) -> bytes:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(severity_text=text)
    record.body.string_value = "abcdefg" * (size // 7)
    return request.SerializeToString()


def settings_to(port: int, **how) -> ExporterSettings:
    return ExporterSettings(
        **{"endpoint": f"http://127.0.0.1:{port}", "compression_method": "zstd", "timeout_s": 20.0, **how}
    )


@contextlib.contextmanager
def closing(sender):
    try:
        yield sender
    finally:
        sender.close()


def test_requests_arrive_unchanged():
    """Small ones, which are not compressed, and larger ones than the window."""
    store = Kept()
    requests = [b"", log_request(), log_request(size=100_000), log_request("y", size=9_000_000)]
    with OtlpGrpcReceiver(store, SETTINGS) as receiver, closing(OtlpGrpcSender(settings_to(receiver.port))) as sender:
        for request in requests:
            assert sender.send("logs", request).outcome == "confirmed"
    assert store.requests() == requests[1:]


def test_large_requests_respect_the_windows():
    store = Kept()
    noise = log_request(random.Random(1).randbytes(2_000_000).hex())
    with OtlpGrpcReceiver(store, SETTINGS) as receiver, closing(OtlpGrpcSender(settings_to(receiver.port))) as sender:
        threads = [threading.Thread(target=sender.send, args=("logs", noise)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert store.requests() == [noise] * 4


def test_http_requests_arrive_unchanged():
    store = Kept()
    with OtlpHttpReceiver(store, SETTINGS) as receiver:
        how = settings_to(receiver.port, protocol="http")
        with closing(OtlpHttpSender(how)) as sender:
            assert sender.send("logs", log_request(size=10_000)).outcome == "confirmed"
    assert store.requests() == [log_request(size=10_000)]


def test_streams_of_tables_arrive():
    store = Kept()
    with OtapGrpcReceiver(store, SETTINGS) as receiver, closing(OtapGrpcSender(settings_to(receiver.port))) as sender:
        for _ in range(10):
            assert sender.send("logs", log_request(size=20_000)).outcome == "confirmed"
    assert len(store.kept) == 10
    assert all(30 in bundle.batches for bundle in store.kept)


@pytest.mark.parametrize(
    ("receiver_type", "sender_type"), [(OtlpGrpcReceiver, OtlpGrpcSender), (OtapGrpcReceiver, OtapGrpcSender)]
)
def test_a_server_that_does_not_know_zstd_gets_plain_messages(receiver_type, sender_type):
    """Its refusal is not about the data: the first request is sent again, and none becomes a dead letter."""
    store = Kept()
    without = OtlpSettings(listening_addr="127.0.0.1:0", workers=2, transport="grpcio")
    with receiver_type(store, without) as receiver, closing(sender_type(settings_to(receiver.port))) as sender:
        replies = [sender.send("logs", log_request(size=20_000)) for _ in range(3)]
    assert [reply.outcome for reply in replies] == ["retry", "confirmed", "confirmed"]
    assert "the server does not accept zstd" in replies[0].message
    assert len(store.kept) == 2


def test_requests_that_were_on_the_way_at_the_first_refusal_are_sent_again_too(monkeypatch):
    """All of them were compressed before any was refused."""
    store, at_once = Kept(), threading.Barrier(4)

    def compress_together(message, **how):
        at_once.wait(30)
        return compressed(message, **how)

    compressed = pyarrow.compress
    monkeypatch.setattr(pyarrow, "compress", compress_together)
    without = OtlpSettings(listening_addr="127.0.0.1:0", workers=2, transport="grpcio")
    with OtlpGrpcReceiver(store, without) as receiver, closing(OtlpGrpcSender(settings_to(receiver.port))) as sender:
        with ThreadPoolExecutor(4) as pool:
            replies = [*pool.map(sender.send, ["logs"] * 4, [log_request(size=20_000)] * 4)]
        assert [reply.outcome for reply in replies] == ["retry"] * 4
        assert sender.send("logs", log_request(size=20_000)).outcome == "confirmed"


def test_connections_that_a_receiver_closes_are_opened_again():
    store = Kept()
    young = OtlpSettings(listening_addr="127.0.0.1:0", keepalive=KeepaliveSettings(max_connection_age_s=0.02))
    with OtlpGrpcReceiver(store, young) as receiver, closing(OtlpGrpcSender(settings_to(receiver.port))) as sender:
        outcomes = {sender.send("logs", log_request(str(number))).outcome for number in range(300)}
    assert outcomes == {"confirmed"}
    assert len(store.kept) == 300


GREETING = h2.settings_frame([])
ANSWERS = {
    "nothing": (b"", b""),
    "no settings": (h2.frame(h2.PING, 0, 0, bytes(8)), b""),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b""),
    "no call": (h2.settings_frame([(h2.MAX_CONCURRENT_STREAMS, 0)]), b""),
    "no window": (h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, 0)]), b""),
    "a reset": (GREETING, h2.reset_frame(1, h2.INTERNAL_ERROR)),
    "the end of the connection": (GREETING, h2.goaway_frame(0, h2.NO_ERROR)),
    "bad headers": (GREETING, h2.header_frames(1, b"\xff\xff\xff\xff\xff\xff", is_last=True)),
    "endless headers": (
        GREETING,
        h2.frame(h2.HEADERS, 0, 1) + h2.frame(h2.CONTINUATION, 0, 1, bytes(16_000)) * 9,
    ),
    "a page": (GREETING, h2.header_frames(1, encode_headers([(b":status", b"503")]), is_last=True)),
    "a large answer": (GREETING, h2.data_frame(1, b"\x00\x7f\xff\xff\xff")),
}


def answer_once(client: socket.socket, greeting: bytes, answer: bytes) -> None:
    client.sendall(greeting)
    received = b""
    while b"/Export" not in received and (part := client.recv(65_536)):
        received += part
    client.sendall(answer)
    while client.recv(65_536):
        pass


@pytest.mark.parametrize("name", ANSWERS)
def test_a_server_that_breaks_the_protocol_has_not_confirmed(name):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client, contextlib.suppress(OSError):
                        answer_once(client, *ANSWERS[name])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with closing(OtlpGrpcSender(settings_to(server.getsockname()[1], timeout_s=1.0))) as sender:
            reply = sender.send("logs", log_request())
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert reply.outcome == "retry", reply
