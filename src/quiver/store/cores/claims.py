"""
Deleting segments of a store that another process owns, and how its owner records it.

A segment that every subscriber has durably resolved may be deleted by any process. A core that lacks space removes such
segments from all cores' directories, oldest first. Meanwhile it holds the lock ``quiver.evict.lock`` of each directory
that it changes: no process waits for this lock; a process that finds it taken skips the directory. The owner of a
directory does not take part, and may be dead, hanging, or busy. The steps, in order::

    1  the lock                       two evictors never meet, and the owner never reads a half-written record
    2  sync the directory             a name that a decision is based on must not disappear with a power loss
    3  the record, quiver.evicted     from here on a missing file is a deleted segment, not damage
    4  the files, then the directory

A file that is the tier's verified object, according to the cold list next to it, may be deleted even if it is still
needed: its owner finds the file missing, sees the same list, and continues reading from the tier.

The record is a drop ledger. It lists only segments that `drop_oldest` dropped unresolved; an empty one means: check
which files are missing. Their owner counts them, once, when it records them: the evictor cannot know whether the owner
dropped the same segment at the same moment. A crash before step 4 leaves a record of segments that still exist: the
owner then removes those in the list and keeps all others.

Only the owner manages the numbers. The newest segment of a directory is never evicted by another process, so its
highest name stays, and no floor has to be written for another store.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quiver.bundle import BundleRef
from quiver.clock import Clock
from quiver.errors import CorruptionError, SettingsError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import FileSystem, Lock
from quiver.primitives.scan import Frame
from quiver.store.cold.files import read_cold_list
from quiver.store.format.cold_list import ColdSegment
from quiver.store.format.cores import EVICT_LOCK, EVICTED, core_directory
from quiver.store.format.drop_ledger import (
    DROP_ENTRIES_MAX,
    DROP_LEDGER_BYTES_MAX,
    DroppedSegment,
    decode_drop_ledger,
    encode_drop_ledger,
)
from quiver.store.format.names import (
    QUARANTINE_DIR,
    SEGMENTS_DIR,
    WAL_DIR,
    segment_name,
    segment_numbers,
)
from quiver.store.recovery import load_cursor
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.tail import read_info
from quiver.store.subscribers.progress_store import find_subscribers, load_progress
from quiver.store.subscribers.state import SegmentRef, SubscriberState

__all__ = ["Evictor", "forget_record", "read_record", "take_claim", "was_evicted"]

_CRC_BYTES = 4


@dataclass(frozen=True, slots=True, order=True)
class _Victim:
    """A segment that may be deleted; victims sort oldest first."""

    sealed_ns: int
    core: int
    seq: int
    size_bytes: int
    bundle_count: int
    """How many bundles it had if some of them were still needed; 0 if all are resolved."""


def take_claim(fs: FileSystem, directory: str, *, who: str) -> Lock | None:
    """
    Take the lock for deleting in another store's *directory*; None if another process has it, or if the directory does
    not exist. Never waits.
    """
    try:
        return fs.try_lock(f"{directory}/{EVICT_LOCK}", note=f"evicting, for {who}")
    except FileNotFoundError:
        return None


def was_evicted(fs: FileSystem, directory: str) -> bool:
    """Return whether others deleted segments in *directory* that its owner has not recorded yet."""
    return fs.exists(f"{directory}/{EVICTED}")


def read_record(fs: FileSystem, directory: str, observer: Observer) -> tuple[DroppedSegment, ...] | None:
    """
    Return the segments in the record that were dropped unresolved; None without a record. The caller has the lock.

    Raises:
        OSError: it cannot be read.
    """
    path = f"{directory}/{EVICTED}"
    try:
        data = fs.read_all(path, size_max=DROP_LEDGER_BYTES_MAX)
    except FileNotFoundError:
        return None
    answer = decode_drop_ledger(memoryview(data))
    if isinstance(answer, Frame):
        return answer.value
    # It was replaced atomically, so a damaged one was damaged later. Its drops are not counted; this is reported here.
    keep_damaged(fs, f"{directory}/{QUARANTINE_DIR}", EVICTED, data)
    observer.event("quiver.core.evicted.load", level=logging.ERROR, path=path, problem="damaged; its drops are unknown")
    observer.count("quiver.recovery.damaged_files_total", kind="evicted")
    return ()


def forget_record(fs: FileSystem, directory: str) -> None:
    """Remove the record, durably, after everything in it was recorded. The caller has the lock."""
    remove_durably(fs, [f"{directory}/{EVICTED}"])


class Evictor:
    """
    Frees space in the directories of other cores. Thread-safe: each call takes the locks that it needs.

    Args:
        fs: the file system.
        root: the directory of the cores.
        core: the core that needs space; its own directory stays unchanged.
        clock: the time of drops.
        observer: receives counts and events.
    """

    def __init__(self, fs: FileSystem, root: str, core: int, *, clock: Clock, observer: Observer) -> None:
        self._fs = fs
        self._root = root
        self._core = core
        self._clock = clock
        self._observer = observer
        self.evicted = 0
        """Segments that it removed."""
        self.dropped = 0
        """Those of them that some subscriber had not resolved."""

    def evict(self, cores: Sequence[int], bytes_wanted: int, *, drop_from: Sequence[int] = ()) -> dict[int, int]:
        """
        Remove the oldest fully resolved segments of *cores* until *bytes_wanted* are free, durably on return.

        If that is not enough, it removes files whose segments an object tier has: no subscriber loses them. After that
        the oldest segments of the cores in *drop_from* are removed even if unresolved, each with a durable record of
        the drop. Returns the bytes freed, by core. A core whose directory cannot be read or written is skipped and
        reported: the others still free space.
        """
        claims: dict[int, Lock] = {}
        freed: dict[int, int] = {}
        try:
            for core in cores:
                if core != self._core:
                    claim = take_claim(self._fs, self._directory(core), who=core_directory(self._core))
                    if claim is not None:
                        claims[core] = claim
            victims: list[_Victim] = []
            for find, where in ((self._finished, claims), (self._copied, claims), (self._any, drop_from)):
                missing = bytes_wanted - sum(victim.size_bytes for victim in victims)
                if missing > 0:
                    removed = {(victim.core, victim.seq) for victim in victims}
                    sources = [self._guarded(core, find(core, removed)) for core in claims if core in where]
                    victims += self._choose(sources, missing)
            for core in claims:
                try:
                    freed[core] = self._remove(core, [one for one in victims if one.core == core])
                except OSError as error:
                    self._report(core, error)
        finally:
            for claim in claims.values():
                claim.release()
        return freed

    def _guarded(self, core: int, victims: Iterator[_Victim]) -> Iterator[_Victim]:
        try:
            yield from victims
        except OSError as error:
            self._report(core, error)

    def _report(self, core: int, error: OSError) -> None:
        self._observer.event(
            "quiver.core.evict", level=logging.WARNING, core_id=core, by=self._core, problem=str(error)
        )

    def _directory(self, core: int) -> str:
        return f"{self._root}/{core_directory(core)}"

    @staticmethod
    def _choose(sources: list[Iterator[_Victim]], bytes_wanted: int) -> list[_Victim]:
        chosen: list[_Victim] = []
        for victim in heapq.merge(*sources):
            if bytes_wanted <= 0:
                break
            chosen.append(victim)
            bytes_wanted -= victim.size_bytes
        return chosen

    def _numbers(self, core: int) -> list[int]:
        # Without the newest: its name preserves the numbers that its owner has used.
        directory = f"{self._directory(core)}/{SEGMENTS_DIR}"
        names = self._fs.list_dir(directory) if self._fs.exists(directory) else []
        return segment_numbers(names)[:-1]

    def _finished(self, core: int, _removed: set[tuple[int, int]]) -> Iterator[_Victim]:
        states = self._durable_states(core)
        if states:
            for seq in self._numbers(core):
                victim = self._victim(core, seq)
                if victim is not None and self._is_finished(victim, states):
                    yield _Victim(victim.sealed_ns, core, seq, victim.size_bytes, 0)

    def _copied(self, core: int, removed: set[tuple[int, int]]) -> Iterator[_Victim]:
        try:
            listing = read_cold_list(self._fs, f"{self._directory(core)}/{SEGMENTS_DIR}")
        except (CorruptionError, SettingsError):
            return  # its owner reports the damage
        verified = {} if listing is None else listing.verified
        for seq in self._numbers(core):
            entry = None if (core, seq) in removed else verified.get(seq)
            victim = None if entry is None else self._victim(core, seq)
            if victim is not None and entry is not None and self._is_copy(victim, entry):
                yield victim

    def _is_copy(self, victim: _Victim, entry: ColdSegment) -> bool:
        """Return whether the file equals the tier's copy, and the log would not bring it back."""
        if self._info(victim) is None or victim.size_bytes != entry.size_bytes:
            return False
        file = self._fs.open_read(self._path(victim.core, victim.seq))
        try:
            return file.pread(_CRC_BYTES, entry.size_bytes - _CRC_BYTES) == entry.crc32.to_bytes(_CRC_BYTES, "little")
        finally:
            file.close()

    def _any(self, core: int, removed: set[tuple[int, int]]) -> Iterator[_Victim]:
        for seq in self._numbers(core):
            victim = None if (core, seq) in removed else self._victim(core, seq)
            if victim is not None:
                info = self._info(victim)
                if info is not None:
                    yield _Victim(victim.sealed_ns, core, seq, victim.size_bytes, info.bundle_count)

    def _durable_states(self, core: int) -> list[SubscriberState]:
        """Return the contents of every subscriber's progress file; empty if there are none, or if one is unreadable."""
        directory = self._directory(core)
        states = []
        for subscriber in find_subscribers(self._fs, directory):
            try:
                progress = load_progress(self._fs, directory, subscriber)
            except CorruptionError:
                return []  # its owner reports the damage
            if progress is not None:
                states.append(SubscriberState.from_progress(progress))
        return states

    def _victim(self, core: int, seq: int) -> _Victim | None:
        try:
            stat = self._fs.stat(self._path(core, seq))
        except FileNotFoundError:
            return None
        return _Victim(stat.modified_ns, core, seq, stat.size_bytes, 0)

    def _path(self, core: int, seq: int) -> str:
        return f"{self._directory(core)}/{SEGMENTS_DIR}/{segment_name(seq)}"

    def _is_finished(self, victim: _Victim, states: list[SubscriberState]) -> bool:
        first = BundleRef(victim.seq, 0)
        if not all(state.is_resolved(first) for state in states):
            return False  # without opening the file
        info = self._info(victim)
        return info is not None and all(state.is_complete(SegmentRef(info.seq, info.bundle_count)) for state in states)

    def _info(self, victim: _Victim) -> SegmentInfo | None:
        """Read the info of a segment; None if it may not be deleted."""
        try:
            info = read_info(self._fs, self._path(victim.core, victim.seq))
        except (CorruptionError, FileNotFoundError):
            return None  # its owner quarantines it
        # The log would bring back a segment that its cursor has not passed.
        return info if (info.wal_position_end or 0) <= self._cursor(victim.core) else None

    def _cursor(self, core: int) -> int:
        return load_cursor(self._fs, self._directory(core), self._observer)

    def _remove(self, core: int, victims: list[_Victim]) -> int:
        if not victims:
            return 0
        directory = self._directory(core)
        # Its owner may have dropped the same segments: those that are missing are counted there already.
        victims = [one for one in victims if self._fs.exists(self._path(core, one.seq))]
        # Names that are visible now but that a power loss could revert: the highest segment, and the cursor.
        for inner in (SEGMENTS_DIR, WAL_DIR):
            self._fs.sync_dir(f"{directory}/{inner}")
        known = {entry.seq: entry for entry in read_record(self._fs, directory, self._observer) or ()}
        now_ns = max(0, self._clock.now_ns())
        dropped = [
            DroppedSegment(one.seq, one.bundle_count, one.size_bytes, "size", now_ns)
            for one in victims
            if one.bundle_count and one.seq not in known
        ]
        # Segments that do not fit into the record are kept.
        dropped = dropped[: DROP_ENTRIES_MAX - len(known)]
        known |= {entry.seq: entry for entry in dropped}
        victims = [one for one in victims if not one.bundle_count or one.seq in known]
        # The progress files are next to the record: this makes their names durable, too.
        replace_file(self._fs, f"{directory}/{EVICTED}", encode_drop_ledger(list(known.values())))
        self.dropped += len(dropped)
        invariant(
            core != self._core and all(not one.bundle_count or one.seq in known for one in victims),
            "a core removes an unresolved segment of another core only after it recorded the drop",
        )
        remove_durably(self._fs, [self._path(core, victim.seq) for victim in victims])
        freed = sum(victim.size_bytes for victim in victims)
        self.evicted += len(victims)
        self._observer.count("quiver.gc.evictions_total", len(victims), reason="size")
        self._observer.event(
            "quiver.core.evicted",
            core_id=core,
            by=self._core,
            segments=len(victims),
            dropped=len(dropped),
            bytes=freed,
        )
        return freed
