"""The config of the receiver that reads the store of another program."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from quiver.errors import UsageError
from quiver.pipeline.config.formatting import duration_words
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver
from quiver.store.format.names import check_subscriber_id

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.receivers.store_receiver import StoreReceiverSettings
    from quiver.store.store import Store

__all__ = ["StoreReceiverConfig"]


class StoreReceiverConfig(PolledReceiverConfig):
    """
    `urn:quiver:store:receiver`: reads the store of another program as a subscriber, each bundle at least once.

    Attributes:
        store: the directory of that store. Another process may have it open, and it may not exist yet.
        subscriber: the subscriber id; only one reader at a time may use it.
        start: where a new subscriber starts.
    """

    store: Annotated[str, Field(min_length=1)]
    subscriber: str = "pipeline"
    start: Literal["earliest", "latest"] = "earliest"

    def model_post_init(self, context: Any, /) -> None:
        """Refuse an invalid subscriber id."""
        super().model_post_init(context)
        try:
            check_subscriber_id(self.subscriber)
        except UsageError as error:
            raise ValueError(f"subscriber: {error}") from error

    @property
    def position(self) -> str:
        """The subscriber and the real path of its store, so that two spellings of one path are equal."""
        return f"subscriber {self.subscriber} of the store {os.path.realpath(self.store)}"

    def settings(self) -> StoreReceiverSettings:
        """Return the settings of the receiver."""
        from quiver.receivers.store_receiver import StoreReceiverSettings  # noqa: PLC0415 - only what is configured

        return StoreReceiverSettings(
            self.store.rstrip("/") or "/", self.subscriber, self.start, poll_interval_s=self.poll_interval
        )

    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return a receiver that fills *store*; it is not started yet."""
        from quiver.receivers.store_receiver import StoreReceiver  # noqa: PLC0415 - only what is configured

        return StoreReceiver(store, self.settings(), observer=observer)

    def describe(self) -> dict[str, str]:
        """Describe which store the receiver reads, and as which subscriber."""
        return {
            "reads": self.settings().listening_addr,
            "as_subscriber": self.subscriber,
            "begins_at": f"{self.start}, when the subscriber is new",
            "looks_every": duration_words(self.poll_interval),
            "stores": "bundles as they are; each at least once",
        }
