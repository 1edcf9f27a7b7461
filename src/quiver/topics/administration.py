"""Operations on whole topics: upload, truncate, delete, and reappend superseded messages."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from quiver.errors import UsageError
from quiver.topics.cold.opening import OWNER_FILE, owner_of
from quiver.topics.engine import Start, TopicEngine
from quiver.topics.reappend import Reappended, reappend_superseded
from quiver.topics.removal import remove_topic_directory
from quiver.topics.subscribing import TopicSubscriptions

__all__ = ["TopicAdministration"]


class TopicAdministration(TopicSubscriptions):
    """A base of `TopicStore`, which sets the attributes declared here and opens and closes topics."""

    def __init__(self) -> None:
        super().__init__()
        self._reappending = threading.Lock()

    @abstractmethod
    def topics(self) -> list[str]:
        """Return the names of all topics; see `TopicStore.topics`."""

    @abstractmethod
    def unload(self, name: str) -> int:
        """Close a topic so that another process can own it; see `TopicStore.unload`."""

    @abstractmethod
    def _opening_of(self, topic: str) -> threading.Lock:
        pass

    @abstractmethod
    def _close_log(self, log: TopicEngine) -> None:
        pass

    def upload(self, topic: str) -> int:
        """
        Upload everything appended to *topic* so far; return the offset below which objects have everything available.

        Raises:
            UsageError: the topic does not exist, or it is not uploaded.
            StoreFailedError: the topic's disk failed.
            FencedError: another process has taken over the topic.
            TransientError: the object store or the metadata store cannot be reached; uploaded objects stay.
        """
        log = self._existing(topic).engine
        if self._cold is None or log.wal.directory is None:
            raise UsageError(f"{log.topic} is not uploaded: open its directory with objects")
        log.flush()
        return self._cold.upload(log.topic)

    def truncate(self, topic: str, before: Start) -> int:
        """
        Delete the messages below *before*, as far as complete files and objects allow; return the oldest remaining.

        Files that readers or an upload use are not deleted. ``"latest"`` deletes everything. The offsets of later
        messages do not change. Subscriptions that have not reached *before* skip the deleted messages and count them
        as lost.

        Raises:
            UsageError: the topic or offset does not exist.
            StoreFailedError: the topic's disk failed.
            FencedError: another process has taken over the topic.
            TransientError: the object store or the metadata store cannot be reached; some may be deleted.
        """
        log = self._existing(topic).engine
        offset = log.resolve(before, stored=True)
        log.truncate(offset)
        if self._cold is not None and log.wal.directory is not None:
            self._cold.truncate(log.topic, offset)
        return log.start_offset()

    def delete(self, topic: str) -> None:
        """
        Delete *topic*: its local messages and its objects, its subscriptions, and its quarantine.

        A topic of the same name that is opened later starts at offset 0; with objects it continues at the next offset,
        so that files on another machine do not bring messages back. After a crash some of it may remain: delete it
        again.

        Raises:
            UsageError: the topic does not exist.
            DirectoryInUseError: another process owns it, or a streaming query or a pipeline has a subscription of it.
            FencedError: another process has taken over the topic.
            TransientError: the object store or the metadata store cannot be reached; some may be deleted.
            OSError: a file cannot be removed.
        """
        log = self._existing(topic).engine
        with self._opening_of(log.topic), self._no_subscribers(log):
            try:
                log.close()
                if self._cold is not None and log.wal.directory is not None:
                    self._cold.delete(log.topic)
            except BaseException:
                if self._cold is not None:
                    self._cold.detach(log.topic, sealed=False)
                raise
            finally:
                self._close_log(log)
            with self._guard:
                for key in [key for key in self._subscriptions if key[0] == log.topic]:
                    del self._subscriptions[key]
            if self.root is not None:
                remove_topic_directory(self._fs, self.root, log.topic)

    @contextmanager
    def _no_subscribers(self, log: TopicEngine) -> Iterator[None]:
        for one in self._open_subscriptions(log.topic):
            one.close()
        keep = self._subscription_files(log)
        with ExitStack() as locks:
            if keep is not None:
                for name in keep.names():
                    locks.callback(keep.hold(name, owner="topics", clock=self._clock).release)
            yield

    def reappend(self, topic: str) -> list[Reappended]:
        """
        Append the superseded messages of *topic*, whose offsets another owner has given out, exactly once each.

        They are in `quarantine/*.replaced`; such a file is renamed to `.reappended` when all its messages are in the
        topic, and in objects if there is an object store. Calling it again continues or does nothing.

        Raises:
            UsageError: the topic does not exist, or it cannot be determined from which offset on a file was superseded.
            CapacityError, StoreFailedError, FencedError, TransientError: some may be appended; call it again.
        """
        found = self._existing(topic)
        log = found.engine
        if log.wal.directory is None or self.root is None:
            return []
        cold = self._cold
        upload = None if cold is None or not self.settings.uploader.enabled else lambda: cold.upload(log.topic)
        # Without an object tier the owner has no name. Do not create one: it would suggest that there was a tier.
        owner = owner_of(self._fs, self.root) if self._fs.exists(f"{self.root}/{OWNER_FILE}") else ""
        with self._reappending:
            return reappend_superseded(self._fs, found, owner=owner, upload=upload)
