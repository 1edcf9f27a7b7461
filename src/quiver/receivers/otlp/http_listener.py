"""
A listening socket with limits that the server lacks: on the number of connections, and on the time for a TLS
handshake, for the head of a request, and without any data.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from quiver.receivers.places import WAIT_MIN_S, network_of

__all__ = ["ConnectionLimits", "HttpListener", "HttpServer"]

_BACKLOG = 128
_NO_SUCH_FAMILY = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
_ACCEPT_PAUSE_S = 0.5
"""How long no connections are accepted when the process has no more file descriptors."""


class ConnectionLimits:
    """The limits of a listener: numbers of connections, and times in seconds; *age_s* None means no limit."""

    __slots__ = ("age_s", "connections_max", "head_timeout_s", "idle_timeout_s")

    def __init__(
        self, *, connections_max: int, head_timeout_s: float, idle_timeout_s: float, age_s: float | None = None
    ) -> None:
        self.age_s = age_s
        self.connections_max = connections_max
        self.head_timeout_s = head_timeout_s
        self.idle_timeout_s = idle_timeout_s


class HttpServer(Protocol):
    """The server for the connections: `aiohttp.web.Server`, or an object with the same interface."""

    def __call__(self) -> Any:
        """Return the asyncio protocol of a new connection."""

    @property
    def connections(self) -> Iterable[Any]:
        """The open protocols that have completed their handshake."""


class HttpListener:
    """
    Accepts connections for *server*. Runs entirely in the current event loop.

    Args:
        server: creates a protocol for each connection, and knows all of them.
        limits: the limits.
        context: TLS, or None.
        refused: called for each connection above the limit: the new one, or a silent one that it replaces.
        share_port: other processes may listen on the same port.
    """

    def __init__(
        self,
        server: HttpServer,
        limits: ConnectionLimits,
        context: ssl.SSLContext | None,
        refused: Callable[[], None],
        *,
        share_port: bool = False,
    ) -> None:
        self._server = server
        self._limits = limits
        self._context = context
        self._refused = refused
        self._share_port = share_port
        self._first_request_at: dict[Any, float] = {}  # when each protocol had its first request
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshaking: dict[socket.socket, Any] = {}  # during the handshake → their protocol, once there is one
        self._arrived: dict[Any, tuple[str, float]] = {}  # the network of each protocol, and when it connected
        self._dropped: set[Any] = set()  # aborted, and perhaps not closed yet
        self._busy: set[Any] = set()  # protocols with a current request; each has at most one
        self._silent_since: dict[Any, float] = {}
        self._spoke: set[Any] = set()
        self._released: set[Any] = set()

    async def listen(self, host: str, port: int) -> int:
        """
        Bind all addresses of *host* and accept connections from now on. Returns the port.

        Raises:
            OSError: the address is taken, unknown, or not on this machine.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        refused: OSError | None = None
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                # Port 0 selects one free port for all addresses.
                bound = _bound(family, kind, protocol, (address[0], port, *address[2:]), share_port=self._share_port)
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                refused = error  # `localhost` may have an IPv6 address on a system without IPv6
                continue
            self._sockets.append(bound)
            port = bound.getsockname()[1]
        if refused is not None and not self._sockets:
            raise refused
        for bound in self._sockets:
            loop.add_reader(bound, self._accept, bound)
        self._begin(self._sweep())
        return port

    async def close(self) -> None:
        """Stop accepting. Open connections stay open; those in their handshake do not. Idempotent."""
        for bound in self._sockets:
            asyncio.get_running_loop().remove_reader(bound)
            bound.close()
        self._sockets.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled before its first step has not taken over its connection.
        for connection in self._handshaking:
            connection.close()
        self._handshaking.clear()

    def is_old(self, request: Any) -> bool:
        """Return whether the connection of *request* has reached its maximum age: its client must reconnect."""
        now = asyncio.get_running_loop().time()
        born = self._first_request_at.setdefault(request.protocol, now)
        return self._limits.age_s is not None and now - born >= self._limits.age_s

    @contextlib.contextmanager
    def handling(self, request: Any) -> Iterator[None]:
        """Mark the connection of *request* as busy inside: it is not silent."""
        protocol = request.protocol
        self._busy.add(protocol)
        try:
            yield
        finally:
            self._busy.discard(protocol)
            self._spoke.add(protocol)
            self._silent_since[protocol] = asyncio.get_running_loop().time()

    def release(self, protocol: Any) -> None:
        """Stop managing a connection that speaks another protocol from now on."""
        self._released.add(protocol)

    # ── accepting ────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, bound: socket.socket) -> None:
        # Called by the selector, not awaited: a cancelled task would lose its result.
        crowd = _SilentConnections(self._silent)
        for _ in range(_BACKLOG):
            try:
                connection, address = bound.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError:
                # No file descriptor is left: wait until other connections close.
                asyncio.get_running_loop().remove_reader(bound)
                asyncio.get_running_loop().call_later(_ACCEPT_PAUSE_S, self._resume, bound)
                return
            connection.setblocking(False)
            network = network_of(str(address[0]))
            if self._open() >= self._limits.connections_max:
                self._refused()
                silent = crowd.leaving(network)
                if silent is None:
                    connection.close()
                    continue
                self._dropped.add(silent)
                _drop(silent)
            self._handshaking[connection] = None
            self._begin(self._handshake(connection, network))

    def _resume(self, bound: socket.socket) -> None:
        if bound in self._sockets:
            asyncio.get_running_loop().add_reader(bound, self._accept, bound)

    def _open(self) -> int:
        """Return the number of connections; the server knows those that have completed their handshake."""
        known = set(self._server.connections)
        return len(known - self._dropped) + sum(protocol not in known for protocol in self._handshaking.values())

    def _silent(self) -> list[_Silent]:
        now = asyncio.get_running_loop().time()
        found = []
        for protocol in set(self._server.connections) - self._busy - self._released - self._dropped:
            network, since = self._arrived.get(protocol, ("", now))
            spoke = protocol in self._spoke
            found.append(_Silent(network, spoke, self._silent_since[protocol] if spoke else since, protocol))
        return found

    async def _handshake(self, connection: socket.socket, network: str) -> None:
        def protocol() -> Any:
            made = self._handshaking[connection] = self._server()
            self._arrived[made] = network, asyncio.get_running_loop().time()
            return made

        timeout_s = None if self._context is None else self._limits.head_timeout_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=None if self._context is None else 1.0,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            connection.close()  # the handshake is invalid, or too slow
        finally:
            del self._handshaking[connection]

    # ── the silent ───────────────────────────────────────────────────────────────────────────────────

    async def _sweep(self) -> None:
        limits = self._limits
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(limits.head_timeout_s, limits.idle_timeout_s) / 4)
            now = loop.time()
            live = set(self._server.connections)
            self._spoke &= live
            self._released &= live
            self._dropped &= live
            known = live.union(self._handshaking.values())
            self._arrived = {protocol: came for protocol, came in self._arrived.items() if protocol in known}
            self._first_request_at = {
                protocol: born for protocol, born in self._first_request_at.items() if protocol in live
            }
            self._silent_since = {protocol: self._silent_since.get(protocol, now) for protocol in live}
            for protocol, since in self._silent_since.items():
                allowed = limits.idle_timeout_s if protocol in self._spoke else limits.head_timeout_s
                looked_after = protocol in self._busy or protocol in self._released
                if not looked_after and now - since > allowed:
                    _drop(protocol)


class _Silent(NamedTuple):
    """A connection without a current request: its address, whether it ever had one, and since when it has none."""

    network: str
    spoke: bool
    since: float
    protocol: Any


class _SilentConnections:
    """
    The silent connections while all places are taken, and the choice of the one that a new connection replaces.

    It is one of the address that has the most of them, so an address cannot keep others out: one that never had a
    request before a client that keeps its connection, and of these the one that has been silent the longest. An address
    only replaces its own connections if they have been silent for a while.

    Args:
        silent: returns them.
    """

    def __init__(self, silent: Callable[[], list[_Silent]]) -> None:
        self._look = silent
        self._silent: list[_Silent] | None = None
        self._counts: Counter[str] = Counter()

    def leaving(self, network: str) -> Any:
        """Return the connection that one from *network* replaces, or None."""
        if self._silent is None:
            found = self._look()
            self._counts = Counter(one.network for one in found)
            # The next one to close is the last one.
            self._silent = sorted(found, key=lambda one: (self._counts[one.network], not one.spoke, -one.since))
        if not self._silent:
            return None
        chosen = self._silent[-1]
        waited_s = asyncio.get_running_loop().time() - chosen.since
        if self._counts[chosen.network] <= self._counts[network] + 1 and waited_s < WAIT_MIN_S:
            return None
        self._silent.pop()
        self._counts[chosen.network] -= 1
        return chosen.protocol


def _drop(protocol: Any) -> None:
    transport = protocol.transport
    if transport is not None:
        transport.abort()


def _bound(family: int, kind: int, protocol: int, address: tuple[Any, ...], *, share_port: bool) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
