"""The configs of the exporter that writes to a topic and of the receiver that reads one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from quiver.errors import UsageError
from quiver.metadata.location import MetadataLocation
from quiver.objects.location import ObjectLocation
from quiver.pipeline.config.base import SettingsConfig, settings_keys
from quiver.pipeline.config.exporter import QueryExporterConfig
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver
from quiver.receivers.polled_settings import TopicReceiverSettings
from quiver.spark.topics.export_settings import TopicSinkSettings
from quiver.topics.format.names import check_subscription, check_topic
from quiver.topics.reading.place import TopicPlace

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.store.store import Store

__all__ = ["TopicExporterConfig", "TopicReceiverConfig"]


def _as_json(given: object) -> object:
    return json.dumps(given) if isinstance(given, dict) else given


Location = Annotated[str, BeforeValidator(_as_json)]
"""A URL, or a mapping with options, which is passed on as JSON."""


@settings_keys(
    TopicSinkSettings,
    types={"topics": Field(min_length=1), "objects": Location | None, "metadata": Location | None},
)
class TopicExporterConfig(SettingsConfig, QueryExporterConfig):
    """`urn:quiver:topic:exporter`: writes messages to a topic, each batch once. Keys: `TopicSinkSettings`."""

    @property
    def destination(self) -> str:
        """The topic and its directory."""
        settings = self.settings()
        return f"topic {check_topic(settings.topic)} of {settings.topics.rstrip('/') or '/'}"


@settings_keys(TopicReceiverSettings, "topic", "subscription", "start", "signal", "poll_interval_s")
@settings_keys(
    TopicPlace,
    "objects",
    "metadata",
    topics="root",
    types={
        "topics": Annotated[str, Field(min_length=1)],
        "objects": Location | None,
        "metadata": Location | None,
    },
)
class TopicReceiverConfig(PolledReceiverConfig):
    """
    `urn:quiver:topic:receiver`: reads the messages of a topic through a subscription and stores each at least once. The
    keys are fields of `TopicReceiverSettings`; those of its `place` are `topics`, `objects` and `metadata`.
    """

    def check(self) -> None:
        """Refuse an invalid topic or subscription name, and metadata without objects."""
        place = self.build(TopicPlace)
        if place.metadata is not None and place.objects is None:
            raise ValueError("metadata describes the object store: give objects, too")
        if place.objects is not None:
            ObjectLocation.of(place.objects)
        if place.metadata is not None:
            MetadataLocation.of(place.metadata)
        values = self.values_for(TopicReceiverSettings)
        for key, check in (("topic", check_topic), ("subscription", check_subscription)):
            try:
                check(values[key])
            except UsageError as error:
                raise ValueError(f"{key}: {error}") from error
        self.settings()

    @property
    def position(self) -> str:
        """The subscription, its topic, and the real path, so that two spellings of one path are equal."""
        settings = self.settings()
        root = os.path.realpath(settings.place.root or "/")
        return f"subscription {settings.subscription} of the topic {settings.topic} in {root}"

    def settings(self) -> TopicReceiverSettings:
        """Return the settings of the receiver."""
        place = self.build(TopicPlace)
        values = self.values_for(TopicReceiverSettings)
        return self.build(
            TopicReceiverSettings,
            place=replace(place, root=(place.root or "").rstrip("/") or "/"),
            topic=check_topic(values["topic"]),
        )

    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return a receiver that fills *store*; it is not started yet."""
        from quiver.receivers.topic_receiver import TopicReceiver  # noqa: PLC0415 - only what is configured

        return TopicReceiver(store, self.settings(), observer=observer)

    def describe(self) -> dict[str, Any]:
        """Describe which topic the receiver reads, and through which subscription."""
        settings = self.settings()
        return {
            "reads": settings.listening_addr,
            "as_subscription": settings.subscription,
            "begins_at": f"{settings.start}, when the subscription is new",
            "poll_interval_s": settings.poll_interval_s,
            "stores": "requests as received; each at least once",
        }
