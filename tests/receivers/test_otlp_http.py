"""
OTLP/HTTP: exact codes, headers, bodies and limits, over a real connection.
"""

import gzip
import http.client
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fake_store import FakeStore, log_request
from google.rpc.status_pb2 import Status

from quiver.errors import AtCapacity, RetryLater, StoreClosed, StoreFailed
from quiver.receivers.otlp_http import PATHS, PROTOBUF, OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def receiver(store):
    with OtlpHttpReceiver(store, SETTINGS) as running:
        yield running


def post(receiver, data, *, path="/v1/logs", method="POST", **headers):
    """
    Return status, headers and body; keyword `content_type` stands for Content-Type, and so on.
    """
    sent = {"Content-Type": PROTOBUF}
    sent |= {name.replace("_", "-").title(): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=30)
    try:
        connection.request(method, path, body=data, headers={k: v for k, v in sent.items() if v is not None})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def refused(answer) -> tuple[int, str, int]:
    status, headers, body = answer
    assert headers["Content-Type"] == PROTOBUF
    read = Status.FromString(body)
    return status, read.message, read.code


@pytest.mark.parametrize(("path", "slot"), [("/v1/logs", 60), ("/v1/traces", 61), ("/v1/metrics", 62)])
@pytest.mark.parametrize("encoding", [None, "identity", "gzip", "GZIP"])
def test_each_path_stores_into_its_slot(receiver, store, path, slot, encoding):
    data = b"\x0a\x00" * 100
    sent = gzip.compress(data) if encoding and encoding.lower() == "gzip" else data
    status, headers, body = post(receiver, sent, path=path, content_encoding=encoding)
    assert (status, headers["Content-Type"], body) == (200, PROTOBUF, b"")
    assert store.kept == [(slot, data)]
    assert store.durable == [True]


def test_a_content_type_may_have_parameters(receiver):
    assert post(receiver, log_request(), content_type=f"{PROTOBUF}; charset=utf-8")[0] == 200


@pytest.mark.parametrize("headers", [
    {"content_type": "application/json"},
    {"content_type": None},
    {"content_encoding": "zstd"},
])  # fmt: skip
def test_other_types_and_encodings_are_refused(receiver, store, headers):
    status, message, code = refused(post(receiver, log_request(), **headers))
    assert (status, code) == (415, 3)
    assert "is not" in message
    assert store.kept == []


def test_garbage_is_a_bad_request_and_leaves_nothing(receiver, store):
    status, message, code = refused(post(receiver, b"\xff\xff"))
    assert (status, code) == (400, 3)
    assert "ExportLogsServiceRequest" in message
    assert refused(post(receiver, log_request(), content_encoding="gzip"))[0] == 400
    assert refused(post(receiver, gzip.compress(log_request())[:-1], content_encoding="gzip"))[0] == 400
    assert store.kept == []


@pytest.mark.parametrize(("failure", "seconds"), [
    (AtCapacity("retention.size_cap", retry_after_s=2.5), "3"),
    (StoreFailed("sync failed"), "5"),
    (StoreClosed("closed"), "5"),
])  # fmt: skip
def test_a_full_failed_or_closed_store_says_when_to_come_back(receiver, store, failure, seconds):
    store.failures.append(failure)
    answer = post(receiver, log_request())
    assert answer[1]["Retry-After"] == seconds
    status, message, code = refused(answer)
    assert (status, code) == (503, 14)
    assert str(failure) == message
    assert post(receiver, log_request())[0] == 200


@pytest.fixture
def small(store):
    limits = replace(SETTINGS, max_request_bytes=1000, max_decompressed_bytes=4000)
    with OtlpHttpReceiver(store, limits) as running:
        yield running


def test_sizes_are_bounded_before_and_after_decompression(small, store):
    assert post(small, log_request(size=900))[0] == 200
    assert post(small, gzip.compress(log_request(size=3900)), content_encoding="gzip")[0] == 200
    for size in (4000, 900_000):
        bomb = gzip.compress(log_request(size=size))
        assert refused(post(small, bomb, content_encoding="gzip"))[0] == 413
    assert refused(post(small, log_request(size=1000)))[0] == 413
    assert refused(post(small, iter([log_request(size=800)] * 2)))[0] == 413  # chunked, without a length
    assert len(store.kept) == 2


def test_a_client_that_never_ends_its_request_is_told_so(store):
    with OtlpHttpReceiver(store, replace(SETTINGS, body_timeout_s=0.05)) as receiver:
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as client:
            head = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 10\r\n\r\n"
            client.sendall(head.encode() + b"abc")
            with client.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.1 408 ")
        assert post(receiver, log_request())[0] == 200


@pytest.mark.parametrize("rest", [
    "Content-Length: 10\r\n\r\nabc",
    "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
])  # fmt: skip
def test_a_request_that_breaks_off_disturbs_nobody(receiver, store, caplog, rest):
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as client:
        head = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
        client.sendall(head.encode() + rest.encode())
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            assert b" 200 " not in answer.readline()
    assert post(receiver, log_request())[0] == 200
    assert store.kept == [(60, log_request())]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_other_paths_and_methods_are_refused(receiver):
    assert post(receiver, log_request(), path="/v1/profiles")[0] == 404
    assert post(receiver, None, method="GET")[0] == 405


def test_more_requests_than_may_wait_are_told_to_come_back(store):
    store.gate = threading.Event()
    with OtlpHttpReceiver(store, replace(SETTINGS, requests_waiting_max=1)) as receiver, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, receiver, log_request())
        assert store.entered.acquire(timeout=30)
        answer = post(receiver, log_request())
        store.gate.set()
        assert first.result(30)[0] == 200
    assert answer[1]["Retry-After"] == "1"
    assert refused(answer)[0] == 503


def test_a_taken_address_is_refused_and_may_be_tried_again(receiver, store):
    settings = replace(SETTINGS, listening_addr=f"127.0.0.1:{receiver.port}")
    with pytest.raises(RetryLater, match="cannot listen on 127.0.0.1"):
        OtlpHttpReceiver(store, settings).start()
    receiver.stop(0)
    with OtlpHttpReceiver(store, settings) as second:
        assert post(second, log_request())[0] == 200


def test_starting_twice_is_once_and_a_stopped_receiver_stays_so(receiver):
    assert receiver.start() == receiver.port
    receiver.stop()
    receiver.stop()
    with pytest.raises(StoreClosed):
        receiver.start()
    with pytest.raises(ConnectionRefusedError):
        post(receiver, log_request())


def test_stopping_lets_a_request_in_hand_finish(receiver, store):
    store.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, receiver, log_request())
        assert store.entered.acquire(timeout=30)
        stopping = pool.submit(receiver.stop, 30)
        store.gate.set()
        assert first.result(30)[0] == 200
        stopping.result(30)
    assert len(store.kept) == 1


def test_the_default_address_is_the_one_clients_expect_and_local():
    receiver = OtlpHttpReceiver(FakeStore())
    assert receiver.settings.listening_addr == "127.0.0.1:4318"
    assert set(PATHS) == {"/v1/logs", "/v1/traces", "/v1/metrics"}
