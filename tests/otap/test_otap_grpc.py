"""OTAP streams over real connections: one status for each batch, after it is durable, and broken streams."""

import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import zstandard
from otap_client import Client, KeptTables
from otap_equal import merged
from otap_oracle import REQUESTS
from otap_ways import CASES, bytes_of, parsed, weighed
from test_otap_vectors import LOST_BY_ALL

from http2_client import Http2Client, data_frames, request_block
from http2_client import message as framed
from quiver.errors import CapacityError, StoreClosedError, StoreFailedError
from quiver.http2 import frames as h2
from quiver.otap import StatusCode, StreamEncoder, decode_status, from_otlp, to_otlp
from quiver.otap.stream.arrow_message import ArrowPayload, decode_records, encode_records
from quiver.otap.tables.payload_schema import SIGNALS
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.otlp.grpc_receiver import SERVICES
from quiver.receivers.security import AuthSettings, SecuritySettings
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)
LOGS = CASES["logs_sdk"]


@pytest.fixture
def store():
    return KeptTables()


@pytest.fixture(params=["asyncio", "grpcio"])
def transport(request):
    return request.param


@pytest.fixture
def receiver(store):
    with OtapGrpcReceiver(store, SETTINGS) as running:
        yield running


def test_each_transport_serves_streams(store, transport):
    with OtapGrpcReceiver(store, replace(SETTINGS, transport=transport)) as receiver:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with Client(receiver.port, compression=compression) as client:
                client.send(*messages(5))
                client.half_close()
                assert [status.code for status in client.statuses()] == [StatusCode.OK] * 5
    assert len(store.kept) == 10


def messages(count: int = 1, case: str = "logs_sdk") -> list[bytes]:
    encoder = StreamEncoder("logs")
    bundle = from_otlp(bytes_of(CASES[case]["otlp"][0]), "logs")
    return [batch.message for _ in range(count) for batch in encoder.encode(bundle.batches)]


def logs_with(text: str) -> bytes:
    request = REQUESTS["logs"]()
    request.resource_logs.add().scope_logs.add().log_records.add(severity_text=text)
    return request.SerializeToString()


def drop_payload(message: bytes, payload: int) -> bytes:
    """Return the message without one of its tables."""
    records = decode_records(message)
    return encode_records(records.batch_id, [one for one in records.payloads if one.payload != payload])


def renamed(message: bytes) -> bytes:
    """Return the message with schema ids that are unknown unless their schema is in the message."""
    records = decode_records(message)
    payloads = [ArrowPayload(f"new {one.schema_id}", one.payload, one.record) for one in records.payloads]
    return encode_records(records.batch_id, payloads)


# -- one status for each batch ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", weighed("logs_dict_reset", "metrics_growing"))
def test_recorded_streams_are_stored_as_their_requests(receiver, store, case):
    with Client(receiver.port, case["signal"]) as client:
        client.send(*map(bytes_of, case["otap"]))
        client.half_close()
        statuses = client.statuses()
    assert sorted((status.batch_id, status.code) for status in statuses) == [(at, 0) for at in range(len(case["otap"]))]
    losses = frozenset(case["losses"]) | LOST_BY_ALL
    for bundle, name in zip(store.kept, case["otlp"], strict=True):
        came = parsed(to_otlp(bundle, case["signal"]), case["signal"])
        assert merged(came, losses) == merged(parsed(bytes_of(name), case["signal"]), losses)


def test_checklist_1_streams_and_unary_services_share_a_port(receiver, store):
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        channel.unary_unary(f"/{SERVICES['logs']}/Export")(bytes_of(LOGS["otlp"][0]), timeout=30)
        assert store.kept[0].slots == (60,)
        for signal in ("logs", "traces", "metrics"):
            with Client(0, signal, channel=channel) as client:
                client.half_close()
                assert client.statuses() == []
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream("/opentelemetry.proto.experimental.arrow.v1.ArrowLogsService/Other")(iter(())))
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_checklist_3_ok_comes_only_after_the_sync(receiver, store):
    store.sync_gate = threading.Event()
    with Client(receiver.port) as client:
        client.send(*messages(3))
        assert all(store.ingested.acquire(timeout=30) for _ in range(3))
        assert store.synced == 0
        answered = threading.Event()
        client.call.add_done_callback(lambda _: answered.set())
        store.sync_gate.set()
        assert [client.status().code for _ in range(3)] == [StatusCode.OK] * 3
        assert store.synced == 3
        assert not answered.is_set()


def test_ack_logged_confirms_without_a_sync(store):
    with (
        OtapGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0", ack="logged")) as receiver,
        Client(receiver.port) as client,
    ):
        client.send(*messages())
        assert client.status().code == StatusCode.OK
        assert (len(store.kept), store.synced) == (1, 0)


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (CapacityError("disk", retry_after_s=2.0), StatusCode.UNAVAILABLE, "send it again in 2 s"),
        (StoreFailedError("a sync failed"), StatusCode.UNAVAILABLE, "a sync failed"),
        (StoreClosedError("closed"), StatusCode.UNAVAILABLE, "closed"),
        (OSError(28, "No space left on device"), StatusCode.UNAVAILABLE, "No space left"),
    ],
)
def test_checklist_3_a_full_store_is_unavailable_and_the_stream_continues(receiver, store, failure, code, text):
    store.failures.extend([None, failure, None])
    with Client(receiver.port) as client:
        client.send(*messages(3))
        client.half_close()
        statuses = {status.batch_id: status for status in client.statuses()}
    assert [statuses[at].code for at in range(3)] == [StatusCode.OK, code, StatusCode.OK]
    assert text in statuses[1].message
    assert len(store.kept) == 2


def test_a_sync_that_fails_confirms_nothing(receiver, store):
    store.sync_failures.append(StoreFailedError("the disk is gone"))
    with Client(receiver.port) as client:
        client.send(*messages())
        status = client.status()
    assert (status.code, status.message) == (StatusCode.UNAVAILABLE, "the disk is gone")


def test_checklist_3_an_undecodable_batch_is_invalid_and_then_the_stream_ends_with_ok(receiver, store):
    first, second = messages(2)
    with Client(receiver.port) as client:
        client.send(first, renamed(second), first)
        statuses = {status.batch_id: status.code for status in client.statuses()}
    assert statuses == {0: StatusCode.OK, 1: StatusCode.INVALID_ARGUMENT}
    assert len(store.kept) == 1


def test_an_invalid_message_ends_the_stream_with_the_reason(receiver, store):
    with Client(receiver.port) as client:
        client.send(*messages(), b"\xff\xff\xff")
        error = client.ended()
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "not a BatchArrowRecords" in error.details()
    assert len(store.kept) == 1


def test_invalid_tables_are_refused_and_the_stream_continues(receiver, store):
    """They decode as Arrow, so later messages can be decoded, but no reader could read them."""
    encoder = StreamEncoder("logs")
    bundle = from_otlp(bytes_of(LOGS["otlp"][0]), "logs")
    (orphaned,) = StreamEncoder("logs").encode(bundle.batches)
    (good,) = encoder.encode(bundle.batches)
    without_root = renamed(drop_payload(orphaned.message, 30))
    with Client(receiver.port) as client:
        client.send(without_root, good.message)
        client.half_close()
        statuses = client.statuses()
    assert [status.code for status in statuses] == [StatusCode.INVALID_ARGUMENT, StatusCode.OK]


def test_an_encoding_without_support_ends_the_stream_with_the_remedy(receiver):
    with Http2Client(receiver.port) as client:
        client.call(SIGNALS["logs"].service, framed(b"x", compressed=True), grpc_encoding="snappy")
        assert client.status() == (12, "grpc-encoding snappy is not supported; use gzip, zstd or none")


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


@pytest.mark.parametrize("encoding", ["zstd", "zstdarrow5"])
def test_streams_of_other_exporters_are_compressed_with_zstd(receiver, store, encoding):
    """By default those of the Collector and of the Rust data plane are, each under its own names."""
    service = SIGNALS["logs"].service
    compress = zstandard.ZstdCompressor().compress
    with Http2Client(receiver.port) as client:
        client.send(
            h2.header_frames(1, request_block(service, grpc_encoding=encoding), is_last=False),
            *(data_frames(1, framed(compress(data), compressed=True), last=False) for data in messages(3)),
            data_frames(1, b""),
        )
        assert client.status() == (0, "")
    statuses = [decode_status(data) for data in client.messages()]
    assert [status.code for status in statuses] == [StatusCode.OK] * 3
    assert len(store.kept) == 3


def test_a_bomb_in_a_stream_ends_it(store):
    settings = replace(SETTINGS, max_request_bytes=100_000)
    bomb = zstandard.ZstdCompressor().compress(bytes(50_000_000))
    with OtapGrpcReceiver(store, settings) as receiver, Http2Client(receiver.port) as client:
        client.call(SIGNALS["logs"].service, framed(bomb, compressed=True), grpc_encoding="zstd")
        code, text = client.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "bytes after decompression" in text
    assert store.kept == []


@pytest.mark.parametrize("encoding", ["zstd", "zstdarrow5"])
def test_checklist_6_grpcio_ends_a_stream_with_an_unknown_encoding_with_the_reason(store, encoding):
    """The message is gRPC's; docs/howto/otap.md quotes it and explains the configuration."""
    with OtapGrpcReceiver(store, replace(SETTINGS, transport="grpcio")) as receiver:
        check_unknown_encoding(receiver, encoding)


def check_unknown_encoding(receiver, encoding):
    head = {
        ":method": "POST", ":scheme": "http", ":path": SIGNALS["logs"].service, ":authority": "x",
        "te": "trailers", "content-type": "application/grpc", "grpc-encoding": encoding,
    }  # fmt: skip
    fields = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in head.items()
    )
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=30) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b"") + http2_frame(1, 4, 1, fields)
        )
        reported = b""
        while b"grpc-message" not in reported:
            reported += connection.recv(65_536)
    message = b"Error parsing 'grpc-encoding' metadata"
    assert message in reported
    assert message.decode() in (Path(__file__).parents[2] / "docs" / "howto" / "otap.md").read_text("utf-8")


# -- life of a stream ---------------------------------------------------------------------------------------


def test_checklist_4_after_the_half_close_all_batches_are_answered_and_the_stream_ends_with_ok(receiver, store):
    with Client(receiver.port) as client:
        client.send(*messages(40))
        client.half_close()
        assert sorted(status.batch_id for status in client.statuses()) == list(range(40))
    assert len(store.kept) == store.synced == 40


def test_checklist_4_a_stopping_receiver_answers_batches_and_ends_streams_with_ok(store):
    receiver = OtapGrpcReceiver(store, SETTINGS)
    receiver.start()
    store.sync_gate = threading.Event()
    with Client(receiver.port) as client:
        client.send(*messages())
        assert store.ingested.acquire(timeout=30)
        stopping = threading.Thread(target=receiver.stop)
        stopping.start()
        store.sync_gate.set()
        assert [status.code for status in client.statuses()] == [StatusCode.OK]
        stopping.join()


def test_a_broken_stream_keeps_its_stored_batches_and_does_not_affect_others(receiver, store):
    with Client(receiver.port) as broken, Client(receiver.port) as other:
        broken.send(*messages())
        assert broken.status().code == StatusCode.OK
        broken.call.cancel()
        other.send(*messages(2))
        other.half_close()
        assert len(other.statuses()) == 2
    assert len(store.kept) == 3


def test_checklist_4_a_new_stream_starts_empty(receiver):
    first, second = messages(2)
    with Client(receiver.port) as client:
        client.send(first)
        assert client.status().code == StatusCode.OK
    with Client(receiver.port) as client:
        client.send(second)
        assert [status.code for status in client.statuses()] == [StatusCode.INVALID_ARGUMENT]


def test_messages_may_be_compressed_with_gzip(receiver, store):
    with Client(receiver.port, compression=grpc.Compression.Gzip) as client:
        client.send(*messages(2))
        client.half_close()
        assert [status.code for status in client.statuses()] == [StatusCode.OK] * 2


def test_checklist_2_two_batches_with_one_id_are_both_answered(receiver, store):
    with Client(receiver.port) as client:
        client.send(messages()[0])
        assert client.status().batch_id == 0
        again = StreamEncoder("logs")
        bundle = from_otlp(bytes_of(CASES["logs_anyvalue"]["otlp"][0]), "logs")
        (batch,) = again.encode(bundle.batches)
        client.send(renamed(batch.message))
        assert client.status().batch_id == 0


# -- limits -------------------------------------------------------------------------------------------------


def test_streams_beyond_the_limit_are_unavailable(store):
    with (
        OtapGrpcReceiver(store, SETTINGS, otap=OtapSettings(streams_max=1)) as receiver,
        Client(receiver.port) as client,
    ):
        client.send(*messages())
        assert client.status().code == StatusCode.OK
        with Client(receiver.port) as second:
            error = second.ended()
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert "google.rpc.retryinfo-bin" in dict(error.trailing_metadata())
        client.half_close()
        assert client.statuses() == []
        with Client(receiver.port) as third:
            third.half_close()
            assert third.statuses() == []


def test_reading_stops_when_too_many_batches_wait_for_a_status(store):
    store.sync_gate = threading.Event()
    with (
        OtapGrpcReceiver(store, SETTINGS, otap=OtapSettings(batches_in_flight_max=2)) as receiver,
        Client(receiver.port) as client,
    ):
        client.send(*messages(5))
        assert store.ingested.acquire(timeout=30)
        assert store.ingested.acquire(timeout=30)
        assert not store.ingested.acquire(timeout=0.1)
        store.sync_gate.set()
        client.half_close()
        assert len(client.statuses()) == 5


def test_an_idle_stream_is_ended_with_ok(store):
    with (
        OtapGrpcReceiver(store, SETTINGS, otap=OtapSettings(stream_idle_s=0.05)) as receiver,
        Client(receiver.port) as client,
    ):
        assert client.statuses() == []


def test_a_stream_is_ended_before_its_dictionaries_exceed_the_limit(store):
    otap = OtapSettings(stream_dictionaries_bytes_max=60_000)
    with OtapGrpcReceiver(store, SETTINGS, otap=otap) as receiver:
        encoder = StreamEncoder("logs")
        with Client(receiver.port) as client:
            for at in range(12):
                bundle = from_otlp(logs_with(f"{at}-{'x' * 4_000}"), "logs")
                client.send(*(batch.message for batch in encoder.encode(bundle.batches)))
            statuses = client.statuses()
    assert 0 < len(statuses) < 12
    assert {status.code for status in statuses} == {StatusCode.OK}


def test_the_dictionaries_of_all_streams_share_a_limit(store):
    otap = OtapSettings(stream_dictionaries_bytes_max=100_000, dictionaries_bytes_max=100_000)
    with OtapGrpcReceiver(store, SETTINGS, otap=otap) as receiver:
        clients = [Client(receiver.port) for _ in range(6)]
        for client in clients:
            bundle = from_otlp(logs_with("x" * 20_000), "logs")
            client.send(*(batch.message for batch in StreamEncoder("logs").encode(bundle.batches)))
            assert client.status().code == StatusCode.OK
        assert clients[-1].statuses() == []
        for client in clients:
            with client:
                pass


def test_a_message_over_the_limit_ends_the_stream(store):
    settings = OtlpSettings(listening_addr="127.0.0.1:0", max_request_bytes=1_000)
    with OtapGrpcReceiver(store, settings) as receiver, Client(receiver.port) as client:
        client.send(bytes(2_000))
        assert client.ended().code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_unauthenticated_client_gets_no_stream(store):
    security = SecuritySettings(auth=AuthSettings(tokens=("secret",)))
    settings = OtlpSettings(listening_addr="127.0.0.1:0", security=security)
    with OtapGrpcReceiver(store, settings) as receiver:
        with Client(receiver.port) as client:
            assert client.ended().code() == grpc.StatusCode.UNAUTHENTICATED
        with Client(receiver.port, metadata=[("authorization", "Bearer secret")]) as client:
            client.send(*messages())
            assert client.status().code == StatusCode.OK
