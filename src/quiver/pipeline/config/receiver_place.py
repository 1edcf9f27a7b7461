"""Where a receiver of a pipeline runs: which store it fills, and what that asks of its settings."""

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
"""An SDK keeps its connection for ever. Asked to connect anew from time to time, all processes get their share."""


class Receiver(Protocol):
    """What fills a store, in threads of its own."""

    settings: Any

    def start(self) -> object:
        """Begin."""

    def stop(self, grace_s: float) -> None:
        """End, in about *grace_s* seconds; what is at hand is stored and confirmed as far as there is room."""


@dataclass(frozen=True, slots=True)
class ReceiverPlace:
    """
    Where receivers run.

    Attributes:
        store: that they fill.
        observer: takes counts and events.
        is_durable: whether the store keeps on a disk what it has.
        cores: how many processes share the ports; None: there is one.
        core: which of them this one is.
        problems: returns why the store is not ready for requests, one sentence each.
        connection_share: the part of its connections that each port takes, so that all of them fit into the process.
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
        Return *settings* as they are here: in memory there is nothing to sync, cores share the port, and a process has
        as many connections as it may open files.
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
