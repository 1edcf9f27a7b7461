"""
Restore of logs from their objects, on a disk that never had them: the implementation of `quiver aof restore`.

A log is built in a temporary directory, which is renamed last: a directory with the log's name is complete. The log
keeps its number, because its objects belong to that number. Segments stay objects; only their descriptions are fetched.
After the newest one an empty segment is sealed; recovery reads from its file where the log continues. Its id is far
above all ids that the old disk may have used: records that were never uploaded are lost, and none of their ids is used
again.

In an existing log, the objects that its manifest does not know are registered.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from quiver.aof.config import AofConfig, TierConfig
from quiver.aof.format.names import (
    ARCHIVE,
    DURABILITY,
    IDENTITY_NAME,
    LOCK_NAME,
    MANIFEST,
    POINTER_NAME,
    SEGMENTS,
    WARM,
    SegmentName,
    object_folder,
    object_key,
    parse_object_key,
)
from quiver.aof.format.record import join_record_id
from quiver.aof.format.sealed_pointer import SealedPointer, encode_pointer
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    encode_footer,
    encode_header,
)
from quiver.aof.format.tier_entry import TierEntry
from quiver.aof.manager import AofManager
from quiver.aof.reading.catalog import SealedSegment
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.manifest import ManifestLog
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.object_listing import ListedObjects, list_objects
from quiver.clock import Clock
from quiver.errors import CorruptionError, UsageError
from quiver.invariant import invariant
from quiver.objects import ObjectLocation, ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem, directory_name
from quiver.primitives.disk.lock import hold

__all__ = ["RestoredLog", "register_objects", "restore_log", "streams_of"]

SKIPPED_IDS = 1 << 20
"""How many segments the old disk may have begun after the newest object: 64 GiB of the smallest ones."""

_SEGMENT_ID_MAX = 0xFFFF_FFFF


@dataclass(slots=True)
class RestoredLog:
    """
    The result of a restore.

    Attributes:
        directory: the directory of the log; in a dry run, where it would be.
        segments: the segments that have objects, oldest first; for an existing log, only newly registered ones.
        damaged: the errors of damaged objects.
        left_out: keys of objects whose segment another object holds.
        missing: ranges of record numbers that no segment has: the first, and one past the last.
        next_segment_id: the id of the next segment; None for an existing log.
    """

    stream_id: int
    directory: str
    segments: list[TierEntry] = field(default_factory=list)
    damaged: list[CorruptionError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    next_segment_id: int | None = None

    @property
    def records(self) -> int:
        """How many records the segments have."""
        return sum(one.footer.record_count for one in self.segments)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.damaged and not self.missing


def streams_of(objects: ObjectTier) -> list[int]:
    """
    Return the numbers of all logs with objects.

    Raises:
        ObjectsUnavailableError, AccessDeniedError: they cannot be listed.
    """
    found = set()
    for info in objects.list_below(""):
        parsed = parse_object_key(info.key)
        if parsed is not None and object_key(*parsed) == info.key:
            found.add(parsed[0])
    return sorted(found)


def restore_log(
    fs: FileSystem,
    directory: str,
    objects: ObjectTier,
    stream_id: int,
    *,
    clock: Clock,
    observer: Observer,
    dry_run: bool = False,
) -> RestoredLog:
    """
    Restore the log *stream_id* from its objects into the new directory *directory*. Durable and complete on return.

    Args:
        fs: the file system.
        directory: the directory of the log; must not exist. No manager may have its parent open.
        objects: the object tier.
        stream_id: the log's number.
        clock: the time.
        observer: receives counts and events.
        dry_run: write nothing.

    Raises:
        UsageError: *directory* exists, or the log has no objects.
        CorruptionError: all of its objects are damaged.
        DirectoryInUseError: a manager has the parent of *directory* open.
        ObjectsUnavailableError: try again; *directory* was not created.
        OSError: the disk failed; *directory* was not created.
    """
    root, _, name = directory_name(directory).rpartition("/")
    partial = f"{root or '.'}/.{name}.restoring"
    copies = Copies(fs, f"{partial}/{WARM}", objects=lambda: objects)
    listed = list_objects(copies, stream_id, now_ms=clock.now_ns() // 1_000_000)
    if listed.highest_id < 0:
        raise UsageError(f"no object below {object_folder(stream_id)}/ is a segment of a log")
    restored = _summary(stream_id, directory, listed)
    empty_id = min(listed.highest_id + SKIPPED_IDS, _SEGMENT_ID_MAX - 1)
    restored.next_segment_id = empty_id + 1
    if dry_run:
        return restored
    if fs.exists(directory):
        raise UsageError(f"{directory} exists: restore to a new directory")
    if not restored.segments:
        raise restored.damaged[-1]
    fs.make_dirs(root or ".")
    with contextlib.closing(_DirectoryLock(fs, f"{root or '.'}/{LOCK_NAME}")):
        _clear(fs, partial)
        try:
            _build(fs, partial, restored, empty_id, clock=clock, observer=observer)
        except BaseException:
            with contextlib.suppress(OSError):
                _clear(fs, partial)
            raise
        fs.rename(partial, directory)
        fs.sync_dir(root or ".")
    return restored


def register_objects(
    fs: FileSystem,
    directory: str,
    objects: ObjectTier,
    *,
    location: ObjectLocation,
    clock: Clock,
    observer: Observer,
    dry_run: bool = False,
) -> RestoredLog:
    """
    Register all objects of the existing log in *directory*: its manifest may be lost, damaged, or from an older copy.

    Args:
        fs: the file system.
        directory: the directory of the log; no manager may have it open.
        objects: the object tier.
        location: the location of *objects*, for the log's settings.
        clock: the time.
        observer: receives counts and events.
        dry_run: write nothing.

    Raises:
        UsageError: the directory has no segments: move it away, and restore the log into a new directory.
        DirectoryInUseError: a manager has the log open.
        ObjectsUnavailableError: try again.
        OSError: the disk failed.
    """
    files = LogFiles(directory, fs=fs)
    stream_id, pointer = files.stream_id(), files.pointer()
    if stream_id is None or (pointer is None and not files.names()):
        raise UsageError(f"{directory} holds no segments: move it away and restore the log into a new directory")
    if dry_run:
        copies = Copies(fs, f"{directory}/{WARM}", objects=lambda: objects)
        known = {name.segment_id for name in files.names()} | {
            one.segment_id
            for one in files.tiers().entries.values()
            if one.remote is not None or copies.warm_bytes(one) == one.warm_bytes
        }
        listed = list_objects(
            copies, stream_id, now_ms=clock.now_ns() // 1_000_000, wanted=lambda one, _: one not in known
        )
        return _summary(stream_id, directory, listed)
    root, _, name = directory_name(directory).rpartition("/")
    config = AofConfig(preallocate_segments=0, tiers=TierConfig(objects=location))
    with AofManager.open(root or ".", config, fs=fs, clock=clock, observer=observer, background=False) as manager:
        listed = manager.log(name).tiers.rewrite_manifest()
    restored = _summary(stream_id, directory, listed)
    checked = check_log_directory(fs, name, directory, read_records=False)
    counts = ((one.base_record_count, one.records) for one in checked.segments if one.records is not None)
    restored.missing = _holes(counts)
    return restored


class _DirectoryLock:
    """The lock of a directory of logs, as a closable object."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._lock = hold(fs, path, owner="quiver aof restore")

    def close(self) -> None:
        """Release it."""
        self._lock.release()


def _summary(stream_id: int, directory: str, listed: ListedObjects) -> RestoredLog:
    segments = _in_order([listed.entries[one] for one in sorted(listed.entries)], listed.damaged)
    counts = ((one.header.base_record_count, one.footer.record_count) for one in segments)
    return RestoredLog(stream_id, directory, segments, listed.damaged, listed.left_out, _holes(counts))


def _in_order(segments: list[TierEntry], damaged: list[CorruptionError]) -> list[TierEntry]:
    """
    Return the segments that begin after the end of the one before. Others are damaged: the place that an object claims
    cannot be verified in any other way.
    """
    kept: list[TierEntry] = []
    for one in segments:
        header, before = one.header, kept[-1].footer if kept else None
        end = 0 if before is None else before.base_record_count + before.record_count
        if header.base_record_count < end or (before is not None and header.base_offset < before.durable_bytes):
            key = one.remote.object_key if one.remote else ""
            reason = f"it begins at record {header.base_record_count}, the segment before it ends at record {end}"
            damaged.append(CorruptionError(key, 0, reason))
        else:
            kept.append(one)
    return kept


def _holes(segments: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    ends = [(first, first + count) for first, count in segments]
    return [(end, first) for (_, end), (first, _) in itertools.pairwise(ends) if first > end]


def _clear(fs: FileSystem, partial: str) -> None:
    """Remove the leftovers of an earlier call that crashed."""
    if not fs.exists(partial):
        return
    for name in fs.list_dir(partial):
        path = f"{partial}/{name}"
        try:
            fs.list_dir(path)
        except NotADirectoryError:
            fs.remove(path)
        else:
            _clear(fs, path)
    fs.remove_dir(partial)


def _build(
    fs: FileSystem, partial: str, restored: RestoredLog, empty_id: int, *, clock: Clock, observer: Observer
) -> None:
    for folder in (SEGMENTS, ARCHIVE, WARM, DURABILITY):
        fs.make_dirs(f"{partial}/{folder}")
    replace_file(fs, f"{partial}/{IDENTITY_NAME}", f"{restored.stream_id}\n".encode())
    newest = restored.segments[-1]
    watermark = max(one.footer.coordinator_watermark for one in restored.segments)
    durable_bytes = _seal_empty(fs, partial, newest, empty_id, watermark, now_ns=clock.now_ns())
    pointer = SealedPointer(empty_id, watermark, durable_bytes)
    replace_file(fs, f"{partial}/{SEGMENTS}/{POINTER_NAME}", encode_pointer(pointer))
    manifest = ManifestLog(fs, partial, restored.stream_id, clock=clock, observer=observer)
    try:
        manifest.state.entries.update({one.segment_id: one for one in restored.segments})
        manifest.rotate()
    finally:
        manifest.close()
    for folder in (SEGMENTS, ARCHIVE, DURABILITY, WARM, MANIFEST):
        fs.sync_dir(f"{partial}/{folder}")
    fs.sync_dir(partial)


def _seal_empty(
    fs: FileSystem, partial: str, newest: TierEntry, segment_id: int, watermark: int, *, now_ns: int
) -> int:
    """Write a sealed segment without records after *newest*; return the log's durable bytes including it."""
    invariant(segment_id > newest.segment_id, "a restored log uses no segment id of the old disk")
    before = SealedSegment("", newest.header, newest.footer)
    header = SegmentHeader(
        segment_index=segment_id,
        base_record_count=before.next_base_record_count,
        base_offset=before.next_base_offset,
        max_size=AofConfig.segment_floor_bytes,
        created_at=now_ns,
        base_timestamp=newest.footer.last_timestamp,
        ext_id=newest.header.ext_id,
    )
    footer = SegmentFooter(
        segment_index=segment_id,
        base_record_count=header.base_record_count,
        record_count=0,
        durable_bytes=header.base_offset + HEADER_BYTES,
        last_record_id=join_record_id(segment_id, HEADER_BYTES),
        last_timestamp=newest.footer.last_timestamp,
        sealed_at=now_ns,
        checksum=0,
        ext_id=header.ext_id,
        coordinator_watermark=watermark,
    )
    file = fs.create(f"{partial}/{SEGMENTS}/{SegmentName(segment_id, header.base_offset, now_ns)}")
    try:
        file.pwrite(encode_header(header), 0)
        file.truncate(header.max_size)
        file.pwrite(encode_footer(footer), header.max_size - FOOTER_BYTES)
        file.sync()
    finally:
        file.close()
    return footer.durable_bytes
