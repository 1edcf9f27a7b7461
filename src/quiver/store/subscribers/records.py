"""
One subscriber in an open store: what it has resolved, what its progress file contains, and who owns it.

A record has two states that must not be confused. The live state includes the latest acknowledgements; the durable
state is the content of the progress file. Delivery uses the live state. Deletion uses only the durable one: otherwise a
crash would bring back a subscriber that still needs what was deleted.

There are two locks, always taken in this order: `SubscriberTable.files_lock` around every disk access, and
`SubscriberTable.condition` around the states. No disk access happens under the condition, so an acknowledgement never
waits for an fsync.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quiver.clock import Clock
from quiver.errors import CorruptionError, DirectoryInUseError, StoreClosedError, UnknownSubscriberError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.settings import DamagePolicy, Profile
from quiver.store.format.progress import Progress
from quiver.store.subscribers import progress_store
from quiver.store.subscribers.audit_trail import AuditTrail
from quiver.store.subscribers.progress_store import Recreated, SubscriberFile
from quiver.store.subscribers.queue import DeliveryQueue, Order
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

__all__ = ["SubscriberLag", "SubscriberRecord", "SubscriberStatus", "SubscriberTable"]

_RECENT_NS = 2_000_000_000
"""A file that changed this recently is read again: two changes within one tick of its timestamp look the same."""

_FileSignature = tuple[int, int, int]


@dataclass(slots=True)
class SubscriberTable:
    """The subscribers of one store, and what their records share."""

    fs: FileSystem
    root: str
    profile: Profile
    clock: Clock
    observer: Observer
    segments: Segments
    damage_policy: DamagePolicy = "restart_earliest"
    audit: AuditTrail | None = None
    dropped: dict[int, SegmentRef] = field(default_factory=dict)
    """By number: segments that policy dropped and that the drop ledger still lists."""
    early: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By subscriber and segment: what recovery found resolved before the segment was sealed, as the number of bundles
    and a bitmap. It stays until the progress file has it."""
    restarted: set[str] = field(default_factory=set)
    """Subscribers whose progress was lost at open."""
    lost: Counter[str] = field(default_factory=Counter)
    """By subscriber: how many bundles it has lost since the store was opened."""
    records: dict[str, SubscriberRecord] = field(default_factory=dict)
    """By subscriber id. Under `condition`."""
    on_change: Callable[[], None] = lambda: None
    """Called when there is progress to write, and when a subscriber was added or removed."""
    is_active: bool = False
    """Whether the registration phase has ended."""
    is_closed: bool = False
    """Whether the store was closed."""
    files_lock: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """The lock of `condition`, for callers that neither wait nor notify: taking it directly is faster. It must not be
    re-entrant: a handle's finalizer must find it taken even in the thread that holds it."""
    condition: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self.condition = threading.Condition(self.lock)

    def listed(self) -> list[SubscriberRecord]:
        """Return all records. Takes the condition."""
        with self.condition:
            return list(self.records.values())

    def find(self, subscriber_id: str) -> SubscriberRecord:
        """
        Return one record. Under the condition.

        Raises:
            UnknownSubscriberError: the subscriber does not exist.
        """
        record = self.records.get(subscriber_id)
        if record is None:
            raise UnknownSubscriberError(f"there is no subscriber {subscriber_id!r}")
        return record

    def require_open(self) -> None:
        """
        Check that the store is open.

        Raises:
            StoreClosedError: it was closed.
        """
        if self.is_closed:
            raise StoreClosedError("the store is closed")

    def count_dropped(self, subscriber: str, bundles: int, *, reason: str) -> None:
        """Count bundles that one subscriber has lost, and why. Under `files_lock`."""
        if bundles:
            self.lost[subscriber] += bundles
            self.observer.count(
                "quiver.subscriber.dropped_bundles_total", bundles, subscriber=subscriber, reason=reason
            )

    def audit_dropped(self, subscriber: str, state: SubscriberState, segment: SegmentRef, *, reason: str) -> None:
        """Add to the audit trail which bundles of *segment* one subscriber loses.

        Call it before they are resolved, under the condition.
        """
        if self.audit is not None:
            self.audit.dropped(subscriber, segment.seq, state.unresolved(segment), why=reason)


@dataclass(frozen=True, slots=True)
class SubscriberLag:
    """
    The lag of a subscriber at one moment, in sealed bundles.

    Attributes:
        pending_bundles: unresolved bundles, including claimed and deferred ones.
        claimed_bundles: bundles that are claimed.
        deferred_bundles: bundles that are deferred.
        segments: the numbers of all segments with an unresolved bundle, ascending.
        size_bytes: the share of the pending bundles in the bytes of their files.
        seconds: seconds since the first ingest into the oldest segment with a pending bundle, by the wall clock; 0 if
            nothing is pending.
    """

    pending_bundles: int
    claimed_bundles: int
    deferred_bundles: int
    segments: tuple[int, ...]
    size_bytes: int
    seconds: float

    @property
    def oldest_incomplete_segment(self) -> int | None:
        """The number of the oldest segment with an unresolved bundle; None if there is none."""
        return self.segments[0] if self.segments else None

    @property
    def is_drained(self) -> bool:
        """Whether all sealed bundles are resolved. The open segment does not count: `Store.seal` first."""
        return not self.pending_bundles

    def __add__(self, other: SubscriberLag) -> SubscriberLag:
        """Return the lag over two cores: sums, and the larger age. Each core numbers its own segments."""
        return SubscriberLag(
            self.pending_bundles + other.pending_bundles,
            self.claimed_bundles + other.claimed_bundles,
            self.deferred_bundles + other.deferred_bundles,
            tuple(sorted(self.segments + other.segments)),
            self.size_bytes + other.size_bytes,
            max(self.seconds, other.seconds),
        )


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """
    The state of a subscriber at one moment, in sealed bundles.

    Attributes:
        id: its id.
        is_registered: it was registered since the store was opened.
        is_owned: this process owns it.
        is_orphan: it was not registered when the registration phase ended.
        oldest_incomplete: number of the oldest segment with an unresolved bundle; the next number if there is none.
        pending_bundles: unresolved bundles, including claimed and deferred ones.
        claimed_bundles: bundles that are claimed.
        deferred_bundles: bundles that are deferred.
        lag_bytes: the share of the pending bundles in the bytes of their files.
        lag_seconds: seconds since the first ingest into the oldest segment with a pending bundle, by the wall clock;
            0 if nothing is pending.
        idle_seconds: seconds since this store last saw it active: a registration, a change of its file, a held lock.
            At most the time since the registration phase ended.
        progress_age_seconds: seconds since its progress file changed, by the wall clock.
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


class SubscriberRecord:
    """
    One subscriber. `reload`, `acquire`, `release`, `save`, `edit` and `recreate_if_unowned` are called under
    `files_lock`, all other methods under the condition.
    """

    __slots__ = (
        "_changed_ns",
        "_is_rewound",
        "_signature",
        "_table",
        "acked_uncounted",
        "durable",
        "file",
        "id",
        "idle_since_s",
        "is_dirty",
        "is_registered",
        "is_removed",
        "order",
        "queue",
        "state",
    )

    def __init__(self, subscriber_id: str, table: SubscriberTable) -> None:
        self.id = subscriber_id
        self.state = SubscriberState()
        self.durable: SubscriberState | None = None
        """The content of the file on disk; None if it is unknown, and then nothing may be deleted."""
        self.file: SubscriberFile | None = None
        """Set while this process owns the subscriber."""
        self.queue: DeliveryQueue | None = None
        """Set while `file` is."""
        self.order: Order = "oldest"
        self.is_registered = False
        self.is_dirty = False
        self.acked_uncounted = 0
        """Acknowledged bundles that are not counted yet; `count_acked` counts many at a time."""
        self.is_removed = False
        self.idle_since_s = table.clock.monotonic()
        self._changed_ns = table.clock.now_ns()
        self._is_rewound = False
        self._table = table
        self._signature: _FileSignature | None = None

    def require(self) -> None:
        """
        Check that the store is open and still has this subscriber.

        Raises:
            StoreClosedError: the store was closed.
            UnknownSubscriberError: the subscriber was unregistered.
        """
        self._table.require_open()
        if self.is_removed:
            raise UnknownSubscriberError(f"subscriber {self.id!r} was unregistered")

    def mark_dirty(self) -> None:
        """Request that the progress is written."""
        if not self.is_dirty:
            self.is_dirty = True
            self._table.on_change()

    def count_acked(self) -> None:
        """Count what was acknowledged since the last call. Takes the condition."""
        with self._table.condition:
            acked, self.acked_uncounted = self.acked_uncounted, 0
        if acked:
            self._table.observer.count("quiver.subscriber.acked_bundles_total", acked, subscriber=self.id)

    # ── the file ─────────────────────────────────────────────────────────────────────────────────────

    def save(self, *, over_gaps: bool = True) -> bool:
        """
        Write the progress if it changed, durable on return; return whether it was written.

        Raises:
            OSError: the disk refused; the next call writes it.
        """
        table = self._table
        with table.condition:
            file = self.file
            if file is None or not self.is_dirty:
                return False
            self.is_dirty = False
            is_rewound, self._is_rewound = self._is_rewound, False
            self.state.advance(table.segments, over_gaps=over_gaps)
            progress = self.state.to_progress(
                table.segments, profile=table.profile, over_gaps=over_gaps, dropped=table.dropped.values()
            )
        if table.audit is not None:
            table.audit.write()  # first: the trail must contain everything in the progress file
        try:
            if not file.put(progress, is_rewound=is_rewound):
                return False
        except OSError:
            with table.condition:
                self.is_dirty = True
                self._is_rewound = self._is_rewound or is_rewound
            raise
        durable = SubscriberState.from_progress(progress)
        with table.condition:
            self.durable = durable
            self._changed_ns = table.clock.now_ns()
            early = table.early.get(self.id, {})
            for seq in [seq for seq in early if seq not in table.segments.unsealed]:
                del early[seq]
        return True

    def edit(self, change: Callable[[SubscriberState], bool], *, is_rewound: bool = False) -> bool:
        """
        Apply *change*, durable on return; return False if another process owns the subscriber.

        *change* returns whether it changed the state. If no process owns the subscriber, this call does meanwhile.

        Raises:
            CorruptionError: the progress file is damaged, and the policy is `fail`.
            UnknownSubscriberError: the progress file was removed.
            OSError: the disk refused. If the state was owned before the call, the next `save` writes the change.
        """
        borrowed = self.file is None
        if borrowed:
            try:
                self.acquire(borrows=True)
            except DirectoryInUseError:
                with self._table.condition:
                    self.idle_since_s = self._table.clock.monotonic()
                return False
        try:
            with self._table.condition:
                if change(self.state):
                    self.mark_dirty()
                    self._is_rewound = self._is_rewound or is_rewound
            # Any process must be able to read the file afterwards, so a missing number must not carry a meaning.
            self.save(over_gaps=not borrowed)
        finally:
            if borrowed:
                self.release()
                self._signature = None
        return True

    def acquire(self, *, borrows: bool = False) -> None:
        """
        Take the lock and load the state from the file.

        *borrows*: without a queue, for a change by the store itself. A call for bundles that found a queue would not
        wait until the file can be acquired, and would lose its claims with the release.

        Raises:
            DirectoryInUseError: another process owns the subscriber.
            UnknownSubscriberError: the progress file was removed.
            CorruptionError: the file is damaged, and the policy is `fail`.
            UnsupportedFormatError: a newer version wrote the file; it is left unchanged under every policy.
            OSError: the file cannot be read.
        """
        table = self._table
        file = self._new_file()
        try:
            file.acquire()
        except CorruptionError as damage:
            self._report_damage(damage)
            if table.damage_policy == "fail":
                raise
            self._recreate(file)
        if file.written is not None:
            self._set_states(file.written)
        with table.condition:
            self.queue = None if borrows else DeliveryQueue(self.state, table.segments, order=self.order)
            self._is_rewound = False
            self.is_dirty = bool(table.early.get(self.id))
            self.file = file

    def release(self) -> None:
        """End ownership without saving."""
        table = self._table
        with table.condition:
            file, self.file, self.queue = self.file, None, None
            self.idle_since_s = table.clock.monotonic()
            table.condition.notify_all()
        if file is not None:
            file.release()

    def reload(self) -> bool:
        """
        Read the file of a subscriber that this process does not own, if it changed; return False if it is damaged.

        A removed file has no effect here: the next listing of the directory finds it missing.
        """
        table = self._table
        try:
            stat = table.fs.stat(progress_store.progress_path(table.root, self.id))
        except FileNotFoundError:
            return True
        signature = (stat.modified_ns, stat.inode, stat.size_bytes)
        is_recent = abs(table.clock.now_ns() - stat.modified_ns) < _RECENT_NS
        if signature == self._signature and not is_recent:
            return self.durable is not None
        try:
            progress = progress_store.load_progress(table.fs, table.root, self.id)
        except CorruptionError as damage:
            if signature != self._signature:
                self._report_damage(damage)
            self._signature = signature
            with table.condition:
                self.durable = None
            return False
        if progress is not None:
            if signature != self._signature:
                with table.condition:
                    self.idle_since_s = table.clock.monotonic()
                    self._changed_ns = stat.modified_ns
            self._signature = signature
            self._set_states(progress)
        return True

    def recreate_if_unowned(self) -> None:
        """
        Apply the policy to a damaged file, unless another process owns the subscriber.

        The owner will write the file again; until then nothing is deleted.

        Raises:
            CorruptionError: the policy is `fail`.
            UnsupportedFormatError: a newer version wrote the file; it is left unchanged under every policy.
            OSError: the disk refused.
        """
        table = self._table
        if table.damage_policy == "fail":
            try:
                progress_store.lock_subscriber(table.fs, table.root, self.id).release()
            except DirectoryInUseError:
                return
            progress_store.load_progress(table.fs, table.root, self.id)
            return
        file = self._new_file()
        try:
            made = self._recreate(file)
        except DirectoryInUseError:
            return
        file.release()
        self._set_states(made.progress)

    def _new_file(self) -> SubscriberFile:
        table = self._table
        keep_backup = table.damage_policy == "backup"
        return SubscriberFile(table.fs, table.root, self.id, profile=table.profile, keep_backup=keep_backup)

    def _recreate(self, file: SubscriberFile) -> Recreated:
        table = self._table
        with table.condition:
            next_seq = table.segments.next_seq
            skipped_segments = list(table.segments.between(0, next_seq - 1))
        made = file.recreate(table.damage_policy, next_seq=next_seq)
        table.early.pop(self.id, None)
        table.restarted.add(self.id)
        skipped = sum(segment.bundle_count for segment in skipped_segments) if made.start == "latest" else 0
        table.observer.event(
            "quiver.subscriber.progress.recreated",
            level=logging.WARNING,
            subscriber=self.id,
            copy=made.copy,
            start=made.start,
            skipped_bundles_max=skipped,
        )
        # How many of them were resolved is unknown: count the maximum.
        table.count_dropped(self.id, skipped, reason="progress_damaged")
        if skipped:
            nothing = SubscriberState()
            with table.condition:
                for segment in skipped_segments:
                    table.audit_dropped(self.id, nothing, segment, reason="progress_damaged")
        return made

    # ── the states ───────────────────────────────────────────────────────────────────────────────────

    def _set_states(self, progress: Progress) -> None:
        table = self._table
        if progress.flags:
            table.observer.event(
                "quiver.subscriber.progress.load",
                level=logging.WARNING,
                subscriber=self.id,
                problem=f"unknown flags {progress.flags:#x} are ignored",
            )
        live = SubscriberState.from_progress(progress)
        durable = SubscriberState.from_progress(progress)
        with table.condition:
            self.state = live
            self.durable = durable
            for seq in progress.entries:
                segment = table.segments.get(seq)
                if segment is not None:
                    self.reconcile(segment)
            self.apply_early()

    def apply_early(self) -> None:
        """Resolve what a crash found resolved before it was sealed. The progress file does not have it yet."""
        for seq, (bundle_count, bits) in self._table.early.get(self.id, {}).items():
            segment = self._table.segments.find(seq)
            self.state.resolve_run(seq, 0, bits, bundle_count if segment is None else segment.bundle_count)
            self.is_dirty = True

    def reconcile(self, segment: SegmentRef) -> None:
        """Check the entry of *segment* against its actual bundle count."""
        if self.state.reconcile(segment):
            self._table.observer.event(
                "quiver.subscriber.progress.mismatch",
                level=logging.ERROR,
                subscriber=self.id,
                segment=segment.seq,
                problem="the entry is for another number of bundles; all of them are delivered",
            )

    def is_durably_complete(self, segment: SegmentRef) -> bool:
        """Return whether the file on disk has all of *segment* resolved."""
        return self.durable is not None and self.durable.is_complete(segment)

    def lag(self) -> SubscriberLag:
        """Return the lag of the subscriber."""
        bundles = size_bytes = 0
        begun_ns: int | None = None
        seqs: list[int] = []
        for segment, left in self.state.pending_of(self._table.segments):
            if not bundles:
                begun_ns = segment.ingested_max_ns if segment.ingested_min_ns is None else segment.ingested_min_ns
            seqs.append(segment.seq)
            bundles += left
            size_bytes += segment.size_bytes * left // segment.bundle_count
        queue = self.queue
        return SubscriberLag(
            bundles,
            0 if queue is None else queue.claimed_count,
            0 if queue is None else queue.deferred_count,
            tuple(seqs),
            size_bytes,
            0.0 if begun_ns is None else max(0.0, (self._table.clock.now_ns() - begun_ns) / 1e9),
        )

    def status(self) -> SubscriberStatus:
        """Return the status of the subscriber."""
        clock, lag = self._table.clock, self.lag()
        return SubscriberStatus(
            self.id,
            self.is_registered,
            self.file is not None,
            self._table.is_active and not self.is_registered,
            self.state.position(self._table.segments).segment,
            lag.pending_bundles,
            lag.claimed_bundles,
            lag.deferred_bundles,
            lag.size_bytes,
            lag.seconds,
            0.0 if self.is_registered else clock.monotonic() - self.idle_since_s,
            max(0.0, (clock.now_ns() - self._changed_ns) / 1e9),
        )

    def _report_damage(self, damage: CorruptionError) -> None:
        observer = self._table.observer
        observer.event(
            "quiver.subscriber.progress.damaged",
            level=logging.ERROR,
            subscriber=self.id,
            path=damage.path,
            offset=damage.offset,
            reason=damage.reason,
        )
        observer.count("quiver.recovery.damaged_files_total", kind="progress")
