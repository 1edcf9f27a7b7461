"""The configs of topics in a pipeline: one as the end of a route, one as the beginning of another pipeline."""

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
"""A URL, or a mapping with options, which goes on as JSON."""


class TopicExporterConfig(QueryExporterConfig):
    """
    `urn:quiver:topic:exporter`: messages of a topic, each batch once. Keys: those of `TopicSinkSettings`, too.

    Attributes:
        topics: directory of the topics; made when missing, may be open in another process.
        topic: ``namespace/topic``.
        format: `otlp`, a message for each export request; `json`, one for each row of any table.
        objects: where the directory's cold objects are: a URL, a directory, or a mapping of `backend`, `root` and
            `options`.
        metadata: what is in them: a URL, or a mapping of `endpoint`, `ca_file`, `cert_file`, `key_file`, `user` and
            `password`.
    """

    topics: Annotated[str, Field(min_length=1)]
    topic: str
    format: Literal["otlp", "json"] = "otlp"
    objects: Location | None = Field(default=None, repr=False)
    metadata: Location | None = Field(default=None, repr=False)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what is no topic."""
        super().model_post_init(context)
        try:
            self.settings()
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @property
    def destination(self) -> str:
        """Where it writes."""
        return f"topic {check_topic(self.topic)} of {self.topics.rstrip('/') or '/'}"

    def settings(self) -> TopicSinkSettings:
        """
        Return the settings of the exporter.

        Raises:
            SettingsError: no topic.
        """
        return TopicSinkSettings(self.topics, self.topic, self.format, self.objects, self.metadata)


class TopicReceiverConfig(PolledReceiverConfig):
    """
    `urn:quiver:topic:receiver`: the messages of a topic, as a subscription of it; each is stored at least once.

    Attributes:
        topics: directory of the topics; they may be open in another process, and come later.
        topic: ``namespace/topic``.
        subscription: its name; only one reader at a time has it.
        start: where a new subscription begins.
        signal: what the payloads are whose message does not say it; such a message is passed over without this.
        objects: where the directory's cold objects are: a URL, a directory, or a mapping of `backend`, `root` and
            `options`.
        metadata: what is in them: a URL, or a mapping of `endpoint`, `ca_file`, `cert_file`, `key_file`, `user` and
            `password`.
    """

    topics: Annotated[str, Field(min_length=1)]
    topic: str
    subscription: str = "pipeline"
    start: Literal["earliest", "latest"] = "earliest"
    signal: Literal["logs", "traces", "metrics"] | None = None
    objects: Location | None = Field(default=None, repr=False)
    metadata: Location | None = Field(default=None, repr=False)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what is no topic, no name of a subscription, and metadata without objects."""
        super().model_post_init(context)
        if self.metadata is not None and self.objects is None:
            raise ValueError("metadata says what is in the object store: it needs objects, too")
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
        """The subscription, its topic, and where that is, by whatever way."""
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
        """Return the receiver, not yet started, that fills *store*."""
        from quiver.receivers.topic_receiver import TopicReceiver  # noqa: PLC0415 - only what is configured

        return TopicReceiver(store, self.settings(), observer=observer)

    def told(self) -> dict[str, str]:
        """Return what it reads, and as whom, for people."""
        return {
            "reads": self.settings().listening_addr,
            "as_subscription": self.subscription,
            "begins_at": f"{self.start}, when the subscription is new",
            "looks_every": duration_words(self.poll_interval),
            "stores": "requests as they came; each at least once",
        }
