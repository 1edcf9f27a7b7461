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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quiver.clock import Clock
from quiver.errors import CorruptionError, DirectoryInUseError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import DamagePolicy, Profile
from quiver.store.format.progress import Progress
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.audit_trail import AuditTrail
from quiver.store.subscribers.delivery import DeliveryQueue, Order
from quiver.store.subscribers.progress_store import Recreated, SubscriberFile
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

__all__ = ["Membership", "Shared", "SubscriberStatus"]

_RECENT_NS = 2_000_000_000
"""A file that changed this recently is read again: two changes within one tick of its time stamp look like one."""

_FileSignature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Shared:
    """What all memberships of one registry have in common."""

    fs: FileSystem
    root: str
    profile: Profile
    clock: Clock
    observer: Observer
    segments: Segments
    damage_policy: DamagePolicy = "restart_earliest"
    audit: AuditTrail | None = None
    dropped: dict[int, SegmentRef] = field(default_factory=dict)
    """By number: segments that policy gave up and that the drop ledger names still."""
    lost: Counter[str] = field(default_factory=Counter)
    """By subscriber: bundles that it will never get, since the store was opened."""
    files_lock: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """That of `condition`, for those who neither wait nor wake: they take it without a detour. Not re-entrant on
    purpose: a handle's finalizer must find it taken, also in the thread that has it."""
    condition: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", threading.Condition(self.lock))

    def count_dropped(self, subscriber: str, bundles: int, *, reason: str) -> None:
        """Count what one subscriber will never get, and why. Under `files_lock`."""
        if bundles:
            self.lost[subscriber] += bundles
            self.observer.count(
                "quiver.subscriber.dropped_bundles_total", bundles, subscriber=subscriber, reason=reason
            )

    def audit_dropped(self, subscriber: str, state: SubscriberState, segment: SegmentRef, *, reason: str) -> None:
        """Note what of *segment* one subscriber will never get. Before it is resolved, under the condition."""
        if self.audit is not None:
            self.audit.dropped(subscriber, segment.seq, state.unresolved(segment), why=reason)


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """
    How a subscriber stands at this moment, in sealed bundles.

    Attributes:
        id: its name.
        is_registered: somebody registered it since the store was opened.
        is_owned: this process works for it.
        is_orphan: the registration phase has ended without it.
        oldest_incomplete: number of the oldest segment that it has not finished; the next one when it has all.
        pending_bundles: bundles that it has not resolved, claimed and deferred ones included.
        claimed_bundles: bundles handed out at this moment.
        deferred_bundles: bundles that wait for their time.
        lag_bytes: the pending bundles' share of their files.
        lag_seconds: since the oldest segment with a pending bundle was begun, by the wall clock; 0 when none is.
        idle_seconds: since this store saw a sign of life of it: a registration, a change of its file, a held lock.
            Never more than since the registration phase ended.
        progress_age_seconds: since its progress file changed, by the wall clock.
    """

    id: str
    is_registered: bool
    is_owned: bool
    is_orphan: bool
    oldest_incomplete: int
    pending_bundles: int
    claimed_bundles: int
    deferred_bundles: int
    lag_bytes: int
    lag_seconds: float
    idle_seconds: float
    progress_age_seconds: float


class Membership:
    """
    One subscriber. `reload`, `own`, `let_go`, `save`, `edit` and `recreate_if_unowned` are called under `files_lock`;
    all else under the condition.
    """

    __slots__ = (
        "_changed_ns",
        "_is_rewound",
        "_shared",
        "_signature",
        "acked_uncounted",
        "durable",
        "file",
        "gone",
        "id",
        "idle_since_s",
        "is_dirty",
        "is_registered",
        "order",
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
        self.order: Order = "oldest"
        self.is_registered = False
        self.is_dirty = False
        self.acked_uncounted = 0
        """Acknowledged bundles that no observer was told of yet: `tell_acked` does it for many at once."""
        self.gone = False
        self.idle_since_s = shared.clock.monotonic()
        self._changed_ns = shared.clock.now_ns()
        self._is_rewound = False
        self._shared = shared
        self._signature: _FileSignature | None = None

    def tell_acked(self) -> None:
        """Count what was acknowledged since the last time. Takes the condition."""
        with self._shared.condition:
            acked, self.acked_uncounted = self.acked_uncounted, 0
        if acked:
            self._shared.observer.count("quiver.subscriber.acked_bundles_total", acked, subscriber=self.id)

    # ── the file ─────────────────────────────────────────────────────────────────────────────────────

    def save(self, *, over_gaps: bool = True) -> bool:
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
            is_rewound, self._is_rewound = self._is_rewound, False
            self.state.advance(shared.segments, over_gaps=over_gaps)
            progress = self.state.to_progress(
                shared.segments, profile=shared.profile, over_gaps=over_gaps, dropped=shared.dropped.values()
            )
        if shared.audit is not None:
            shared.audit.write()  # first: what progress says is in the trail
        try:
            if not file.put(progress, is_rewound=is_rewound):
                return False
        except OSError:
            with shared.condition:
                self.is_dirty = True
                self._is_rewound = self._is_rewound or is_rewound
            raise
        durable = SubscriberState.from_progress(progress)
        with shared.condition:
            self.durable = durable
            self._changed_ns = shared.clock.now_ns()
        return True

    def edit(self, change: Callable[[SubscriberState], bool], *, is_rewound: bool = False) -> bool:
        """
        Apply *change* (True: something changed), durably on return; False when another process works for it.

        When nobody works for it, ownership is taken for the moment.

        Raises:
            CorruptionError: its file is not what was written, and the policy is not to go on.
            UnknownSubscriberError: its file is gone.
            OSError: the disk refused. A state that was owned before keeps the change, for the next `save`.
        """
        borrowed = self.file is None
        if borrowed:
            try:
                self.own()
            except DirectoryInUseError:
                with self._shared.condition:
                    self.idle_since_s = self._shared.clock.monotonic()
                return False
        try:
            with self._shared.condition:
                if change(self.state):
                    self.is_dirty = True
                    self._is_rewound = self._is_rewound or is_rewound
            # What is borrowed is left so that any process can read it: nothing is said by a number that is missing.
            self.save(over_gaps=not borrowed)
        finally:
            if borrowed:
                self.let_go()
                self._signature = None
        return True

    def own(self) -> None:
        """
        Take the lock and go on from what the file says.

        Raises:
            DirectoryInUseError: another process works for this subscriber.
            UnknownSubscriberError: its progress file is gone.
            CorruptionError: the file is not what was written, and the policy is not to go on.
            UnsupportedFormatError: a newer version wrote it; whatever the policy, it stays as it is.
            OSError: the file cannot be read.
        """
        shared = self._shared
        file = self._new_file()
        try:
            file.acquire()
        except CorruptionError as damage:
            self._report_damage(damage)
            if shared.damage_policy == "fail":
                raise
            self._recreate(file)
        if file.written is not None:
            self._adopt(file.written)
        with shared.condition:
            self.queue = DeliveryQueue(self.state, shared.segments, order=self.order)
            self.is_dirty = self._is_rewound = False
            self.file = file

    def let_go(self) -> None:
        """Give up ownership, without saving."""
        shared = self._shared
        with shared.condition:
            file, self.file, self.queue = self.file, None, None
            self.idle_since_s = shared.clock.monotonic()
            shared.condition.notify_all()
        if file is not None:
            file.release()

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
        except CorruptionError as damage:
            if signature != self._signature:
                self._report_damage(damage)
            self._signature = signature
            with shared.condition:
                self.durable = None
            return False
        if progress is not None:
            if signature != self._signature:
                with shared.condition:
                    self.idle_since_s = shared.clock.monotonic()
                    self._changed_ns = stat.modified_ns
            self._signature = signature
            self._adopt(progress)
        return True

    def recreate_if_unowned(self) -> None:
        """
        Do with a damaged file what the policy says, unless another process works for the subscriber.

        That one will write the file again; until then nothing is deleted.

        Raises:
            CorruptionError: the policy is not to go on.
            UnsupportedFormatError: a newer version wrote it; whatever the policy, it stays as it is.
            OSError: the disk refused.
        """
        shared = self._shared
        if shared.damage_policy == "fail":
            try:
                progress_store.lock_subscriber(shared.fs, shared.root, self.id).release()
            except DirectoryInUseError:
                return
            progress_store.load_progress(shared.fs, shared.root, self.id)
            return
        file = self._new_file()
        try:
            made = self._recreate(file)
        except DirectoryInUseError:
            return
        file.release()
        self._adopt(made.progress)

    def _new_file(self) -> SubscriberFile:
        shared = self._shared
        keep_backup = shared.damage_policy == "backup"
        return SubscriberFile(shared.fs, shared.root, self.id, profile=shared.profile, keep_backup=keep_backup)

    def _recreate(self, file: SubscriberFile) -> Recreated:
        shared = self._shared
        with shared.condition:
            next_seq = shared.segments.next_seq
            passed_over = list(shared.segments.between(0, next_seq - 1))
        made = file.recreate(shared.damage_policy, next_seq=next_seq)
        skipped = sum(segment.bundle_count for segment in passed_over) if made.start == "latest" else 0
        shared.observer.event(
            "quiver.subscriber.progress.recreated",
            level=logging.WARNING,
            subscriber=self.id,
            copy=made.copy,
            start=made.start,
            skipped_bundles_max=skipped,
        )
        # How many of them it had not resolved is what the damaged file would have said: all that it may be.
        shared.count_dropped(self.id, skipped, reason="progress_damaged")
        if skipped:
            nothing = SubscriberState()
            with shared.condition:
                for segment in passed_over:
                    shared.audit_dropped(self.id, nothing, segment, reason="progress_damaged")
        return made

    # ── the states ───────────────────────────────────────────────────────────────────────────────────

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
            for seq in progress.entries:
                segment = shared.segments.get(seq)
                if segment is not None:
                    self.reconcile(segment)

    def reconcile(self, segment: SegmentRef) -> None:
        """Check the entry of *segment* against its true size."""
        if self.state.reconcile(segment):
            self._shared.observer.event(
                "quiver.subscriber.progress.mismatch",
                level=logging.ERROR,
                subscriber=self.id,
                segment=segment.seq,
                problem="the entry is for another number of bundles; all of them are delivered",
            )

    def is_durably_complete(self, segment: SegmentRef) -> bool:
        """Say whether the file on disk says that all of *segment* is resolved."""
        return self.durable is not None and self.durable.is_complete(segment)

    def status(self, *, is_active: bool = True) -> SubscriberStatus:
        """Return how the subscriber stands; *is_active*: the registration phase has ended."""
        segments, clock = self._shared.segments, self._shared.clock
        now_ns = clock.now_ns()
        bundles = size_bytes = 0
        begun_ns: int | None = None
        for segment, left in self.state.pending_of(segments):
            if not bundles:
                begun_ns = segment.ingested_max_ns if segment.ingested_min_ns is None else segment.ingested_min_ns
            bundles += left
            size_bytes += segment.size_bytes * left // segment.bundle_count
        queue = self.queue
        return SubscriberStatus(
            self.id,
            self.is_registered,
            self.file is not None,
            is_active and not self.is_registered,
            self.state.position(segments).segment,
            bundles,
            0 if queue is None else queue.claimed_count,
            0 if queue is None else queue.deferred_count,
            size_bytes,
            0.0 if begun_ns is None else max(0.0, (now_ns - begun_ns) / 1e9),
            0.0 if self.is_registered else clock.monotonic() - self.idle_since_s,
            max(0.0, (now_ns - self._changed_ns) / 1e9),
        )

    def _report_damage(self, damage: CorruptionError) -> None:
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
