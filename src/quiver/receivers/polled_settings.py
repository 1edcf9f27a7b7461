"""Settings of the receivers that poll the store of another program, or a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quiver.errors import SettingsError
from quiver.topics.reading.place import TopicPlace

__all__ = ["StoreReceiverSettings", "TopicReceiverSettings"]


@dataclass(frozen=True, slots=True)
class StoreReceiverSettings:
    """
    The store to read, and the subscriber.

    Attributes:
        directory: the directory of the store; another process may have it open, and it may not exist yet.
        subscriber: the subscriber id, under which the position is stored there; only one reader at a time may use it.
        start: the first position of a new subscriber.
        poll_interval_s: how often to poll for new segments.

    Raises:
        SettingsError: the interval is not positive.
    """

    directory: str
    subscriber: str = "pipeline"
    start: Literal["earliest", "latest"] = "earliest"
    poll_interval_s: float = 0.25

    def __post_init__(self) -> None:
        _check_interval(self.poll_interval_s)

    @property
    def listening_addr(self) -> str:
        """The source, for reports."""
        return f"store {self.directory}"


@dataclass(frozen=True, slots=True)
class TopicReceiverSettings:
    """
    The topic to read, and the subscription.

    Attributes:
        place: the location of the topics; another process may have them open, and the directory may not exist yet.
        topic: ``namespace/topic``.
        subscription: the name of the subscription; only one reader at a time may use it.
        start: the first position of a new subscription.
        signal: the signal of payloads whose message does not specify it; without it, they are skipped.
        poll_interval_s: how often to poll the end of the topic.

    Raises:
        SettingsError: the interval is not positive.
    """

    place: TopicPlace
    topic: str
    subscription: str = "pipeline"
    start: Literal["earliest", "latest"] = "earliest"
    signal: Literal["logs", "traces", "metrics"] | None = None
    poll_interval_s: float = 0.25

    def __post_init__(self) -> None:
        _check_interval(self.poll_interval_s)

    @property
    def directory(self) -> str:
        """The directory of the topic."""
        return f"{self.place.root}/{self.topic}"

    @property
    def listening_addr(self) -> str:
        """The source, for reports."""
        return f"topic {self.topic} of {self.place.root}"


def _check_interval(interval_s: float) -> None:
    if interval_s <= 0:
        raise SettingsError("poll_interval must be positive")
