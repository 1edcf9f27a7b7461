"""The files of saved subscriptions: a small one each, next to the topic's log, replaced atomically."""

from __future__ import annotations

import threading
from dataclasses import replace

from quiver.clock import Clock
from quiver.errors import CorruptionError, DirectoryInUseError
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, replace_file
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.primitives.disk.lock import hold
from quiver.primitives.small_file import read_checked
from quiver.topics.format.names import SUBSCRIPTIONS_DIR, parse_subscription_file, subscription_file
from quiver.topics.format.subscription import (
    SUBSCRIPTION_BYTES_MAX,
    SavedSubscription,
    decode_subscription,
    encode_subscription,
)

__all__ = ["LOCK_PATIENCE_S", "SubscriptionFiles"]

LOCK_PATIENCE_S = 2.0
_LOCK_RETRY_S = 0.1


class SubscriptionFiles:
    """The saved subscriptions of one topic. One writer at a time for each name."""

    def __init__(self, fs: FileSystem, topic_directory: str) -> None:
        self._fs = fs
        self._directory = f"{topic_directory}/{SUBSCRIPTIONS_DIR}"

    def names(self) -> list[str]:
        """Return the names of all saved subscriptions."""
        try:
            listed = self._fs.list_dir(self._directory)
        except FileNotFoundError:
            return []
        return [name for file in listed if (name := parse_subscription_file(file)) is not None]

    def hold(self, name: str, *, owner: str, clock: Clock) -> Lock:
        """
        Lock the subscription *name* for one user among all processes. *owner* is named to other processes.

        It waits for up to two seconds: a query that was just stopped holds the lock until its process has ended.

        Raises:
            DirectoryInUseError: it has a user already: a dispatching process, a streaming query or a pipeline.
            OSError: the lock file cannot be created.
        """
        self._fs.make_dirs(self._directory)
        deadline = clock.monotonic() + LOCK_PATIENCE_S
        condition = threading.Condition()
        while True:
            try:
                return hold(self._fs, f"{self._path(name)}.lock", owner=owner)
            except DirectoryInUseError:
                if clock.monotonic() >= deadline:
                    raise
            with condition:
                clock.wait(condition, _LOCK_RETRY_S)

    def load(self, name: str) -> SavedSubscription | None:
        """
        Return the subscription *name*, or None if it was never saved.

        Raises:
            CorruptionError: its file is damaged: its position is never guessed.
            OSError: the disk cannot be read.
        """
        path = self._path(name)
        saved = read_checked(self._fs, path, decode_subscription, SUBSCRIPTION_BYTES_MAX)
        # A copy with another name is another subscription: it must not write to the first one's file.
        return None if saved is None else replace(saved, name=name)

    def save(self, saved: SavedSubscription) -> None:
        """
        Save a subscription. Durable on return.

        Raises:
            OSError: the previous file is intact.
        """
        if not self._fs.exists(self._directory):
            self._fs.make_dirs(self._directory)
        replace_file(self._fs, self._path(saved.name), encode_subscription(saved))

    def remove(self, name: str) -> None:
        """Remove the subscription *name*, if there is one. Durable on return."""
        if self._fs.exists(self._directory):
            remove_durably(self._fs, [self._path(name), self._path(name) + TEMPORARY_SUFFIX])

    def confirmed(self) -> int | None:
        """
        Return the offset below which every subscription has confirmed everything; None without subscriptions.

        Raises:
            CorruptionError: one of them cannot be read.
        """
        found = [saved.next_offset for name in self.names() if (saved := self.load(name)) is not None]
        return min(found, default=None)

    def highest(self) -> int:
        """Return the offset after all that any subscription has confirmed: the log has given these out."""
        highest = 0
        for name in self.names():
            try:
                saved = self.load(name)
            except CorruptionError:
                continue
            if saved is not None:
                highest = max(highest, saved.next_offset, *(after for _, after in saved.acked))
        return highest

    def _path(self, name: str) -> str:
        return f"{self._directory}/{subscription_file(name)}"
