"""Silent and slow clients cannot exclude others: not with calls, streams or bodies, nor from several addresses."""

import asyncio
import contextlib
import http.client
import queue
import socket
import threading
from dataclasses import replace

import grpc
import pytest
from fake_store import FakeStore, log_request

from quiver.otap.tables.payload_schema import SIGNALS
from quiver.receivers import places
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.otap.settings import OtapSettings
from quiver.receivers.otlp import http_receiver as otlp_http
from quiver.receivers.otlp.grpc_receiver import SERVICES, OtlpGrpcReceiver
from quiver.receivers.otlp.http_receiver import PROTOBUF, OtlpHttpReceiver
from quiver.receivers.places import Places, address_of_peer, network_of
from quiver.receivers.settings import OtlpSettings

SETTINGS = OtlpSettings(listening_addr="127.0.0.1:0", workers=1, requests_waiting_max=8)
EXPORT = f"/{SERVICES['logs']}/Export"
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    """A place can be lost immediately."""
    monkeypatch.setattr(places, "WAIT_MIN_S", 0.0)


async def held(room, network, stack, waits=True):
    """Take a place and wait; return None if there is none."""
    place = stack.enter_context(room.take(network))
    if place is not None and waits:
        timer = asyncio.timeout(60)
        await timer.__aenter__()
        stack.enter_context(place.waiting(timer))
    return place


def test_the_slowest_client_loses_its_place():
    async def go():
        room = Places(4)
        with contextlib.ExitStack() as stack:
            mine = [await held(room, "a", stack) for _ in range(2)]
            others = [await held(room, "b", stack) for _ in range(2)]
            newcomer = await held(room, "c", stack)
            assert newcomer is not None
            assert mine[0].is_evicted
            assert not any(place.is_evicted for place in [mine[1], *others])
            assert len(room) == 4
            # The timers of evicted places would cancel this test.
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go())


def test_an_address_at_its_limit_replaces_its_own_place():
    async def go():
        room = Places(8)
        with contextlib.ExitStack() as stack:
            other = await held(room, "other", stack)
            many = [await held(room, "many", stack) for _ in range(20)]
            assert not other.is_evicted
            assert sum(not place.is_evicted for place in many) == 4
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go())


def test_a_client_that_is_not_waited_for_keeps_its_place():
    async def go():
        room = Places(2)
        with contextlib.ExitStack() as stack:
            kept = [await held(room, network, stack, waits=False) for network in "ab"]
            assert await held(room, "c", stack) is None
            assert not any(place.is_evicted for place in kept)
        assert len(room) == 0

    asyncio.run(go())


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("ipv4:10.1.2.3:5000", "10.1.2.3"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:5000", "2001:db8:1:2::/64"),
        ("ipv6:[::1]:5000", "::1"),
        ("ipv6:%5B::ffff:10.1.2.3%5D:5000", "10.1.2.3"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_networks_are_derived_from_peers(peer, network):
    assert network_of(address_of_peer(peer)) == network


@contextlib.contextmanager
def silent_calls(port, method, connections, calls):
    """Calls that never send anything, on separate connections."""
    with contextlib.ExitStack() as stack:
        never = queue.SimpleQueue()
        stack.callback(lambda: [never.put(None) for _ in range(connections * calls)])
        ended = threading.Semaphore(0)
        for _ in range(connections):
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION))
            for _ in range(calls):
                call = channel.stream_stream(method)(iter(never.get, None), timeout=60)
                call.add_done_callback(lambda _call: ended.release())
            grpc.channel_ready_future(channel).result(10)
        yield ended


def export(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OWN_CONNECTION) as channel:
        return channel.unary_unary(EXPORT)(log_request(), timeout=20)


def test_calls_without_a_body_do_not_exclude_a_client():
    """There are more silent calls than places; every further call used to wait for the timeout of a body."""
    with OtlpGrpcReceiver(FakeStore(), SETTINGS) as receiver, silent_calls(receiver.port, EXPORT, 10, 2):
        for _ in range(3):
            assert export(receiver.port) == b""


def test_empty_streams_do_not_exclude_a_client():
    """The stream that has been silent the longest ends; the new one is served."""
    method = SIGNALS["logs"].service
    with (
        OtapGrpcReceiver(FakeStore(), SETTINGS, otap=OtapSettings(streams_max=8)) as receiver,
        silent_calls(receiver.port, method, 10, 2) as ended,
    ):
        assert ended.acquire(timeout=10)  # an earlier one freed its place
        with grpc.insecure_channel(f"127.0.0.1:{receiver.port}", options=OWN_CONNECTION) as channel:
            call = channel.stream_stream(method)(iter([b"\xff"]), timeout=20)
            with pytest.raises(grpc.RpcError) as error:  # it was read: not UNAVAILABLE
                list(call)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert export(receiver.port) == b""


def test_a_connection_gets_a_share_of_the_calls():
    """The 3rd call on one connection waits in the client, without a place."""
    with OtlpGrpcReceiver(FakeStore(), SETTINGS) as receiver, silent_calls(receiver.port, EXPORT, 1, 20) as ended:
        assert export(receiver.port) == b""
        assert not ended.acquire(blocking=False)


def test_slow_bodies_do_not_exclude_a_client():
    """Each has sent one byte of its body."""
    body = log_request()
    head = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nContent-Length: {len(body)}\r\n\r\n"
    with OtlpHttpReceiver(FakeStore(), SETTINGS) as receiver, contextlib.ExitStack() as stack:
        slow = []
        for _ in range(20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", receiver.port), timeout=20))
            client.sendall(head.encode() + body[:1])
            slow.append(client)
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=20))
        )
        connection.request("POST", "/v1/logs", body=body, headers={"Content-Type": PROTOBUF})
        assert connection.getresponse().status == 200
        assert slow[0].recv(4096).startswith(b"HTTP/1.1 503 ")


def test_a_body_below_the_minimum_rate_is_refused(monkeypatch):
    """Long before its timeout."""
    monkeypatch.setattr(otlp_http, "_BODY_PATIENCE_S", 0.1)
    head = f"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 5000\r\n\r\n"
    with (
        OtlpHttpReceiver(FakeStore(), replace(SETTINGS, body_timeout_s=600.0)) as receiver,
        socket.create_connection(("127.0.0.1", receiver.port), timeout=20) as client,
    ):
        client.sendall(head.encode() + b"x")
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")
