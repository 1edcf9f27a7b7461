"""The configs of the receivers that read the store of another program, or those of a fleet."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from quiver.errors import UsageError
from quiver.pipeline.config.base import settings_keys
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver
from quiver.pipeline.config.topic import Location
from quiver.receivers.polled_settings import FleetReceiverSettings, StoreReceiverSettings
from quiver.store.format.names import check_subscriber_id

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

__all__ = ["FleetReceiverConfig", "StoreReceiverConfig"]


@settings_keys(
    StoreReceiverSettings,
    "subscriber",
    "start",
    "poll_interval_s",
    store="directory",
    types={"store": Field(min_length=1)},
)
class StoreReceiverConfig(PolledReceiverConfig):
    """
    `urn:quiver:store:receiver`: reads the store of another program as a subscriber, each bundle at least once. The
    keys are fields of `StoreReceiverSettings`.
    """

    def check(self) -> None:
        """Refuse an invalid subscriber id."""
        settings = self.settings()
        try:
            check_subscriber_id(settings.subscriber)
        except UsageError as error:
            raise ValueError(f"subscriber: {error}") from error

    @property
    def position(self) -> str:
        """The subscriber and the real path of its store, so that two spellings of one path are equal."""
        settings = self.settings()
        return f"subscriber {settings.subscriber} of the store {os.path.realpath(settings.directory)}"

    def settings(self) -> StoreReceiverSettings:
        """Return the settings of the receiver."""
        settings = self.build(StoreReceiverSettings)
        return replace(settings, directory=settings.directory.rstrip("/") or "/")

    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return a receiver that fills *store*; it is not started yet."""
        from quiver.receivers.store_receiver import StoreReceiver  # noqa: PLC0415 - only what is configured

        return StoreReceiver(store, self.settings(), observer=observer)

    def describe(self) -> dict[str, Any]:
        """Describe which store the receiver reads, and as which subscriber."""
        settings = self.settings()
        return {
            "reads": settings.listening_addr,
            "as_subscriber": settings.subscriber,
            "begins_at": f"{settings.start}, when the subscriber is new",
            "poll_interval_s": settings.poll_interval_s,
            "stores": "bundles unchanged; each at least once",
        }


@settings_keys(
    FleetReceiverSettings,
    "subscriber",
    "start",
    "list_interval_s",
    "fail_on_data_loss",
    "accept_data_loss_of",
    "objects",
    max_batch_size="batch_bytes_max",
    max_segment_size="segment_bytes_max",
    types={"objects": Location},
)
class FleetReceiverConfig(PolledReceiverConfig):
    """
    `urn:quiver:fleet:receiver`: reads all nodes of a fleet as one subscriber, each bundle once. The keys are fields of
    `FleetReceiverSettings`.
    """

    def check(self) -> None:
        """Refuse an invalid subscriber id or location."""
        settings = self.settings()
        try:
            check_subscriber_id(settings.subscriber)
        except UsageError as error:
            raise ValueError(f"subscriber: {error}") from error

    @property
    def position(self) -> str:
        """The subscriber and the bucket of its fleet."""
        settings = self.settings()
        return f"subscriber {settings.subscriber} of the {settings.listening_addr}"

    def settings(self) -> FleetReceiverSettings:
        """Return the settings of the receiver."""
        return self.build(FleetReceiverSettings)

    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return a receiver that fills *store*; it is not started yet."""
        from quiver.receivers.fleet_receiver import FleetReceiver  # noqa: PLC0415 - only what is configured

        return FleetReceiver(store.path, self.settings(), on_death=store.internals.poison, observer=observer)

    def describe(self) -> dict[str, Any]:
        """Describe which fleet the receiver reads, and as which subscriber."""
        settings = self.settings()
        return {
            "reads": settings.listening_addr,
            "as_subscriber": settings.subscriber,
            "begins_at": f"{settings.start}, when the subscriber is new",
            "lists_every_s": settings.list_interval_s,
            "stores": "bundles unchanged; each once",
        }
