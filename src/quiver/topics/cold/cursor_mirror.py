"""
A topic's subscriptions, mirrored to the metadata store, so that they move with the topic.

The files next to the topic are the truth while it is here. Their owner writes them to the metadata store with every
upload, and when it releases the topic; another owner starts with what was written. Messages confirmed after that are
delivered again, which at-least-once delivery allows, and no message is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quiver.errors import CorruptionError
from quiver.metadata.port import Entry, MetadataStore
from quiver.primitives.small_file import checked_value
from quiver.topics.cold.catalog import Commits
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.cursor import (
    decode_cursor,
    decode_progress,
    encode_subscription_keys,
    parse_progress_key,
    subscription_keys,
    subscriptions_prefix,
)
from quiver.topics.format.subscription import SavedSubscription

__all__ = ["CursorMirror"]

_PAGE = 500


class CursorMirror:
    """
    The subscriptions of one topic in *store*, written through *commits*. Not thread-safe.

    Args:
        store: the metadata store.
        commits: only lets the topic's owner write.
        namespace: before every key.
        topic: ``namespace/topic``.
        owner: the name of this owner.
    """

    def __init__(self, store: MetadataStore, commits: Commits, *, namespace: str, topic: str, owner: str) -> None:
        self._store = store
        self._commits = commits
        self._prefix = subscriptions_prefix(namespace, topic)
        self._owner = owner
        self._reported: dict[str, SavedSubscription | None] | None = None

    def _entries(self) -> Iterator[Entry]:
        start = ""
        while page := self._store.range(self._prefix, start=start, limit=_PAGE):
            yield from page
            start = page[-1].key + "\x01"

    def _kept(self) -> dict[str, tuple[str, SavedSubscription]]:
        found = {}
        for entry in self._entries():
            name = parse_progress_key(self._prefix, entry.key)
            if name is None:
                continue
            answer = decode_progress(entry.value)
            owner, saved = checked_value(answer, entry.key, len(entry.value))
            found[name] = owner, replace(saved, name=name)
        return found

    def next_offset_min(self) -> int:
        """
        Return the offset after all that any subscription has confirmed: they were given out.

        Raises:
            CorruptionError: a cursor is damaged; `path` is its key.
            MetadataUnavailableError: the store does not answer.
        """
        highest = 0
        for entry in self._entries():
            if entry.key.endswith("/cursor"):
                answer = decode_cursor(entry.value)
                highest = max(highest, checked_value(answer, entry.key, len(entry.value)) + 1)
        for _, saved in self._kept().values():
            highest = max(highest, saved.next_offset, *(after for _, after in saved.acked))
        return highest

    def restore(self, kept: SubscriptionFiles) -> list[str]:
        """
        Write the subscriptions that another owner mirrored last to *kept*; return their names.

        Records of this owner are older than its files, and ignored.

        Raises:
            CorruptionError: a record is damaged: its position is never guessed.
            MetadataUnavailableError: the store does not answer.
            OSError: a file could not be written.
        """
        mirrored = self._kept()
        others = {name: saved for name, (owner, saved) in mirrored.items() if owner != self._owner}
        if others:
            # The topic was away, and came back or came here: subscriptions missing there were removed there.
            for name in kept.names():
                if name not in mirrored:
                    kept.remove(name)
        for saved in others.values():
            kept.save(saved)
        return sorted(others)

    def update(self, kept: SubscriptionFiles) -> None:
        """
        Write the changes of *kept* since the last call to the store, including removals.

        Raises:
            CorruptionError: a file is damaged; the other subscriptions were written.
            FencedError: this is no longer the owner.
            MetadataUnavailableError: the store does not answer; the next call writes them again.
        """
        if self._reported is None:
            self._reported = dict.fromkeys(self._kept())
        damaged: CorruptionError | None = None
        names = kept.names()
        for name in names:
            try:
                saved = kept.load(name)
            except CorruptionError as error:
                damaged = error
                continue
            if saved is not None and self._reported.get(name) != saved:
                self._commits.commit(encode_subscription_keys(self._prefix, saved, self._owner))
                self._reported[name] = saved
        for name in sorted(self._reported.keys() - set(names)):
            self._commits.commit(dict.fromkeys(subscription_keys(self._prefix, name)))
            del self._reported[name]
        if damaged is not None:
            raise damaged

    def forget_all(self) -> None:
        """
        Remove all subscriptions from the store.

        Raises:
            FencedError: this is no longer the owner.
            MetadataUnavailableError: the store does not answer; some may be removed.
        """
        for entry in list(self._entries()):
            self._commits.commit({entry.key: None})
        self._reported = {}
