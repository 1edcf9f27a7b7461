"""
The object tier of all topics of one process: ownership, uploads and deletion.

It has at most two threads, however many topics there are. One uploads every `uploader.interval_seconds`, and deletes
files and objects every `deleter.check_interval_minutes`. The other renews ownership, and never waits for an upload.
`maintain` does what is due in both.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from quiver.clock import Clock
from quiver.errors import (
    CorruptionError,
    DirectoryInUseError,
    FencedError,
    MetadataUnavailableError,
    NotDurableError,
    QuiverError,
    StoreClosedError,
    StoreFailedError,
    UsageError,
)
from quiver.metadata.ownership import Ownership, acquire
from quiver.metadata.port import MetadataStore
from quiver.objects.port import ObjectTier
from quiver.observe import Observer
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.worker import Worker, WorkerDiedError
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.cursor_mirror import CursorMirror
from quiver.topics.cold.deleter import Deleter
from quiver.topics.cold.pieces import ColdReader
from quiver.topics.cold.reader import ObjectReader
from quiver.topics.cold.superseded import quarantine_superseded
from quiver.topics.cold.uploader import Uploader, uploaded_from
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.descriptor import SealedState, owner_key
from quiver.topics.handover import UnfinishedHandOver, do_within
from quiver.topics.owned_topic import OwnedTopic
from quiver.topics.settings import TopicSettings
from quiver.topics.takeover import OwnerWatches, patiently
from quiver.topics.wal.writer import Wal

__all__ = ["ObjectColdTier"]

_NS_PER_S = 1_000_000_000
_RETRY_S = 5.0
_RETRIES = Backoff(first_s=5.0, cap_s=300.0)
_ABANDON_S = 1.0
_POLL_S = 1.0


class ObjectColdTier:
    """
    A `ColdTier` on an object store and a metadata store. Thread-safe.

    Args:
        objects: the object store; closed with this.
        settings: of uploads, deletion and ownership.
        owner: a name for this directory of topics, the same after a restart.
        fs: the file system of the logs.
        clock, observer: time, and where counts and events are sent.
        background: whether the threads run.
        patience_s: how long opening a topic watches another owner that may be dead; `metadata.lease_seconds` is enough.
        watch_path: the file that stores observations of other owners across restarts; None stores nothing.
    """

    def __init__(
        self,
        objects: ObjectTier,
        metadata: MetadataStore,
        *,
        settings: TopicSettings,
        owner: str,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        background: bool = True,
        patience_s: float = 0.0,
        watch_path: str | None = None,
    ) -> None:
        self._objects = objects
        self._metadata = metadata
        self._settings = settings
        self._owner = owner
        self._fs = fs
        self._clock = clock
        self._observer = observer
        self._patience_s = patience_s
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._guard = threading.Lock()
        self._owned: dict[str, OwnedTopic] = {}
        self._prefix = (settings.metadata.namespace + settings.uploader.root_prefix).rstrip("/")
        self._watches = OwnerWatches(
            fs, watch_path, metadata, clock=clock, observer=observer,
            prefix=self._prefix,
        )  # fmt: skip
        self._cycle_ended = threading.Condition()
        self._is_closing = False
        self._has_unfinished = False
        self._died: WorkerDiedError | None = None
        self._workers = [
            Worker(
                f"quiver-topics-{name} {owner}", work, every=_RETRY_S, on_death=self._fail, clock=clock,
                observer=observer,
            )
            for name, work in (("upload", self._work_due), ("lease", self._renew_due))
        ]  # fmt: skip
        self._is_threaded = background
        if background:
            for worker in self._workers:
                worker.start()

    # ── for topics ───────────────────────────────────────────────────────────────────────────────────────

    def next_offset_min(self, topic: str, directory: str | None) -> int:
        """
        Take ownership of *topic*; return the lowest offset that was not given out yet, as far as is known.

        Files in *directory* that another owner's messages have superseded are quarantined on return.

        Raises:
            DirectoryInUseError: another process owns the topic.
            MetadataUnavailableError: the owner cannot be determined.
            ObjectsUnavailableError: superseded files cannot be determined.
            CorruptionError: a record of the topic is damaged.
            StoreFailedError: a thread of the tier has died.
        """
        if self._died is not None:
            raise StoreFailedError(f"{topic} cannot be opened: {self._died}; reopen the topics to recover")
        root = self._settings.metadata.namespace + self._settings.uploader.root_prefix
        key = owner_key(self._prefix, topic)
        ownership = patiently(lambda: self._acquire(key), wait_s=self._patience_s, clock=self._clock)
        catalog = ObjectCatalog(
            self._metadata, root=root, topic=topic, commits=ownership, clock=self._clock, observer=self._observer
        )
        cursors = CursorMirror(
            self._metadata, ownership, namespace=self._settings.metadata.namespace, topic=topic, owner=self._owner
        )
        owned = OwnedTopic(topic, ownership, catalog, cursors, self._clock.monotonic() + ownership.renew_every_s)
        try:
            next_offset = max(catalog.next_offset_min(), cursors.next_offset_min())
            if directory is not None:
                quarantine_superseded(
                    self._fs, directory, ObjectReader(self._objects, catalog, observer=self._observer),
                    start=uploaded_from(self._fs, directory), end=catalog.next_offset,
                    file_name=self._settings.wal.file_name, observer=self._observer,
                )  # fmt: skip
        except CorruptionError:
            ownership.release()  # the process that repairs it must not wait for this one
            raise
        except BaseException:
            ownership.give_up()
            raise
        with self._guard:
            self._owned[topic] = owned
        self._watches.done(key)
        return next_offset

    def give_up(self, topic: str) -> None:
        """Undo `next_offset_min` for a topic that could not be opened, so that another machine can open it."""
        with self._guard:
            owned = self._owned.pop(topic, None)
        if owned is not None:
            owned.ownership.give_up()

    def _acquire(self, key: str) -> Ownership:
        try:
            return acquire(
                self._metadata, key, owner=self._owner, clock=self._clock, watch=self._watches.of(key),
                ttl_s=float(self._settings.metadata.lease_seconds),
            )  # fmt: skip
        except DirectoryInUseError:
            self._watches.observe_all()  # so that further topics need not wait as long, also after a restart
            raise

    def knows(self, topic: str) -> bool:
        """
        Return whether *topic* ever had an owner.

        Raises:
            MetadataUnavailableError: it cannot be determined.
        """
        return self._metadata.get(owner_key(self._prefix, topic)) is not None

    def attach(self, topic: str, wal: Wal, confirmed: Callable[[], int | None]) -> None:
        """
        Start to upload *topic* and to release its files; from now on its log checks ownership before each append.

        The subscriptions that another owner recorded are in their files on return.

        *confirmed* returns the offset after the last that all reliable subscriptions have confirmed, or None.
        """
        owned = self._find(topic)
        with owned.work:
            chosen = owned.settings = self._settings.of(topic, has_objects=True)
            owned.wal = wal
            wal.owner_check = owned.ownership.check
            if wal.directory is None:
                return  # in memory only: nothing can be read again
            owned.kept = SubscriptionFiles(self._fs, wal.directory)
            owned.cursors.restore(owned.kept)
            state = owned.catalog.sealed_state()
            if state is not None:
                self._release_truncated(owned, wal, state)
            if state is not None and state.sealed:
                # The sealed flag is no longer true from here on; the offset still is.
                owned.catalog.keep_state(replace(state, sealed=False))
            if chosen.uploader.enabled:
                owned.uploader = Uploader(
                    wal, self._fs, self._objects, owned.catalog, settings=chosen.uploader,
                    check=owned.ownership.check, clock=self._clock, observer=self._observer,
                    file_name=self._settings.wal.file_name,
                )  # fmt: skip
            owned.deleter = Deleter(
                wal, self._fs, self._objects, owned.catalog, settings=chosen.deleter,
                retention=chosen.objects, check=owned.ownership.check,
                confirmed=confirmed, clock=self._clock, observer=self._observer,
            )  # fmt: skip
            owned.delete_at = self._clock.monotonic() + chosen.deleter.check_interval_minutes * 60
        self._notify()

    @staticmethod
    def _release_truncated(owned: OwnedTopic, wal: Wal, state: SealedState) -> None:
        # 1. The topic was here. 2. Another owner truncated or deleted it. 3. It is back, and our files still have it.
        owned.begins_at = state.start_offset
        if wal.start_offset < state.start_offset:
            if state.start_offset >= wal.next_offset:
                wal.rotate()
            wal.release_below(state.start_offset)

    def _state(self, owned: OwnedTopic, *, sealed: bool) -> SealedState:
        next_offset = owned.catalog.next_offset if owned.wal is None else owned.wal.next_offset
        now_s = self._clock.now_ns() // _NS_PER_S
        return SealedState(sealed, next_offset - 1, self._owner, now_s, owned.begins_at)

    def catalog(self, topic: str) -> ObjectCatalog:
        """
        Return the catalog of a topic that this process owns.

        Raises:
            UsageError: it is not open here.
        """
        return self._find(topic).catalog

    def reader(self, topic: str) -> ColdReader:
        """
        Return a reader of the topic's objects.

        Raises:
            UsageError: the topic is not open here.
        """
        return ObjectReader(self._objects, self._find(topic).catalog, observer=self._observer)

    def lag(self, topic: str) -> Mapping[str, float]:
        """Return how much of a topic is not in objects yet; nothing if it is not uploaded here."""
        with self._guard:
            owned = self._owned.get(topic)
        uploader = None if owned is None else owned.uploader
        return {} if uploader is None else uploader.lag()

    def _find(self, topic: str) -> OwnedTopic:
        with self._guard:
            owned = self._owned.get(topic)
        if owned is None:
            raise UsageError(f"{topic} is not open here")
        return owned

    # ── work ─────────────────────────────────────────────────────────────────────────────────────────────

    def maintain(self) -> None:
        """
        Renew every ownership, upload everything that is synced, and delete what is due, now.

        Raises:
            QuiverError, OSError: the first error; the other topics were processed.
        """
        failed: QuiverError | OSError | None = None
        for owned in self._every():
            for do in (self._renew, self._upload, self._delete):
                try:
                    do(owned)
                except (QuiverError, OSError) as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def upload(self, topic: str) -> int:
        """
        Upload everything of *topic* that is synced, now; return the offset below which objects have everything.

        Raises:
            UsageError: it is not open here, or not uploaded.
            ObjectsUnavailableError, MetadataUnavailableError, FencedError, CorruptionError, OSError: as
                `Uploader.run_once`.
        """
        owned = self._find(topic)
        if owned.uploader is None:
            raise UsageError(f"{topic} is not uploaded: uploader.enabled is false")
        self._upload(owned)
        return owned.catalog.next_offset

    def wait_until_uploaded(self, topic: str, offset: int, timeout: float | None) -> None:
        """
        Return when an object has the message *offset*, which is synced, waiting up to *timeout* seconds.

        The upload starts immediately and is retried if it fails. Concurrent callers share it.

        Raises:
            NotDurableError: *timeout* passed; the upload continues.
            CorruptionError: the message is damaged in the local log and cannot be uploaded.
            UsageError: the topic is not uploaded.
            FencedError: another owner took over.
            StoreClosedError, StoreFailedError: nothing will be uploaded any more.
        """
        owned = self._find(topic)
        if owned.uploader is None:
            raise UsageError(f"{topic} is not uploaded: uploader.enabled is false")
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            cycles = owned.cycles
            if self._is_uploaded(owned, offset):
                return
            left_s = None if deadline is None else deadline - self._clock.monotonic()
            if left_s is not None and left_s <= 0:
                raise NotDurableError(offset, owned.problem or "its upload is not finished", what="message")
            self._ask_for_upload(owned)
            wait_s = left_s if self._is_threaded else min(_POLL_S, left_s or _POLL_S)
            with self._cycle_ended:
                if self._is_uploading(owned) and (owned.cycles == cycles or owned.problem):
                    self._clock.wait(self._cycle_ended, wait_s)

    def _is_uploading(self, owned: OwnedTopic) -> bool:
        """Return whether another cycle of *owned* can end. If not, waiting for one would last forever."""
        return owned.uploader is not None and not self._is_closing and self._died is None

    def _is_uploaded(self, owned: OwnedTopic, offset: int) -> bool:
        uploader, wal = owned.uploader, owned.wal
        if self._died is not None:
            raise StoreFailedError(f"{owned.topic}: {self._died}; open the topics again")
        if uploader is None or wal is None or self._is_closing:
            raise StoreClosedError(
                f"{owned.topic} was closed; open it again to see whether message {offset} is uploaded"
            )
        reached = uploader.uploaded_offset  # read before the catalog, which is ahead of it
        try:
            owned.ownership.check()
            found = owned.catalog.at_or_after(offset)
            first = owned.catalog.start_offset
        except MetadataUnavailableError as error:
            owned.problem = str(error)
            return False
        is_deleted = offset < owned.begins_at or (first is not None and offset < first)  # deleted since
        if is_deleted or (found is not None and found.start_offset <= offset):
            return True
        if found is not None or reached > offset:
            raise CorruptionError(f"{wal.directory}", 0, f"message {offset} is damaged in the log, and is not uploaded")
        return False

    def _ask_for_upload(self, owned: OwnedTopic) -> None:
        if not self._is_threaded:
            with contextlib.suppress(QuiverError, OSError):  # recorded in `problem`, and retried
                self._upload(owned)
            return
        # After a failure, not immediately.
        soon = self._clock.monotonic() + (_RETRY_S if owned.delays is not None else 0.0)
        owned.upload_at = min(owned.upload_at, soon)
        self._workers[0].wake(max(0.0, owned.upload_at - self._clock.monotonic()))

    def truncate(self, topic: str, offset: int) -> None:
        """
        Delete the objects of *topic* with all messages below *offset*, which no local file has.

        Raises:
            UsageError: it is not open here.
            ObjectsUnavailableError, MetadataUnavailableError: some may be deleted; the next call continues.
            FencedError: another owner took over.
        """
        owned = self._find(topic)
        with owned.work:
            if owned.deleter is not None:
                owned.begins_at = max(owned.begins_at, offset)
                # 1. All objects are deleted. 2. The local disk is lost. Only this state has the next offset then.
                owned.catalog.keep_state(self._state(owned, sealed=False))
                owned.deleter.truncate(offset)

    def delete(self, topic: str) -> None:
        """
        Remove everything of *topic* from both stores except its next offset, and release it.

        Raises:
            UsageError: it is not open here.
            ObjectsUnavailableError, MetadataUnavailableError: some may be deleted; the topic stays attached.
            FencedError: another owner took over.
        """
        owned = self._find(topic)
        with owned.work:
            owned.ownership.renew()
            if owned.deleter is not None:
                owned.deleter.remove_all()
            owned.cursors.forget_all()
            if owned.wal is not None:
                owned.begins_at = owned.wal.next_offset
            owned.ownership.release(owned.catalog.changes_for(self._state(owned, sealed=True)))
            self._forget(owned)

    def _every(self) -> list[OwnedTopic]:
        with self._guard:
            return list(self._owned.values())

    def _renew(self, owned: OwnedTopic) -> None:
        owned.renew_at = self._clock.monotonic() + min(owned.ownership.renew_every_s, _RETRY_S)
        owned.ownership.renew()
        owned.renew_at = self._clock.monotonic() + owned.ownership.renew_every_s

    def _upload(self, owned: OwnedTopic) -> None:
        with owned.work:
            if owned.uploader is None:
                return
            # After a failure sooner than the next cycle, with growing delays.
            interval_s = owned.settings.uploader.interval_seconds
            owned.delays = owned.delays or _RETRIES.delays(self._random)
            owned.upload_at = self._clock.monotonic() + min(interval_s, next(owned.delays))
            owned.problem = "the upload failed"
            try:
                owned.uploader.run_once()
                if owned.kept is not None:
                    owned.cursors.update(owned.kept)
                owned.delays = None
                owned.upload_at = self._clock.monotonic() + interval_s
                owned.problem = ""
            except (QuiverError, OSError) as error:
                owned.problem = str(error)
                raise
            finally:
                self._end_cycle(owned)

    def _end_cycle(self, owned: OwnedTopic) -> None:
        with self._cycle_ended:
            owned.cycles += 1
            self._cycle_ended.notify_all()

    def _delete(self, owned: OwnedTopic) -> None:
        with owned.work:
            if owned.deleter is not None:
                owned.delete_at = self._clock.monotonic() + owned.settings.deleter.check_interval_minutes * 60
                owned.deleter.run_once()

    def _attempt(self, owned: OwnedTopic, do: Callable[[OwnedTopic], None]) -> None:
        try:
            do(owned)
        except (QuiverError, OSError) as error:
            # This thread can report only to the observer. The failed work is due again.
            level = logging.ERROR if isinstance(error, FencedError) else logging.WARNING
            self._observer.event("danube.cold.failed", level=level, topic=owned.topic, problem=str(error))

    def _work_due(self) -> float:
        now = self._clock.monotonic()
        due = now + _RETRY_S
        for owned in self._every():
            if self._is_closing:
                break
            if owned.uploader is not None and owned.upload_at <= now:
                self._attempt(owned, self._upload)
            if owned.deleter is not None and owned.delete_at <= now:
                self._attempt(owned, self._delete)
            if owned.uploader is not None:
                due = min(due, owned.upload_at)
        return self._left_s(due)

    def _renew_due(self) -> float:
        now = self._clock.monotonic()
        due = now + _RETRY_S
        for owned in self._every():
            if owned.renew_at <= now:
                self._attempt(owned, self._renew)
            due = min(due, owned.renew_at)
        return self._left_s(due)

    def _left_s(self, due: float) -> float:
        return max(0.01, due - self._clock.monotonic())

    def _notify(self) -> None:
        for worker in self._workers:
            worker.wake()

    def _fail(self, died: WorkerDiedError) -> None:
        """Make every topic refuse messages: they would not be uploaded, or ownership would not be renewed."""
        with self._guard:
            self._died = died
        for owned in self._every():
            self._end_cycle(owned)
            if owned.wal is not None:
                owned.wal.poison(died)

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────

    def detach(self, topic: str, *, sealed: bool) -> None:
        """
        Stop the work on *topic*, whose log accepts no more messages.

        With *sealed*, everything is uploaded first and ownership is released: another process can continue exactly
        there. Without it, messages that are not uploaded are on this disk only, so its owner keeps the topic; a
        concurrent upload of another thread has no effect.

        Raises:
            ObjectsUnavailableError, MetadataUnavailableError: with *sealed*: not everything is uploaded; the topic
                stays attached.
            FencedError: another owner took over.
        """
        with self._guard:
            owned = self._owned.get(topic)
        if owned is None:
            return
        if sealed:
            self._seal(owned)
        else:
            if owned.uploader is not None:
                owned.uploader.stop()
            owned.ownership.abandon()
        self._forget(owned)

    def _forget(self, owned: OwnedTopic) -> None:
        owned.uploader = owned.deleter = None
        self._end_cycle(owned)
        if owned.wal is not None:
            owned.wal.owner_check = None  # the log is closed and refuses appends without it
        with self._guard:
            self._owned.pop(owned.topic, None)

    def _seal(self, owned: OwnedTopic) -> None:
        wal = owned.wal
        with owned.work:
            owned.ownership.renew()
            if owned.uploader is not None and wal is not None and owned.catalog.next_offset < wal.next_offset:
                if wal.synced_offset < wal.next_offset:
                    raise StoreFailedError(f"{wal.directory}: messages from {wal.synced_offset} on are not synced")
                owned.uploader.run_once()
            if owned.kept is not None:
                owned.cursors.update(owned.kept)
            owned.ownership.release(owned.catalog.changes_for(self._state(owned, sealed=True)))

    def hand_over(self, topics: Sequence[str], *, timeout: float) -> Sequence[UnfinishedHandOver]:
        """
        Detach *topics*, each as `detach` does with *sealed*, within *timeout* seconds; return those not sealed.

        These are detached, too. Nothing else is uploaded meanwhile.
        """
        self._is_closing = self._has_unfinished = True  # set before an interrupt can happen
        unfinished = []
        for topic, error in do_within(timeout, topics, lambda topic: self.detach(topic, sealed=True)).items():
            with self._guard:
                owned = self._owned.get(topic)
            if owned is None or owned.wal is None:
                continue  # it was finished at the last moment
            wal, uploader = owned.wal, owned.uploader
            first = wal.start_offset if uploader is None else max(wal.start_offset, uploader.uploaded_offset)
            unfinished.append(
                UnfinishedHandOver(
                    topic, min(first, wal.next_offset), wal.next_offset, wal.directory or "", str(error),
                    is_owner=not isinstance(error, FencedError),
                )
            )  # fmt: skip
            self.detach(topic, sealed=False)
        self._has_unfinished = bool(unfinished)
        return unfinished

    def close(self) -> None:
        """End all work, and close both stores. Idempotent."""
        self._is_closing = True
        for worker in self._workers:
            # It may be in a request that never returns: its later calls are refused everywhere.
            worker.stop(_ABANDON_S if self._has_unfinished else None)
        for owned in self._every():  # after a close without a hand-over
            self._end_cycle(owned)
        with self._guard:
            self._owned.clear()
        self._objects.close()
        self._metadata.close()
