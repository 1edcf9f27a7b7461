"""What an operator does to whole topics: upload, truncate, delete, append again what another owner replaced."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from quiver.errors import UsageError
from quiver.topics.cold.opening import OWNER_FILE, owner_of
from quiver.topics.engine import Start, TopicEngine
from quiver.topics.reappend import Reappended, reappend_replaced
from quiver.topics.removal import remove_topic_directory
from quiver.topics.subscribing import TopicSubscriptions

__all__ = ["TopicAdministration"]


class TopicAdministration(TopicSubscriptions):
    """A base of `TopicStore`, which sets what is declared here and opens and closes topics."""

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
    def _let_go(self, log: TopicEngine) -> None:
        pass

    def upload(self, topic: str) -> int:
        """
        Upload everything that was appended to *topic* so far; return the offset below which objects have all there is.

        Raises:
            UsageError: there is no such topic, or nothing of it is uploaded.
            StoreFailedError: the topic's disk failed.
            FencedError: another process has taken it over.
            TransientError: the object store or the metadata store cannot be reached; what was uploaded stays.
        """
        log = self._existing(topic).engine
        if self._cold is None or log.wal.directory is None:
            raise UsageError(f"{log.topic} is not uploaded: open its directory with objects")
        log.flush()
        return self._cold.upload(log.topic)

    def truncate(self, topic: str, before: Start) -> int:
        """
        Delete the messages below *before*, as far as whole files and objects allow; return the oldest that is left.

        Files that readers or an upload are at stay, too. With ``latest`` nothing is left. The offsets of later messages
        stay the same. Subscriptions that had not come so far pass over what is gone, and count it as lost.

        Raises:
            UsageError: there is no such topic or offset.
            StoreFailedError: the topic's disk failed.
            FencedError: another process has taken it over.
            TransientError: the object store or the metadata store cannot be reached; some may be gone.
        """
        log = self._existing(topic).engine
        offset = log.resolve(before, stored=True)
        log.truncate(offset)
        if self._cold is not None and log.wal.directory is not None:
            self._cold.truncate(log.topic, offset)
        return log.start_offset()

    def delete(self, topic: str) -> None:
        """
        Delete *topic*: its messages, here and in objects, its subscriptions, and what was kept aside.

        A topic of that name that is opened later begins at offset 0; with objects it goes on at the next offset, so
        that files which another machine still has bring nothing back. A crash may leave some of it: delete it again.

        Raises:
            UsageError: there is no such topic.
            DirectoryInUseError: another process owns it, or a streaming query or a pipeline has a subscription of it.
            FencedError: another process has taken it over.
            TransientError: the object store or the metadata store cannot be reached; some may be gone.
            OSError: the disk refused.
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
                self._let_go(log)
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
        Append the messages of *topic* that another owner's have replaced, each once, however often this is called.

        They are in `quarantine/*.replaced`; such a file is called `.reappended` when all of it is in the topic, and in
        objects where there are some.

        Raises:
            UsageError: there is no such topic, or nobody can say from where on a file was replaced.
            CapacityError, StoreFailedError, FencedError, TransientError: some may be appended; call it again.
        """
        found = self._existing(topic)
        log = found.engine
        if log.wal.directory is None or self.root is None:
            return []
        cold = self._cold
        upload = None if cold is None or not self.settings.uploader.enabled else lambda: cold.upload(log.topic)
        # Without a tier there is no name, and none is made up: it would say that there was a tier.
        owner = owner_of(self._fs, self.root) if self._fs.exists(f"{self.root}/{OWNER_FILE}") else ""
        with self._reappending:
            return reappend_replaced(self._fs, found, owner=owner, upload=upload)
