"""
The interface of the object tier of topics. `TopicStore` accepts any object that implements it; without one, messages
that are no longer in local files are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from quiver.topics.cold.pieces import ColdReader

if TYPE_CHECKING:
    from quiver.topics.handover import UnfinishedHandOver
    from quiver.topics.wal.writer import Wal

__all__ = ["ColdTier"]


class ColdTier(Protocol):
    """The object tier of all topics of one `TopicStore`. Thread-safe. It works in its own thread, or in `maintain`."""

    def next_offset_min(self, topic: str, directory: str | None) -> int:
        """
        Take ownership of *topic*, before its files are opened; return the lowest offset that was not given out yet.

        Files in *directory* that another owner's messages have superseded are quarantined on return.

        Raises:
            DirectoryInUseError: another process owns the topic.
            TransientError: the owner, or the superseded files, cannot be determined now.
        """

    def give_up(self, topic: str) -> None:
        """Undo `next_offset_min` for a topic that could not be opened."""

    def knows(self, topic: str) -> bool:
        """
        Return whether *topic* ever had an owner, here or elsewhere. Takes no ownership.

        Raises:
            TransientError: it cannot be determined now.
        """

    def attach(self, topic: str, wal: Wal, confirmed: Callable[[], int | None]) -> None:
        """
        Start to upload *topic* and to release its files.

        *confirmed* returns the offset below which every reliable subscription has confirmed everything; None without
        any.
        """

    def reader(self, topic: str) -> ColdReader:
        """Return a reader of the topic's objects."""

    def lag(self, topic: str) -> Mapping[str, float]:
        """
        Return `upload_lag_messages`, `upload_lag_bytes` and `upload_lag_seconds`: how much is in local files
        only, and for how long there has been any. Nothing for a topic that is not uploaded. Never blocks.
        """

    def upload(self, topic: str) -> int:
        """
        Upload everything of *topic* that is synced, now; return the offset below which objects have everything.

        Raises:
            UsageError: it is not uploaded.
            TransientError: not everything is uploaded.
        """

    def wait_until_uploaded(self, topic: str, offset: int, timeout: float | None) -> None:
        """
        Return when an object has the message *offset*, which is synced, waiting up to *timeout* seconds.

        Raises:
            NotDurableError: *timeout* passed.
            QuiverError: it will not be uploaded, or that cannot be determined.
        """

    def truncate(self, topic: str, offset: int) -> None:
        """
        Delete the objects of *topic* with all messages below *offset*, which no local file has.

        Raises:
            TransientError: some may be deleted; the next call continues.
        """

    def delete(self, topic: str) -> None:
        """
        Remove everything of *topic* except its files, and release ownership.

        Raises:
            TransientError: some may be deleted; the topic stays attached.
        """

    def maintain(self) -> None:
        """Do manually what the tier's thread does periodically."""

    def detach(self, topic: str, *, sealed: bool) -> None:
        """Stop the work on *topic*; with *sealed* everything is uploaded first, and ownership is released."""

    def hand_over(self, topics: Sequence[str], *, timeout: float) -> Sequence[UnfinishedHandOver]:
        """Detach *topics*, sealed where that is possible within *timeout* seconds; return the others."""

    def close(self) -> None:
        """Stop all work. Idempotent."""
