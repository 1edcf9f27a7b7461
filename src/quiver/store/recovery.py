"""
The steps of recovery, in order. `Store._recover` calls them; steps without a module name are in this module.

1. `cold_list`            `cold/opening`: load the list of segments that the object tier has
2. `remove_leftovers`     remove temporary files of writes that a crash interrupted
3. `load_cursor`          load the position before which the log is not needed
4. `load_segments`        load the sealed segments; move damaged ones to quarantine
5. `restore`              `cold/opening`: add the segments that only the object tier has
6. `scan_log`             scan every WAL file; copy damage to quarantine, keep entries that no segment covers
7. `continue_log`         continue the active file after its last valid entry, or begin a new one
8. `early_progress`       load what was resolved of bundles that no segment had
9. `load_floor`           load the number below which no new segment number may be used
10. `progress`             `subscribers/subscribers`: load every progress file; apply the policy to damaged ones
11. `drop_ledger`         `removal/drops`: load the drops that some subscriber has not applied yet
12. `take_back`           `removal/cleanup`: remove drops that never took effect
13. `replay`              `store`: add the kept entries to the open segment, in order
14. `continue_drops`      `removal/cleanup`: finish a drop that was interrupted
15. `missing`             `subscribers/orphaned_progress`: report and count segments that were removed manually
16. `fleet_subscribers`   `fleet/node`: register the subscribers of a fleet and take their locks
17. `reserve`             `limits/side_files`: reserve space for acknowledgements on a full disk

Each step is reported when it is done, as the event `quiver.recovery.step` with its name in this list.

Recovering twice equals recovering once: no step depends on the partial results of an earlier recovery.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from quiver.bundle import OTAP_CONFIG_HASH, Adapter
from quiver.clock import Clock
from quiver.errors import CorruptionError, UnsupportedFormatError
from quiver.invariant import invariant
from quiver.observe import Observer, Value
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.copying import checksum_of, keep_as, keep_damaged
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.scan import Frame
from quiver.store.catalog import Catalog
from quiver.store.format.cursor import decode_cursor
from quiver.store.format.early_progress import EARLY_BYTES_MAX, EarlyProgress, decode_early_progress
from quiver.store.format.floor import decode_floor, encode_floor
from quiver.store.format.names import (
    CURSOR_NAME,
    EARLY_PROGRESS,
    QUARANTINE_DIR,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    WAL_DIR,
    WAL_NEXT,
    segment_name,
    segment_numbers,
    wal_rotated_name,
)
from quiver.store.format.wal_entry import encode_entry
from quiver.store.number_floor import raise_floor
from quiver.store.reading.store_files import StoreFiles
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.tail import read_info
from quiver.store.segment.verified import VerifiedSegments
from quiver.store.wal.replay import WalFileFound, find_wal_files, read_file, scan_file
from quiver.store.wal.scan import ScannedEntries, ScannedEntry, WalFileScan
from quiver.store.wal.writer import RotatedFile, WalLimits, WalWriter

__all__ = [
    "Coverage",
    "LogFound",
    "RecoveryLog",
    "WalReplay",
    "continue_log",
    "keep_undecodable",
    "load_cursor",
    "load_early_progress",
    "load_floor",
    "load_segments",
    "quarantine_file",
    "remove_leftovers",
    "scan_log",
]

_SMALL_FILE_BYTES_MAX = 1024 * 1024
_UNREACHED = 1_767_225_600_000
_NO_BYTES = memoryview(b"")
_HASH_BYTES_FLIPPED_MAX = 2
"""A configuration hash with at most this many different bytes is damaged; it does not belong to another adapter."""


class RecoveryLog:
    """Reports each step of one recovery when it is done: its findings and its duration."""

    def __init__(self, root: str, observer: Observer, clock: Clock) -> None:
        self._root = root
        self._observer = observer
        self._clock = clock
        self._began = self._last = clock.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the recovery began."""
        return self._clock.monotonic() - self._began

    def done(self, step: str, **found: Value) -> None:
        """Report that *step* is done."""
        now = self._clock.monotonic()
        seconds, self._last = round(now - self._last, 3), now
        attributes = {"path": self._root, "step": step, **found, "seconds": seconds}
        self._observer.event("quiver.recovery.step", level=logging.INFO, **attributes)


def remove_leftovers(fs: FileSystem, root: str) -> int:
    """
    Remove the temporary files of writes that a crash interrupted; return how many there were.

    All names in the directories of log and segments are durable on return.
    """
    leftovers = [f"{root}/{WAL_DIR}/{WAL_NEXT}"] if fs.exists(f"{root}/{WAL_DIR}/{WAL_NEXT}") else []
    # Not in the root: the owner of a subscriber in another process may be replacing its progress file just now.
    for directory in (f"{root}/{WAL_DIR}", f"{root}/{SEGMENTS_DIR}"):
        leftovers += [f"{directory}/{name}" for name in fs.list_dir(directory) if name.endswith(".tmp")]
    remove_durably(fs, leftovers)
    # Even without leftovers: a process that was killed between a rename and its sync left a name that is visible now
    # but would disappear in a power loss. The cursor would have passed it by then.
    for directory in (f"{root}/{WAL_DIR}", f"{root}/{SEGMENTS_DIR}"):
        fs.sync_dir(directory)
    return len(leftovers)


def load_cursor(fs: FileSystem, root: str, observer: Observer) -> int:
    """Return the durable cursor; 0 if it is missing or damaged, in which case the segments show what is covered."""
    path = f"{root}/{WAL_DIR}/{CURSOR_NAME}"
    if not fs.exists(path):
        return 0
    answer = decode_cursor(memoryview(_head(fs, path)))
    if isinstance(answer, Frame):
        return answer.value
    observer.event("quiver.wal.cursor.load", level=logging.WARNING, path=path, problem="damaged; starting from 0")
    observer.count("quiver.recovery.damaged_files_total", kind="cursor")
    return 0


def _head(fs: FileSystem, path: str) -> bytes:
    """Return the content of a small file, or the beginning of a large one."""
    file = fs.open_read(path)
    try:
        return file.pread(_SMALL_FILE_BYTES_MAX, 0)
    finally:
        file.close()


def load_early_progress(fs: FileSystem, root: str, *, observer: Observer, clock: Clock) -> EarlyProgress:
    """
    Return what was resolved of unsealed bundles when it was last saved.

    If the file is damaged, it is copied to quarantine and removed, and those bundles are delivered again. The next
    segment gets a number that no store has reached, as in `load_floor`: receivers may know bundles that were delivered
    under the numbers in the file.
    """
    path = f"{root}/{EARLY_PROGRESS}"
    if not fs.exists(path):
        return EarlyProgress()
    found = fs.read_all(path, size_max=EARLY_BYTES_MAX)
    answer = decode_early_progress(memoryview(found))
    if isinstance(answer, Frame):
        return answer.value
    keep_damaged(fs, f"{root}/{QUARANTINE_DIR}", EARLY_PROGRESS, found)
    floor = max(clock.now_ns() // 1_000_000, _UNREACHED)
    raise_floor(fs, root, floor)
    remove_durably(fs, [path])
    observer.event("quiver.early_progress.damaged", level=logging.ERROR, path=path, next_segment=floor)
    observer.count("quiver.recovery.damaged_files_total", kind="early_progress")
    return EarlyProgress()


def load_floor(fs: FileSystem, root: str, *, observer: Observer, clock: Clock) -> int:
    """
    Return the lowest number that the next segment may get, according to the floor file.

    A damaged file is copied to quarantine and replaced, durably, with a number that no store has reached: one segment
    for each millisecond since 1970. Starting from 0 would be wrong: a reader that keeps a number outside of this
    directory, such as a Spark checkpoint, would take a new segment for one it has read. If the clock was never set, the
    number is that of the year 2026.
    """
    path = f"{root}/{SEGMENTS_DIR}/{SEGMENT_FLOOR}"
    if not fs.exists(path):
        return 0
    found = _head(fs, path)
    answer = decode_floor(memoryview(found))
    if isinstance(answer, Frame):
        return answer.value
    floor = max(clock.now_ns() // 1_000_000, _UNREACHED)
    # The copy first: after a crash between the two the damaged file is still there, and this is repeated.
    keep_damaged(fs, f"{root}/{QUARANTINE_DIR}", SEGMENT_FLOOR, found)
    replace_file(fs, path, encode_floor(floor))
    observer.event("quiver.segment.floor.damaged", level=logging.ERROR, path=path, next_segment=floor)
    observer.count("quiver.recovery.damaged_files_total", kind="floor")
    return floor


def load_segments(fs: FileSystem, root: str, catalog: Catalog, *, cursor: int, observer: Observer) -> tuple[int, int]:
    """
    Add the valid segments to *catalog*, and move the damaged ones to quarantine.

    A segment whose bundles may still be in the log is checked completely, because those bundles will not be replayed.
    Returns a number above every segment found, and how many were moved to quarantine.
    """
    directory = f"{root}/{SEGMENTS_DIR}"
    next_number = 0
    quarantined = 0
    for seq in segment_numbers(fs.list_dir(directory)):
        next_number = max(next_number, seq + 1)
        path = f"{directory}/{segment_name(seq)}"
        try:
            info = read_info(fs, path)
            if (info.wal_position_end or 0) > cursor:
                info = _verified(fs, path, catalog.verified)
        except FileNotFoundError:
            continue  # another core has evicted it since the listing, and recorded that
        except UnsupportedFormatError:
            raise
        except CorruptionError as damage:
            quarantine_file(fs, root, path)
            quarantined += 1
            observer.event("quiver.segment.quarantined", level=logging.ERROR, path=path, reason=damage.reason)
            observer.count("quiver.recovery.damaged_files_total", kind="segment")
            continue
        catalog.add(info)
    for seq in StoreFiles(fs, root).quarantined():
        next_number = max(next_number, seq + 1)
    return next_number, quarantined


def _verified(fs: FileSystem, path: str, verified: VerifiedSegments) -> SegmentInfo:
    reader = SegmentReader.open(fs, path, verified=verified)
    try:
        reader.verify()
        return reader.info
    finally:
        reader.close()


def quarantine_file(fs: FileSystem, root: str, path: str) -> None:
    """Move a file to quarantine, durably. A file that is there under the same name is kept."""
    target = f"{root}/{QUARANTINE_DIR}"
    fs.make_dirs(target)
    moved = f"{target}/{path.rpartition('/')[2]}"
    if fs.exists(moved):
        # Different bytes get a new name; the same bytes, from a move that a crash interrupted, replace the file.
        found = checksum_of(fs, path)
        moved = moved if checksum_of(fs, moved) == found else f"{moved}.{found[1]:08x}"
    fs.rename(path, moved)
    # The new name first: after a crash between the two syncs the file has both names, never none.
    fs.sync_dir(target)
    fs.sync_dir(path.rpartition("/")[0])


def keep_undecodable(fs: FileSystem, root: str, scanned: ScannedEntry, *, observer: Observer, reason: str) -> None:
    """Copy a log entry with a valid checksum that cannot be decoded to quarantine. Durable on return."""
    # The checksum is valid, so it was written like this: keep its bytes, and continue with the other entries.
    observer.event("quiver.wal.entry.decode", level=logging.ERROR, position=scanned.start, reason=reason)
    observer.count("quiver.recovery.damaged_files_total", kind="entry")
    copy = f"{root}/{QUARANTINE_DIR}/wal-{scanned.start:016}-{scanned.end - scanned.start}.damaged"
    keep_as(fs, copy, encode_entry(scanned.entry))


@dataclass(slots=True)
class LogFound:
    """
    The result of `scan_log`.

    Attributes:
        replay: entries that no segment contains, in order, with their file.
        rotated: retired files.
        active: the scan of the active file, or None.
        is_active_valid: the active file may be continued.
        position_end: the end of all entries: the lowest position for the next entry.
        next_sequence: above every sequence number found.
        torn_bytes: bytes after the last valid entry of the active file.
    """

    replay: WalReplay
    rotated: list[RotatedFile] = field(default_factory=list)
    active: WalFileScan | None = None
    is_active_valid: bool = False
    position_end: int = 0
    next_sequence: int = 0
    torn_bytes: int = 0


class Coverage:
    """The entries in the sealed segments, by sequence number, which the checksum of an entry protects."""

    def __init__(self, segments: Sequence[SegmentInfo], cursor: int) -> None:
        self.cursor = cursor
        self.segments = sorted(
            (segment for segment in segments if segment.sequence_first is not None),
            key=lambda segment: segment.sequence_first or 0,
        )
        self._firsts = [segment.sequence_first or 0 for segment in self.segments]
        # The highest sequence number up to each segment: if it is too low, no earlier segment needs to be checked.
        self._reach = list(accumulate((segment.sequence_last or 0 for segment in self.segments), max))
        self.position_end = max([cursor, *(segment.wal_position_end or 0 for segment in segments)])
        self.sequence_end = (self._reach[-1] if self._reach else -1) + 1

    def holds(self, sequence: int, end: int, *, trust_position: bool) -> bool:
        """
        Return whether a segment contains the entry *sequence* that ends at position *end*, or the cursor has passed it.

        The position is used only if it is trusted.
        """
        if trust_position and end <= self.cursor:
            return True
        at = bisect_right(self._firsts, sequence) - 1
        while at >= 0 and self._reach[at] >= sequence:
            segment = self.segments[at]
            if sequence <= (segment.sequence_last or 0) and (
                not trust_position or end <= (segment.wal_position_end or 0)
            ):
                return True
            at -= 1
        return False


class WalReplay:
    """
    The entries that no segment contains, in order, by file. Iterate only once.

    A log may be larger than memory, so only the file being iterated over and the active file are in memory.
    """

    def __init__(self, fs: FileSystem, coverage: Coverage) -> None:
        self._fs = fs
        self._coverage = coverage
        # By file: path, entries, and the checksum of the complete file, which is read again. The checksum is None for
        # the active file, whose bytes are kept in memory because it may be truncated or renamed before it is replayed.
        self._logged: list[tuple[str, ScannedEntries, int | None]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, scan: WalFileScan, *, shift: int, trusted: bool, is_active: bool) -> None:
        """Add the entries of *scan* that must be replayed."""
        coverage = self._coverage
        entries = scan.entries.needed(
            partial(coverage.holds, trust_position=trusted),
            position_end=coverage.cursor if trusted else 0,
            sequence_end=coverage.sequence_end,
            shift=shift,
        )
        if entries:
            checksum = None if is_active else crc32(entries.view)
            self._logged.append((scan.path, entries if is_active else entries.within(_NO_BYTES), checksum))
            self._count += len(entries)

    def __iter__(self) -> Iterator[tuple[str, ScannedEntries]]:
        """
        Yield the path of each file with its entries to replay.

        Raises:
            OSError: a file cannot be read, or its content has changed since it was scanned (EIO).
        """
        logged, self._logged = self._logged[::-1], []
        while logged:
            path, entries, checksum = logged.pop()
            if checksum is not None:
                view = memoryview(read_file(self._fs, path))
                # Instead of checking the checksum of each entry again.
                if crc32(view) != checksum:
                    raise OSError(errno.EIO, "the content of the file has changed since it was scanned", path)
                entries = entries.within(view)
                del view
            yield path, entries
            del entries  # before the next one is read


def scan_log(
    fs: FileSystem, root: str, *, adapter: Adapter, cursor: int, segments: Sequence[SegmentInfo], observer: Observer
) -> LogFound:
    """
    Scan every WAL file and decide which entries are still needed.

    Raises:
        UnsupportedFormatError: a file was written under another adapter's slot table.
        OSError: a file cannot be read.
    """
    coverage = Coverage(segments, cursor)
    found = LogFound(WalReplay(fs, coverage))
    previous_end: int | None = None
    for file in find_wal_files(fs, f"{root}/{WAL_DIR}"):
        _check_adapter(file, adapter)
        scan = scan_file(fs, file.path)
        if not scan.header_valid and "unsupported version" in scan.damage[0].reason:
            raise UnsupportedFormatError(file.path, scan.damage[0].offset, scan.damage[0].reason)
        start, trusted = _position_start(scan, coverage, previous_end)
        header_bytes = scan.header.header_size if scan.header else 0
        shift = start - (scan.header.position_start if scan.header else 0)
        found.replay.add(scan, shift=shift, trusted=trusted, is_active=file.number is None)
        found.next_sequence = max(found.next_sequence, scan.entries.sequence_end)
        end = start + max(0, scan.tail_offset - header_bytes)
        _report(fs, root, scan, start, rotated=file.number is not None, observer=observer)
        if file.number is None:
            found.active = scan
            is_valid = scan.header is not None and scan.header_valid and not scan.damage
            found.is_active_valid = is_valid and trusted and shift == 0
            found.torn_bytes = scan.size_bytes - scan.tail_offset if scan.tail == "torn" else 0
        else:
            found.rotated.append(RotatedFile(file.path, file.number, end, scan.size_bytes))
        previous_end = end
        found.position_end = max(found.position_end, end)
        del scan  # before the next one is read
    found.next_sequence = max(found.next_sequence, coverage.sequence_end)
    found.position_end = max(found.position_end, coverage.position_end)
    return found


def _check_adapter(file: WalFileFound, adapter: Adapter) -> None:
    found = file.config_hash
    if found is None:
        return
    accepted = [adapter.config_hash]
    if adapter.name == "otap":
        accepted.append(OTAP_CONFIG_HASH)
    if any(sum(a != b for a, b in zip(found, known, strict=True)) <= _HASH_BYTES_FLIPPED_MAX for known in accepted):
        return
    raise UnsupportedFormatError(
        file.path,
        14,
        f"the log was written under an adapter with hash {found.hex()}, this one is {adapter.name!r} with hash "
        f"{adapter.config_hash.hex()}; open it with the adapter that wrote it, or convert it with "
        "`quiver migrate --adapter`",
    )


def _position_start(scan: WalFileScan, coverage: Coverage, previous_end: int | None) -> tuple[int, bool]:
    """
    Return the stream position of the file's first data byte, and whether it can be trusted.

    The header has no checksum, so its position is compared with other evidence: a segment that ends at one of this
    file's entries, the previous file, the cursor. A position that contradicts them would skip entries that are needed,
    or reuse positions that a segment already covers.
    """
    claimed = scan.header.position_start if scan.header and scan.header_valid else None
    header_bytes = scan.header.header_size if scan.header else 0
    if scan.header is not None and scan.entries and coverage.segments:
        shift = header_bytes - scan.header.position_start
        ends = {sequence: end + shift for sequence, end in scan.entries.ends_by_sequence().items()}
        for segment in coverage.segments:
            if segment.sequence_last in ends and segment.wal_position_end:
                start = segment.wal_position_end - (ends[segment.sequence_last] - header_bytes)
                # Files are contiguous: one that appears to begin inside its predecessor would be treated as delivered
                # and deleted before its entries are replayed. In that case the sequence numbers decide.
                return (start, True) if start >= (previous_end or 0) else (previous_end or 0, False)
    limit = coverage.position_end
    if previous_end is not None:
        if claimed is not None and previous_end <= claimed <= max(limit, previous_end):
            return claimed, True
        return max(previous_end, 0), True
    if claimed is None or claimed > limit:
        return limit, False
    inside = claimed < coverage.cursor < claimed + scan.tail_offset - header_bytes
    if inside and not scan.damage and coverage.cursor not in {scanned.end for scanned in scan.entries}:
        return limit, False
    return claimed, True


def _report(fs: FileSystem, root: str, scan: WalFileScan, start: int, *, rotated: bool, observer: Observer) -> None:
    header_bytes = scan.header.header_size if scan.header else 0
    spans = list(zip(scan.damage_spans, (damage.reason for damage in scan.damage), strict=True))
    if scan.tail == "torn":
        if rotated:
            # A file is truncated to its data and synced before it is retired: an invalid end is damage.
            spans.append(((scan.tail_offset, scan.size_bytes - scan.tail_offset), "invalid end of a retired file"))
        else:
            observer.event("quiver.wal.torn_tail", path=scan.path, offset=scan.tail_offset)
            observer.count("quiver.wal.torn_tail_total")
    for (offset, length), reason in spans:
        observer.event(
            "quiver.wal.damaged", level=logging.ERROR, path=scan.path, offset=offset, bytes=length, reason=reason
        )
        observer.count("quiver.recovery.damaged_files_total", kind="wal")
        source = fs.open_read(scan.path)
        try:
            found = source.pread(length, offset)
        finally:
            source.close()
        _keep_span(fs, f"{root}/{QUARANTINE_DIR}", start + max(0, offset - header_bytes), found)


def _keep_span(fs: FileSystem, directory: str, position: int, found: bytes) -> None:
    """Copy damaged bytes to quarantine, unless they are there: a recovery that a crash interrupted repeats them."""
    # Perhaps under another position: what that recovery sealed is evidence of where the file begins.
    end = f"-{len(found)}.damaged"
    names = fs.list_dir(directory) if fs.exists(directory) else []
    copies = (name for name in names if name.startswith("wal-") and name.endswith(end))
    if not any(fs.read_all(f"{directory}/{name}", size_max=len(found)) == found for name in copies):
        keep_as(fs, f"{directory}/wal-{position:016}{end}", found)


def continue_log(
    fs: FileSystem,
    root: str,
    found: LogFound,
    *,
    config_hash: bytes,
    limits: WalLimits,
    cursor: int,
    sync_data: Callable[[File], None],
) -> WalWriter:
    """
    Return the writer, ready to append after everything that survived.

    Positions are never reused: if a power loss removed the unsynced end of the log but a segment already covers it, a
    new file begins after the segment. Otherwise the next recovery would take new entries for old ones.
    """
    directory = f"{root}/{WAL_DIR}"
    path = f"{directory}/quiver.wal"
    scan = found.active
    rotated = list(found.rotated)
    retire = scan is not None and not (found.is_active_valid and scan.position_end == found.position_end)
    if scan is not None and retire and scan.entries:
        number = max((file.number for file in rotated), default=0) + 1
        target = f"{directory}/{wal_rotated_name(number)}"
        _cut(fs, path, scan)
        fs.rename(path, target)
        fs.sync_dir(directory)
        rotated.append(RotatedFile(target, number, found.position_end, scan.tail_offset))
    writer = WalWriter(
        fs,
        directory,
        config_hash=config_hash,
        limits=limits,
        rotated=rotated,
        cursor=cursor,
        sync_data=sync_data,
    )
    if scan is None or retire:
        writer.start(found.position_end)
        return writer
    if scan.tail == "torn":
        _cut(fs, path, scan)
    file = fs.open_write(path)
    # After kill -9 the entries are only in the page cache, but they were confirmed as logged: sync them.
    file.sync()
    header = scan.header
    if header is not None:
        size = scan.size_bytes if scan.tail == "zeros" else scan.tail_offset
        writer.resume_file(
            file,
            header_bytes=header.header_size,
            position_start=header.position_start,
            offset=scan.tail_offset,
            size_bytes=size,
        )
    invariant(writer.written >= found.position_end, "no position of the log is used twice")
    return writer


def _cut(fs: FileSystem, path: str, scan: WalFileScan) -> None:
    file = fs.open_write(path)
    try:
        if scan.tail != "clean":
            file.truncate(scan.tail_offset)
        file.sync()
    finally:
        file.close()
