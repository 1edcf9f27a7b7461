"""The location of topics: a directory, an object store, or both."""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.metadata.location import MetadataLocation
from quiver.topics.format.names import ACTIVE_FILE

__all__ = ["TopicPlace"]


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """
    The location of topics. Can be pickled.

    Attributes:
        root: the directory, or None when only objects are read.
        objects: the value of the option; None when there are none.
        metadata: the value of the option; None is a file next to the topics.
        root_prefix: of every key of the metadata.
        file_name: of a topic's first log file.
    """

    root: str | None
    objects: str | None = field(default=None, repr=False)
    metadata: str | None = field(default=None, repr=False)
    root_prefix: str = "/danube"
    file_name: str = ACTIVE_FILE

    def __repr__(self) -> str:
        # `objects` and `metadata` may contain credentials.
        return f"TopicPlace({self.root or self.metadata_shown})"

    @property
    def metadata_shown(self) -> str:
        """The location of the metadata, without credentials."""
        return "" if self.metadata is None else str(MetadataLocation.of(self.metadata))
