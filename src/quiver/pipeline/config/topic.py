"""The configs of the exporter that writes to a topic and of the receiver that reads one."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from quiver.errors import SettingsError, UsageError
from quiver.metadata.location import MetadataLocation
from quiver.objects.location import ObjectLocation
from quiver.pipeline.config.exporter import QueryExporterConfig
from quiver.pipeline.config.formatting import duration_words
from quiver.pipeline.config.polled import PolledReceiverConfig
from quiver.pipeline.config.receiver_place import Receiver
from quiver.spark.topics.export_settings import TopicSinkSettings
from quiver.topics.format.names import check_subscription, check_topic
from quiver.topics.reading.place import TopicPlace

if TYPE_CHECKING:
    from quiver.observe import Observer
    from quiver.receivers.topic_receiver import TopicReceiverSettings
    from quiver.store.store import Store

__all__ = ["TopicExporterConfig", "TopicReceiverConfig"]


def _as_json(given: object) -> object:
    return json.dumps(given) if isinstance(given, dict) else given


Location = Annotated[str, BeforeValidator(_as_json)]
"""A URL, or a mapping with options, which is passed on as JSON."""


class TopicExporterConfig(QueryExporterConfig):
    """
    `urn:quiver:topic:exporter`: writes messages to a topic, each batch once. Also accepts the keys of
    `TopicSinkSettings`.

    Attributes:
        topics: the directory of the topics. It is created when missing, and another process may have it open.
        topic: ``namespace/topic``.
        format: `otlp` writes one message per export request, `json` one per row of any table.
        objects: the object store of the directory: a URL, a directory, or a mapping of `backend`, `root` and `options`.
        metadata: the metadata store of the directory: a URL, or a mapping of `endpoint`, `ca_file`, `cert_file`,
            `key_file`, `user` and `password`.
    """

    topics: Annotated[str, Field(min_length=1)]
    topic: str
    format: Literal["otlp", "json"] = "otlp"
    objects: Location | None = Field(default=None, repr=False)
    metadata: Location | None = Field(default=None, repr=False)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse an invalid topic name."""
        super().model_post_init(context)
        try:
            self.settings()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """The topic and its directory."""
        return f"topic {check_topic(self.topic)} of {self.topics.rstrip('/') or '/'}"

    def settings(self) -> TopicSinkSettings:
        """
        Return the settings of the exporter.

        Raises:
            SettingsError: the topic name is invalid.
        """
        return TopicSinkSettings(self.topics, self.topic, self.format, self.objects, self.metadata)


class TopicReceiverConfig(PolledReceiverConfig):
    """
    `urn:quiver:topic:receiver`: reads the messages of a topic through a subscription and stores each at least once.

    Attributes:
        topics: the directory of the topics. Another process may have it open, and it may not exist yet.
        topic: ``namespace/topic``.
        subscription: the name of the subscription; only one reader at a time may use it.
        start: where a new subscription starts.
        signal: the signal of messages that do not name theirs; without it, such messages are skipped.
        objects: the object store of the directory: a URL, a directory, or a mapping of `backend`, `root` and `options`.
        metadata: the metadata store of the directory: a URL, or a mapping of `endpoint`, `ca_file`, `cert_file`,
            `key_file`, `user` and `password`.
    """

    topics: Annotated[str, Field(min_length=1)]
    topic: str
    subscription: str = "pipeline"
    start: Literal["earliest", "latest"] = "earliest"
    signal: Literal["logs", "traces", "metrics"] | None = None
    objects: Location | None = Field(default=None, repr=False)
    metadata: Location | None = Field(default=None, repr=False)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse an invalid topic or subscription name, and metadata without objects."""
        super().model_post_init(context)
        if self.metadata is not None and self.objects is None:
            raise ValueError("metadata describes the object store: give objects, too")
        try:
            if self.objects is not None:
                ObjectLocation.of(self.objects)
            if self.metadata is not None:
                MetadataLocation.of(self.metadata)
        except SettingsError as error:
            raise ValueError(str(error)) from error
        for key, check in (("topic", check_topic), ("subscription", check_subscription)):
            try:
                check(getattr(self, key))
            except UsageError as error:
                raise ValueError(f"{key}: {error}") from error

    @property
    def position(self) -> str:
        """The subscription, its topic, and the real path, so that two spellings of one path are equal."""
        topic, root = check_topic(self.topic), os.path.realpath(self.topics)
        return f"subscription {self.subscription} of the topic {topic} in {root}"

    def settings(self) -> TopicReceiverSettings:
        """Return the settings of the receiver."""
        from quiver.receivers.topic_receiver import TopicReceiverSettings  # noqa: PLC0415 - only what is configured

        return TopicReceiverSettings(
            place=TopicPlace(self.topics.rstrip("/") or "/", self.objects, self.metadata),
            topic=check_topic(self.topic),
            subscription=self.subscription,
            start=self.start,
            signal=self.signal,
            poll_interval_s=self.poll_interval,
        )

    def receiver(self, store: Store, observer: Observer) -> Receiver:
        """Return a receiver that fills *store*; it is not started yet."""
        from quiver.receivers.topic_receiver import TopicReceiver  # noqa: PLC0415 - only what is configured

        return TopicReceiver(store, self.settings(), observer=observer)

    def describe(self) -> dict[str, str]:
        """Describe which topic the receiver reads, and through which subscription."""
        return {
            "reads": self.settings().listening_addr,
            "as_subscription": self.subscription,
            "begins_at": f"{self.start}, when the subscription is new",
            "looks_every": duration_words(self.poll_interval),
            "stores": "requests as they came; each at least once",
        }
