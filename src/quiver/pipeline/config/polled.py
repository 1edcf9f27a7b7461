"""The config of a receiver that fetches what it stores, and listens nowhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quiver.pipeline.config.receiver_place import Receiver, ReceiverPlace
from quiver.pipeline.config.values import Config, Duration

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

__all__ = ["PolledReceiverConfig"]


class PolledReceiverConfig(Config):
    """
    What such receivers have in common. With several cores one of them fetches: a position has one reader.

    Attributes:
        poll_interval: how often the end is looked at.
    """

    poll_interval: Duration = 0.25

    def model_post_init(self, _context: Any, /) -> None:
        """Refuse to look without end."""
        if self.poll_interval <= 0:
            raise ValueError("poll_interval must be positive")

    @property
    def addresses(self) -> dict[str, str]:
        """Nothing: it listens nowhere."""
        return {}

    @property
    @abstractmethod
    def position(self) -> str:
        """What it goes on from, for people; no two receivers may have the same."""

    @abstractmethod
    def settings(self) -> Any:
        """Return the settings of the receiver."""

    @abstractmethod
    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return the receiver, not yet started, that fills *store*."""

    def receivers(self, place: ReceiverPlace) -> Iterator[Receiver]:
        """Yield it, not yet started, where it runs: of several cores in the first."""
        if place.core == 0:
            yield self.receiver(place.store, place.observer)

    @abstractmethod
    def told(self) -> dict[str, str]:
        """Return what it reads, and as whom, for people."""
