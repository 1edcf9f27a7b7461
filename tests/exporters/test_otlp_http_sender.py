"""The OTLP/HTTP client against real servers: statuses, compression, headers, TLS, persistent connections."""

import gzip
import socket
import ssl
import threading
from dataclasses import replace

import pytest
from fake_destination import fake_http_destination
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from quiver.errors import SettingsError
from quiver.exporters.otlp_http import OtlpHttpSender
from quiver.exporters.reply import Reply
from quiver.exporters.settings import ExporterSettings


@pytest.fixture
def sender_to():
    made = []

    def make(port, path="", *, scheme="http", **how):
        how = {"timeout_s": 20.0, **how}
        endpoint = f"{scheme}://127.0.0.1:{port}{path}"
        made.append(OtlpHttpSender(ExporterSettings(endpoint, protocol="http", **how)))
        return made[-1]

    yield make
    for sender in made:
        sender.close()


def test_requests_of_all_signals_arrive_on_one_connection(sender_to):
    """At the path of their signal, below the path of the endpoint."""
    with fake_http_destination() as far:
        sender = sender_to(far.server_port, "/base/", headers={"X-Token": "t"})
        for signal in ("logs", "traces", "metrics"):
            assert sender.send(signal, b"data of " + signal.encode()) == Reply("confirmed")

    assert [(path, body) for path, _, body in far.got] == [
        (f"/base/v1/{signal}", f"data of {signal}".encode()) for signal in ("logs", "traces", "metrics")
    ]
    assert all(headers["Content-Type"] == "application/x-protobuf" for _, headers, _ in far.got)
    assert all(headers["X-Token"] == "t" and "Content-Encoding" not in headers for _, headers, _ in far.got)
    assert far.connections == 1


def test_the_batch_id_is_sent_as_a_header(sender_to):
    """In addition to the configured headers; without a batch id there is none."""
    with fake_http_destination() as far:
        sender = sender_to(far.server_port, headers={"X-Token": "t"})
        sender.send("logs", b"a", "store/1:2/0")
        sender.send("logs", b"a")

    assert [(headers["X-Token"], headers.get("X-Quiver-Batch-Id")) for _, headers, _ in far.got] == [
        ("t", "store/1:2/0"),
        ("t", None),
    ]


def test_gzip_compresses_the_body(sender_to):
    """To the same bytes each time, with the header."""
    data = b"0123456789" * 10_000
    with fake_http_destination() as far:
        sender = sender_to(far.server_port, compression_method="gzip")
        sender.send("logs", data)
        sender.send("logs", data)

    (_, headers, body), (_, _, again) = far.got
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == data
    assert len(body) < 2_000
    assert body == again


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 429, 500, 502, 503, 504, 301])
def test_every_status_is_classified(sender_to, status):
    """With the server's message and delay; the connection is reused."""
    body = Status(message="because").SerializeToString()
    answer = (status, {"Retry-After": "3", "Location": "http://127.0.0.1:1/"}, body)
    with fake_http_destination(answer) as far:
        sender = sender_to(far.server_port)
        reply = sender.send("logs", b"x")
        assert sender.send("logs", b"x") == Reply("confirmed")

    retried = status in {401, 408, 429, 502, 503, 504}
    expected = Reply("retry" if retried else "refused", f"HTTP {status}", "because", 3.0 if retried else None)
    assert reply == replace(expected, is_too_large=status == 413, is_denied=status in {301, 401, 404})
    assert (len(far.got), far.connections) == (2, 1)


def test_a_web_page_is_not_a_confirmation(sender_to):
    """A portal that answers everything with 200 has not stored the data."""
    page = (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>welcome</html>")
    with fake_http_destination(page, (200, {"Content-Type": "application/json"}, b"{}")) as far:
        sender = sender_to(far.server_port)
        assert (sender.send("logs", b"x").reason, sender.send("logs", b"x")) == ("NOT_OTLP", Reply("confirmed"))


def test_partial_success_is_read_from_the_response(sender_to):
    response = ExportLogsServiceResponse()
    response.partial_success.rejected_log_records = 4
    with fake_http_destination((200, {}, response.SerializeToString())) as far:
        assert sender_to(far.server_port).send("logs", b"x").rejected_items == 4


def test_a_closed_idle_connection_is_replaced(sender_to):
    """Servers close idle connections: that is not a failure."""
    with fake_http_destination((200, {}, b""), None) as far:
        sender = sender_to(far.server_port)
        assert sender.send("logs", b"one") == Reply("confirmed")
        assert sender.send("logs", b"two") == Reply("confirmed")

    assert [body for _, _, body in far.got] == [b"one", b"two", b"two"]


def test_a_broken_new_connection_is_a_retry(sender_to):
    """The request is not repeated by the sender: the server may have it."""
    with fake_http_destination(None) as far:
        reply = sender_to(far.server_port).send("logs", b"x")

    assert (reply.outcome, reply.reason) == ("retry", "CONNECTION")
    assert len(far.got) == 1


def test_a_refused_connection_is_a_retry(sender_to):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        reply = sender_to(found.getsockname()[1]).send("logs", b"x")

    assert (reply.outcome, reply.reason) == ("retry", "CONNECTION")


@pytest.fixture
def raw():
    """A listening socket without a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"], ids=["nothing", "half"])
def test_a_server_that_stops_answering_is_a_timeout(sender_to, raw, said):
    """Before the answer, and in the middle of it."""
    sender = sender_to(raw.getsockname()[1], timeout_s=0.2)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(sender.send("logs", b"x")))
    thread.start()
    connection, _ = raw.accept()
    with connection:
        connection.sendall(said)
        thread.join(30)

    assert [(reply.outcome, reply.reason) for reply in replies] == [("retry", "TIMEOUT")]


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000])
def test_a_server_without_http_is_a_retry(sender_to, raw, said):
    """A wrong port can be corrected."""
    sender = sender_to(raw.getsockname()[1])
    replies = []
    thread = threading.Thread(target=lambda: replies.append(sender.send("logs", b"x")))
    thread.start()
    connection, _ = raw.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        thread.join(30)

    assert [(reply.outcome, reply.reason) for reply in replies] == [("retry", "CONNECTION")]


def test_an_interim_answer_closes_the_connection(sender_to, raw):
    """The final answer would be read as the answer to the next request."""
    sender = sender_to(raw.getsockname()[1])
    replies = []

    def send():
        replies.extend([sender.send("logs", b"first"), sender.send("logs", b"second")])

    thread = threading.Thread(target=send)
    thread.start()
    first, _ = raw.accept()
    with first:
        first.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        raw.settimeout(10)
        second, _ = raw.accept()
        with second:
            second.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            thread.join(30)

    assert [(reply.outcome, reply.reason) for reply in replies] == [("retry", "HTTP 103"), ("confirmed", "")]


def test_an_endless_answer_is_truncated(sender_to, raw):
    """The connection is not reused."""
    sender = sender_to(raw.getsockname()[1])
    replies = []
    thread = threading.Thread(target=lambda: replies.append(sender.send("logs", b"x")))
    thread.start()
    connection, _ = raw.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 503 No\r\n\r\n" + b"\0" * 200_000)
        thread.join(30)

    assert [(reply.outcome, reply.reason) for reply in replies] == [("retry", "HTTP 503")]
    assert sender._idle == []


def test_close_cancels_requests_in_flight(sender_to, raw):
    """Later requests get `retry`, too."""
    sender = sender_to(raw.getsockname()[1])
    replies = []
    thread = threading.Thread(target=lambda: replies.append(sender.send("logs", b"x")))
    thread.start()
    connection, _ = raw.accept()
    with connection:
        assert connection.recv(100)
        sender.close()
        thread.join(30)
    replies.append(sender.send("logs", b"x"))

    assert [reply.outcome for reply in replies] == ["retry", "retry"]
    assert replies[1].reason == "CLOSED"


def test_tls_uses_the_configured_authority_and_certificate(sender_to, certificates):
    """Otherwise the outcome is `retry`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["server"], certificates["server_key"])
    own = {"cert_file": certificates["client"], "key_file": certificates["client_key"]}
    with fake_http_destination(tls=context) as far:
        how = {"scheme": "https", "ca_file": certificates["ca"]}
        assert sender_to(far.server_port, **how).send("logs", b"x") == Reply("confirmed")
        assert sender_to(far.server_port, scheme="https").send("logs", b"x").reason == "CONNECTION"
        context.load_verify_locations(certificates["ca"])
        context.verify_mode = ssl.CERT_REQUIRED
        assert sender_to(far.server_port, **how, **own).send("logs", b"x") == Reply("confirmed")
        assert sender_to(far.server_port, **how).send("logs", b"x").outcome == "retry"

    assert len(far.got) == 2


def test_a_missing_certificate_file_is_refused_at_creation(tmp_path):
    with pytest.raises(SettingsError, match="tls.ca_file: cannot read .*none: No such file"):
        OtlpHttpSender(ExporterSettings("https://127.0.0.1:1", protocol="http", ca_file=str(tmp_path / "none")))
