"""
Logs made again from their objects, on a disk that never had them: what `quiver aof restore` does.

A log is built in a directory of another name, which is renamed last: whatever has the log's name is complete. It keeps
its number, because its objects belong to that. Every segment stays an object: nothing is fetched but what describes it.
Behind the newest one a segment without records is sealed, from whose file recovery learns where the log goes on. Its id
is far above all that the old disk can have given out: records that were never uploaded are lost, and none of their ids
is used again.

A log that exists takes over the objects that its manifest does not know.
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
from quiver.objects import ObjectLocation, ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem, directory_name
from quiver.primitives.disk.lock import hold

__all__ = ["RestoredLog", "restore_log", "streams_of", "take_over_objects"]

IDS_PASSED_OVER = 1 << 20
"""Segments that the old disk may have begun behind the newest object: 64 GiB of the smallest ones."""

_SEGMENT_ID_MAX = 0xFFFF_FFFF


@dataclass(slots=True)
class RestoredLog:
    """
    What was restored.

    Attributes:
        directory: of the log; where it would be, if nothing was done.
        segments: those that are objects, oldest first; of a log that existed, those that it did not know.
        damaged: what is wrong with other objects.
        left_out: keys of objects whose segment another object has.
        missing: ranges of the log's record numbers that no segment has: the first, and one behind the last.
        next_segment_id: of what is appended from now on; None for a log that existed.
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
        """Records in the segments."""
        return sum(one.footer.record_count for one in self.segments)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.damaged and not self.missing


def streams_of(objects: ObjectTier) -> list[int]:
    """
    Return the numbers of the logs that have objects.

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
    Make the log *stream_id* in the new directory *directory* from its objects. Durable and complete on return.

    Args:
        fs: the file system.
        directory: of the log; must not exist. No manager may have the directory above it open.
        objects: where the objects are.
        stream_id: the log's number.
        clock: time.
        observer: where counts and events go.
        dry_run: look, and write nothing.

    Raises:
        UsageError: *directory* exists, or the log has no objects.
        CorruptionError: none of its objects is what its name says.
        DirectoryInUseError: a manager has the directory above it open.
        ObjectsUnavailableError: try again; there is no *directory*.
        OSError: the disk refused; there is no *directory*.
    """
    root, _, name = directory_name(directory).rpartition("/")
    partial = f"{root or '.'}/.{name}.restoring"
    copies = Copies(fs, f"{partial}/{WARM}", objects=lambda: objects)
    listed = list_objects(copies, stream_id, now_ms=clock.now_ns() // 1_000_000)
    if listed.highest_id < 0:
        raise UsageError(f"no object below {object_folder(stream_id)}/ is a segment of a log")
    restored = _summary(stream_id, directory, listed)
    empty_id = min(listed.highest_id + IDS_PASSED_OVER, _SEGMENT_ID_MAX - 1)
    restored.next_segment_id = empty_id + 1
    if dry_run:
        return restored
    if fs.exists(directory):
        raise UsageError(f"{directory} exists: restore to a new directory")
    if not restored.segments:
        raise restored.damaged[-1]
    fs.make_dirs(root or ".")
    with contextlib.closing(_Held(fs, f"{root or '.'}/{LOCK_NAME}")):
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


def take_over_objects(
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
    Make the log in *directory* know all its objects: its manifest may be lost, damaged, or that of an older copy.

    Args:
        fs: the file system.
        directory: of the log; no manager may have it open.
        objects: where the objects are.
        location: of *objects*, for the log's settings.
        clock: time.
        observer: where counts and events go.
        dry_run: look, and write nothing.

    Raises:
        UsageError: it holds no segment any more: move it away, and the log is restored as a new one.
        DirectoryInUseError: a manager has it open.
        ObjectsUnavailableError: try again.
        OSError: the disk refused.
    """
    files = LogFiles(directory, fs=fs)
    stream_id, pointer = files.stream_id(), files.pointer()
    if stream_id is None or (pointer is None and not files.names()):
        raise UsageError(f"{directory} holds no segments: move it away, and the log is restored as a new one")
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


class _Held:
    """The lock of a directory of logs."""

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
    Return the segments that begin behind the end of the one before; the others are damaged: nothing else vouches for
    what an object says of its place in the log.
    """
    kept: list[TierEntry] = []
    for one in segments:
        header, before = one.header, kept[-1].footer if kept else None
        behind = 0 if before is None else before.base_record_count + before.record_count
        if header.base_record_count < behind or (before is not None and header.base_offset < before.durable_bytes):
            key = one.remote.object_key if one.remote else ""
            reason = f"it begins at record {header.base_record_count}, the segment before it ends at record {behind}"
            damaged.append(CorruptionError(key, 0, reason))
        else:
            kept.append(one)
    return kept


def _holes(segments: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    ends = [(first, first + count) for first, count in segments]
    return [(behind, first) for (_, behind), (first, _) in itertools.pairwise(ends) if first > behind]


def _clear(fs: FileSystem, partial: str) -> None:
    """Remove what an earlier call left, which a crash cut off."""
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
    """Make the file of a sealed segment without records behind *newest*; return the log's durable bytes with it."""
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
