"""
Repairs a closed store as far as possible, for `quiver repair`. Keeps a copy of every damaged file first.

In order; the next repair repeats each step that a crash interrupted:

1. temporary files of incomplete writes are removed
2. small files that cannot be read are copied to quarantine and created again, or removed: the next open creates them
3. damaged segments are copied to quarantine, and rewritten from the log if that still has all of their bundles
4. damaged retry sets are copied to quarantine and filled with the bundles that their subscriber has not resolved
5. headers of log files that would prevent opening are repaired if their entries are valid
6. the store is opened, which copies damaged ranges of the log to quarantine and truncates torn ends; then everything in
  the log is sealed, so that no damaged log file is needed any more

Damaged data is never delivered. Files of newer versions are not changed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Any

from quiver.bundle import OTAP, OTAP_CONFIG_HASH, BundleRef
from quiver.clock import Clock
from quiver.counted import counted
from quiver.errors import CorruptionError, DirectoryInUseError, UnsupportedFormatError, UsageError
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, replace_file
from quiver.primitives.disk.copying import damaged_copy, keep_damaged, link_or_copy
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import hold
from quiver.primitives.findings import NO_FILE_REASONS, Finding
from quiver.primitives.scan import Answer, Damage, Frame, as_damage
from quiver.store.format.cores import EVICTED
from quiver.store.format.cursor import decode_cursor
from quiver.store.format.drop_ledger import decode_drop_ledger
from quiver.store.format.early_progress import decode_early_progress
from quiver.store.format.floor import decode_floor, encode_floor
from quiver.store.format.identity import decode_identity
from quiver.store.format.names import (
    CURSOR_NAME,
    DEAD_LETTER_DIR,
    DROP_LEDGER,
    EARLY_PROGRESS,
    QUARANTINE_DIR,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    STORE_ID,
    WAL_DIR,
    WAL_NEXT,
    parse_progress_name,
    parse_retry_set_name,
    retry_lock_name,
    segment_numbers,
    skip_ledger_name,
)
from quiver.store.format.progress import Progress, decode_progress, progress_checksum
from quiver.store.format.retry_set import (
    RETRY_ENTRIES_MAX,
    RETRY_SET_BYTES_MAX,
    RetryEntry,
    decode_retry_set,
    encode_retry_set,
)
from quiver.store.format.wal_file import WAL_HEADER, WAL_HEADER_BYTES, WAL_MAGIC, WAL_VERSION, decode_wal_header
from quiver.store.number_floor import raise_floor
from quiver.store.offline.closed import drain, locked_for_writing
from quiver.store.offline.repair_report import Repaired, RepairReport
from quiver.store.offline.salvage import DamagedSegment, entries_of, examine, export_streams, is_complete, rewrite
from quiver.store.reading.check import SMALL_FILE_BYTES_MAX, check_store, nested_stores, refuse_snapshot, require_store
from quiver.store.reading.store_files import StoreFiles
from quiver.store.reading.written_by import written_by
from quiver.store.segment.info import SegmentInfo
from quiver.store.subscribers.orphaned_progress import find_missing, give_up
from quiver.store.subscribers.progress_store import (
    backup_path,
    find_subscribers,
    load_progress,
    lock_subscriber,
    progress_path,
    recreate_damaged,
)
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState
from quiver.store.wal.replay import find_wal_files, scan_file
from quiver.store.wal.scan import WalFileScan, scan_wal_file

__all__ = ["RepairReport", "Repaired", "repair"]


def repair(fs: FileSystem, root: str, *, clock: Clock, dry_run: bool = False) -> RepairReport:
    """
    Repair the store at *root*, which must be closed.

    Args:
        fs: the file system.
        root: the store's directory.
        clock: for the store that is opened at the end.
        dry_run: change nothing but the lock file; the report has the planned repairs.

    Raises:
        DirectoryInUseError: a process has the store open.
        UnsupportedFormatError: a newer version wrote the log or a progress file: the store was not changed.
        UsageError: *root* is not a store, or is a snapshot, or contains a directory where a file belongs.
        OSError: the disk reported an error; run it again.
    """
    require_store(fs, root)
    refuse_snapshot(fs, root)
    report = RepairReport(root, dry_run)
    for path in nested_stores(fs, root):
        # These are separate stores. Their findings do not belong to this one.
        report.repairs += repair(fs, path, clock=clock, dry_run=dry_run).repairs
    with locked_for_writing(fs, root, owner="quiver repair"):
        before = _findings(fs, root)
        for finding in before:
            if finding.reason in NO_FILE_REASONS:
                raise UsageError(f"{finding.path}: {finding.reason}; then repair again")
        work = _Work(fs, root, dry_run=dry_run)
        for step in _STEPS:
            report.repairs.extend(step(work))
    report.repairs += _by_opening(before, report.repairs)
    if not dry_run:
        drain(fs, root, clock=clock)
    report.findings = check_store(fs, root).findings
    return report


def _findings(fs: FileSystem, root: str) -> list[Finding]:
    return [one for one in check_store(fs, root).findings if not one.path.startswith(f"{root}/{DEAD_LETTER_DIR}/")]


def _by_opening(before: list[Finding], repairs: list[Repaired]) -> list[Repaired]:
    """Return the findings that no step repaired: recovery handles them when the store is opened."""
    reported = {repaired.path for repaired in repairs}
    how = "repaired when the store is opened, from the files around it"
    return [
        Repaired(finding.path, f"at byte {finding.offset}: {finding.reason}", how)
        for finding in before
        if finding.damaged and finding.path not in reported
    ]


class _Work:
    """The state that the steps share."""

    def __init__(self, fs: FileSystem, root: str, *, dry_run: bool) -> None:
        self.fs = fs
        self.root = root
        self.files = StoreFiles(fs, root)
        self.dry_run = dry_run
        self.valid: list[SegmentInfo] = []
        """Valid segments, including the rewritten ones. Filled by `_segments`."""
        self.highest = -1
        """The highest segment number in any file name."""

    def names(self, directory: str) -> list[str]:
        return self.fs.list_dir(directory) if self.fs.exists(directory) else []

    def read(self, path: str) -> bytes | None:
        try:
            return self.fs.read_all(path, size_max=SMALL_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None

    def keep(self, path: str, data: bytes) -> str:
        """Copy the *data* of *path* to quarantine: durable on return, only once for the same bytes."""
        directory, name = f"{self.root}/{QUARANTINE_DIR}", posixpath.basename(path)
        if self.dry_run:
            return damaged_copy(directory, name, data)
        return keep_damaged(self.fs, directory, name, data)

    def put(self, path: str, data: bytes) -> None:
        if not self.dry_run:
            replace_file(self.fs, path, data)

    def remove(self, *paths: str) -> None:
        if not self.dry_run:
            remove_durably(self.fs, paths)


def _damage_of(data: bytes, decode: Callable[[memoryview], Answer[Any]]) -> str | None:
    answer = decode(memoryview(data))
    if isinstance(answer, Frame):
        return None
    damage = as_damage(answer, len(data))
    return f"at byte {damage.offset}: {damage.reason}"


def _is_newer(data: bytes, problem: str) -> bool:
    """Return whether a newer version wrote *data*: if the checksum at its end is valid, the version is not damaged."""
    return "unsupported version" in problem and progress_checksum(memoryview(data)) is not None


# 1. Remains of a crash.


def _leftovers(work: _Work) -> Iterator[Repaired]:
    root = work.root
    for directory in (root, f"{root}/{WAL_DIR}", f"{root}/{SEGMENTS_DIR}", f"{root}/{QUARANTINE_DIR}"):
        for name in work.names(directory):
            if not name.endswith(TEMPORARY_SUFFIX) and name != WAL_NEXT:
                continue
            path = f"{directory}/{name}"
            subscriber = parse_progress_name(name.removesuffix(TEMPORARY_SUFFIX))
            if subscriber is not None and not _is_free(work, subscriber):
                continue  # its owner, in another process, may be writing it
            work.remove(path)
            yield Repaired(path, "left over from an incomplete write", "removed")


def _is_free(work: _Work, subscriber: str) -> bool:
    try:
        lock_subscriber(work.fs, work.root, subscriber).release()
    except DirectoryInUseError:
        return False
    return True


# 2. Small files.


def _small_files(work: _Work) -> Iterator[Repaired]:
    root = work.root
    work.highest = _highest_number(work)
    yield from _remove_if_damaged(work, f"{root}/{WAL_DIR}/{CURSOR_NAME}", decode_cursor, None)
    for name in (DROP_LEDGER, EVICTED):
        lost = "which drops by policy its subscribers have not resolved yet: for them those segments are missing"
        yield from _remove_if_damaged(work, f"{root}/{name}", decode_drop_ledger, lost)
    lost = "which bundles were resolved before they were sealed: those are delivered again"
    yield from _remove_if_damaged(work, f"{root}/{EARLY_PROGRESS}", decode_early_progress, lost)
    for subscriber in find_subscribers(work.fs, root):
        lost = f"the record of bundles skipped for {subscriber}; they stay skipped"
        yield from _remove_if_damaged(work, f"{root}/{skip_ledger_name(subscriber)}", decode_drop_ledger, lost)
    yield from _remove_if_damaged(
        work,
        f"{root}/{STORE_ID}",
        decode_identity,
        "the store's identity: Spark checkpoints of this store are refused, and must be replaced by new ones",
    )
    yield from _progress(work)
    yield from _backups(work)
    yield from _floor(work)


def _remove_if_damaged(
    work: _Work, path: str, decode: Callable[[memoryview], Answer[Any]], lost: str | None
) -> Iterator[Repaired]:
    data = work.read(path)
    problem = None if data is None else _damage_of(data, decode)
    if data is None or problem is None or _is_newer(data, problem):
        return
    copy = work.keep(path, data)
    work.remove(path)
    yield Repaired(path, f"damaged {problem}", "quarantined; the next open creates it again", lost, copy)


def _highest_number(work: _Work) -> int:
    names = work.names(f"{work.root}/{SEGMENTS_DIR}") + work.names(f"{work.root}/{QUARANTINE_DIR}")
    # In quarantine a name may have a suffix after the number.
    numbers = segment_numbers(name.partition(".qseg")[0] + ".qseg" for name in names if ".qseg" in name)
    return max(numbers, default=-1)


def _progress(work: _Work) -> Iterator[Repaired]:
    profile = written_by(work.fs, work.root).profile
    for subscriber in find_subscribers(work.fs, work.root):
        path = progress_path(work.root, subscriber)
        try:
            load_progress(work.fs, work.root, subscriber)
            continue
        except UnsupportedFormatError:
            raise
        except CorruptionError as damage:
            problem = f"damaged at byte {damage.offset}: {damage.reason}"
        lost = f"the progress of {subscriber}: all bundles that still exist are delivered to it again"
        if work.dry_run:
            yield Repaired(path, problem, "replaced by its backup, or created again if there is none", lost)
            continue
        try:
            lock = lock_subscriber(work.fs, work.root, subscriber)
        except DirectoryInUseError as error:
            yield Repaired(path, problem, f"not changed: {error}")
            continue
        try:
            made = recreate_damaged(work.fs, work.root, subscriber, profile=profile, policy="backup")
        finally:
            lock.release()
        if made.start == "backup":
            action, lost = (
                "replaced by its backup",
                f"the later progress of {subscriber}: those bundles are delivered again",
            )
        else:
            action = "created again with no bundle resolved"
        yield Repaired(path, problem, action, lost, made.copy)


def _backups(work: _Work) -> Iterator[Repaired]:
    # After the progress files, which may have to be replaced by them.
    for subscriber in find_subscribers(work.fs, work.root):
        if work.fs.exists(backup_path(work.root, subscriber)) and _is_free(work, subscriber):
            yield from _remove_if_damaged(work, backup_path(work.root, subscriber), decode_progress, None)


def _floor(work: _Work) -> Iterator[Repaired]:
    path = f"{work.root}/{SEGMENTS_DIR}/{SEGMENT_FLOOR}"
    data = work.read(path)
    problem = None if data is None else _damage_of(data, decode_floor)
    if data is None or problem is None:
        return
    floor = work.highest + 1
    for subscriber in find_subscribers(work.fs, work.root):
        try:
            progress = load_progress(work.fs, work.root, subscriber)
        except CorruptionError:
            continue
        if progress is not None:
            floor = max(floor, SubscriberState.from_progress(progress).named_max + 1)
    copy = work.keep(path, data)
    work.put(path, encode_floor(floor))
    yield Repaired(path, f"damaged {problem}", f"created again: {floor}, above every known number", None, copy)


# 3. Segments.


def _segments(work: _Work) -> Iterator[Repaired]:
    damaged: list[DamagedSegment] = []
    for seq in work.files.segments():
        try:
            found = examine(work.fs, work.root, seq)
        except UnsupportedFormatError:
            continue
        if isinstance(found, SegmentInfo):
            work.valid.append(found)
        else:
            damaged.append(found)
    for one in damaged:
        yield _repair_segment(work, one)


def _missing(work: _Work) -> Iterator[Repaired]:
    for one in find_missing(work.fs, work.root):
        problem = "missing for no known reason; if you have a copy, restore it before you repair"
        if not work.dry_run:
            give_up(work.fs, work.root, one)
        lost = f"{one.bundles} of its bundles, which {one.subscriber} had pending"
        yield Repaired(one.path, problem, f"skipped for {one.subscriber}", lost)


def _repair_segment(work: _Work, damaged: DamagedSegment) -> Repaired:
    entries = entries_of(work.fs, work.root, damaged, work.valid)
    complete = is_complete(damaged, entries, work.valid)
    lost = None if complete else _loss(work, damaged, len(entries))
    problem = f"damaged at byte {damaged.offset}: {damaged.reason}"
    copy = f"{work.root}/{QUARANTINE_DIR}/{posixpath.basename(damaged.path)}"
    if not work.dry_run:
        work.fs.make_dirs(f"{work.root}/{QUARANTINE_DIR}")
        copy = _free_name(work, copy)
        # The copy first, durably: after a crash the damaged file is still there, and the next repair starts again.
        link_or_copy(work.fs, damaged.path, copy, mode=0o440)
        work.fs.sync_dir(f"{work.root}/{QUARANTINE_DIR}")
    if complete:
        if not work.dry_run:
            info, _ = rewrite(work.fs, work.root, damaged.seq, entries, profile=written_by(work.fs, work.root).profile)
            work.valid = sorted([*work.valid, info], key=lambda one: one.seq)
        return Repaired(
            damaged.path, problem, f"rewritten from the log, complete: {counted(len(entries), 'bundle')}", None, copy
        )
    saved = export_streams(work.fs, work.root, damaged, write=not work.dry_run)
    rows = sum(count for _, count in saved)
    action = f"quarantined; readable but unverified: {counted(rows, 'row')} of {counted(len(saved), 'stream')}"
    if entries:
        action = (
            f"rewritten from the log, which has {counted(len(entries), 'bundle')} of it; the damaged file was {action}"
        )
        if not work.dry_run:
            rewrite(work.fs, work.root, damaged.seq, entries, profile=written_by(work.fs, work.root).profile)
    else:
        # Before the name is removed: subscribers may count the number as delivered, so it must not be used again.
        if not work.dry_run:
            raise_floor(work.fs, work.root, damaged.seq + 1)
        work.remove(damaged.path)
    return Repaired(damaged.path, problem, action, lost, copy)


def _free_name(work: _Work, path: str) -> str:
    # A repair that was interrupted left the same file there: replace it. Keep another file of that number.
    number = 1
    candidate = path
    while work.fs.exists(candidate) and not _is_same(work, candidate, path):
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def _is_same(work: _Work, candidate: str, path: str) -> bool:
    source = f"{work.root}/{SEGMENTS_DIR}/{posixpath.basename(path)}"
    return work.fs.stat(candidate).size_bytes == work.fs.stat(source).size_bytes and bytes(
        work.fs.map_read(candidate).view()
    ) == bytes(work.fs.map_read(source).view())


def _loss(work: _Work, damaged: DamagedSegment, have: int) -> str:
    info = damaged.info
    if info is None:
        return "its bundles; their number is unknown, since its tables cannot be read"
    lost = info.bundle_count - have
    waiting = []
    for subscriber in find_subscribers(work.fs, work.root):
        try:
            progress = load_progress(work.fs, work.root, subscriber)
        except CorruptionError:
            continue
        if progress is not None:
            state = SubscriberState.from_progress(progress)
            pending = state.pending_count(Segments([SegmentRef(info.seq, info.bundle_count)]))
            if pending:
                waiting.append(f"{subscriber} had {pending} pending")
    return f"{lost} of its {counted(info.bundle_count, 'bundle')}" + (
        f": {', '.join(waiting)}" if waiting else ", all delivered"
    )


# 4. Retry sets of exporters.


def _retry_sets(work: _Work) -> Iterator[Repaired]:
    for name in work.names(work.root):
        subscriber = parse_retry_set_name(name)
        if subscriber is None:
            continue
        path = f"{work.root}/{name}"
        data = work.fs.read_all(path, size_max=RETRY_SET_BYTES_MAX)
        problem = _damage_of(data, decode_retry_set)
        if problem is not None and not _is_newer(data, problem):
            yield _repair_retry_set(work, path, subscriber, data, f"damaged {problem}")


def _repair_retry_set(work: _Work, path: str, subscriber: str, data: bytes, problem: str) -> Repaired:
    # It is unknown which of them the exporter had passed. A bundle that is not in the set might never be sent.
    waiting = _unresolved(work, subscriber)
    if len(waiting) > RETRY_ENTRIES_MAX:
        return Repaired(path, problem, f"not changed: {subscriber} has more pending bundles than a retry set can hold")
    try:
        lock = hold(work.fs, f"{work.root}/{retry_lock_name(subscriber)}", owner="quiver repair")
    except DirectoryInUseError as error:
        return Repaired(path, problem, f"not changed: {error}")
    try:
        copy = work.keep(path, data)
        work.put(path, encode_retry_set(RetryEntry(ref, 1, 0, 0, "the retry set was damaged") for ref in waiting))
    finally:
        lock.release()
    action = f"created again with {counted(len(waiting), 'bundle')} that {subscriber} has not resolved"
    return Repaired(
        path, problem, action, "the attempts and due times of its bundles: they are retried immediately", copy
    )


def _unresolved(work: _Work, subscriber: str) -> list[BundleRef]:
    try:
        progress = load_progress(work.fs, work.root, subscriber)
    except CorruptionError:  # it was not repaired: in a dry run, or because another process owns it
        progress = Progress(0, {})
    if progress is None:
        return []
    state = SubscriberState.from_progress(progress)
    found = []
    for info in work.valid:
        left = state.unresolved(SegmentRef.of(info))
        found += [BundleRef(info.seq, index) for index in range(info.bundle_count) if left >> index & 1]
    return found


# 5. and 6. The log.


def _log(work: _Work) -> Iterator[Repaired]:
    directory = f"{work.root}/{WAL_DIR}"
    if not work.fs.exists(directory):
        return
    found = written_by(work.fs, work.root)
    for file in find_wal_files(work.fs, directory):
        scan = scan_file(work.fs, file.path)
        head = bytes(_head(work, file.path))
        fixed = _fixed_head(head, scan, found.config_hash)
        if fixed is not None and fixed != head:
            copy = work.keep(file.path, head)
            data = fixed + work.fs.read_all(file.path, size_max=scan.size_bytes)[len(fixed) :]
            # As a new file: a snapshot may share this one.
            work.put(file.path, data)
            yield Repaired(
                file.path, "a field of its header is damaged", "set to the value in the other files", None, copy
            )
            scan = scan_wal_file(memoryview(data), file.path)
        yield from _ranges(work, scan, is_active=file.number is None)


def _head(work: _Work, path: str) -> bytes:
    file = work.fs.open_read(path)
    try:
        return file.pread(WAL_HEADER_BYTES, 0)
    finally:
        file.close()


def _fixed_head(head: bytes, scan: WalFileScan, config_hash: bytes | None) -> bytes | None:
    """Return the header that the file should have; None if it is a newer version's or cannot be determined."""
    if len(head) < WAL_HEADER_BYTES:
        return None
    magic, version, size, found_hash, position = WAL_HEADER.unpack(head)
    if config_hash is None and found_hash in {OTAP.config_hash, OTAP_CONFIG_HASH}:
        config_hash = found_hash  # no other file has a hash, and this one is not random damage
    if config_hash is None:
        return None
    answer = decode_wal_header(memoryview(head))
    if isinstance(answer, Damage) and scan.entries and (magic == WAL_MAGIC or version == WAL_VERSION):
        # The entries have the layout of version 1, so the file was not written by a newer version.
        version, size = WAL_VERSION, WAL_HEADER_BYTES
    elif not isinstance(answer, Frame):
        return None
    return WAL_HEADER.pack(WAL_MAGIC, version, size, config_hash, position)


def _ranges(work: _Work, scan: WalFileScan, *, is_active: bool) -> Iterator[Repaired]:
    in_segments = [
        (info.sequence_first or 0, info.sequence_last or 0) for info in work.valid if info.sequence_last is not None
    ]
    for (offset, length), damage in zip(scan.damage_spans, scan.damage, strict=True):
        action = f"{length} bytes quarantined and skipped"
        yield Repaired(
            scan.path, f"at byte {offset}: {damage.reason}", action, _lost_between(scan, offset, in_segments)
        )
    if scan.size_bytes == 0 and not is_active:
        yield Repaired(scan.path, "the file is empty", "skipped", "its bundles, unless a segment has them")
    if scan.tail != "torn":
        return
    length = scan.size_bytes - scan.tail_offset
    if is_active:
        yield Repaired(scan.path, f"{length} bytes of an incomplete write, at byte {scan.tail_offset}", "removed")
    else:
        problem = f"{length} bytes after the last entry of a retired file are not an entry"
        yield Repaired(scan.path, problem, "quarantined and skipped", "their contents are unknown")


def _lost_between(scan: WalFileScan, offset: int, in_segments: list[tuple[int, int]]) -> str | None:
    """Return the bundles lost by the damage at *offset*, by the sequence numbers around it; None if there are none."""
    header = scan.header
    if header is None or offset == 0:
        return None
    position = header.position_start + offset - header.header_size
    before = [scanned.entry.sequence for scanned in scan.entries if scanned.end <= position]
    after = [scanned.entry.sequence for scanned in scan.entries if scanned.start >= position]
    if not before or not after:
        return "at least one bundle, unless a segment has it"
    lost = [
        sequence
        for sequence in range(max(before) + 1, min(after))
        if not any(low <= sequence <= high for low, high in in_segments)
    ]
    if not lost:
        return None
    if len(lost) == 1:
        return f"the bundle with sequence number {lost[0]}"
    return f"{len(lost)} bundles, with sequence numbers {lost[0]} to {lost[-1]}"


_STEPS: tuple[Callable[[_Work], Iterator[Repaired]], ...] = (
    *(_leftovers, _small_files, _segments, _missing, _retry_sets, _log),
)
