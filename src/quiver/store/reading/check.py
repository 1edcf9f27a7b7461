"""
Verification of every file of a store, to its last byte and against the others, for `quiver verify`. Reads only.

A live writer may rename, truncate or delete files meanwhile, so a missing file is not a finding. The cursor is read
before the log it refers to, because the log only grows.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from quiver.bundle import OTAP, OTAP_CONFIG_HASH
from quiver.errors import AccessDeniedError, CorruptionError, ObjectsUnavailableError, SettingsError, UsageError
from quiver.objects.port import ObjectTier
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.findings import NO_FILE_ERRORS, Finding, Kind, no_file_reason
from quiver.primitives.scan import Answer
from quiver.primitives.small_file import checked_value, read_bounded, read_if_valid
from quiver.store.cold.files import ColdFiles, ColdListing, object_problem, read_cold_list
from quiver.store.cold.location import LIST_MISSING, folder_of, object_key
from quiver.store.cores.instances import is_store
from quiver.store.format.cold_list import COLD_LIST_BYTES_MAX, ColdSegment, decode_cold_list, parse_object_name
from quiver.store.format.cores import CORE_CLAIM, EVICTED
from quiver.store.format.cursor import decode_cursor
from quiver.store.format.drop_ledger import decode_drop_ledger
from quiver.store.format.early_progress import decode_early_progress
from quiver.store.format.floor import decode_floor
from quiver.store.format.identity import decode_identity
from quiver.store.format.names import (
    COLD_LIST,
    COLD_MARK,
    CURSOR_NAME,
    DEAD_LETTER_DIR,
    DROP_LEDGER,
    EARLY_PROGRESS,
    QUARANTINE_DIR,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    STORE_ID,
    WAL_DIR,
    parse_progress_name,
    parse_retry_set_name,
    parse_skip_ledger_name,
    segment_name,
    segment_numbers,
)
from quiver.store.format.progress import decode_progress
from quiver.store.format.retry_set import decode_retry_set
from quiver.store.format.sink_commit import INCOMING_DIR, decode_commit, parse_commit_name
from quiver.store.format.snapshot_list import SNAPSHOT_LIST
from quiver.store.reading.store_files import StoreFiles
from quiver.store.reading.written_by import as_written
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.orphaned_progress import find_missing
from quiver.store.wal.replay import WalFileFound, find_wal_files, scan_file
from quiver.store.wal.scan import WalFileScan

__all__ = ["SMALL_FILE_BYTES_MAX", "StoreReport", "check_store", "nested_stores", "refuse_snapshot", "require_store"]

SMALL_FILE_BYTES_MAX = 256 * 1024 * 1024

LOOKS_MAX = 5

_BACKUP_SUFFIX = ".bak"

POSITION_OFFSET = 30
"""The offset of the start position in the header of a log file."""


@dataclass(slots=True)
class StoreReport:
    """
    The totals and findings of a check. A bundle may be counted in segments and in the log: the log deletes only
    complete files. `staged_bundles` are those that Spark sinks committed and that are not in a segment of the store
    yet.

    Files and findings include those of the dead letters, which are separate stores; `dead_letters` has their bundles.
    """

    root: str
    files: int = 0
    bytes_read: int = 0
    segment_bundles: int = 0
    log_entries: int = 0
    staged_bundles: int = 0
    dead_letters: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether any finding is damage."""
        return any(finding.damaged for finding in self.findings)

    @property
    def unread(self) -> int:
        """The number of findings about data that could not be read."""
        return sum(finding.unread for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types."""
        return {
            "directory": self.root,
            "files": self.files,
            "bytes_read": self.bytes_read,
            "segment_bundles": self.segment_bundles,
            "log_entries": self.log_entries,
            "staged_bundles": self.staged_bundles,
            "dead_letters": self.dead_letters,
            "damaged": self.damaged,
            "unread": self.unread,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def require_store(fs: FileSystem, root: str) -> None:
    """
    Check that *root* looks like a store's directory.

    Raises:
        UsageError: it does not exist, or contains no part of a store.
    """
    if not fs.exists(root):
        raise UsageError(f"{root}: there is no such directory")
    if not is_store(fs, root):
        raise UsageError(f"{root} is not a store: it has neither {WAL_DIR}/ nor {SEGMENTS_DIR}/")


def refuse_snapshot(fs: FileSystem, root: str) -> None:
    """
    Check that *root* is not a snapshot: any change would make one useless.

    Raises:
        UsageError: it is a snapshot.
    """
    if fs.exists(f"{root}/{SNAPSHOT_LIST}"):
        raise UsageError(f"{root} is a snapshot, which must not change; make a store of it: quiver restore {root} NEW")


def check_store(
    fs: FileSystem,
    root: str,
    *,
    on_progress: Callable[[str], None] | None = None,
    objects: ObjectTier | None = None,
) -> StoreReport:
    """
    Read every file of the store at *root* and return the findings.

    Args:
        fs: the file system.
        root: the store's directory.
        on_progress: called with the path of each segment in turn.
        objects: the store's object tier; all its objects are read then. By default it is opened at the location in the
            store's list, and only the objects of segments without a local file are read.

    Raises:
        UsageError: *root* is not a store.
        OSError: a file could not be read.
    """
    require_store(fs, root)
    report = StoreReport(root)
    cursor_path = f"{root}/{WAL_DIR}/{CURSOR_NAME}"
    cursor = _check_small(fs, report, cursor_path, decode_cursor)
    spans = _check_log(fs, report)
    segments_end = _check_segments(fs, report, on_progress, objects)
    end = max([segments_end, *(span.end for span in spans)])
    if cursor is not None and cursor > end:
        reason = f"the cursor is at {cursor}, but log and segments end at {end}"
        report.findings.append(Finding(cursor_path, 12, "damaged", reason))
    if cursor is not None or not fs.exists(cursor_path):
        # Read the cursor again: it has passed every log file that was deleted before the others were read.
        _check_positions(report, spans, max(_cursor_now(StoreFiles(fs, root)), segments_end))
    _check_small(fs, report, f"{root}/{SEGMENTS_DIR}/{SEGMENT_FLOOR}", decode_floor)
    _check_cold_list(fs, report)
    identity = _check_small(fs, report, f"{root}/{STORE_ID}", decode_identity)
    if objects is not None and identity is not None:
        _check_unlisted(fs, report, folder_of(identity), objects)
    for name in (DROP_LEDGER, EVICTED):
        _check_small(fs, report, f"{root}/{name}", decode_drop_ledger)
    _check_small(fs, report, f"{root}/{EARLY_PROGRESS}", decode_early_progress)
    _check_claim(fs, report)
    for name in _names(fs, root):
        # A backup is a progress file too; the next writer of its subscriber may remove it meanwhile.
        if parse_progress_name(name.removesuffix(_BACKUP_SUFFIX)) is not None:
            _check_small(fs, report, f"{root}/{name}", decode_progress)
        if parse_retry_set_name(name) is not None:
            _check_small(fs, report, f"{root}/{name}", decode_retry_set)
        if parse_skip_ledger_name(name) is not None:
            _check_small(fs, report, f"{root}/{name}", decode_drop_ledger)
    _check_staged(fs, report, on_progress)
    _check_missing(fs, report)
    _note_leftovers(fs, report)
    for path in nested_stores(fs, root):
        _add_nested(report, check_store(fs, path, on_progress=on_progress, objects=objects))
    return report


def nested_stores(fs: FileSystem, root: str) -> list[str]:
    """Return the directories of the stores inside the store at *root*: the dead letters of each exporter."""
    directory = f"{root}/{DEAD_LETTER_DIR}"
    try:
        found = [f"{directory}/{name}" for name in _names(fs, directory)]
        return [path for path in found if is_store(fs, path)]
    except NotADirectoryError:
        return []


def _add_nested(report: StoreReport, nested: StoreReport) -> None:
    report.files += nested.files
    report.bytes_read += nested.bytes_read
    report.dead_letters += nested.segment_bundles + nested.log_entries
    report.findings += nested.findings


def _names(fs: FileSystem, directory: str) -> list[str]:
    return fs.list_dir(directory) if fs.exists(directory) else []


def _check_missing(fs: FileSystem, report: StoreReport) -> None:
    try:
        missing = find_missing(fs, report.root)
    except NO_FILE_ERRORS:
        return  # reported already; the segments are unknown then
    for one in missing:
        reason = f"the file is missing for no known reason: {one.subscriber} had {one.bundles} of its bundles pending"
        report.findings.append(Finding(one.path, 0, "damaged", reason))


def _check_cold_list(fs: FileSystem, report: StoreReport) -> None:
    path = f"{report.root}/{SEGMENTS_DIR}/{COLD_LIST}"
    _check_small(fs, report, path, decode_cold_list)
    # The mark is created after the list and removed before it.
    if not fs.exists(path) and fs.exists(f"{report.root}/{COLD_MARK}") and not fs.exists(path):
        reason = f"{LIST_MISSING}; the segments in the object tier are unknown"
        report.findings.append(Finding(path, 0, "damaged", reason))


def _check_claim(fs: FileSystem, report: StoreReport) -> None:
    """Report only problems that prevent a core from being opened: its owner writes the claim in place."""
    path = f"{report.root}/{CORE_CLAIM}"
    try:
        fs.read_all(path, size_max=SMALL_FILE_BYTES_MAX)
    except FileNotFoundError:
        pass
    except NO_FILE_ERRORS as error:
        report.findings.append(Finding(path, 0, "damaged", no_file_reason(error)))
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise


def _check_small(
    fs: FileSystem, report: StoreReport, path: str, decode: Callable[[memoryview], Answer[Any]]
) -> Any | None:
    try:
        data = read_bounded(fs, path, SMALL_FILE_BYTES_MAX)
        report.files += 1
        report.bytes_read += len(data)
        return checked_value(decode(memoryview(data)), path, len(data))
    except FileNotFoundError:
        return None
    except NO_FILE_ERRORS as error:
        report.findings.append(Finding(path, 0, "damaged", no_file_reason(error)))
    except CorruptionError as error:
        report.findings.append(Finding(path, error.offset, "damaged", error.reason))
    return None


class _Span(NamedTuple):
    """The stream positions in a WAL file, according to its header."""

    path: str
    start: int
    end: int


def _cursor_now(files: StoreFiles) -> int:
    try:
        return files.cursor()
    except NO_FILE_ERRORS:
        return 0


def _check_positions(report: StoreReport, spans: Sequence[_Span], covered: int) -> None:
    """
    Compare each file's position with the file before it, and with the position that is *covered* without it.

    The position is in a header without a checksum. If it is too low, the file overlaps the one before; if it is too
    high, there is a gap that no segment and no cursor accounts for.
    """
    before = 0
    for span in spans:
        if span.start < before:
            reason = f"the header has start position {span.start}; the file before ends at {before}"
            report.findings.append(Finding(span.path, POSITION_OFFSET, "damaged", reason))
        elif span.start > max(before, covered):
            reason = f"the header has start position {span.start}; all before it ends at {max(before, covered)}"
            report.findings.append(Finding(span.path, POSITION_OFFSET, "damaged", reason))
        else:
            before = span.end


def _check_log(fs: FileSystem, report: StoreReport) -> list[_Span]:
    """
    Check the WAL files in order; return the positions that are in their headers.

    If the active file is retired meanwhile, the list of files is out of date and is read again. If this keeps
    happening, positions stay unchecked.
    """
    directory = f"{report.root}/{WAL_DIR}"
    if not fs.exists(directory):
        return []
    for _ in range(LOOKS_MAX):
        current = StoreReport(report.root)
        try:
            spans = _scan_log_files(fs, current, directory)
        except NO_FILE_ERRORS as error:
            report.findings.append(Finding(error.filename or directory, 0, "damaged", no_file_reason(error)))
            return []
        if spans is not None:
            break
    report.files += current.files
    report.bytes_read += current.bytes_read
    report.log_entries += current.log_entries
    report.findings += current.findings
    return spans or []


def _scan_log_files(fs: FileSystem, report: StoreReport, directory: str) -> list[_Span] | None:
    spans: list[_Span] = []
    moved = False
    try:
        files = find_wal_files(fs, directory)
    except FileNotFoundError:
        return None
    for file in files:
        try:
            scan = scan_file(fs, file.path)
        except FileNotFoundError:
            continue
        report.files += 1
        report.bytes_read += scan.size_bytes
        report.log_entries += len(scan.entries)
        for damage in scan.damage:
            report.findings.append(Finding(file.path, damage.offset, "damaged", damage.reason))
        _check_hash(report, file)
        _check_tail(report, file, scan)
        if scan.header is not None and scan.header_valid:
            moved |= scan.header.position_start != file.position_start
            spans.append(_Span(file.path, scan.header.position_start, scan.position_end))
    return None if moved else spans


def _check_hash(report: StoreReport, file: WalFileFound) -> None:
    if file.config_hash is None or file.config_hash in {OTAP.config_hash, OTAP_CONFIG_HASH}:
        return
    if as_written(file.config_hash) != file.config_hash:
        report.findings.append(Finding(file.path, 14, "damaged", "the configuration hash is damaged"))
        return
    reason = f"written with another slot table, hash {file.config_hash.hex()}"
    report.findings.append(Finding(file.path, 14, "other adapter", reason))


def _check_tail(report: StoreReport, file: WalFileFound, scan: WalFileScan) -> None:
    if scan.size_bytes == 0:
        kind: Kind = "torn tail" if file.number is None else "damaged"
        report.findings.append(Finding(file.path, 0, kind, "the file is empty: its header is missing"))
        return
    if scan.tail != "torn":
        return
    length = scan.size_bytes - scan.tail_offset
    if file.number is None:
        reason = f"{length} bytes of an incomplete write; the next open removes them"
        report.findings.append(Finding(file.path, scan.tail_offset, "torn tail", reason))
    else:
        # A file is truncated to its data and synced before it is retired, so its last entry must be at its end.
        reason = f"{length} bytes after the last entry of a retired file are not an entry"
        report.findings.append(Finding(file.path, scan.tail_offset, "damaged", reason))


def _check_segments(
    fs: FileSystem, report: StoreReport, on_progress: Callable[[str], None] | None, objects: ObjectTier | None
) -> int:
    """Check every segment to its last byte, also in the object tier; return the log position that the newest covers."""
    directory = f"{report.root}/{SEGMENTS_DIR}"
    end = 0
    listing = _cold_listing(fs, directory)
    verified = {} if listing is None else listing.verified
    if objects is not None and listing is not None:
        _check_objects(fs, report, listing, objects)
    open_tier = None if objects is None else lambda _: objects
    fs = ColdFiles(fs, open_tier=open_tier, on_damage=lambda _: None)  # the list is checked separately
    for seq in segment_numbers(_names(fs, directory)):
        path = f"{directory}/{segment_name(seq)}"
        if on_progress is not None:
            on_progress(path)
        reader = _check_segment(fs, report, path)
        if isinstance(reader, SegmentReader):
            report.segment_bundles += reader.bundle_count
            end = max(end, reader.info.wal_position_end or 0)
        elif reader == "not reached":
            entry = verified.get(seq)
            end = max(end, entry.wal[1] if entry is not None and entry.wal is not None else 0)
    return end


def _check_segment(fs: FileSystem, report: StoreReport, path: str) -> SegmentReader | Literal["not reached"] | None:
    """
    Check a segment to its last byte; return its reader if it is valid. A segment that is only in the object tier, and
    cannot be read now, has an unknown state.
    """
    try:
        reader = SegmentReader.open(fs, path)
        reader.verify()
    except FileNotFoundError:
        return None
    except CorruptionError as damage:
        report.files += 1
        report.findings.append(Finding(damage.path, damage.offset, "damaged", damage.reason))
        return None
    except (ObjectsUnavailableError, AccessDeniedError, SettingsError) as error:
        report.findings.append(Finding(path, 0, "not reached", f"it is only in the object tier: {error}"))
        return "not reached"
    except OSError as error:  # only this file cannot be read: check the others
        report.files += 1
        is_no_file = isinstance(error, NO_FILE_ERRORS)
        reason = no_file_reason(error) if is_no_file else f"it cannot be read: {error.strerror}"
        report.findings.append(Finding(path, 0, "damaged", reason))
        return None
    report.files += 1
    report.bytes_read += reader.info.size_bytes
    return reader


def _check_staged(fs: FileSystem, report: StoreReport, on_progress: Callable[[str], None] | None) -> None:
    """Check the commits of Spark sinks, and their staged segments that are not segments of the store yet."""
    incoming = f"{report.root}/{INCOMING_DIR}"
    for writer in _names(fs, incoming):
        for name in _names(fs, f"{incoming}/{writer}"):
            if parse_commit_name(name) is None:
                continue
            commit = _check_small(fs, report, f"{incoming}/{writer}/{name}", decode_commit)
            for part in () if commit is None else commit.parts:
                path = f"{incoming}/{writer}/{part}"
                if on_progress is not None:
                    on_progress(path)
                # A missing one was imported: the commit of a writer's last batch stays.
                reader = _check_segment(fs, report, path)
                if isinstance(reader, SegmentReader):
                    report.staged_bundles += reader.bundle_count


def _cold_listing(fs: FileSystem, directory: str) -> ColdListing | None:
    try:
        return read_cold_list(fs, directory)
    except (CorruptionError, SettingsError):
        return None  # the list is checked separately


def _check_objects(fs: FileSystem, report: StoreReport, listing: ColdListing, objects: ObjectTier) -> None:
    """Read the objects of segments that also have a local file: later they may be the only copies."""
    for seq, entry in sorted(listing.verified.items()):
        if not fs.exists(f"{report.root}/{SEGMENTS_DIR}/{segment_name(seq)}"):
            continue
        key = object_key(listing.folder, entry)
        try:
            problem = object_problem(objects, key, entry)
        except (ObjectsUnavailableError, AccessDeniedError) as error:
            report.findings.append(Finding(key, 0, "not reached", f"the object tier does not answer: {error}"))
            continue
        if problem is not None and _listed_now(fs, report.root, seq) == entry:
            report.findings.append(Finding(key, 0, "damaged", problem))


def _check_unlisted(fs: FileSystem, report: StoreReport, folder: str, objects: ObjectTier) -> None:
    """Report segments of this store that are only in the object tier and missing in its list: no reader finds them."""
    try:
        found = _segments_there(objects, folder) - _known_segments(fs, report.root)
        if found:  # they may have been finished and deleted meanwhile
            found &= _segments_there(objects, folder) - _known_segments(fs, report.root)
    except (ObjectsUnavailableError, AccessDeniedError) as error:
        report.findings.append(
            Finding(f"{folder}/segments", 0, "not reached", f"the object tier does not answer: {error}")
        )
        return
    if found:
        which = f"{len(found)} segments in the object tier, from {min(found)} to {max(found)}"
        reason = f"the list of the store does not contain {which}: quiver restore --cold makes a store of them"
        report.findings.append(Finding(f"{folder}/segments", 0, "damaged", reason))


def _segments_there(objects: ObjectTier, folder: str) -> set[int]:
    names = (parse_object_name(one.key.rpartition("/")[2]) for one in objects.list_below(f"{folder}/segments/"))
    return {name[0] for name in names if name is not None}


def _known_segments(fs: FileSystem, root: str) -> set[int]:
    directory = f"{root}/{SEGMENTS_DIR}"
    here = set(segment_numbers(_names(fs, directory)))
    with contextlib.suppress(*NO_FILE_ERRORS):
        listed = read_if_valid(fs, f"{directory}/{COLD_LIST}", decode_cold_list, COLD_LIST_BYTES_MAX)
        here.update(() if listed is None else (entry.seq for entry in listed.entries))
    return here


def _listed_now(fs: FileSystem, root: str, seq: int) -> ColdSegment | None:
    """Return the current entry of a segment in the list. A segment that was finished meanwhile has none."""
    listing = _cold_listing(fs, f"{root}/{SEGMENTS_DIR}")
    return None if listing is None else listing.verified.get(seq)


def _note_leftovers(fs: FileSystem, report: StoreReport) -> None:
    for name in _names(fs, f"{report.root}/{QUARANTINE_DIR}"):
        path = f"{report.root}/{QUARANTINE_DIR}/{name}"
        report.findings.append(Finding(path, 0, "quarantined", "quarantined by an earlier recovery"))
    for directory in (report.root, f"{report.root}/{WAL_DIR}", f"{report.root}/{SEGMENTS_DIR}"):
        for name in _names(fs, directory):
            if name.endswith(".tmp"):
                reason = "a write that never took effect; the next open removes it"
                report.findings.append(Finding(f"{directory}/{name}", 0, "left over", reason))
