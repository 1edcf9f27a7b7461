"""The listening socket closes the connections of clients that connect during its close."""

import asyncio
import errno
import socket
from types import SimpleNamespace

import pytest

from quiver.receivers.otlp.http_listener import ConnectionLimits, HttpListener

LIMITS = ConnectionLimits(connections_max=10, head_timeout_s=5, idle_timeout_s=5)


class Server:
    """Creates protocols, and knows the connected ones."""

    def __init__(self):
        self.connections = set()
        self.connected = asyncio.Event()

    def __call__(self):
        return Protocol(self)


class Protocol(asyncio.Protocol):
    def __init__(self, server):
        self._server = server
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport
        self._server.connections.add(self)
        self._server.connected.set()

    def connection_lost(self, exc):
        self._server.connections.discard(self)


def is_over(client):
    client.settimeout(5)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


async def close_after(turns):
    """Return three clients that connected *turns* turns of the loop before the listener closed."""
    server = Server()
    listener = HttpListener(server, LIMITS, None, lambda: None)
    port = await listener.listen("127.0.0.1", 0)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await listener.close()
    for protocol in list(server.connections):
        protocol.transport.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return clients


@pytest.mark.parametrize("turns", range(8))
def test_a_new_connection_during_close_is_closed(turns):
    """In any state: waiting in the kernel, just accepted, in its handshake."""
    for client in asyncio.run(close_after(turns)):
        with client:
            assert is_over(client)


def test_without_file_descriptors_no_connection_is_accepted(monkeypatch):
    """The listener pauses; it neither spins nor ends."""

    class Exhausted(socket.socket):
        refusals = 0

        def accept(self):
            if Exhausted.refusals < 1:
                Exhausted.refusals += 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    async def served():
        monkeypatch.setattr("quiver.receivers.otlp.http_listener._ACCEPT_PAUSE_S", 0.0)
        monkeypatch.setattr("quiver.receivers.otlp.http_listener.socket.socket", Exhausted)
        server = Server()
        listener = HttpListener(server, LIMITS, None, lambda: None)
        port = await listener.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await server.connected.wait()
        for protocol in list(server.connections):
            protocol.transport.abort()
        writer.close()
        await listener.close()

    asyncio.run(asyncio.wait_for(served(), 5))
    assert Exhausted.refusals == 1


async def crowded(addresses, *, newcomer, spoke=()):
    """
    Fill a listener with silent connections, and return which of them are closed when one more comes.

    Those in *spoke* have had a request.
    """
    server = Server()
    refused = []
    listener = HttpListener(server, LIMITS, None, lambda: refused.append(1))
    port = await listener.listen("127.0.0.1", 0)
    clients, protocols = [], []
    for number, address in enumerate([*addresses, newcomer]):
        server.connected.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        clients.append((reader, writer))
        if number < len(addresses):
            known = set(protocols)
            await server.connected.wait()
            [protocol] = server.connections - known
            protocols.append(protocol)
            if number in spoke:
                with listener.handling(SimpleNamespace(protocol=protocol)):
                    pass
    done, _ = await asyncio.wait(
        [asyncio.ensure_future(reader.read()) for reader, _ in clients],
        return_when=asyncio.FIRST_COMPLETED,
        timeout=5,
    )
    closed = [at for at, (reader, _) in enumerate(clients) if reader.at_eof() or reader.exception() is not None]
    left = [protocol for protocol in server.connections if protocol.transport]
    for protocol in left:
        protocol.transport.abort()
    await listener.close()
    for _, writer in clients:
        writer.close()
    assert len(done) == len(refused) == 1
    return closed


@pytest.mark.parametrize(("newcomer", "closed"), [("127.0.0.3", 1), ("127.0.0.2", 10)])
def test_an_address_cannot_exclude_other_addresses(newcomer, closed):
    """The address with the most connections loses its oldest silent one; its own only if silent for a while."""
    addresses = ["127.0.0.3", *["127.0.0.2"] * 9]
    assert asyncio.run(crowded(addresses, newcomer=newcomer)) == [closed]


def test_an_address_replaces_its_own_silent_connections(monkeypatch):
    """If they were silent for a while."""
    monkeypatch.setattr("quiver.receivers.otlp.http_listener.WAIT_MIN_S", 0.0)
    assert asyncio.run(crowded(["127.0.0.2"] * 10, newcomer="127.0.0.2")) == [0]


def test_a_connection_that_had_requests_outlasts_those_without(monkeypatch):
    """A client that keeps its connection open loses it last, although it has been silent the longest."""
    monkeypatch.setattr("quiver.receivers.otlp.http_listener.WAIT_MIN_S", 0.0)
    assert asyncio.run(crowded(["127.0.0.2"] * 10, newcomer="127.0.0.2", spoke=[0, 1])) == [2]
