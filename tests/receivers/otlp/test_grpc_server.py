"""The gRPC server of the receivers: compression, flow control, and clients that break the protocol."""

import random
import socket
import struct
import threading
from dataclasses import replace

import grpc
import pytest
import zstandard
from fake_store import log_request

from http2_client import Http2Client, data_frames, message, request_block
from quiver.http2 import frames as h2
from quiver.observe import InMemoryObserver
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.settings import KeepaliveSettings, OtlpSettings
from waiting import wait_until

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=2)
EXPORT = f"/{SERVICES['logs']}/Export"
OK, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 3, 8, 12, 13, 14


@pytest.fixture
def observer():
    return InMemoryObserver()


@pytest.fixture
def receiver(store, observer):
    with OtlpGrpcReceiver(store, SETTINGS, observer=observer) as running:
        yield running


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def serves(receiver) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{receiver.port}") as channel:
        return channel.unary_unary(EXPORT)(log_request("afterwards"), timeout=20) == b""


# ── compression ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["zstd", *(f"zstdarrow{level}" for level in range(1, 11))])
def test_zstd_is_accepted_under_the_names_of_all_clients(receiver, store, encoding):
    data = log_request(size=5_000)
    with Http2Client(receiver.port) as client:
        client.call(EXPORT, message(zstd(data), compressed=True), grpc_encoding=encoding)
        assert client.status() == (OK, "")
        assert client.data[1] == message(b"")
        assert "zstd" in client.headers[1]["grpc-accept-encoding"]
    assert store.kept == [(60, data)]


def test_a_message_that_is_not_compressed_is_stored_as_it_is(receiver, store):
    """Even if it looks like compressed data, and the call says that others are."""
    data = log_request()
    with Http2Client(receiver.port) as client:
        client.call(EXPORT, message(data), grpc_encoding="zstd")
        assert client.status()[0] == OK
        client.call(EXPORT, message(zstd(data)), stream=3)
        client.status(3)
    assert store.kept in ([(60, data)], [(60, data), (60, zstd(data))])


@pytest.mark.parametrize("size", [3_901, 4_000, 900_000_000])
def test_a_bomb_is_refused_and_not_decompressed(store, size):
    limits = replace(SETTINGS, max_request_bytes=1_000_000, max_decompressed_bytes=1_000_000)
    zeros = zstandard.ZstdCompressor().compressobj()
    bomb = b"".join([*(zeros.compress(bytes(1 << 20)) for _ in range(max(2, size >> 20))), zeros.flush()])
    with OtlpGrpcReceiver(store, limits) as receiver, Http2Client(receiver.port) as client:
        client.call(EXPORT, message(bomb, compressed=True), grpc_encoding="zstd")
        code, text = client.status()
    assert (code, store.kept) == (RESOURCE_EXHAUSTED, [])
    assert "1000000 bytes after decompression" in text


def test_damaged_zstd_is_an_invalid_argument(receiver, store):
    data = zstd(log_request(size=500))
    with Http2Client(receiver.port) as client:
        for stream, damaged in enumerate((data[:-3], b"x" + data[1:], data[:20] + b"\xff" + data[21:] + b"junk"), 1):
            client.call(EXPORT, message(damaged, compressed=True), stream=2 * stream - 1, grpc_encoding="zstd")
            assert client.status(2 * stream - 1)[0] == INVALID_ARGUMENT
    assert store.kept == []


def test_another_compression_is_refused_with_the_remedy_and_one_event(receiver, store, caplog):
    caplog.set_level("WARNING", "quiver")
    with Http2Client(receiver.port) as client:
        for stream in (1, 3):
            client.call(EXPORT, message(b"x", compressed=True), stream=stream, grpc_encoding="snappy")
            assert client.status(stream) == (
                UNIMPLEMENTED, "grpc-encoding snappy is not supported; use gzip, zstd or none"
            )  # fmt: skip
        client.call(EXPORT, message(b"x", compressed=True), stream=5)
        assert client.status(5)[0] == INTERNAL
    (event,) = (record for record in caplog.records if "unsupported_encoding" in record.getMessage())
    assert "snappy" in event.getMessage()
    assert "set the compression of this client to zstd, gzip or none" in event.getMessage()
    assert store.kept == []


# ── HTTP/2 ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_may_arrive_in_single_bytes(receiver, store):
    data = log_request()
    with Http2Client(receiver.port, start=False) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = (
            h2.PREFACE
            + h2.settings_frame([])
            + h2.header_frames(1, request_block(EXPORT), is_last=False)
            + data_frames(1, message(data))
        )
        for at in range(len(whole)):
            client.send(whole[at : at + 1])
        assert client.status()[0] == OK
    assert store.kept == [(60, data)]


def test_a_message_may_have_frames_of_one_byte_padding_and_a_split_head(receiver, store):
    data = log_request()
    block = request_block(EXPORT)
    with Http2Client(receiver.port) as client:
        client.send(
            h2.frame(h2.HEADERS, h2.PADDED | h2.HAS_PRIORITY, 1, b"\x03" + bytes(5) + block[:7] + bytes(3)),
            h2.frame(h2.CONTINUATION, 0, 1, block[7:20]),
            h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[20:]),
            data_frames(1, message(data)[:-1], size=1, last=False),
            h2.frame(h2.DATA, h2.PADDED | h2.END_STREAM, 1, b"\x04" + message(data)[-1:] + bytes(4)),
        )
        assert client.status()[0] == OK
    assert store.kept == [(60, data)]


def test_a_large_message_is_sent_as_far_as_the_window_allows(receiver, store):
    data = log_request(size=3_000_000)
    with Http2Client(receiver.port) as client:
        client.send(h2.header_frames(1, request_block(EXPORT), is_last=False))
        whole = message(data)
        sent, room = 0, h2.WINDOW_BYTES
        client.read()
        settings = [payload for kind, _, _, payload in client.received if kind == h2.SETTINGS]
        room = dict(struct.iter_unpack(">HI", settings[0]))[h2.INITIAL_WINDOW_SIZE]
        assert room < len(whole)
        seen = 0
        while sent < len(whole):
            part = whole[sent : sent + min(room, h2.FRAME_BYTES_MAX)]
            client.send(h2.data_frame(1, part, is_last=sent + len(part) == len(whole)))
            sent += len(part)
            room -= len(part)
            while room == 0 and sent < len(whole):
                assert client.read()
                new = client.received[seen:]
                seen = len(client.received)
                room += sum(
                    int.from_bytes(payload, "big")
                    for kind, _, stream, payload in new
                    if (kind, stream) == (h2.WINDOW_UPDATE, 1)
                )
        assert client.status()[0] == OK
    assert store.kept == [(60, data)]


def test_an_answer_waits_for_the_window_of_the_client(receiver, store):
    with Http2Client(receiver.port, settings=((h2.INITIAL_WINDOW_SIZE, 0),)) as client:
        client.call(EXPORT, message(log_request()))
        for _ in range(5):
            client.send(h2.window_frame(1, 1))
        assert client.status()[0] == OK
        assert client.data[1] == message(b"")
    assert len(store.kept) == 1


def test_more_data_than_the_window_allows_ends_the_connection(receiver, store):
    with Http2Client(receiver.port) as client:
        client.send(h2.header_frames(1, request_block("/a.B/Unknown", x="y"), is_last=False))
        assert client.status()[0] == UNIMPLEMENTED
        client.send(h2.header_frames(3, request_block("/grpc.health.v1.Health/Watch"), is_last=False))
        client.send(data_frames(3, message(b"") + bytes(5 * h2.WINDOW_BYTES), last=False))
        found = client.goaway()
        assert found is None or found[0] == h2.FLOW_CONTROL_ERROR  # None: it was lost with the connection
    assert serves(receiver)


PROTOCOL_ERRORS = {
    "data before a call": (h2.data_frame(1, b"x"), h2.PROTOCOL_ERROR),
    "data of no stream": (h2.data_frame(0, b"x"), h2.PROTOCOL_ERROR),
    "a stream of the server": (h2.header_frames(2, request_block(EXPORT), is_last=True), h2.PROTOCOL_ERROR),
    "a promise": (h2.frame(h2.PUSH_PROMISE, 4, 1, bytes(8)), h2.PROTOCOL_ERROR),
    "a window that grows by nothing": (h2.window_frame(0, 0), h2.PROTOCOL_ERROR),
    "a window without end": (h2.window_frame(0, 2**31 - 1) * 2, h2.FLOW_CONTROL_ERROR),
    "a frame that is too large": (h2.frame(h2.DATA, 0, 1, bytes(16_385)), h2.FRAME_SIZE_ERROR),
    "settings of another size": (h2.frame(h2.SETTINGS, 0, 0, bytes(5)), h2.FRAME_SIZE_ERROR),
    "a window of another size": (h2.frame(h2.WINDOW_UPDATE, 0, 0, bytes(5)), h2.FRAME_SIZE_ERROR),
    "a reset of an unknown stream": (h2.reset_frame(5, 8), h2.PROTOCOL_ERROR),
    "bad headers": (h2.header_frames(1, b"\xff\xff\xff\xff\xff\xff\xff", is_last=True), h2.COMPRESSION_ERROR),
    "many pings": (h2.frame(h2.PING, 0, 0, bytes(8)) * 10, h2.ENHANCE_YOUR_CALM),
    "many resets": (
        b"".join(
            h2.header_frames(2 * at + 1, request_block(EXPORT), is_last=False) + h2.reset_frame(2 * at + 1, 8)
            for at in range(2_000)
        ),
        h2.ENHANCE_YOUR_CALM,
    ),
    "empty continuations": (
        h2.frame(h2.HEADERS, 0, 1, request_block(EXPORT)) + h2.frame(h2.CONTINUATION, 0, 1),
        h2.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", PROTOCOL_ERRORS)
def test_a_client_that_breaks_the_protocol_is_disconnected_with_the_reason(receiver, store, name):
    payload, code = PROTOCOL_ERRORS[name]
    with Http2Client(receiver.port) as client:
        client.send(payload)
        found = client.goaway()
        if found is None:  # it was lost with the connection
            assert len(payload) > 100_000
        else:
            assert found[0] == code
            assert found[1]
    assert serves(receiver)


def test_damaged_conversations_affect_only_their_own_connection(receiver):
    chance = random.Random(7)
    whole = (
        h2.PREFACE
        + h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, 1 << 20)])
        + h2.header_frames(1, request_block(EXPORT, grpc_encoding="zstd", x="y"), is_last=False)
        + data_frames(1, message(zstd(log_request(size=300)), compressed=True), size=50)
        + h2.window_frame(0, 10)
    )
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(24, len(damaged))] ^= 1 << chance.randrange(8)
        with Http2Client(receiver.port, start=False) as client:
            client.send(bytes(damaged[: chance.randrange(24, len(damaged) + 1)]))
            client.socket.shutdown(socket.SHUT_WR)
            while client.read():
                pass
    assert serves(receiver)
    # The last calls end on the event loop after their clients have read everything.
    wait_until(lambda: not any(connection.calls for connection in list(receiver._server.connections)))
    wait_until(lambda: receiver._server._reserved == 0)


def test_a_client_that_does_not_read_is_not_read(receiver, store):
    """Each of its frames needs an answer, which would fill the memory."""
    with Http2Client(receiver.port) as client:
        client.socket.settimeout(1)
        flood = h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, 65_535)]) * 10_000
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                client.socket.sendall(flood)
    assert serves(receiver)


# ── life of a connection ─────────────────────────────────────────────────────────────────────────────


def test_a_silent_client_is_pinged_and_then_disconnected(store):
    keepalive = KeepaliveSettings(ping_interval_s=0.05, ping_timeout_s=0.1)
    with OtlpGrpcReceiver(store, replace(SETTINGS, keepalive=keepalive)) as receiver:
        with Http2Client(receiver.port) as silent:
            while silent.read():
                pass
            assert h2.PING in {kind for kind, _, _, _ in silent.received}
        with Http2Client(receiver.port) as client:
            answered = 0
            while answered < 5:
                assert client.read()
                pings = [payload for kind, flags, _, payload in client.received if kind == h2.PING and not flags]
                for payload in pings[answered:]:
                    client.send(h2.frame(h2.PING, h2.ACK, 0, payload))
                answered = len(pings)
            client.call(EXPORT, message(log_request()))
            assert client.status()[0] == OK


@pytest.mark.parametrize("keepalive", [
    KeepaliveSettings(max_connection_idle_s=0.05), KeepaliveSettings(max_connection_age_s=0.05),
])  # fmt: skip
def test_an_idle_or_old_connection_is_closed_after_its_client_knows(store, keepalive):
    with (
        OtlpGrpcReceiver(store, replace(SETTINGS, keepalive=keepalive)) as receiver,
        Http2Client(receiver.port) as client,
    ):
        client.call(EXPORT, message(log_request()))
        assert client.status()[0] == OK
        while not any(kind == h2.PING for kind, _, _, _ in client.received):
            assert client.read()
        (ping,) = (payload for kind, _, _, payload in client.received if kind == h2.PING)
        # A call that was sent before the client knew is served.
        client.call(EXPORT, message(log_request("late")), stream=3)
        client.send(h2.frame(h2.PING, h2.ACK, 0, ping))
        assert client.status(3)[0] == OK
        assert client.goaway() == (h2.NO_ERROR, b"")
    assert len(store.kept) == 2


def test_a_connection_without_grace_is_closed_with_its_calls(store):
    keepalive = KeepaliveSettings(max_connection_age_s=0.05, max_connection_age_grace_s=0.05)
    store.gate = threading.Event()
    with OtlpGrpcReceiver(store, replace(SETTINGS, keepalive=keepalive)) as receiver:
        with Http2Client(receiver.port) as client:
            client.call(EXPORT, message(log_request()))
            assert store.entered.acquire(timeout=20)
            client.goaway()
            assert 1 not in client.done
        store.gate.set()


def test_a_stopping_receiver_finishes_calls_and_refuses_others(store):
    store.gate = threading.Event()
    receiver = OtlpGrpcReceiver(store, SETTINGS)
    receiver.start()
    with Http2Client(receiver.port) as client, Http2Client(receiver.port) as idle:
        client.call(EXPORT, message(log_request()))
        assert store.entered.acquire(timeout=20)
        stopping = threading.Thread(target=receiver.stop, args=(30,))
        stopping.start()
        assert idle.goaway() == (h2.NO_ERROR, b"")
        client.call(EXPORT, message(log_request("late")), stream=3)  # after GOAWAY: the client sends it elsewhere
        store.gate.set()
        assert client.status()[0] == OK
        assert client.goaway() == (h2.NO_ERROR, b"")
        assert 3 not in client.done
        stopping.join(30)
    assert len(store.kept) == 1
