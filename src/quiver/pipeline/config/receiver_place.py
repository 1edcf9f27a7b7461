"""Where a receiver of a pipeline runs: the store that it fills, and how its settings adapt to that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quiver.receivers.qwp.settings import QwpSettings
from quiver.receivers.settings import OtlpSettings

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

__all__ = ["Receiver", "ReceiverPlace"]

_Settings = TypeVar("_Settings", bound=OtlpSettings | QwpSettings)

AGE_WITH_CORES_S = 30.0
"""SDKs keep their connections open. Closing old connections now and then spreads clients over all processes."""


class Receiver(Protocol):
    """Fills a store, in its own threads."""

    settings: Any

    def start(self) -> object:
        """Start receiving."""

    def stop(self, grace_s: float) -> None:
        """Stop within about *grace_s* seconds. Requests in progress are stored and confirmed if there is space."""


@dataclass(frozen=True, slots=True)
class ReceiverPlace:
    """
    Where receivers run.

    Attributes:
        store: the store that they fill.
        observer: receives counts and events.
        is_durable: whether the store keeps its data on disk.
        cores: the number of processes that share the ports; None for a single process.
        core: the number of this process.
        problems: returns why the store is not ready for requests, one sentence each.
        connection_share: the fraction of its connections that each port may use, so that all fit into one process.
    """

    store: Store
    observer: Observer
    is_durable: bool = True
    cores: int | None = None
    core: int = 0
    problems: Callable[[], Sequence[str]] = tuple
    connection_share: float = 1.0

    def settled(self, settings: _Settings) -> _Settings:
        """
        Return *settings* adapted to this place: a store in memory has nothing to sync, cores share the port, and a
        process can have only as many connections as it may open files.
        """
        if self.connection_share < 1:
            settings = replace(settings, connections_max=max(1, int(settings.connections_max * self.connection_share)))
        if not self.is_durable:
            settings = replace(settings, ack="logged")
        if self.cores is None:
            return settings
        keepalive = settings.keepalive
        if keepalive.max_connection_age_s is None:
            keepalive = replace(keepalive, max_connection_age_s=AGE_WITH_CORES_S)
        return replace(settings, share_port=True, keepalive=keepalive)
