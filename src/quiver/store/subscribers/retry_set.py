"""
The durable retry set of an exporter: bundles that its far side could not take yet, with attempts and times.

::

    a bundle fails          failed(ref) → save()         only then may the position of a reader in order pass it
    it is delivered         resolved(ref) → save()       only then may it be acknowledged
    killed between          the file says the state before or after; the bundle is tried once more, never lost

One object changes the file, under its own lock; anybody reads it, without one. `HeldBundles` is what a reader in order
asks before it acknowledges everything up to a position: what stands in the set stays unresolved, so its segment stays.
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

__all__ = ["ENTRIES_MAX", "HeldBundles", "RetrySet", "before_held", "load_retry_set"]

ENTRIES_MAX = 4096
"""A far side that is down should show as a backlog, not as a long list of failures."""

_NANOS = 1_000_000_000

Unresolved = Callable[[], Iterable[BundleRef]]


def load_retry_set(fs: FileSystem, root: str, subscriber_id: str) -> tuple[RetryEntry, ...]:
    """
    Return what the retry set of *subscriber_id* says, ascending; nothing when there is no such file. Takes no lock.

    Raises:
        CorruptionError: the file is not what was written; what it said is unknown.
        UsageError: not a valid subscriber id.
    """
    path = f"{root}/{retry_set_name(subscriber_id)}"
    return read_checked(fs, path, decode_retry_set, RETRY_SET_BYTES_MAX) or ()


class RetrySet:
    """
    What one exporter has to try again. Thread-safe. Changes are durable after `save`, and not before.

    Made by `open`; or without files, for an exporter whose attempts need not outlive it.

    Args:
        clock: when the next attempt of a bundle is due. No step of the wall clock changes that.
        entries_max: more than this many bundles are not taken.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, entries_max: int = ENTRIES_MAX) -> None:
        self.path: str | None = None
        """The file; None of a set that is kept in memory only."""
        self._time = SteadyTime(clock)
        self._entries_max = min(entries_max, RETRY_ENTRIES_MAX)
        self._entries: dict[BundleRef, RetryEntry] = {}
        self._fs: FileSystem | None = None
        self._file_lock: Lock | None = None
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._is_dirty = False

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
        Take the retry set of *subscriber_id* in the store at *root*; empty when there is none yet.

        Args:
            fs: the file system.
            root: the store's directory.
            subscriber_id: the exporter.
            unresolved: for a damaged file, when a reader in order relies on it: every bundle that the subscriber has
                not resolved. The 65,536 oldest of them are held then, and delivered from here: some twice, none never.
                Without it a damaged set begins anew, which is right where what is not resolved comes again by itself.
            clock: when the next attempt of a bundle is due. No step of the wall clock changes that.
            entries_max: more than this many bundles are not taken.

        Raises:
            DirectoryInUseError: another exporter holds it.
            OSError: the disk refused.
        """
        found = cls(clock=clock, entries_max=entries_max)
        found.path = f"{root}/{retry_set_name(subscriber_id)}"
        lock = hold(fs, f"{root}/{retry_lock_name(subscriber_id)}", owner=f"retries of {subscriber_id}")
        try:
            found._fs, found._file_lock = fs, lock
            try:
                entries = load_retry_set(fs, root, subscriber_id)
            except CorruptionError:
                found._begin_anew(root, subscriber_id, () if unresolved is None else unresolved())
            else:
                found._take_over(entries)
                # What was read may not be durable yet, if the machine went down in between: nothing builds on it before
                # the directory says so.
                fs.sync_dir(root)
        except BaseException:
            lock.release()
            raise
        return found

    def _take_over(self, entries: Iterable[RetryEntry]) -> None:
        now_ns = self._time.now_ns()
        for entry in entries:
            # The wall clock was set back: by what it says now this bundle might wait for days.
            is_ahead = entry.first_failed_at_ns > now_ns
            kept = replace(entry, first_failed_at_ns=now_ns, next_try_at_ns=now_ns) if is_ahead else entry
            # Whoever opens the set is the new start that a halted exporter waited for.
            self._entries[entry.ref] = replace(kept, is_halted=False)
            self._is_dirty = self._is_dirty or kept.is_halted

    def _begin_anew(self, root: str, subscriber_id: str, refs: Iterable[BundleRef]) -> None:
        if self._fs is None or self.path is None:
            return
        try:
            data = read_bounded(self._fs, self.path, RETRY_SET_BYTES_MAX)
        except CorruptionError:
            data = None  # more than can be copied
        if data is not None:
            keep_damaged(self._fs, f"{root}/{QUARANTINE_DIR}", retry_set_name(subscriber_id), data)
        # What is behind so many lies in no batch that was read: it comes by itself. A set that is larger cannot be.
        oldest = heapq.nsmallest(RETRY_ENTRIES_MAX, refs)
        now_ns = self._time.now_ns()
        self._entries = {ref: RetryEntry(ref, 1, now_ns, now_ns, "the retry set was damaged") for ref in oldest}
        self._is_dirty = True
        self.save()

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────

    def failed(self, ref: BundleRef, *, delay_s: float, reason: str, is_halted: bool = False) -> RetryEntry:
        """
        Take note that *ref* failed once more, and that it is to be tried after *delay_s* seconds; or, where its
        exporter halts at it, when the set is opened again.

        Raises:
            CapacityError: it is new, and there is no room for it.
        """
        now_ns = self._time.now_ns()
        with self._lock:
            known = self._entries.get(ref)
            if known is None and len(self._entries) >= self._entries_max:
                raise CapacityError(f"{len(self._entries)} bundles wait to be tried again", retry_after_s=delay_s)
            first_ns = now_ns if known is None else known.first_failed_at_ns
            attempts = 1 if known is None else known.attempts + 1
            entry = RetryEntry(ref, attempts, first_ns, now_ns + round(delay_s * _NANOS), reason, is_halted)
            self._entries[ref] = entry
            self._is_dirty = True
        return entry

    def resolved(self, ref: BundleRef) -> bool:
        """Take *ref* out: it is delivered, or given up for good. False when it was not in."""
        with self._lock:
            was_in = self._entries.pop(ref, None) is not None
            self._is_dirty = self._is_dirty or was_in
        return was_in

    def save(self) -> bool:
        """
        Write the set if it changed; durable on return. True when it was written. Nothing once it is closed.

        Raises:
            OSError: the disk refused; the set is kept, and can be saved again.
        """
        with self._saving:
            with self._lock:
                if not self._is_dirty:
                    return False
                self._is_dirty = False
                entries = list(self._entries.values())
            if self._fs is None or self.path is None or self._file_lock is None:
                return False
            try:
                replace_file(self._fs, self.path, encode_retry_set(self._by_wall_clock(entries)))
            except BaseException:
                with self._lock:
                    self._is_dirty = True
                raise
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
        Write what changed, and let go. Idempotent.

        Raises:
            OSError: the disk refused; let go all the same.
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
        """Return what is known of *ref*; None when it is not in."""
        with self._lock:
            return self._entries.get(ref)

    def entries(self) -> list[RetryEntry]:
        """Return all, those that are due first at the front."""
        with self._lock:
            found = list(self._entries.values())
        return sorted(found, key=lambda entry: (entry.next_try_at_ns, entry.ref))

    def due(self) -> list[RetryEntry]:
        """Return those that may be tried now, the longest due first."""
        now_ns = self._time.now_ns()
        return [entry for entry in self.entries() if entry.next_try_at_ns <= now_ns]

    def wait_s(self, ref: BundleRef) -> float:
        """Return the seconds until *ref* may be tried, 0 when it may now."""
        entry = self.get(ref)
        return 0.0 if entry is None else max(0.0, (entry.next_try_at_ns - self._time.now_ns()) / _NANOS)

    def elapsed_s(self, ref: BundleRef) -> float:
        """Return the seconds since *ref* failed first, 0 when it did not."""
        entry = self.get(ref)
        return 0.0 if entry is None else max(0.0, (self._time.now_ns() - entry.first_failed_at_ns) / _NANOS)

    @property
    def is_full(self) -> bool:
        """Whether no other bundle can be taken."""
        with self._lock:
            return len(self._entries) >= self._entries_max

    def __contains__(self, ref: BundleRef) -> bool:
        with self._lock:
            return ref in self._entries

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)


class HeldBundles:
    """
    The bundles that a subscriber's retry set holds, for whoever acknowledges in order. Reads, and changes nothing.

    Args:
        fs: the file system.
        root: the store's directory.
        subscriber_id: whose set.
    """

    def __init__(self, fs: FileSystem, root: str, subscriber_id: str) -> None:
        self._fs = fs
        self._root = root
        self._subscriber_id = subscriber_id
        self._path = f"{root}/{retry_set_name(subscriber_id)}"
        self._seen: tuple[int, int, int] | None = None
        self.refs: frozenset[BundleRef] = frozenset()
        """What `look` found."""

    def look(self) -> bool:
        """
        Read the set if it is another than at the last look; True when it was. Costs one `stat` when it is not.

        Raises:
            CorruptionError: nobody knows what is held, so nothing may be acknowledged; its exporter makes it anew.
            OSError: it cannot be read.
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
        # The file may be replaced in between: then the next look reads it once more.
        refs = frozenset(entry.ref for entry in load_retry_set(self._fs, self._root, self._subscriber_id))
        self._seen, self.refs = seen, refs
        return True


def before_held(position: BundleRef, held: Collection[BundleRef], segments: Sequence[SegmentRef]) -> BundleRef:
    """
    Return *position*, moved back over those of *held* that lie directly before it.

    A reader in order that was killed between "in the set" and "batch committed" asks for them once more, and must be
    allowed to; whatever lies before the answer and is not held is resolved.

    Args:
        position: everything before it is resolved or held.
        held: what the retry set holds.
        segments: those that exist, ascending.
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
        if before not in held:
            return position
        position = before
