"""
`quiver.read`: everything that survived in a store's directory, read beside a live writer or without one.

Takes no lock and changes nothing. The writer goes on meanwhile, so one pass is ordered to neither miss a bundle
nor yield one twice::

    1  segments, listed again until there is no new one
    2  the log: the active file first, then the retired ones    (an entry only ever moves from the first to these)
    3  the cursor
    4  segments, once more                                       (all that the cursor covers is in them, or deleted)
    5  entries of 2 that neither the cursor nor a segment covers

A bundle sealed between 2 and 4 comes from its segment, one sealed after 4 from the log, and no segment is looked
for after 4. A segment that vanishes meanwhile was finished by every subscriber.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
from quiver.errors import Damaged, WrongUse
from quiver.primitives.files import FileSystem
from quiver.primitives.real_files import REAL_FILES
from quiver.primitives.scan import Frame
from quiver.store.format.cursor import decode_cursor
from quiver.store.format.floor import decode_floor
from quiver.store.format.names import (
    CURSOR_NAME,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    WAL_ACTIVE,
    WAL_DIR,
    parse_segment_name,
    parse_wal_rotated_name,
    segment_name,
    wal_rotated_name,
)
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.wal.replay import decode_slots, scan_file
from quiver.store.wal.scan import ScannedEntry, WalFileScan

__all__ = ["StoreReader", "read"]

_SIDECAR_BYTES_MAX = 64 * 1024

_ATTEMPTS = 3
"""What looks like damage in the active file may be a write seen half done: it is read again this often."""


def read(
    path: str | os.PathLike[str], *, fs: FileSystem = REAL_FILES, adapter: Adapter = OTAP, strict: bool = False
) -> StoreReader:
    """
    Open the store in directory *path* for reading. Works beside a live writer, takes no lock, changes nothing.

    Args:
        path: the directory.
        fs: the file system.
        adapter: the slot table that slot names are looked up in.
        strict: raise at the first damage instead of collecting it in `StoreReader.problems`.

    Raises:
        WrongUse: the directory holds no store.
        OSError: it cannot be read.
    """
    root = os.fspath(path).rstrip("/") or "/"
    names = fs.list_dir(root)
    if SEGMENTS_DIR not in names and WAL_DIR not in names:
        raise WrongUse(f"{root} holds no store: it has neither {SEGMENTS_DIR}/ nor {WAL_DIR}/")
    return StoreReader(root, fs=fs, adapter=adapter, strict=strict)


class StoreReader:
    """
    What a directory holds. Each iteration is a pass of its own over what is there at that time.

    Attributes:
        problems: the damage met so far, each with path, offset and reason. Everything undamaged comes out.
    """

    def __init__(self, root: str, *, fs: FileSystem, adapter: Adapter, strict: bool) -> None:
        self.path = root
        self.problems: list[Damaged] = []
        self._fs = fs
        self._adapter = adapter
        self._strict = strict

    def segments(self) -> list[SegmentInfo]:
        """
        Return what is known of every sealed segment, ascending. Their streams are not read.

        Raises:
            Damaged: a segment is damaged, and the reader is strict.
        """
        readers = (self._open_segment(seq) for seq in self._list_segments())
        return [reader.info for reader in readers if reader is not None]

    def bundles(self, slots: Iterable[int | str] | None = None) -> Iterator[tuple[BundleRef, Bundle]]:
        """
        Yield every bundle once, in order: sealed segments, then what is only in the log.

        What is only in the log has no address yet. Its reference is provisional: the number the next segment
        will get, counted from 0; the segment may end earlier than the log does now.

        Args:
            slots: ids or names; bundles come with these slots only, and those with none of them are left out.

        Raises:
            BundleInvalid: no such slot.
            Damaged: something is damaged, and the reader is strict.
        """
        wanted = None if slots is None else frozenset(self._adapter.slot(slot) for slot in slots)
        return _Pass(self).run(wanted)

    def scan(self, slot: int | str, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """
        Yield the batches of one slot, in the order of their bundles.

        Batches may differ in schema. A column that a batch does not have is missing from what is yielded of it;
        a batch with none of the columns is left out.

        Raises:
            BundleInvalid: no such slot.
            WrongUse: (at the end) a column that no batch had.
            Damaged: something is damaged, and the reader is strict.
        """
        wanted = self._adapter.slot(slot)
        return self._scan(wanted, None if columns is None else list(columns))

    def _scan(self, slot: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        met: set[str] = set()
        for _, bundle in self.bundles([slot]):
            batch = bundle[slot]
            if columns is None:
                yield batch
                continue
            names = batch.schema.names
            met.update(names)
            chosen = [column for column in columns if column in names]
            if chosen:
                yield batch.select(chosen)
        unknown = [column for column in columns or () if column not in met]
        if unknown and met:
            raise WrongUse(f"slot {slot} has no column {unknown[0]!r}; it has {', '.join(sorted(met))}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """
        Nothing is held between two passes.
        """

    # What a pass uses.

    def _report(self, damage: Damaged) -> None:
        if self._strict:
            raise damage
        told = {(known.path, known.offset, known.reason) for known in self.problems}
        if (damage.path, damage.offset, damage.reason) not in told:
            self.problems.append(damage)

    def _list(self, directory: str) -> list[str]:
        try:
            return self._fs.list_dir(f"{self.path}/{directory}")
        except FileNotFoundError:
            return []

    def _list_segments(self) -> list[int]:
        found = (parse_segment_name(name) for name in self._list(SEGMENTS_DIR))
        return sorted(seq for seq in found if seq is not None)

    def _open_segment(self, seq: int) -> SegmentReader | None:
        try:
            return SegmentReader.open(self._fs, f"{self.path}/{SEGMENTS_DIR}/{segment_name(seq)}")
        except FileNotFoundError:
            return None
        except Damaged as damage:
            self._report(damage)
            return None

    def _small_file(self, name: str) -> memoryview | None:
        try:
            return memoryview(self._fs.read_all(f"{self.path}/{name}", size_max=_SIDECAR_BYTES_MAX))
        except FileNotFoundError:
            return None

    def _sidecar(self, name: str, decode: Any) -> int:
        """
        Return the number in a sidecar file; 0 when it is missing or damaged, which only means more to look at.
        """
        view = self._small_file(name)
        if view is None:
            return 0
        answer = decode(view)
        if isinstance(answer, Frame):
            return int(answer.value)
        offset, reason = getattr(answer, "offset", len(view)), getattr(answer, "reason", "the file is cut short")
        self._report(Damaged(f"{self.path}/{name}", offset, reason))
        return 0

    def _cursor(self) -> int:
        return self._sidecar(f"{WAL_DIR}/{CURSOR_NAME}", decode_cursor)

    def _floor(self) -> int:
        return self._sidecar(f"{SEGMENTS_DIR}/{SEGMENT_FLOOR}", decode_floor)

    def _scan_wal(self, name: str) -> WalFileScan | None:
        path = f"{self.path}/{WAL_DIR}/{name}"
        scan: WalFileScan | None = None
        for _ in range(_ATTEMPTS if name == WAL_ACTIVE else 1):
            try:
                again = scan_file(self._fs, path)
            except FileNotFoundError:
                # Renamed a moment ago, or purged because segments hold all of it.
                return scan
            if scan is None or len(again.damage) < len(scan.damage):
                scan = again
            if not again.damage:
                return again
        return scan


class _Pass:
    """
    One pass over a directory: which segments were met, and what they cover of the log.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._seen: set[int] = set()
        self._sequence_sealed = -1
        """Segments are sealed in the order of the log: whatever has this sequence or a lower one was sealed."""
        self._slots: frozenset[int] | None = None

    def run(self, slots: frozenset[int] | None) -> Iterator[tuple[BundleRef, Bundle]]:
        self._slots = slots
        while new := self._new_segments():
            for seq in new:
                yield from self._segment(seq)
        log = self._snapshot_log()
        cursor = self._reader._cursor()  # noqa: SLF001 - a pass is a part of its reader
        for seq in self._new_segments():
            yield from self._segment(seq)
        yield from self._tail(log, cursor)

    def _new_segments(self) -> list[int]:
        return [seq for seq in self._reader._list_segments() if seq not in self._seen]  # noqa: SLF001

    def _segment(self, seq: int) -> Iterator[tuple[BundleRef, Bundle]]:
        self._seen.add(seq)
        source = self._reader._open_segment(seq)  # noqa: SLF001
        if source is None:
            return
        try:
            source.verify()
        except Damaged as damage:
            self._reader._report(damage)  # noqa: SLF001
            return
        self._sequence_sealed = max(
            self._sequence_sealed, -1 if source.info.sequence_last is None else source.info.sequence_last
        )
        try:
            for index in range(source.bundle_count):
                try:
                    batches = source.bundle(index, self._slots)
                except Damaged as damage:
                    self._reader._report(damage)  # noqa: SLF001
                    continue
                if batches or self._slots is None:
                    yield BundleRef(seq, index), self._bundle(batches, source.ingested_at_ns(index))
        finally:
            source.close()

    def _bundle(self, batches: dict[int, pa.RecordBatch], ingested_at_ns: int | None) -> Bundle:
        return Bundle(batches, ingested_at_ns=ingested_at_ns, adapter=self._reader._adapter)  # noqa: SLF001

    def _snapshot_log(self) -> list[_LogFile]:
        reader = self._reader
        # The active file first. If it is retired while we look, the listing below has it under its new name.
        active = reader._scan_wal(WAL_ACTIVE)  # noqa: SLF001
        numbers = (parse_wal_rotated_name(name) for name in reader._list(WAL_DIR))  # noqa: SLF001
        files: list[_LogFile] = []
        for number in sorted(number for number in numbers if number is not None):
            scan = reader._scan_wal(wal_rotated_name(number))  # noqa: SLF001
            if scan is not None:
                files.append(self._log_file(scan))
                if scan.tail == "torn":
                    reason = "the end of a retired file is not an entry"
                    reader._report(Damaged(scan.path, scan.tail_offset, reason))  # noqa: SLF001
        if active is not None and _position_start(active) not in {file.start for file in files} - {None}:
            files.append(self._log_file(active))
        # The one read first may have been retired, purged and followed by others since. Sequences are checksummed,
        # positions are not; a file without entries keeps its place at the end.
        return sorted(files, key=lambda file: file.first_sequence)

    def _log_file(self, scan: WalFileScan) -> _LogFile:
        for damage in scan.damage:
            self._reader._report(damage)  # noqa: SLF001
        entries = [
            scanned
            for scanned in scan.entries
            if scanned.entry.entry_type == ENTRY_TYPE_BUNDLE and scanned.entry.sequence > self._sequence_sealed
        ]
        ends = frozenset(scanned.end for scanned in scan.entries)
        start = _position_start(scan)
        sequences = (one.entry.sequence for one in scan.entries if one.entry.entry_type == ENTRY_TYPE_BUNDLE)
        first_sequence = next(sequences, math.inf)
        return _LogFile(scan.path, start, scan.position_end, first_sequence, ends, entries)

    def _tail(self, log: list[_LogFile], cursor: int) -> Iterator[tuple[BundleRef, Bundle]]:
        number = max(self._reader._floor(), max(self._seen, default=-1) + 1)  # noqa: SLF001
        index = 0
        told: set[int] = set()
        for file, following in zip(log, [*log[1:], None], strict=False):
            covered_to = cursor if file.agrees_with(cursor, following) else 0
            for scanned in file.entries:
                entry = scanned.entry
                if entry.sequence <= self._sequence_sealed or scanned.end <= covered_to or entry.sequence in told:
                    continue
                told.add(entry.sequence)
                batches = self._decode(scanned, file.path)
                if batches is not None and (batches or self._slots is None):
                    yield BundleRef(number, index), self._bundle(batches, entry.ingested_at_ns)
                index += 1

    def _decode(self, scanned: ScannedEntry, path: str) -> dict[int, pa.RecordBatch] | None:
        try:
            batches = decode_slots(scanned.entry, path=path, position=scanned.start)
        except Damaged as damage:
            self._reader._report(damage)  # noqa: SLF001
            return None
        return {slot: batch for slot, batch in batches.items() if self._slots is None or slot in self._slots}


def _position_start(scan: WalFileScan) -> int | None:
    return scan.header.position_start if scan.header is not None and scan.header_sound else None


@dataclass(frozen=True, slots=True)
class _LogFile:
    """
    What a pass keeps of one log file.

    Attributes:
        path: where it lies.
        start: the position its header claims, None when the header is damaged.
        end: the position behind its last entry.
        first_sequence: that of its first entry; infinite without entries.
        ends: the positions behind each entry.
        entries: those that no segment holds, as far as was known when it was read.
    """

    path: str
    start: int | None
    end: int
    first_sequence: float
    ends: frozenset[int]
    entries: list[ScannedEntry]

    def agrees_with(self, cursor: int, following: _LogFile | None) -> bool:
        """
        Say whether the positions of this file and the cursor can both be true.

        A header has no checksum. A wrong position there could make entries look older than the cursor, and they
        would be left out; so it must fit either an entry's end or the beginning of the file that follows.
        """
        if self.start is None:
            return False
        if cursor <= self.start or cursor in self.ends:
            return True
        return following is not None and following.start == self.end and cursor >= self.end
