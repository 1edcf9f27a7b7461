"""Settings of the receivers that poll the store of another program, a fleet, or a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quiver.errors import SettingsError
from quiver.objects.location import ObjectLocation
from quiver.settings import MIB, Compression
from quiver.store.format.fleet.names import is_identity
from quiver.store.reading.fleet.options import FleetOptions
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
class FleetReceiverSettings:
    """
    The fleet to read, and the subscriber.

    Attributes:
        objects: the bucket of the fleet: a URL, a directory, or JSON with ``backend``, ``root`` and ``options``.
        subscriber: a name that the nodes have in ``cold.fleet.subscribers``; only one reader at a time may use it.
        start: the first position of a new subscriber.
        list_interval_s: how often the bucket is listed.
        batch_bytes_max: the size of a batch, which is shared between the nodes with data.
        segment_bytes_max: a larger segment is rejected.
        fail_on_data_loss: whether a loss stops its node. All other nodes are read in any case.
        accept_data_loss_of: identities of nodes that continue after a loss all the same.
        compression: of the batches while they are staged.
        timeout_s: how long a batch waits for space in the store before it is read again.

    Raises:
        SettingsError: the location is invalid, or a number is not positive.
    """

    objects: str
    subscriber: str
    start: Literal["earliest", "latest"] = "earliest"
    list_interval_s: float = 10.0
    batch_bytes_max: int = 32 * MIB
    segment_bytes_max: int = 512 * MIB
    fail_on_data_loss: bool = True
    accept_data_loss_of: tuple[str, ...] = ()
    compression: Compression = "none"
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if min(self.list_interval_s, self.batch_bytes_max, self.segment_bytes_max, self.timeout_s) <= 0:
            raise SettingsError("list_interval, batch_bytes_max, segment_bytes_max and timeout must be positive")
        wrong = next((one for one in self.accept_data_loss_of if not is_identity(one)), None)
        if wrong is not None:
            raise SettingsError(f"accept_data_loss_of: {wrong!r} is not the identity of a node")
        self.location  # noqa: B018 - raises

    @property
    def location(self) -> ObjectLocation:
        """The bucket."""
        return ObjectLocation.from_url(self.objects)

    @property
    def listening_addr(self) -> str:
        """The source, for reports."""
        return f"fleet {self.location}"

    def options(self) -> FleetOptions:
        """Return the same as options of a subscriber."""
        return FleetOptions(
            location=self.location,
            subscriber=self.subscriber,
            starting=self.start,
            batch_bytes_max=self.batch_bytes_max,
            list_interval_s=self.list_interval_s,
            segment_bytes_max=self.segment_bytes_max,
            fail_on_data_loss=self.fail_on_data_loss,
            tolerated=frozenset(self.accept_data_loss_of),
        )


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
