"""OTLP/HTTP: exact codes, headers, bodies and limits, over a real connection."""

import gzip
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from fake_store import FakeStore, log_request
from google.rpc.status_pb2 import Status

from quiver.errors import CapacityError, StoreClosedError, StoreFailedError, TransientError
from quiver.receivers.otlp.http_receiver import JSON, PATHS, PROTOBUF, OtlpHttpReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)


@pytest.fixture
def receiver(store):
    with OtlpHttpReceiver(store, SETTINGS) as running:
        yield running


def post(receiver, data, *, path="/v1/logs", method="POST", **headers):
    """Return status, headers and body; the keyword `content_type` sets Content-Type, and so on."""
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
    {"content_type": "text/plain"},
    {"content_type": None},
    {"content_encoding": "br"},
    {"content_encoding": "gzip, zstd"},
    {"content_encoding": "\xff"},
    {"content_type": "\xff/x"},
])  # fmt: skip
def test_other_types_and_encodings_are_refused(receiver, store, headers):
    status, message, code = refused(post(receiver, log_request(), **headers))
    assert (status, code) == (415, 3)
    assert "is not" in message
    assert store.kept == []


def test_a_json_refusal_repeats_invalid_bytes_as_text(receiver):
    status, _, body = post(receiver, b"{}", content_type=JSON, content_encoding="\xff")
    assert (status, json.loads(body)["message"]) == (415, "content encoding ? is not gzip or zstd")


def packed(data: bytes, encoding: str | None) -> bytes:
    if encoding == "gzip":
        return gzip.compress(data)
    return data if encoding is None else pa.compress(data, codec=encoding, asbytes=True)


DOCUMENT = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "hello"}}]}]}]}


@pytest.mark.parametrize("encoding", [None, "gzip", "zstd"])
def test_json_is_stored_as_protobuf_and_answered_in_json(receiver, store, encoding):
    sent = packed(json.dumps(DOCUMENT).encode(), encoding)
    status, headers, body = post(receiver, sent, content_type=f"{JSON}; charset=utf-8", content_encoding=encoding)
    assert (status, headers["Content-Type"].partition(";")[0], json.loads(body)) == (200, JSON, {})
    assert store.kept == [(60, log_request())]


def test_refusals_of_json_are_json(receiver, store):
    status, headers, body = post(receiver, b'{"resourceLogs": 5}', content_type=JSON)
    assert (status, headers["Content-Type"].partition(";")[0]) == (400, JSON)
    assert json.loads(body)["code"] == 3
    assert "ExportLogsServiceRequest" in json.loads(body)["message"]
    store.failures.append(CapacityError("wal.max_size", retry_after_s=1.0))
    status, headers, body = post(receiver, json.dumps(DOCUMENT).encode(), content_type=JSON)
    assert (status, headers["Retry-After"], json.loads(body)["code"]) == (503, "1", 14)
    assert store.kept == []


def test_zstd_is_stored_decompressed(receiver, store):
    data = b"\x0a\x00" * 100
    assert post(receiver, packed(data, "zstd"), content_encoding="zstd")[0] == 200
    assert store.kept == [(60, data)]
    assert refused(post(receiver, packed(data, "zstd")[:-1], content_encoding="zstd"))[0] == 400
    assert refused(post(receiver, packed(data, "gzip"), content_encoding="zstd"))[0] == 400


@pytest.mark.parametrize(("accepted", "expected"), [
    ("gzip", "gzip"), ("zstd, gzip", "zstd"), ("br, GZIP;q=0.5", "gzip"),
    ("gzip;q=0", None), ("zstd; q=0.0, br", None), ("identity", None), ("", None), ("*", None), (",;,", None),
])  # fmt: skip
def test_replies_are_compressed_on_request(receiver, accepted, expected):
    _, headers, body = post(receiver, b"\xff", accept_encoding=accepted)
    assert headers["Content-Encoding"] == expected
    if expected == "gzip":
        body = gzip.decompress(body)
    elif expected == "zstd":
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            body = stream.read()
    assert Status.FromString(body).code == 3
    _, headers, body = post(receiver, log_request(), accept_encoding=accepted)
    assert (headers["Content-Encoding"], body) == (None, b"")  # nothing to compress


def test_garbage_is_a_bad_request_and_stores_nothing(receiver, store):
    status, message, code = refused(post(receiver, b"\xff\xff"))
    assert (status, code) == (400, 3)
    assert "ExportLogsServiceRequest" in message
    assert refused(post(receiver, log_request(), content_encoding="gzip"))[0] == 400
    assert refused(post(receiver, gzip.compress(log_request())[:-1], content_encoding="gzip"))[0] == 400
    assert store.kept == []


@pytest.mark.parametrize(("failure", "seconds"), [
    (CapacityError("retention.size_cap", retry_after_s=2.5), "3"),
    (StoreFailedError("sync failed"), "5"),
    (StoreClosedError("closed"), "5"),
])  # fmt: skip
def test_a_full_failed_or_closed_store_answers_with_a_retry_delay(receiver, store, failure, seconds):
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
        bomb = packed(log_request(size=size), "zstd")
        assert refused(post(small, bomb, content_encoding="zstd"))[0] == 413
    bomb = json.dumps({"resourceLogs": [{}] * 1500}).encode()
    assert post(small, gzip.compress(bomb), content_encoding="gzip", content_type=JSON)[0] == 413
    assert refused(post(small, log_request(size=1000)))[0] == 413
    assert refused(post(small, iter([log_request(size=800)] * 2)))[0] == 413  # chunked, without a length
    assert len(store.kept) == 2


def test_a_client_that_never_completes_its_request_gets_a_timeout(store):
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
def test_an_aborted_request_does_not_affect_others(receiver, store, caplog, rest):
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


def test_requests_above_the_limit_get_a_retry_delay(store):
    store.gate = threading.Event()
    with OtlpHttpReceiver(store, replace(SETTINGS, requests_waiting_max=1)) as receiver, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, receiver, log_request())
        assert store.entered.acquire(timeout=30)
        answer = post(receiver, log_request())
        store.gate.set()
        assert first.result(30)[0] == 200
    assert answer[1]["Retry-After"] == "1"
    assert refused(answer)[0] == 503


def test_an_address_in_use_is_refused_and_may_be_retried(receiver, store):
    settings = replace(SETTINGS, listening_addr=f"127.0.0.1:{receiver.port}")
    with pytest.raises(TransientError, match="cannot listen on 127.0.0.1"):
        OtlpHttpReceiver(store, settings).start()
    receiver.stop(0)
    with OtlpHttpReceiver(store, settings) as second:
        assert post(second, log_request())[0] == 200


def test_start_is_idempotent_and_a_stopped_receiver_cannot_restart(receiver):
    assert receiver.start() == receiver.port
    receiver.stop()
    receiver.stop()
    with pytest.raises(StoreClosedError):
        receiver.start()
    with pytest.raises(ConnectionRefusedError):
        post(receiver, log_request())


def test_stop_waits_for_a_request_in_progress(receiver, store):
    store.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, receiver, log_request())
        assert store.entered.acquire(timeout=30)
        stopping = pool.submit(receiver.stop, 30)
        store.gate.set()
        assert first.result(30)[0] == 200
        stopping.result(30)
    assert len(store.kept) == 1


def test_the_default_address_is_local_with_the_standard_port():
    receiver = OtlpHttpReceiver(FakeStore())
    assert receiver.settings.listening_addr == "127.0.0.1:4318"
    assert set(PATHS) == {"/v1/logs", "/v1/traces", "/v1/metrics"}
