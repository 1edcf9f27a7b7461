"""OTLP/gRPC: exact codes, details and limits, over a real connection."""

import threading
from dataclasses import replace

import grpc
import pytest
from fake_store import log_request
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from quiver.errors import CapacityError, StoreClosedError, StoreFailedError, TransientError
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)


@pytest.fixture(params=["asyncio", "grpcio"])
def receiver(store, request):
    with OtlpGrpcReceiver(store, replace(SETTINGS, transport=request.param)) as running:
        yield running


def send(receiver, data, *, signal="logs", compression=None):
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        export = channel.unary_unary(f"/{SERVICES[signal]}/Export")
        return export(data, timeout=30, compression=compression)


def refused(receiver, data, **how) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        send(receiver, data, **how)
    return caught.value


def retry_delay_s(error) -> float | None:
    metadata = dict(error.trailing_metadata())
    status = Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    if not status.details:
        assert "google.rpc.retryinfo-bin" not in metadata
        return None
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    assert RetryInfo.FromString(metadata["google.rpc.retryinfo-bin"]) == info
    return info.retry_delay.seconds + info.retry_delay.nanos / 1e9


@pytest.mark.parametrize(("signal", "slot"), [("logs", 60), ("traces", 61), ("metrics", 62)])
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_each_service_stores_into_its_slot(receiver, store, signal, slot, compression):
    data = b"\x0a\x00" * 100
    assert send(receiver, data, signal=signal, compression=compression) == b""
    assert store.kept == [(slot, data)]
    assert store.durable == [True]


def test_garbage_is_an_invalid_argument_and_stores_nothing(receiver, store):
    error = refused(receiver, b"\xff\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "ExportLogsServiceRequest" in error.details()
    assert retry_delay_s(error) is None
    assert store.kept == []


def test_a_full_store_is_unavailable_with_retry_info(receiver, store):
    store.failures.append(CapacityError("retention.size_cap", held_by="parquet", retry_after_s=2.5))
    error = refused(receiver, log_request())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "held by parquet" in error.details()
    assert retry_delay_s(error) == 2.5


@pytest.mark.parametrize("failure", [StoreFailedError("sync failed"), StoreClosedError("closed")])
def test_a_failed_or_closed_store_is_unavailable(receiver, store, failure):
    store.failures.append(failure)
    error = refused(receiver, log_request())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_delay_s(error) == 5.0
    assert send(receiver, log_request()) == b""


@pytest.fixture
def small(store):
    limits = replace(SETTINGS, max_request_bytes=1000, max_decompressed_bytes=4000)
    with OtlpGrpcReceiver(store, limits) as running:
        yield running


def test_requests_over_the_wire_limit_are_refused(small, store):
    assert send(small, log_request(size=900)) == b""
    assert refused(small, log_request(size=1000)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(store.kept) == 1


def test_requests_over_the_decompressed_limit_are_refused_without_retry_info(small, store):
    gzip = grpc.Compression.Gzip
    assert send(small, log_request(size=3900), compression=gzip) == b""
    for size in (4000, 900_000):
        error = refused(small, log_request(size=size), compression=gzip)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_delay_s(error) is None
    assert len(store.kept) == 1


def test_other_compressions_are_refused(receiver, store):
    error = refused(receiver, log_request(), compression=grpc.Compression.Deflate)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert store.kept == []


def test_other_methods_are_refused(receiver):
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Import")(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_address_in_use_is_refused_and_may_be_retried(receiver, store):
    settings = replace(SETTINGS, listening_addr=f"127.0.0.1:{receiver.port}")
    with pytest.raises(TransientError, match="cannot listen on 127.0.0.1.*Address already in use"):
        OtlpGrpcReceiver(store, settings).start()
    receiver.stop(0)
    with OtlpGrpcReceiver(store, settings) as second:
        assert send(second, log_request()) == b""


def test_start_is_idempotent_and_a_stopped_receiver_cannot_restart(receiver):
    assert receiver.start() == receiver.port
    receiver.stop()
    receiver.stop()
    with pytest.raises(StoreClosedError):
        receiver.start()
    assert refused(receiver, log_request()).code() is grpc.StatusCode.UNAVAILABLE


def test_stop_waits_for_a_request_in_progress(receiver, store):
    store.gate = threading.Event()
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        answer = channel.unary_unary(f"/{SERVICES['logs']}/Export").future(log_request(), timeout=30)
        assert store.entered.acquire(timeout=30)
        stopping = threading.Thread(target=receiver.stop, args=(30,))
        stopping.start()
        store.gate.set()
        assert answer.result(30) == b""
        stopping.join(30)
    assert not stopping.is_alive()
    assert len(store.kept) == 1
