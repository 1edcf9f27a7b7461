"""Clients that are slow, many, silent or endless do not affect others."""

import contextlib
import errno
import http.client
import select
import socket
import threading
import time
from dataclasses import replace

import grpc
import pytest
from fake_store import log_request
from google.rpc.status_pb2 import Status

from quiver.errors import SettingsError, TransientError
from quiver.observe import InMemoryObserver
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver, server_options
from quiver.receivers.otlp.http_receiver import PROTOBUF, OtlpHttpReceiver
from quiver.receivers.security import SecuritySettings
from quiver.receivers.settings import KeepaliveSettings, OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=1)
HEAD = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n".encode()
EXPORT = f"/{SERVICES['logs']}/Export"


@contextlib.contextmanager
def connected(receiver):
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as client:
        yield client


def post(receiver) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/logs", body=log_request(), headers={"Content-Type": PROTOBUF})
        return connection.getresponse().status


def ended(client) -> bytes:
    """Return the data received until the other side closes."""
    reported = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            reported += part
    return reported


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("said", [b"", b"POST /v1/logs HTTP/1.1\r\nHost:"], ids=["nothing", "half a head"])
def test_a_client_without_a_request_is_disconnected(store, said):
    with OtlpHttpReceiver(store, replace(SETTINGS, head_timeout_s=0.2)) as receiver, connected(receiver) as client:
        client.sendall(said)
        assert ended(client) == b""
        assert post(receiver) == 200


def test_a_slow_head_is_disconnected(store):
    with OtlpHttpReceiver(store, replace(SETTINGS, head_timeout_s=0.3)) as receiver, connected(receiver) as client:
        client.settimeout(0.02)
        client.sendall(HEAD)
        started = time.monotonic()
        removed = False
        while not removed and time.monotonic() - started < 10:
            try:
                client.sendall(b"X-Slow: 1\r\n")
                removed = client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                removed = True
        assert removed


def test_a_connection_is_kept_between_requests_and_ends_when_idle(store):
    patient = replace(SETTINGS, head_timeout_s=0.2, keepalive=KeepaliveSettings(max_connection_idle_s=0.6))
    body = log_request()
    request = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with OtlpHttpReceiver(store, patient) as receiver, connected(receiver) as client:
        for _ in range(3):
            client.sendall(request)
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        started = time.monotonic()
        assert ended(client) == b""
        assert time.monotonic() - started > 0.3  # longer than a new connection gets
    assert len(store.kept) == 3


def test_a_connection_with_a_request_is_not_silent(store):
    store.gate = threading.Event()
    body = log_request()
    with (
        OtlpHttpReceiver(store, replace(SETTINGS, head_timeout_s=0.1)) as receiver,
        connected(receiver) as client,
        connected(receiver) as newcomer,
    ):
        client.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert store.entered.acquire(timeout=10)
        assert ended(newcomer) == b""  # the sweep ran
        store.gate.set()
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_connections_above_the_limit_are_closed_and_counted(store):
    observer = InMemoryObserver()
    with OtlpHttpReceiver(store, replace(SETTINGS, connections_max=2), observer=observer) as receiver:
        with connected(receiver) as first, connected(receiver):
            body = log_request()
            first.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert first.recv(4096).startswith(b"HTTP/1.1 200 ")
            with connected(receiver) as third:
                assert ended(third) == b""
            assert observer.total("quiver.receiver.connections_refused_total") == 1
            first.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert first.recv(4096).startswith(b"HTTP/1.1 200 ")
        for _ in range(100):  # the two are removed once the receiver has noticed
            with contextlib.suppress(ConnectionError):
                assert post(receiver) == 200
                break
        else:
            pytest.fail("no connection is accepted any more")


def test_an_unavailable_address_family_is_skipped_and_an_unknown_address_refused(store, monkeypatch):
    real = socket.socket

    def without_ipv6(family=-1, *more, **named):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported")
        return real(family, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr("quiver.receivers.otlp.http_listener.socket.socket", without_ipv6)
        with OtlpHttpReceiver(store, replace(SETTINGS, listening_addr="localhost:0")) as receiver:
            assert post(receiver) == 200
        with pytest.raises(TransientError, match="cannot listen on"):
            OtlpHttpReceiver(store, replace(SETTINGS, listening_addr="[::1]:0")).start()
    for strange in ("192.0.2.1:0", "no-such-host.invalid:0"):
        settings = replace(SETTINGS, listening_addr=strange, security=SecuritySettings(insecure=True))
        with pytest.raises(TransientError, match="cannot listen on"):
            OtlpHttpReceiver(store, settings).start()


def test_many_clients_are_served_concurrently(store):
    body = log_request()
    request = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    patient = replace(SETTINGS, connections_max=300, requests_waiting_max=300, head_timeout_s=60)
    with OtlpHttpReceiver(store, patient) as receiver, contextlib.ExitStack() as open_:
        clients = [open_.enter_context(connected(receiver)) for _ in range(300)]
        for half in (request[:70], request[70:]):  # all of them start before one of them ends
            for client in clients:
                client.sendall(half)
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        for client in clients[:50]:
            client.sendall(request)
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_slow_bodies_take_a_bounded_amount_of_memory_together(store):
    limits = replace(SETTINGS, max_request_bytes=100_000, receiving_bytes_max=150_000)
    with OtlpHttpReceiver(store, limits) as receiver:
        with connected(receiver) as first, connected(receiver) as second:
            for slow in (first, second):
                slow.sendall(HEAD + b"Content-Length: 99999\r\n\r\n" + b"x" * 90_000)
            # One of them exceeds the limit; the kernel decides which one.
            readable, _, _ = select.select([first, second], [], [], 10)
            answer = readable[0].recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1\r\n" in answer
            assert len(readable) == 1
        assert post(receiver) == 200


@pytest.mark.parametrize("flood", [
    b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n",
    b"X-Many: 1\r\n" * 10_000 + b"\r\n",
    b"X-Odd\x00: 1\r\n\r\n",
    b"Authorization: Bearer \x00s3cret\r\n\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: -1\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
])  # fmt: skip
def test_oversized_or_ambiguous_heads_are_refused(store, flood, caplog):
    with OtlpHttpReceiver(store, SETTINGS) as receiver:
        with connected(receiver) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(HEAD + b"Authorization: Bearer s3cret\r\n" + flood)
                client.shutdown(socket.SHUT_WR)
            answer = ended(client)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert post(receiver) == 200
    assert caplog.records == []  # an invalid head may contain credentials, and any client can send many
    assert len(store.kept) == 1


# ── gRPC ─────────────────────────────────────────────────────────────────────────────────────────────


def test_calls_without_a_request_are_ended_and_block_no_others(store):
    never = threading.Event()

    def nothing():
        never.wait(30)
        yield b""

    with (
        OtlpGrpcReceiver(store, replace(SETTINGS, body_timeout_s=0.5)) as receiver,
        grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel,
    ):
        slow = [channel.stream_unary(EXPORT).future(nothing(), timeout=30) for _ in range(20)]
        # There is one worker; if it waited for one of the calls, this request would fail.
        assert channel.unary_unary(EXPORT)(log_request(), timeout=10) == b""
        assert {call.code() for call in slow} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        never.set()
    assert len(store.kept) == 1


def test_a_call_without_a_request_is_an_invalid_argument(store):
    with (
        OtlpGrpcReceiver(store, SETTINGS) as receiver,
        grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.stream_unary(EXPORT)(iter(()), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_requests_above_the_limit_get_a_retry_delay(store):
    store.gate = threading.Event()
    with OtlpGrpcReceiver(store, replace(SETTINGS, requests_waiting_max=1)) as receiver:
        target = f"127.0.0.1:{receiver.port}"
        apart = [("grpc.use_local_subchannel_pool", 1)]  # the limit of streams applies to each connection
        with grpc.insecure_channel(target) as one, grpc.insecure_channel(target, apart) as two:
            first = one.unary_unary(EXPORT).future(log_request(), timeout=30)
            assert store.entered.acquire(timeout=10)
            with pytest.raises(grpc.RpcError) as caught:
                two.unary_unary(EXPORT)(log_request(), timeout=10)
            store.gate.set()
            assert first.result(10) == b""
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    status = Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    assert status.details[0].type_url.endswith("RetryInfo")


def test_cancelled_calls_count_until_their_request_is_released(store):
    store.gate = threading.Event()
    with (
        OtlpGrpcReceiver(store, replace(SETTINGS, requests_waiting_max=3)) as receiver,
        grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel,
    ):
        export = channel.unary_unary(EXPORT)
        for number in range(3):
            call = export.future(log_request(str(number)), timeout=30)
            if number == 0:
                assert store.entered.acquire(timeout=10)
            deadline = time.monotonic() + 10
            while receiver._handling <= number and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            call.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            export(log_request(), timeout=10)
        store.gate.set()
        while receiver._handling:
            threading.Event().wait(0.01)
        assert export(log_request(), timeout=10) == b""
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_connections_above_the_limit_are_closed(store):
    with (
        OtlpGrpcReceiver(store, replace(SETTINGS, connections_max=2)) as receiver,
        connected(receiver) as first,
        connected(receiver) as second,
    ):
        assert first.recv(1)
        assert second.recv(1)  # settings: it is accepted
        with connected(receiver) as third:
            assert ended(third) == b""


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n\r\nSM", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
def test_a_client_without_http2_is_disconnected(store, said):
    with OtlpGrpcReceiver(store, replace(SETTINGS, head_timeout_s=0.3)) as receiver:
        with connected(receiver) as client:
            client.sendall(said)
            ended(client)
        with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
            assert channel.unary_unary(EXPORT)(log_request(), timeout=10) == b""


def test_metadata_that_is_too_large_is_refused(store):
    with (
        OtlpGrpcReceiver(store, SETTINGS) as receiver,
        grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary(EXPORT)(log_request(), timeout=10, metadata=[("x-long", "x" * 100_000)])
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert store.kept == []


def test_keepalive_settings_are_options_of_the_grpc_server():
    keepalive = KeepaliveSettings(max_connection_age_s=0.0005, max_connection_age_grace_s=1e9, ping_interval_s=30)
    options = dict(server_options(replace(SETTINGS, keepalive=keepalive, connections_max=7)))
    assert options["grpc.max_connection_age_ms"] == 1
    assert options["grpc.max_connection_age_grace_ms"] == 2**31 - 1
    assert options["grpc.keepalive_time_ms"] == 30_000
    assert options["grpc.max_allowed_incoming_connections"] == 7
    assert "grpc.max_connection_idle_ms" not in options
    with pytest.raises(SettingsError, match=r"keepalive\.ping_timeout must be positive"):
        KeepaliveSettings(ping_timeout_s=0)


def test_an_old_connection_is_replaced_and_no_request_fails(store):
    young = replace(SETTINGS, keepalive=KeepaliveSettings(max_connection_age_s=0.1))
    with OtlpGrpcReceiver(store, young) as receiver, grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        started = time.monotonic()
        sent = 0
        while time.monotonic() - started < 0.5:
            assert channel.unary_unary(EXPORT)(log_request(), timeout=10) == b""
            sent += 1
    assert len(store.kept) == sent
