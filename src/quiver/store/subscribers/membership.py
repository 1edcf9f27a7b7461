"""
One subscriber as an open store sees it: what it has resolved, what its file says, who works for it.

Two states are kept, and they must not be confused. The live state includes the acknowledgements of a moment
ago; the durable state is what the progress file says. Delivery goes by the live one, deletion by the durable one
alone, or a crash would bring back a subscriber that still wants what was deleted.

Two locks, always taken in this order: `Shared.files_lock` around whatever touches the disk, `Shared.condition`
around the states. The disk is never touched under the condition, so an acknowledgement never waits for an fsync.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from quiver.clock import Clock
from quiver.errors import Damaged, DirectoryInUse
from quiver.observe import Observer
from quiver.primitives.files import FileSystem
from quiver.settings import Profile
from quiver.store.format.progress import Progress
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.delivery import DeliveryQueue
from quiver.store.subscribers.progress_store import SubscriberFile
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

__all__ = ["Membership", "Shared", "SubscriberStatus"]

_RECENT_NS = 2_000_000_000
"""A file that changed this recently is read again: two changes within one tick of its time stamp look like one."""

_FileSignature = tuple[int, int, int]


def _plain_condition() -> threading.Condition:
    # Not re-entrant on purpose: a handle's finalizer must find it taken, also in the thread that has it.
    return threading.Condition(threading.Lock())


@dataclass(frozen=True, slots=True)
class Shared:
    """
    What all memberships of one registry have in common.
    """

    fs: FileSystem
    root: str
    profile: Profile
    clock: Clock
    observer: Observer
    segments: Segments
    files_lock: threading.Lock = field(default_factory=threading.Lock)
    condition: threading.Condition = field(default_factory=_plain_condition)


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """
    How a subscriber stands at this moment.

    Attributes:
        id: its name.
        is_registered: somebody registered it since the store was opened; otherwise it is an orphan.
        is_owned: this process works for it.
        oldest_incomplete: number of the oldest segment that it has not finished.
        pending_bundles: sealed bundles that it has not resolved, claimed and deferred ones included.
        claimed_bundles: bundles handed out at this moment.
    """

    id: str
    is_registered: bool
    is_owned: bool
    oldest_incomplete: int
    pending_bundles: int
    claimed_bundles: int


class Membership:
    """
    One subscriber. `reload`, `own`, `save` and `recreate_if_unowned` are called under `files_lock`; all else under
    the condition.
    """

    __slots__ = (
        "_shared",
        "_signature",
        "durable",
        "file",
        "gone",
        "id",
        "is_dirty",
        "is_registered",
        "queue",
        "state",
    )

    def __init__(self, subscriber_id: str, shared: Shared) -> None:
        self.id = subscriber_id
        self.state = SubscriberState()
        self.durable: SubscriberState | None = None
        """What the file on disk says; None when that is unknown, and then nothing may be deleted."""
        self.file: SubscriberFile | None = None
        """Held while this process works for the subscriber."""
        self.queue: DeliveryQueue | None = None
        """There while `file` is held."""
        self.is_registered = False
        self.is_dirty = False
        self.gone = False
        self._shared = shared
        self._signature: _FileSignature | None = None

    def save(self) -> bool:
        """
        Write the progress if it changed; durable on return. True when it was written.

        Raises:
            OSError: the disk refused; it stays to be written.
        """
        shared = self._shared
        with shared.condition:
            file = self.file
            if file is None or not self.is_dirty:
                return False
            self.is_dirty = False
            self.state.advance(shared.segments)
            progress = self.state.to_progress(shared.segments, profile=shared.profile)
        if progress == file.written:
            return False
        try:
            progress_store.save_progress(shared.fs, shared.root, self.id, progress, profile=shared.profile)
        except OSError:
            with shared.condition:
                self.is_dirty = True
            raise
        file.written = progress
        durable = SubscriberState.from_progress(progress)
        with shared.condition:
            self.durable = durable
        return True

    def reload(self) -> bool:
        """
        Read the file of a subscriber that this process does not own, if it changed; False when it is damaged.

        A file that is gone changes nothing here: the next listing of the directory says so.
        """
        shared = self._shared
        try:
            stat = shared.fs.stat(progress_store.progress_path(shared.root, self.id))
        except FileNotFoundError:
            return True
        signature = (stat.modified_ns, stat.inode, stat.size_bytes)
        is_recent = abs(shared.clock.now_ns() - stat.modified_ns) < _RECENT_NS
        if signature == self._signature and not is_recent:
            return self.durable is not None
        try:
            progress = progress_store.load_progress(shared.fs, shared.root, self.id)
        except Damaged as damage:
            if signature != self._signature:
                self._report_damage(damage)
            self._signature = signature
            with shared.condition:
                self.durable = None
            return False
        if progress is not None:
            self._signature = signature
            self._adopt(progress)
        return True

    def recreate_if_unowned(self) -> None:
        """
        Replace a damaged file by one with nothing resolved, unless another process works for the subscriber.

        That one will write the file again; until then nothing is deleted.
        """
        shared = self._shared
        file = SubscriberFile(shared.fs, shared.root, self.id, profile=shared.profile)
        try:
            copy = file.recreate()
        except DirectoryInUse:
            return
        file.release()
        self._report_recreated(copy)
        self._adopt(Progress(0, {}))

    def own(self) -> None:
        """
        Take the lock and go on from what the file says.

        Raises:
            DirectoryInUse: another process works for this subscriber.
            SubscriberUnknown: its progress file is gone.
            OSError: the file cannot be read.
        """
        shared = self._shared
        file = SubscriberFile(shared.fs, shared.root, self.id, profile=shared.profile)
        try:
            file.acquire()
        except Damaged as damage:
            self._report_damage(damage)
            self._report_recreated(file.recreate())
        if file.written is not None:
            self._adopt(file.written)
        with shared.condition:
            self.queue = DeliveryQueue(self.state, shared.segments)
            self.is_dirty = False
            self.file = file

    def _adopt(self, progress: Progress) -> None:
        shared = self._shared
        if progress.flags:
            shared.observer.event(
                "quiver.subscriber.progress.load",
                level=logging.WARNING,
                subscriber=self.id,
                problem=f"unknown flags {progress.flags:#x} are ignored",
            )
        live = SubscriberState.from_progress(progress)
        durable = SubscriberState.from_progress(progress)
        with shared.condition:
            self.state = live
            self.durable = durable
            for segment in shared.segments:
                self.reconcile(segment)

    def reconcile(self, segment: SegmentRef) -> None:
        """
        Check the entry of *segment* against its true size.
        """
        if self.state.reconcile(segment):
            self._shared.observer.event(
                "quiver.subscriber.progress.mismatch",
                level=logging.ERROR,
                subscriber=self.id,
                segment=segment.seq,
                problem="the entry is for another number of bundles; all of them are delivered",
            )

    def is_durably_complete(self, segment: SegmentRef) -> bool:
        """
        Say whether the file on disk says that all of *segment* is resolved.
        """
        return self.durable is not None and self.durable.is_complete(segment)

    def status(self) -> SubscriberStatus:
        """
        Return how the subscriber stands.
        """
        segments = self._shared.segments
        return SubscriberStatus(
            self.id,
            self.is_registered,
            self.file is not None,
            self.state.position(segments).segment,
            self.state.pending_count(segments),
            0 if self.queue is None else self.queue.claimed_count,
        )

    def _report_damage(self, damage: Damaged) -> None:
        observer = self._shared.observer
        observer.event(
            "quiver.subscriber.progress.damaged",
            level=logging.ERROR,
            subscriber=self.id,
            path=damage.path,
            offset=damage.offset,
            reason=damage.reason,
        )
        observer.count("quiver.recovery.damaged_files_total", kind="progress")

    def _report_recreated(self, copy: str | None) -> None:
        self._shared.observer.event(
            "quiver.subscriber.progress.recreated",
            level=logging.WARNING,
            subscriber=self.id,
            copy=copy,
            start="earliest",
        )
