"""
The QWP receiver: unmodified QuestDB clients send their tables to it.

::

    WebSocket at /write/v4 ──▶ messages ──▶ tables ──▶ one bundle a table, in slot 50
                                                       ──▶ OK when the log has them
                                                       ──▶ durable when a segment has them, or the object tier
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import QuiverError
from quiver.observe import Observer
from quiver.receivers.otlp.http_listener import ConnectionLimits, HttpListener
from quiver.receivers.port import PortReceiver
from quiver.receivers.qwp.connection import QwpConnection
from quiver.receivers.qwp.intake import QwpIntake, QwpStore
from quiver.receivers.qwp.settings import QwpSettings
from quiver.receivers.security import server_context
from quiver.receivers.settings import split_address

__all__ = ["QwpReceiver", "QwpSettings"]

_TICK_S = 0.1
_HANDSHAKE_IDLE_S = 3600.0
_CLOSE_TIMEOUT_S = 1.0
"""How long a stopped receiver waits for clients to read their last answers."""


class QwpReceiver(PortReceiver):
    """
    Listens for QWP, for one store. A context manager: started inside, stopped on leaving.

    Args:
        store: the destination of tables.
        settings: address (default 127.0.0.1:9000), sizes, acknowledgement, window and security.
        clock: passed to the intake.
        observer: passed to the intake; receives events about an exposed port and about rejected clients.

    Raises:
        StoreFailedError: the store could not be synced after the window was rebuilt.
        SettingsError: certificates or credentials cannot be read, or the store lacks the required object tier.
    """

    def __init__(
        self,
        store: QwpStore,
        settings: QwpSettings | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self.settings = QwpSettings() if settings is None else settings
        self.intake = QwpIntake(store, self.settings, clock=clock, observer=observer)
        super().__init__("qwp", self.settings, self.intake.observer)
        self.receiving_bytes = 0  # of messages that are arriving or waiting; only used in the loop
        tls = self.settings.security.tls
        self._context = None if tls is None else server_context(tls, self._observer)
        self._listener: HttpListener | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._connections: set[QwpConnection] = set()
        self._closing: asyncio.Event | None = None  # set when the last connection has closed

    # ── what the listener and the connections need ───────────────────────────────────────────────────

    def __call__(self) -> QwpConnection:
        """Return the protocol of a new connection."""
        return QwpConnection(self)

    @property
    def connections(self) -> Iterable[QwpConnection]:
        """The open connections."""
        return self._connections

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate`."""
        return "" if self._authenticator is None else self._authenticator.challenge

    def is_authorized(self, authorization: list[str]) -> bool:
        """Return whether these headers have a known credential."""
        return self._authenticator is None or self._authenticator.check(authorization)

    def joined(self, connection: QwpConnection) -> None:
        """Handle a new connection."""
        self._connections.add(connection)

    def opened(self, connection: QwpConnection) -> None:
        """Handle a completed handshake."""
        if self._listener is not None:
            self._listener.release(connection)

    def left(self, connection: QwpConnection) -> None:
        """Handle a closed connection."""
        self._connections.discard(connection)
        if self._closing is not None and not self._connections:
            self._closing.set()

    def ask(self, numbers: frozenset[int]) -> None:
        """Ping the connections *numbers*, unless they were just pinged for this."""
        now = asyncio.get_running_loop().time()
        for one in list(self._connections):
            if one.client is not None and one.client.number in numbers:
                one.prove(now)

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new requests immediately, and give current ones *grace_s* seconds. Idempotent."""
        super().stop(grace_s)
        self.intake.close()

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> int:
        limits = ConnectionLimits(
            connections_max=self.settings.connections_max,
            head_timeout_s=self.settings.head_timeout_s,
            idle_timeout_s=_HANDSHAKE_IDLE_S,
        )
        self._listener = HttpListener(
            self, limits, self._context, self._one_too_many, share_port=self.settings.share_port
        )
        port = await self._listener.listen(*split_address(self.settings.listening_addr))
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return port

    def _one_too_many(self) -> None:
        self._observer.count("quiver.receiver.connections_refused_total", protocol="qwp")

    async def _close(self, grace_s: float) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._ticking is not None:
            self._ticking.cancel()
        connections = list(self._connections)
        working = [one.work for one in connections if one.work is not None]
        if working:
            await asyncio.wait(working, timeout=grace_s)
        for one in connections:
            one.leave()
        # The close frames were sent; a client that does not receive one finds the connection closed.
        await asyncio.sleep(0)
        for one in connections:
            one.drop()
        self._closing = asyncio.Event()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _CLOSE_TIMEOUT_S)
        for one in list(self._connections):
            one.abort()
        await asyncio.sleep(0)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            for one in list(self._connections):
                one.tick(now)
            since = [one.durable_since for one in self._connections if one.durable_since is not None]
            if since:
                through = await loop.run_in_executor(
                    self.pool, self._durable_through, now - min(since) >= self.settings.durable_wait_s
                )
                for one in list(self._connections):
                    one.made_durable(through)

    def _durable_through(self, seal: bool) -> int:  # noqa: FBT001 - called through an executor
        try:
            return self.intake.durable_through(seal=seal)
        except (QuiverError, OSError):
            return self.intake.durable_before  # the next tick retries; clients continue to wait
