"""All topics below one directory: opened on demand, kept by one thread, closed together."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import FencedError, QuiverError, StoreClosedError, StoreFailedError, UsageError
from quiver.lazy_names import renamed_keyword, warn_renamed
from quiver.metadata.location import MetadataLocation
from quiver.objects.location import ObjectLocation
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.file_system import FileSystem, Lock, directory_name
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.forked import refuse_in_children
from quiver.primitives.worker import Worker, WorkerDiedError
from quiver.topics.administration import TopicAdministration
from quiver.topics.cold.deleter import LocalDeleter
from quiver.topics.cold.opening import object_tier_of, require_tier_effect
from quiver.topics.cold.port import ColdTier
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.dispatch.subscription import Subscription
from quiver.topics.engine import TopicEngine
from quiver.topics.format.names import LOCK_NAME, check_topic
from quiver.topics.handover import UnfinishedHandOver
from quiver.topics.log import OpenTopic, TopicLog
from quiver.topics.reading.listing import topics_below
from quiver.topics.removal import remove_deleted
from quiver.topics.requests import RequestQueue, perform
from quiver.topics.settings import TopicSettings
from quiver.topics.staged_import import StagedImport
from quiver.topics.takeover import patiently

__all__ = ["TopicStore"]

TICK_S_MAX = 1.0
_ADMINISTRATION_S = 5.0
"""How long closing waits for requests of other processes, which ask again."""


class TopicStore(TopicAdministration):
    """
    All topics below one directory: one `TopicLog` per ``namespace/topic``. Thread-safe; one process per directory.

    Created by `open`. One thread for all topics syncs, rotates by time, and maintains subscriptions.
    """

    def __init__(
        self,
        root: str | None,
        *,
        settings: TopicSettings,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        cold: ColdTier | None,
        lock: Lock | None,
        takeover_wait: float = 0.0,
    ) -> None:
        super().__init__()
        self.root = root
        self.settings = settings
        self._fs = fs
        self._clock = clock
        self._observer = observer
        self._cold = cold
        self._lock = lock
        self._takeover_wait = takeover_wait
        self._guard = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._open: dict[str, OpenTopic] = {}
        self._closed = False
        self._failure: WorkerDiedError | None = None
        self._full: set[str] = set()
        self._reported: set[str] = set()
        self._tick_s = min(max(settings.fsync_interval_ms_min / 4000, 0.005), TICK_S_MAX)
        # It is a daemon: what a program appended and did not close is in the files.
        self._worker = Worker(
            f"quiver-topics {root}", self._turn, every=self._tick_s, on_death=self._fail, clock=clock, observer=observer
        )
        self._staged_import = (
            None if root is None else StagedImport(fs, root, topic=self._engine_now, observer=observer)
        )
        self._requests = None if root is None else RequestQueue(fs, root)
        self._administrator = Worker(
            f"quiver-topics-requests {root}", self._serve, every=None, on_death=self._fail, clock=clock,
            observer=observer,
        )  # fmt: skip

    @classmethod
    @renamed_keyword("files", "fs")
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        settings: TopicSettings | Mapping[str, Any] | None = None,
        objects: str | Mapping[str, Any] | ObjectLocation | None = None,
        metadata: str | Mapping[str, Any] | MetadataLocation | None = None,
        cold: ColdTier | None = None,
        takeover_wait: float = 0.0,
        fs: FileSystem = REAL_FILES,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        background: bool = True,
    ) -> Self:
        """
        Open the topics below *path*, which is created if necessary.

        Args:
            path: the root; None uses `wal.dir` of the settings, and without that everything is in memory only.
            settings: `TopicSettings`, or the broker's file as a mapping.
            objects: the location of objects (see `quiver.objects`); by default `cloud` of the settings.
            metadata: the location of descriptors and owners (see `quiver.metadata`); by default as in the settings, or
                a file next to the topics.
            cold: an object tier that was created in another way.
            takeover_wait: seconds to wait for another process that has the directory; `topic` waits as long for another
                owner. A dead owner is replaced after its lease, `metadata.lease_seconds`.
            fs: the file system.
            clock: time.
            observer: where counts and events are sent.
            background: whether a thread does what `maintain` does.

        Raises:
            DirectoryInUseError: another process has the directory, also after *takeover_wait*.
            AccessDeniedError, ObjectsUnavailableError, MetadataUnavailableError: see `open_cold_tier`.
            SettingsError: see `TopicSettings.from_mapping`; or the topics had an object tier, and none is given now.
            UsageError: the path is empty, or *takeover_wait* is negative; or an object tier is given without a
                directory, or metadata without objects.
            OSError: the directory cannot be made.
        """
        chosen = settings if isinstance(settings, TopicSettings) else TopicSettings.from_mapping(settings or {})
        root = os.fspath(path) if path is not None else chosen.wal.dir
        require_tier_effect(root, chosen, objects=objects, metadata=metadata, cold=cold)
        lock = None
        if root is not None:
            if not root:
                raise UsageError("the path of the topics is empty; write . for the directory that this runs in")
            root = directory_name(root)
            fs.make_dirs(root)
            lock_path = f"{root}/{LOCK_NAME}"
            lock = patiently(lambda: hold(fs, lock_path, owner="topics"), wait_s=takeover_wait, clock=clock)
        observer = observer or InMemoryObserver()
        if cold is None and lock is not None and root is not None:
            try:
                cold = object_tier_of(
                    root, chosen, objects=objects, metadata=metadata, fs=fs, clock=clock, observer=observer,
                    background=background,
                )  # fmt: skip
            except BaseException:
                lock.release()
                raise
        store = cls(
            root, settings=chosen, fs=fs, clock=clock, observer=observer, cold=cold, lock=lock,
            takeover_wait=takeover_wait,
        )  # fmt: skip
        refuse_in_children(store, f"the topic store {root or 'in memory'}")
        store._begin(background=background)
        return store

    def _begin(self, *, background: bool) -> None:
        if self.root is not None:
            with contextlib.suppress(OSError):  # the remains are not a topic any more, and only take space
                remove_deleted(self._fs, self.root)
        if self._requests is not None:
            self._requests.clear()
        try:
            if background:
                self._worker.start()
            self.import_staged()
        except BaseException:
            with contextlib.suppress(QuiverError, OSError):  # the current error is more useful
                self._end(timeout=0)
            raise

    # ── topics ───────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str, *, reliable: bool = True) -> TopicLog:
        """
        Return the log of ``namespace/topic``, recovered or created; the same one for the same name.

        A topic that is not *reliable* has no files: it has only the cached messages, for current listeners.

        Raises:
            UsageError: the name is not valid, or the topic is open as the other kind.
            DirectoryInUseError: another process owns the topic, also after `takeover_wait`.
            StoreClosedError: the store was closed.
            OSError: the disk failed.
        """
        return self._topic(name, reliable=reliable).log

    def _topic(self, name: str, *, reliable: bool = True) -> OpenTopic:
        return patiently(
            lambda: self._topic_now(name, reliable=reliable), wait_s=self._takeover_wait, clock=self._clock
        )

    def _topic_now(self, name: str, *, reliable: bool = True) -> OpenTopic:
        topic = check_topic(name)
        with self._opening_of(topic):  # two callers share one log; other topics open meanwhile
            found = self._open.get(topic)
            if found is None:
                found = OpenTopic.of(self._open_log(topic) if reliable else self._memory_log(topic))
                refuse_in_children(found.log, f"the topic {topic}")
                with self._guard:
                    closed = self._closed
                    if not closed:
                        self._open[topic] = found
                if closed:  # another process may have the directory by now
                    found.engine.close()
                    self._require_open()
        if reliable is not (found.engine.wal.directory is not None or self.root is None):
            raise UsageError(f"{topic} is open as a topic that is {'not ' if reliable else ''}reliable")
        return found

    def _engine_now(self, name: str) -> TopicEngine:
        return self._topic_now(name).engine

    def _opening_of(self, topic: str) -> threading.Lock:
        with self._guard:
            self._require_open()
            return self._opening.setdefault(topic, threading.Lock())

    def _memory_log(self, topic: str) -> TopicEngine:
        return TopicEngine(
            topic,
            None,
            settings=self.settings.of(topic, has_objects=False).wal,
            fs=self._fs,
            clock=self._clock,
            observer=self._observer,
        )

    def _open_log(self, topic: str) -> TopicEngine:
        cold = self._cold
        if cold is None:
            return self._log_of(topic, None, next_offset_min=0)
        next_offset = cold.next_offset_min(topic, self._directory_of(topic))
        try:
            return self._log_of(topic, cold, next_offset_min=next_offset)
        except BaseException:
            cold.give_up(topic)  # a machine that cannot open it must not keep it from those that can
            raise

    def _log_of(self, topic: str, cold: ColdTier | None, *, next_offset_min: int) -> TopicEngine:
        chosen = self.settings.of(topic, has_objects=cold is not None)
        directory = self._directory_of(topic)
        floor = 0 if directory is None else SubscriptionFiles(self._fs, directory).highest()
        log = TopicEngine(
            topic,
            directory,
            settings=chosen.wal,
            fs=self._fs,
            clock=self._clock,
            observer=self._observer,
            next_offset_min=max(floor, next_offset_min),
            open_cold=None if cold is None else lambda: cold.reader(topic),
        )
        if cold is not None:
            try:
                cold.attach(topic, log.wal, lambda: self.confirmed_offset(topic))
            except BaseException:
                log.close()
                raise
            if chosen.uploader.enabled:
                log.uploaded = lambda offset, timeout: cold.wait_until_uploaded(topic, offset, timeout)
        elif directory is not None and chosen.deleter.deletes:
            log.deleter = LocalDeleter(
                log.wal, topic, settings=chosen.deleter, confirmed=lambda: self.confirmed_offset(topic),
                clock=self._clock, observer=self._observer,
            )  # fmt: skip
        if self._worker.is_started:
            log.on_full = lambda: self._sync_soon(topic)
        return log

    def topics(self) -> list[str]:
        """Return the names of all topics that are open or have files."""
        found = set(self._open)
        if self.root is not None:
            found.update(topics_below(self._fs, self.root, file_name=self.settings.wal.file_name))
        return sorted(found)

    def unload(self, name: str) -> int:
        """
        Seal a topic, let the object tier finish it, and close it; return its next offset.

        Another process can own it then. The next `topic` with the same name opens it again.

        Raises:
            UsageError: the topic does not exist.
            StoreFailedError: the disk failed; the topic stays loaded.
            FencedError: another process has taken over the topic; it is closed here.
            TransientError: the object tier cannot finish now; the topic accepts no more messages, and `unload` tries
                again.
        """
        log = self._existing(name).engine
        topic = log.topic
        with self._opening_of(topic):  # it is not opened again before its files are closed
            for one in self._open_subscriptions(topic):
                one.close()
            next_offset = log.wal.seal()
            try:
                if self._cold is not None:
                    self._cold.detach(topic, sealed=True)
            except FencedError:
                # Another process owns it, so there is nothing to finish. Messages that are only here stay on this disk.
                if self._cold is not None:
                    self._cold.detach(topic, sealed=False)
                self._close_log(log)
                raise
            self._close_log(log)
        return next_offset

    def _close_log(self, log: TopicEngine) -> None:
        log.close()
        with self._guard:
            self._open.pop(log.topic, None)

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────

    def stats(self) -> dict[str, Any]:
        """
        Return figures of this moment, of each open topic under `topics`, of each open subscription in
        `subscriptions`.
        """
        cold = self._cold
        logs = {} if self._closed else {log.topic: log for log in self._open_logs()}
        return {
            "topics": {
                topic: {**log.stats(), **(cold.lag(topic) if cold is not None else {})} for topic, log in logs.items()
            },
            "subscriptions": [
                {"topic": one.topic, "subscription": one.name, "lag_messages": one.lag_messages}
                for one in self._open_subscriptions()
            ],
        }

    # ── maintenance ──────────────────────────────────────────────────────────────────────────────────────

    def maintain(self) -> None:
        """
        Do manually what the thread does periodically: sync and rotate what is due, and run the object tier.

        Raises:
            StoreFailedError: a topic's disk failed, now or earlier; the other topics were maintained.
        """
        self.import_staged()
        self._serve()
        self._maintain_open(within_s=0.0)
        for log in self._open_logs():
            if log.deleter is not None:
                log.deleter.run_once()
        if self._cold is not None:
            self._cold.maintain()

    def import_staged(self) -> int:
        """
        Append the batches that Spark sinks committed; return the number of new messages. A batch that cannot be
        appended now is reported, and retried by the next call.
        """
        return 0 if self._staged_import is None else self._staged_import.import_all()

    def adopt(self) -> int:
        """Call `import_staged`, the new name of this method."""
        warn_renamed("TopicStore", "adopt", "import_staged")
        return self.import_staged()

    def _serve(self) -> None:
        if self._requests is not None:
            self._requests.serve(lambda request: perform(self, request))

    def _maintain_open(self, *, within_s: float) -> None:
        failed: QuiverError | None = None
        for one in self._open_now():
            try:
                one.maintain(within_s=within_s)
            except StoreClosedError:
                continue
            except QuiverError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _open_now(self) -> list[Subscription | TopicEngine]:
        return [*self._open_subscriptions(), *self._open_logs()]

    def _open_logs(self) -> list[TopicEngine]:
        with self._guard:
            return [one.engine for one in self._open.values()]

    def flush(self) -> None:
        """
        Sync all topics.

        Raises:
            StoreFailedError: a topic's sync failed.
        """
        for log in self._open_logs():
            log.flush()

    def save_progress(self) -> None:
        """
        Make the acknowledgements of all open subscriptions durable now.

        Raises:
            StoreFailedError: a topic's disk failed.
            OSError: progress could not be saved; the last saved progress is intact.
        """
        for one in self._open_subscriptions():
            with contextlib.suppress(StoreClosedError):  # it has just been closed, and saved
                one.save()

    def _sync_soon(self, topic: str) -> None:
        with self._guard:
            self._full.add(topic)
        self._worker.wake()

    def _turn(self) -> None:
        """Run one pass of the thread."""
        with self._guard:
            full, self._full = self._full, set()
        for log in self._open_logs():
            if log.topic in full:
                log.unsynced_since_s = 0.0  # due immediately
        self.import_staged()
        if self._requests is not None and self._requests.is_waiting():
            self._administrator.start()
            self._administrator.wake()
        for one in self._open_now():
            try:
                one.maintain(within_s=self._tick_s)
            except StoreClosedError:
                continue
            except (QuiverError, OSError) as error:
                # The log refuses its next caller. Saving progress is retried.
                if str(error) not in self._reported:
                    self._reported.add(str(error))
                    self._observer.event("danube.upkeep", level=logging.ERROR, problem=str(error))

    def _fail(self, died: WorkerDiedError) -> None:
        """Refuse all further calls: nothing would be synced any more, and no progress saved."""
        with self._guard:
            self._failure = died
        for log in self._open_logs():
            log.wal.poison(died)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(
                f"the topics {'in memory' if self.root is None else 'below ' + self.root} were closed"
            )
        if self._failure is not None:
            raise StoreFailedError(f"{self.root or 'memory'}: {self._failure}; reopen to recover")

    def shutdown(self) -> None:
        """
        The document's name for `close`.

        Raises:
            StoreFailedError: see `close`.
        """
        self.close()

    def close(self, *, timeout: float | None = None) -> Sequence[UnfinishedHandOver]:
        """
        Sync and close every topic, hand it over, and release the directory. Idempotent.

        With objects, remaining messages are uploaded and each topic is released: another process can continue exactly
        there, immediately. That takes at most *timeout* seconds; None is `uploader.hand_over_seconds`. Topics that
        could not be handed over are returned, and each is reported as the event `danube.topic.not_handed_over`: their
        messages are safe here, and this directory still owns them.

        Raises:
            StoreFailedError: messages of a topic may not be synced; the others were closed.
            OSError: the progress of a subscription could not be saved.
        """
        try:
            if not self._closed and self._failure is None:
                self.import_staged()  # sinks that committed meanwhile saw that this process would import
        finally:
            unfinished = self._end(timeout)
        return unfinished

    def _end(self, timeout: float | None) -> Sequence[UnfinishedHandOver]:
        with self._guard:
            if self._closed:
                return ()
            self._closed = True
        self._worker.stop()
        self._administrator.stop(_ADMINISTRATION_S)
        failed: QuiverError | OSError | None = None
        synced: list[TopicEngine] = []
        try:
            for one in self._open_subscriptions():
                try:
                    one.close()
                except (StoreFailedError, OSError) as error:
                    failed = failed or error
            for _, opened in sorted(self._open.items()):
                log = opened.engine
                try:
                    log.close()
                    synced.append(log)
                except StoreFailedError as error:
                    failed = failed or error
            unfinished = self._hand_over(synced, timeout)
        finally:
            # In any case: a running tier would renew the ownership of topics that nothing works on.
            if self._cold is not None:
                self._cold.close()
            if self._lock is not None:
                self._lock.release()
        if failed is not None:
            raise failed
        return unfinished

    def _hand_over(self, logs: Sequence[TopicEngine], timeout: float | None) -> Sequence[UnfinishedHandOver]:
        cold = self._cold
        if cold is None:
            return ()
        limit_s = self.settings.uploader.hand_over_seconds if timeout is None else timeout
        topics = [log.topic for log in logs if log.wal.directory is not None]
        unfinished = cold.hand_over(topics, timeout=limit_s) if limit_s > 0 else ()
        for one in unfinished:
            self._observer.event(
                "danube.topic.not_handed_over", level=logging.ERROR, topic=one.topic, first_offset=one.first_offset,
                next_offset=one.next_offset, problem=str(one),
            )  # fmt: skip
        return unfinished

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
