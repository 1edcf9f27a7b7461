"""
A bounded number of places for clients, shared between addresses. The slowest client loses its place to a new one.

A client that has a place and sends nothing costs almost nothing, but the number of places is limited. When all are
taken, the client that has kept its receiver waiting the longest loses its place to the new one. So silent clients
cannot keep others out, even with many addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Place", "Places", "address_of_peer", "network_of"]

WAIT_MIN_S = 1.0
"""A client that the receiver has waited for less than this does not lose its place."""

ADDRESS_SHARE = 2
"""The maximum share of one address: half of the places."""


@dataclass(eq=False, slots=True)
class Place:
    """
    The place of one client.

    Attributes:
        network: the network of the client, see `network_of`.
        is_evicted: whether it lost the place to another client.
    """

    network: str
    is_evicted: bool = False
    _timer: asyncio.Timeout | None = None
    _since: float = 0.0

    @contextmanager
    def waiting(self, timer: asyncio.Timeout) -> Iterator[None]:
        """Wait for the client inside, under the entered *timer*, which expires immediately if the place is lost."""
        self._timer, self._since = timer, asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._timer = None


class Places:
    """
    At most *total* places, half of them for one address. For one event loop.

    Args:
        total: the number of places.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._per_network = max(1, total // ADDRESS_SHARE)
        self._places: dict[Place, None] = {}  # in the order in which they were taken
        self._by_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def take(self, network: str) -> Iterator[Place | None]:
        """Hold a place inside. It is None if all are taken and no client can lose one."""
        place = self._taken(network)
        try:
            yield place
        finally:
            if place is not None and not place.is_evicted:
                self._leave(place)

    def _taken(self, network: str) -> Place | None:
        if self._by_network[network] >= self._per_network:
            # An address at its limit takes a place from itself.
            if not self._evict(network):
                return None
        elif len(self._places) >= self._total and not self._evict(None):
            return None
        place = Place(network)
        self._places[place] = None
        self._by_network[network] += 1
        return place

    def _evict(self, network: str | None) -> bool:
        now = asyncio.get_running_loop().time()
        waited_for = [
            place
            for place in self._places
            if place._timer is not None and network in {None, place.network} and now - place._since >= WAIT_MIN_S  # noqa: SLF001
        ]
        if not waited_for:
            return False
        slowest = min(waited_for, key=lambda place: place._since)  # noqa: SLF001
        slowest.is_evicted = True
        self._leave(slowest)
        if slowest._timer is not None:  # noqa: SLF001
            slowest._timer.reschedule(now)  # noqa: SLF001
        return True

    def _leave(self, place: Place) -> None:
        del self._places[place]
        self._by_network[place.network] -= 1
        if not self._by_network[place.network]:
            del self._by_network[place.network]


def network_of(address: str) -> str:
    """
    Return the identity of *address* for limits: itself, or the /64 network of an IPv6 address.

    A client with one IPv6 address usually controls its /64 network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None and not parsed.is_loopback:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def address_of_peer(peer: str) -> str:
    """Return the address in a gRPC peer name: ``ipv4:127.0.0.1:5000``, ``ipv6:%5B::1%5D:5000``, ``unix:…``."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return peer
    return rest.rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]")
