"""
Deleting segments of a store that somebody else owns, and how its owner takes note.

A segment that every subscriber has durably resolved may go, whoever removes it. Whoever lacks room removes such
segments from all cores' directories, oldest first. For as long as that takes it holds the lock ``quiver.evict.lock``
of each directory that it touches: nobody waits for it, who finds it taken passes that directory over. The owner of a
directory needs to do nothing, and may be dead, hang, or be busy. In the order of the steps::

    1  the lock                       two evictors never meet, and the owner does not read a half written record
    2  sync the directory             what is concluded from a name must not vanish with a power cut
    3  the record, quiver.evicted     from here on a missing file is a segment that went, not damage
    4  the files, then the directory

A file that is the tier's verified object, by the cold list beside it, may go whoever still wants it: its owner finds
the file missing, sees the same list, and goes on reading there.

The record is a drop ledger. It lists only segments that `drop_oldest` gave up unresolved; an empty one says: look
which files are gone. Their owner counts them, once, when it takes note: who evicts cannot know whether the owner gave
up the same segment at the same moment. A crash before 4 leaves a record of segments that still exist: those in the
list are then removed by their owner, all others it keeps.

Who keeps the numbers? The owner alone. The newest segment of a directory is never evicted by somebody else, so its
highest name stays, and no floor has to be written in another's place.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quiver.bundle import BundleRef
from quiver.clock import Clock
from quiver.errors import CorruptionError, SettingsError
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
    """A segment that may go; they sort oldest first."""

    sealed_ns: int
    core: int
    seq: int
    size_bytes: int
    bundle_count: int
    """Bundles it had when somebody still wanted some of them; 0 when all are resolved."""


def take_claim(fs: FileSystem, directory: str, *, who: str) -> Lock | None:
    """
    Take the lock that deleting in another's *directory* needs; None when somebody else has it, or it is gone. Never
    waits.
    """
    try:
        return fs.try_lock(f"{directory}/{EVICT_LOCK}", note=f"evicting, for {who}")
    except FileNotFoundError:
        return None


def was_evicted(fs: FileSystem, directory: str) -> bool:
    """Say whether others deleted segments in *directory* that its owner has not taken note of."""
    return fs.exists(f"{directory}/{EVICTED}")


def read_record(fs: FileSystem, directory: str, observer: Observer) -> tuple[DroppedSegment, ...] | None:
    """
    Return the segments in the record that were given up unresolved; None without a record. The caller has the lock.

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
    # It was replaced whole, so a bad one was hurt later. What it listed is gone; that nobody counts it is said here.
    keep_damaged(fs, f"{directory}/{QUARANTINE_DIR}", EVICTED, data)
    observer.event("quiver.core.evicted.load", level=logging.ERROR, path=path, problem="damaged; its drops are unknown")
    observer.count("quiver.recovery.damaged_files_total", kind="evicted")
    return ()


def forget_record(fs: FileSystem, directory: str) -> None:
    """Remove the record, durably, after everything it says was taken note of. The caller has the lock."""
    remove_durably(fs, [f"{directory}/{EVICTED}"])


class Evictor:
    """
    Frees room in the directories of other cores. Thread-safe: each call holds what it needs by itself.

    Args:
        fs: the file system.
        root: the directory that holds the cores.
        core: on whose behalf; its own directory is left alone.
        clock: dates what is dropped.
        observer: takes counts and events.
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
        """Those of them that somebody had not resolved."""

    def evict(self, cores: Sequence[int], bytes_wanted: int, *, drop_from: Sequence[int] = ()) -> dict[int, int]:
        """
        Remove the oldest fully resolved segments of *cores* until *bytes_wanted* are free, durably on return.

        When that is not enough, files go whose segments an object tier has: nobody loses them. After that the oldest
        segments of the cores in *drop_from* go whether resolved or not, each with a durable record of what was given
        up. Returns the bytes freed, by core. A core whose directory cannot be read or written is left out, and
        reported: the others still give room.
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
                    gone = {(victim.core, victim.seq) for victim in victims}
                    sources = [self._guarded(core, find(core, gone)) for core in claims if core in where]
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
        # Without the newest: its name keeps the numbers that its owner gives out.
        directory = f"{self._directory(core)}/{SEGMENTS_DIR}"
        names = self._fs.list_dir(directory) if self._fs.exists(directory) else []
        return segment_numbers(names)[:-1]

    def _finished(self, core: int, _gone: set[tuple[int, int]]) -> Iterator[_Victim]:
        states = self._durable_states(core)
        if states:
            for seq in self._numbers(core):
                victim = self._victim(core, seq)
                if victim is not None and self._is_finished(victim, states):
                    yield _Victim(victim.sealed_ns, core, seq, victim.size_bytes, 0)

    def _copied(self, core: int, gone: set[tuple[int, int]]) -> Iterator[_Victim]:
        try:
            listing = read_cold_list(self._fs, f"{self._directory(core)}/{SEGMENTS_DIR}")
        except (CorruptionError, SettingsError):
            return  # its owner reports it
        verified = {} if listing is None else listing.verified
        for seq in self._numbers(core):
            entry = None if (core, seq) in gone else verified.get(seq)
            victim = None if entry is None else self._victim(core, seq)
            if victim is not None and entry is not None and self._is_copy(victim, entry):
                yield victim

    def _is_copy(self, victim: _Victim, entry: ColdSegment) -> bool:
        """Say whether the file is what the tier has, and nothing that the log would bring back."""
        if self._info(victim) is None or victim.size_bytes != entry.size_bytes:
            return False
        file = self._fs.open_read(self._path(victim.core, victim.seq))
        try:
            return file.pread(_CRC_BYTES, entry.size_bytes - _CRC_BYTES) == entry.crc32.to_bytes(_CRC_BYTES, "little")
        finally:
            file.close()

    def _any(self, core: int, gone: set[tuple[int, int]]) -> Iterator[_Victim]:
        for seq in self._numbers(core):
            victim = None if (core, seq) in gone else self._victim(core, seq)
            if victim is not None:
                info = self._info(victim)
                if info is not None:
                    yield _Victim(victim.sealed_ns, core, seq, victim.size_bytes, info.bundle_count)

    def _durable_states(self, core: int) -> list[SubscriberState]:
        """Return what every subscriber's file says; empty when there is none, or when one of them does not tell."""
        directory = self._directory(core)
        states = []
        for subscriber in find_subscribers(self._fs, directory):
            try:
                progress = load_progress(self._fs, directory, subscriber)
            except CorruptionError:
                return []  # its owner reports it
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
        """Read what a segment says of itself; None when it is none that may go."""
        try:
            info = read_info(self._fs, self._path(victim.core, victim.seq))
        except (CorruptionError, FileNotFoundError):
            return None  # its owner puts it aside
        # The log would bring back what its cursor has not passed.
        return info if (info.wal_position_end or 0) <= self._cursor(victim.core) else None

    def _cursor(self, core: int) -> int:
        return load_cursor(self._fs, self._directory(core), self._observer)

    def _remove(self, core: int, victims: list[_Victim]) -> int:
        if not victims:
            return 0
        directory = self._directory(core)
        # Its owner may have given up the same: what is gone is in its account already.
        victims = [one for one in victims if self._fs.exists(self._path(core, one.seq))]
        # Names that we see and a power cut would take back: the highest segment, and the cursor behind the victims.
        for inner in (SEGMENTS_DIR, WAL_DIR):
            self._fs.sync_dir(f"{directory}/{inner}")
        known = {entry.seq: entry for entry in read_record(self._fs, directory, self._observer) or ()}
        now_ns = max(0, self._clock.now_ns())
        dropped = [
            DroppedSegment(one.seq, one.bundle_count, one.size_bytes, "size", now_ns)
            for one in victims
            if one.bundle_count and one.seq not in known
        ]
        # What does not fit into the record any more is kept.
        dropped = dropped[: DROP_ENTRIES_MAX - len(known)]
        known |= {entry.seq: entry for entry in dropped}
        victims = [one for one in victims if not one.bundle_count or one.seq in known]
        # The progress files lie beside the record: this makes their names durable, too.
        replace_file(self._fs, f"{directory}/{EVICTED}", encode_drop_ledger(list(known.values())))
        self.dropped += len(dropped)
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
