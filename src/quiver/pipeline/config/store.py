"""The config of a store that another program fills, as the beginning of a pipeline."""

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
    `urn:quiver:store:receiver`: what another program keeps in a store, as a subscriber of it; each at least once.

    Attributes:
        store: directory of that store; it may be open in another process, and come later.
        subscriber: the name that the position there is kept under; only one reader at a time has it.
        start: where it begins when it is new there.
    """

    store: Annotated[str, Field(min_length=1)]
    subscriber: str = "pipeline"
    start: Literal["earliest", "latest"] = "earliest"

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what is no name of a subscriber."""
        super().model_post_init(context)
        try:
            check_subscriber_id(self.subscriber)
        except UsageError as error:
            raise ValueError(f"subscriber: {error}") from error

    @property
    def position(self) -> str:
        """The subscriber, and its store by whatever way."""
        return f"subscriber {self.subscriber} of the store {os.path.realpath(self.store)}"

    def settings(self) -> StoreReceiverSettings:
        """Return the settings of the receiver."""
        from quiver.receivers.store_receiver import StoreReceiverSettings  # noqa: PLC0415 - only what is configured

        return StoreReceiverSettings(
            self.store.rstrip("/") or "/", self.subscriber, self.start, poll_interval_s=self.poll_interval
        )

    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return the receiver, not yet started, that fills *store*."""
        from quiver.receivers.store_receiver import StoreReceiver  # noqa: PLC0415 - only what is configured

        return StoreReceiver(store, self.settings(), observer=observer)

    def told(self) -> dict[str, str]:
        """Return what it reads, and as whom, for people."""
        return {
            "reads": self.settings().listening_addr,
            "as_subscriber": self.subscriber,
            "begins_at": f"{self.start}, when the subscriber is new",
            "looks_every": duration_words(self.poll_interval),
            "stores": "bundles as they are; each at least once",
        }
