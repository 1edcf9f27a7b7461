"""The config of receivers that poll a source instead of listening on a port."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quiver.pipeline.config.base import Config
from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

__all__ = ["PolledReceiverConfig"]


class PolledReceiverConfig(Config):
    """A receiver that polls. With several cores only the first one polls: a position has one reader."""

    @property
    def addresses(self) -> dict[str, str]:
        """Empty: a polling receiver has no port."""
        return {}

    @property
    @abstractmethod
    def position(self) -> str:
        """The durable position that it reads from, human-readable; no two receivers may share one."""

    @abstractmethod
    def settings(self) -> Any:
        """Return the settings of the receiver."""

    @abstractmethod
    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return a receiver that fills *store*; it is not started yet."""

    def receivers(self, place: ReceiverPlace) -> Iterator[Receiver]:
        """Yield the receiver, not started yet, in the first core; nothing in the others."""
        if place.core == 0:
            yield self.receiver(place.store, place.observer)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Describe what the receiver reads, and under which name."""
