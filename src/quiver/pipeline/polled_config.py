"""
The config of a receiver that fetches what it stores, and listens nowhere.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from quiver.pipeline.config_values import Config, Duration

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

__all__ = ["PolledReceiver", "PolledReceiverConfig"]


class PolledReceiver(Protocol):
    """
    A receiver with a thread of its own.
    """

    def start(self) -> None:
        """
        Begin.
        """

    def stop(self, grace_s: float) -> None:
        """
        End, in about *grace_s* seconds; what is at hand is stored and confirmed as far as there is room.
        """


class PolledReceiverConfig(Config):
    """
    What such receivers have in common. With several cores one of them fetches: a position has one reader.

    Attributes:
        poll_interval: how often the end is looked at.
    """

    poll_interval: Duration = 0.25

    def model_post_init(self, _context: Any, /) -> None:
        """
        Refuse to look without end.
        """
        if self.poll_interval <= 0:
            raise ValueError("poll_interval must be positive")

    @property
    def addresses(self) -> dict[str, str]:
        """
        Nothing: it listens nowhere.
        """
        return {}

    @property
    @abstractmethod
    def position(self) -> str:
        """
        What it goes on from, for people; no two receivers may have the same.
        """

    @abstractmethod
    def settings(self) -> Any:
        """
        Return the settings of the receiver.
        """

    @abstractmethod
    def receiver(self, store: Store, observer: Observer) -> PolledReceiver:
        """
        Return the receiver, not yet started, that fills *store*.
        """

    @abstractmethod
    def told(self) -> dict[str, str]:
        """
        Return what it reads, and as whom, for people.
        """
