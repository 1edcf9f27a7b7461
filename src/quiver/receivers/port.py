"""
The base class of receivers, independent of the protocol: an address, an event loop in its own thread, and workers
for the disk.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from quiver.errors import StoreClosedError, TransientError
from quiver.observe import Observer
from quiver.receivers.loop_thread import LoopThread
from quiver.receivers.security import Authenticator, SecuritySettings, warn_of_exposure
from quiver.receivers.settings import split_address

__all__ = ["PortReceiver", "try_to_bind"]


class _Where(Protocol):
    @property
    def listening_addr(self) -> str: ...

    @property
    def security(self) -> SecuritySettings: ...

    @property
    def workers(self) -> int: ...


def try_to_bind(address: str) -> None:
    """
    Bind a socket to *address* and release it.

    Raises:
        OSError: the address cannot be used: it is taken, not on this machine, or not permitted.
    """
    host, port = split_address(address)
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(where)
            except OSError as error:
                raise OSError(error.errno, error.strerror) from None


class PortReceiver(ABC):
    """
    Listens on one port. A context manager: started inside, stopped on leaving.

    Args:
        name: the name of the protocol, for thread names.
        where: the address, security, and the number of workers.
        observer: receives events about an exposed port and about rejected clients.

    Raises:
        SettingsError: credentials cannot be read.
    """

    def __init__(self, name: str, where: _Where, observer: Observer) -> None:
        self.port = 0
        self.is_stopping = False
        self.pool = ThreadPoolExecutor(where.workers, thread_name_prefix=f"quiver-{name}-worker")
        self._where = where
        self._thread_name = f"quiver-{name}"
        self._observer = observer
        auth = where.security.auth
        self._authenticator = None if auth is None else Authenticator(auth, observer)
        self._loop: LoopThread | None = None

    @abstractmethod
    async def _listen(self) -> int:
        """
        Bind the address and start to serve. Called in the loop. Returns the port.

        Raises:
            OSError, RuntimeError: the address is taken, or not on this machine.
        """

    @abstractmethod
    async def _close(self, grace_s: float) -> None:
        """Accept no more clients, and give current requests *grace_s* seconds. Called in the loop."""

    def start(self) -> int:
        """
        Start to listen. Returns the bound port, which is also `port` from now on.

        Raises:
            TransientError: the address is taken, or not on this machine.
            StoreClosedError: the receiver was stopped; create another.
        """
        if self.is_stopping:
            raise StoreClosedError("this receiver was stopped; create another")
        if self._loop is not None:
            return self.port
        address = self._where.listening_addr
        warn_of_exposure(address, split_address(address)[0], self._where.security, self._observer)
        self._loop = LoopThread(self._thread_name)
        try:
            self.port = self._loop.run(self._listen())
        except (OSError, RuntimeError) as error:
            self.stop(0)
            raise TransientError(f"cannot listen on {address}: {error}") from error
        return self.port

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new requests immediately, and give current ones *grace_s* seconds. Idempotent."""
        self.is_stopping = True
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._close(grace_s))
            loop.stop()
        self.pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
