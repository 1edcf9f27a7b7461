"""
The durable retry set of an exporter: bundles that its destination could not take yet, with attempts and times.

::

    a bundle fails          failed(ref) → save()         only then may the position of an in-order reader pass it
    it is delivered         resolved(ref) → save()       only then may it be acknowledged
    killed in between       the file has the state before or after; the bundle is retried once more, never lost

One object changes the file, under its own lock; readers need no lock. An in-order reader uses `RetrySetReader` before
it acknowledges everything up to a position: bundles in the set stay unresolved, so their segments stay.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock, SteadyTime
from quiver.errors import CapacityError, CorruptionError
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.primitives.disk.lock import hold
from quiver.primitives.small_file import read_bounded, read_checked
from quiver.store.format.names import QUARANTINE_DIR, retry_lock_name, retry_set_name
from quiver.store.format.retry_set import (
    RETRY_ENTRIES_MAX,
    RETRY_SET_BYTES_MAX,
    RetryEntry,
    decode_retry_set,
    encode_retry_set,
)
from quiver.store.subscribers.state import SegmentRef

__all__ = ["ENTRIES_MAX", "RetrySet", "RetrySetReader", "before_retries", "load_retry_set"]

ENTRIES_MAX = 4096
"""A destination that is down should show as a backlog, not as a long list of failures."""

_NANOS = 1_000_000_000

Unresolved = Callable[[], Iterable[BundleRef]]


def load_retry_set(fs: FileSystem, root: str, subscriber_id: str) -> tuple[RetryEntry, ...]:
    """
    Return the entries in the retry set of *subscriber_id*, ascending; none without a file. Takes no lock.

    Raises:
        CorruptionError: the file is damaged; its contents are unknown.
        UsageError: the subscriber id is not valid.
    """
    path = f"{root}/{retry_set_name(subscriber_id)}"
    return read_checked(fs, path, decode_retry_set, RETRY_SET_BYTES_MAX) or ()


class RetrySet:
    """
    The bundles that one exporter has to retry. Thread-safe. Changes are durable after `save`, and not before.

    Created by `open`; or without files, for an exporter whose attempts need not outlive it.

    Args:
        clock: the time of the next attempt of a bundle. Steps of the wall clock do not affect it.
        entries_max: the maximum number of bundles in the set.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, entries_max: int = ENTRIES_MAX) -> None:
        self.path: str | None = None
        """The file; None if the set is kept in memory only."""
        self._time = SteadyTime(clock)
        self._entries_max = min(entries_max, RETRY_ENTRIES_MAX)
        self._entries: dict[BundleRef, RetryEntry] = {}
        self._fs: FileSystem | None = None
        self._file_lock: Lock | None = None
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self.changes = 0
        """How often the set changed."""
        self.saved_changes = 0
        """How many of these changes are durable; of a set in memory only, how many were saved."""

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        root: str,
        subscriber_id: str,
        *,
        unresolved: Unresolved | None = None,
        clock: Clock = SYSTEM_CLOCK,
        entries_max: int = ENTRIES_MAX,
    ) -> Self:
        """
        Open the retry set of *subscriber_id* in the store at *root*; empty when there is none yet.

        Args:
            fs: the file system.
            root: the store's directory.
            subscriber_id: the exporter.
            unresolved: for a damaged file that an in-order reader relies on: returns every bundle that the subscriber
                has not resolved. The 65,536 oldest of them become the new set and are delivered from here: some twice,
                none never. Without it the new set is empty, which is right for readers that get unresolved bundles
                again by themselves.
            clock: the time of the next attempt of a bundle. Steps of the wall clock do not affect it.
            entries_max: the maximum number of bundles in the set.

        Raises:
            DirectoryInUseError: another exporter has it open.
            OSError: the disk reported an error.
        """
        found = cls(clock=clock, entries_max=entries_max)
        found.path = f"{root}/{retry_set_name(subscriber_id)}"
        lock = hold(fs, f"{root}/{retry_lock_name(subscriber_id)}", owner=f"retries of {subscriber_id}")
        try:
            found._fs, found._file_lock = fs, lock
            try:
                entries = load_retry_set(fs, root, subscriber_id)
            except CorruptionError:
                found._recreate(root, subscriber_id, () if unresolved is None else unresolved())
            else:
                found._take_over(entries)
                # The contents may not be durable yet if the machine crashed in between, so sync the directory before
                # relying on them.
                fs.sync_dir(root)
        except BaseException:
            lock.release()
            raise
        return found

    def _take_over(self, entries: Iterable[RetryEntry]) -> None:
        now_ns = self._time.now_ns()
        for entry in entries:
            # The wall clock was set back: by its current time this bundle might wait for days.
            is_ahead = entry.first_failed_at_ns > now_ns
            kept = replace(entry, first_failed_at_ns=now_ns, next_try_at_ns=now_ns) if is_ahead else entry
            # A halted exporter waits for a restart, and opening the set is one.
            self._entries[entry.ref] = replace(kept, is_halted=False)
            self.changes += kept.is_halted

    def _recreate(self, root: str, subscriber_id: str, refs: Iterable[BundleRef]) -> None:
        if self._fs is None or self.path is None:
            return
        try:
            data = read_bounded(self._fs, self.path, RETRY_SET_BYTES_MAX)
        except CorruptionError:
            data = None  # too large to be copied
        if data is not None:
            keep_damaged(self._fs, f"{root}/{QUARANTINE_DIR}", retry_set_name(subscriber_id), data)
        # Bundles after these are in no batch that was read, so they are delivered normally. No set can be larger.
        oldest = heapq.nsmallest(RETRY_ENTRIES_MAX, refs)
        now_ns = self._time.now_ns()
        self._entries = {ref: RetryEntry(ref, 1, now_ns, now_ns, "the retry set was damaged") for ref in oldest}
        self.changes += 1
        self.save()

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────

    def failed(self, ref: BundleRef, *, delay_s: float, reason: str, is_halted: bool = False) -> RetryEntry:
        """
        Record that *ref* failed once more and is retried after *delay_s* seconds; if its exporter halts, when the set
        is opened again.

        Raises:
            CapacityError: it is new, and the set is full.
        """
        now_ns = self._time.now_ns()
        with self._lock:
            known = self._entries.get(ref)
            if known is None and len(self._entries) >= self._entries_max:
                raise CapacityError(f"{len(self._entries)} bundles wait to be retried", retry_after_s=delay_s)
            first_ns = now_ns if known is None else known.first_failed_at_ns
            attempts = 1 if known is None else known.attempts + 1
            entry = RetryEntry(ref, attempts, first_ns, now_ns + round(delay_s * _NANOS), reason, is_halted)
            self._entries[ref] = entry
            self.changes += 1
        return entry

    def resolved(self, ref: BundleRef) -> bool:
        """Remove *ref*: it was delivered or dropped. Return False when it was not in the set."""
        with self._lock:
            was_in = self._entries.pop(ref, None) is not None
            self.changes += was_in
        return was_in

    def save(self) -> bool:
        """
        Write the set if it changed; durable on return. Return whether it was written. Does nothing after `close`.

        Raises:
            OSError: the disk reported an error; the set is unchanged in memory and can be saved again.
        """
        with self._saving:
            with self._lock:
                changes = self.changes
                if changes == self.saved_changes:
                    return False
                entries = list(self._entries.values())
            if self._fs is None or self.path is None:
                self.saved_changes = changes
                return False
            if self._file_lock is None:
                return False
            replace_file(self._fs, self.path, encode_retry_set(self._by_wall_clock(entries)))
            self.saved_changes = changes
        return True

    def _by_wall_clock(self, entries: Sequence[RetryEntry]) -> Sequence[RetryEntry]:
        step_ns = self._time.step_ns()
        if not step_ns:
            return entries
        return [
            replace(
                one,
                first_failed_at_ns=max(0, one.first_failed_at_ns + step_ns),
                next_try_at_ns=max(0, one.next_try_at_ns + step_ns),
            )
            for one in entries
        ]

    def close(self) -> None:
        """
        Write all changes and release the lock. Idempotent.

        Raises:
            OSError: the disk reported an error; the lock is released all the same.
        """
        try:
            if self._file_lock is not None:
                self.save()
        finally:
            lock, self._file_lock = self._file_lock, None
            if lock is not None:
                lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────

    def get(self, ref: BundleRef) -> RetryEntry | None:
        """Return the entry of *ref*; None when it is not in the set."""
        with self._lock:
            return self._entries.get(ref)

    def entries(self) -> list[RetryEntry]:
        """Return all entries, those that are due first at the front."""
        with self._lock:
            found = list(self._entries.values())
        return sorted(found, key=lambda entry: (entry.next_try_at_ns, entry.ref))

    def due(self) -> list[RetryEntry]:
        """Return the entries that may be retried now, the longest due first."""
        now_ns = self._time.now_ns()
        return [entry for entry in self.entries() if entry.next_try_at_ns <= now_ns]

    def wait_s(self, ref: BundleRef) -> float:
        """Return the seconds until *ref* may be retried; 0 if it may be now."""
        entry = self.get(ref)
        return 0.0 if entry is None else max(0.0, (entry.next_try_at_ns - self._time.now_ns()) / _NANOS)

    def elapsed_s(self, ref: BundleRef) -> float:
        """Return the seconds since *ref* failed first; 0 if it did not."""
        entry = self.get(ref)
        return 0.0 if entry is None else max(0.0, (self._time.now_ns() - entry.first_failed_at_ns) / _NANOS)

    @property
    def is_full(self) -> bool:
        """Whether the set can take no other bundle."""
        with self._lock:
            return len(self._entries) >= self._entries_max

    def __contains__(self, ref: BundleRef) -> bool:
        with self._lock:
            return ref in self._entries

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)


class RetrySetReader:
    """
    The bundles in a subscriber's retry set, for readers that acknowledge in order. Changes nothing.

    Args:
        fs: the file system.
        root: the store's directory.
        subscriber_id: the subscriber.
    """

    def __init__(self, fs: FileSystem, root: str, subscriber_id: str) -> None:
        self._fs = fs
        self._root = root
        self._subscriber_id = subscriber_id
        self._path = f"{root}/{retry_set_name(subscriber_id)}"
        self._seen: tuple[int, int, int] | None = None
        self.refs: frozenset[BundleRef] = frozenset()
        """The bundles that `refresh` found."""

    def refresh(self) -> bool:
        """
        Read the set if it changed since the last call; return whether it did. Costs one `stat` if it did not.

        Raises:
            CorruptionError: the bundles in the set are unknown, so nothing may be acknowledged; its exporter replaces
                the set.
            OSError: the set cannot be read.
        """
        try:
            stat = self._fs.stat(self._path)
        except FileNotFoundError:
            changed = bool(self.refs) or self._seen is not None
            self._seen, self.refs = None, frozenset()
            return changed
        seen = (stat.modified_ns, stat.inode, stat.size_bytes)
        if seen == self._seen:
            return False
        # The file may be replaced in between: then the next call reads it again.
        refs = frozenset(entry.ref for entry in load_retry_set(self._fs, self._root, self._subscriber_id))
        self._seen, self.refs = seen, refs
        return True


def before_retries(position: BundleRef, retries: Collection[BundleRef], segments: Sequence[SegmentRef]) -> BundleRef:
    """
    Return *position*, moved back over those of *retries* that are directly before it.

    An in-order reader that was killed after it saved the set but before it committed the batch reads them again, and
    must be allowed to. Bundles before the returned position that are not in the set are resolved.

    Args:
        position: everything before it is resolved or in the set.
        retries: the bundles in the retry set.
        segments: the existing ones, ascending.
    """
    counts = {segment.seq: segment.bundle_count for segment in segments if segment.bundle_count}
    while True:
        if position.index:
            before = BundleRef(position.segment, position.index - 1)
        else:
            seq = max((seq for seq in counts if seq < position.segment), default=None)
            if seq is None:
                return position
            before = BundleRef(seq, counts[seq] - 1)
        if before not in retries:
            return position
        position = before
