"""
A streaming query as a subscription of a topic: the progress of the subscription is what its batches committed.

The file is the same as for every subscription of the topic, so retention waits for this one as for the others. A lock
next to it excludes a second query. Progress only moves forward, and is on disk on return.
"""

from __future__ import annotations

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.subscription import SavedSubscription

__all__ = ["TopicProgress"]


class TopicProgress:
    """
    The subscription *name* of the topic in *directory*. Not thread-safe; the lock is taken at the first call.

    Args:
        fs: the file system.
        directory: of the topic.
        name: of the subscription.
        clock: for waiting.
    """

    def __init__(self, fs: FileSystem, directory: str, name: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._kept = SubscriptionFiles(fs, directory)
        self._name = name
        self._clock = clock
        self._lock: Lock | None = None
        self._saved: SavedSubscription | None = None

    def position(self) -> int | None:
        """
        Return the offset below which everything is confirmed; None if it does not exist.

        Raises:
            DirectoryInUseError: another query uses this subscription.
            CorruptionError: its file is damaged.
            OSError: the disk cannot be read.
        """
        self._own()
        return None if self._saved is None else self._saved.next_offset

    def start_at(self, offset: int) -> int:
        """
        Return the position of the subscription, which is created at *offset* if there is none. Durable on return.

        Raises:
            DirectoryInUseError, CorruptionError, OSError: as `position`.
        """
        found = self.position()
        if found is None:
            self._save(SavedSubscription(self._name, "exclusive", offset))
        return offset if found is None else found

    def confirm(self, offset: int) -> None:
        """
        Confirm everything below *offset*, durably on return. Confirming the same again costs nothing.

        Raises:
            DirectoryInUseError, CorruptionError, OSError: as `position`.
        """
        found = self.position()
        if found is None or found < offset:
            kind = "exclusive" if self._saved is None else self._saved.kind
            self._save(SavedSubscription(self._name, kind, offset))

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _save(self, saved: SavedSubscription) -> None:
        self._kept.save(saved)
        self._saved = saved

    def _own(self) -> None:
        if self._lock is not None:
            return
        owner = f"a streaming query, subscription {self._name}"
        self._lock = self._kept.hold(self._name, owner=owner, clock=self._clock)
        self._saved = self._kept.load(self._name)
