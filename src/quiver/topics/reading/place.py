"""Where topics are: on a disk, in an object store, or both."""

from __future__ import annotations

from dataclasses import dataclass

from quiver.metadata.location import MetadataLocation
from quiver.topics.format.names import ACTIVE_FILE

__all__ = ["TopicPlace"]


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """
    Where topics are. Can be pickled.

    Attributes:
        root: the directory, or None when only objects are read.
        objects: as the option says; None when there are none.
        metadata: as the option says; None is a file beside the topics.
        root_prefix: before every key of the metadata.
        file_name: of a topic's first log file.
    """

    root: str | None
    objects: str | None = None
    metadata: str | None = None
    root_prefix: str = "/danube"
    file_name: str = ACTIVE_FILE

    def __repr__(self) -> str:
        # `objects` and `metadata` may contain credentials.
        return f"TopicPlace({self.root or self.metadata_shown})"

    @property
    def metadata_shown(self) -> str:
        """Where the metadata are, without credentials."""
        return "" if self.metadata is None else str(MetadataLocation.of(self.metadata))
