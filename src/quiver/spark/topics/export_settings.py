"""The settings of the exporter to a topic. Frozen, validated on creation, without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from quiver.errors import SettingsError, UsageError
from quiver.metadata.location import MetadataLocation
from quiver.objects.location import ObjectLocation
from quiver.topics.format.names import check_topic

__all__ = ["CONTENT_ATTRIBUTE", "TABLE_ATTRIBUTE", "TopicSinkSettings"]

TABLE_ATTRIBUTE = "table"
CONTENT_ATTRIBUTE = "content_type"


@dataclass(frozen=True, slots=True)
class TopicSinkSettings:
    """
    Messages in a topic, each batch exactly once.

    Logs, spans and metrics become OTLP requests again, one per message, with the attribute `otlp_signal`: another
    pipeline can receive them. With `format` json each row of any table is a message.

    Attributes:
        topics: directory of the topics; created if missing, may be open in another process.
        topic: ``namespace/topic``.
        format: otlp or json.
        objects: where cold objects are; needed if the directory has a cold tier and no process has it open. A URL, a
            directory, or JSON with `backend`, `root` and `options`.
        metadata: where their metadata is: a URL, or JSON with `endpoint` and the options of
            `quiver.metadata.location`; by default a file next to the topics.

    Raises:
        SettingsError: the directory or the topic is missing or invalid, the format is unknown, or there is metadata
            without objects.
    """

    topics: str
    topic: str
    format: Literal["otlp", "json"] = "otlp"
    objects: str | None = field(default=None, repr=False)  # may hold credentials
    metadata: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.topics:
            raise SettingsError("topics must name a directory")
        if self.format not in {"otlp", "json"}:
            raise SettingsError(f"format: {self.format!r} is not otlp or json")
        if self.metadata is not None and self.objects is None:
            raise SettingsError("metadata describes the object store: give objects, too")
        if self.objects is not None:
            ObjectLocation.of(self.objects)
        if self.metadata is not None:
            MetadataLocation.of(self.metadata)
        try:
            check_topic(self.topic)
        except UsageError as error:
            raise SettingsError(f"topic: {error}") from error
