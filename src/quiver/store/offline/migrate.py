"""
Converts a closed store to another format profile or slot table, for `quiver migrate`.

Both profiles are always readable, so the directory is a valid store at every moment. An interrupted migration continues
when it is called again. In order:

1. everything in the log is sealed, with the slot table that the log was written with
2. segments with a column that the profile does not have are written to new files, compared with the old ones, and only
  then renamed
3. the log, which is no longer needed, is replaced by an empty one that begins where it ended
4. progress files are rewritten with the same contents
5. all files are read back and checked

The log changes before the progress files: from then on the next open knows the new slot table. The same call completes
a migration that a crash interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from quiver.bundle import OTAP, OTAP_CONFIG_HASH, Adapter
from quiver.clock import Clock
from quiver.errors import CorruptionError, StoreFailedError, UsageError
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Damage, Frame
from quiver.settings import Profile
from quiver.store.cold.files import read_cold_list
from quiver.store.format.names import (
    SEGMENTS_DIR,
    WAL_ACTIVE,
    WAL_DIR,
    segment_name,
    segment_numbers,
)
from quiver.store.format.progress import encode_progress
from quiver.store.format.segment.file import (
    SegmentFooter,
    decode_segment_footer,
    encode_segment_footer,
    encode_segment_trailer,
)
from quiver.store.format.segment.ipc_table import decode_table, encode_table
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE
from quiver.store.format.wal_file import encode_wal_header
from quiver.store.number_floor import raise_floor
from quiver.store.offline.closed import drain, locked_for_writing
from quiver.store.reading.check import SMALL_FILE_BYTES_MAX, check_store, refuse_snapshot, require_store
from quiver.store.reading.listing import find_segments
from quiver.store.reading.store_files import StoreFiles
from quiver.store.reading.written_by import AdapterByHash, written_by
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.progress_store import find_subscribers, load_progress, lock_subscriber, progress_path
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState
from quiver.store.wal.replay import find_wal_files, scan_file

__all__ = ["Migrated", "migrate", "require_migratable"]

_EXTRA_COLUMN = "item_count"
"""A manifest of the `otap` profile may have this column, one of `spec` does not."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """
    The changes of a migration.

    Attributes:
        profile: the current profile of the directory.
        config_hash: the current hash in the header of the log.
        sealed_bundles: bundles that were only in the log before.
        segments_rewritten: segments whose manifest was rewritten.
        log_replaced: whether the log got a new header.
        progress_rewritten: subscribers whose file was rewritten.
    """

    profile: Profile
    config_hash: str
    sealed_bundles: int
    segments_rewritten: int
    log_replaced: bool
    progress_rewritten: int

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types."""
        return asdict(self)


def migrate(fs: FileSystem, root: str, *, profile: Profile, adapter: Adapter | None, clock: Clock) -> Migrated:
    """
    Convert the store at *root* to *profile* and *adapter*. It must be closed. Durable and checked on return.

    Args:
        fs: the file system.
        root: the store's directory.
        profile: the new profile of its files; open it with the same `format_profile`.
        adapter: the new slot table; None keeps the current one.
        clock: for the store that is opened to seal its log.

    Raises:
        DirectoryInUseError: a process has the store open, or works for one of its subscribers.
        CorruptionError: a file is damaged: run `quiver repair` first.
        UsageError: *root* is not a store, or is a snapshot, or has segments in an object tier.
        OSError: the disk reported an error; call it again.
    """
    with ExitStack() as locks:
        _begin(fs, root, locks)
        before = _bundle_count(fs, root)
        drain(fs, root, clock=clock)
        sealed = _bundle_count(fs, root) - before
        locks.enter_context(locked_for_writing(fs, root, owner="quiver migrate"))
        config_hash = _target_hash(fs, root, profile, adapter)
        rewritten = sum(_rewrite_segment(fs, f"{root}/{SEGMENTS_DIR}/{name}") for name in _segments(fs, root, profile))
        replaced = _replace_log(fs, root, config_hash)
        progress = sum(_rewrite_progress(fs, root, one, profile) for one in find_subscribers(fs, root))
        _require_valid(fs, root)
    return Migrated(profile, config_hash.hex(), sealed, rewritten, replaced, progress)


def require_migratable(fs: FileSystem, root: str) -> None:
    """
    Check that `migrate` can start with the store at *root*; change nothing. Call it for all cores of a store before the
    first one is migrated: a store whose cores have different profiles cannot be opened.

    Raises:
        DirectoryInUseError, CorruptionError, UsageError, OSError: as `migrate`.
    """
    with ExitStack() as locks:
        _begin(fs, root, locks)
        locks.enter_context(locked_for_writing(fs, root, owner="quiver migrate"))


def _begin(fs: FileSystem, root: str, locks: ExitStack) -> None:
    """Refuse stores that cannot be migrated, and lock all subscribers as long as *locks* is open."""
    require_store(fs, root)
    refuse_snapshot(fs, root)
    if read_cold_list(fs, f"{root}/{SEGMENTS_DIR}") is not None:
        raise UsageError(
            f"{root} has segments in an object tier, which are not migrated: take a snapshot, which contains them, "
            "restore it to a new directory, and migrate that"
        )
    # Before anything is changed: a process that works for a subscriber would write the old profile again.
    for subscriber in find_subscribers(fs, root):
        locks.callback(lock_subscriber(fs, root, subscriber).release)
    _require_valid(fs, root)


def _require_valid(fs: FileSystem, root: str) -> None:
    for finding in check_store(fs, root).findings:
        if finding.damaged:
            raise CorruptionError(finding.path, finding.offset, f"{finding.reason}; run quiver repair first")


def _bundle_count(fs: FileSystem, root: str) -> int:
    return sum(info.bundle_count for info in find_segments(fs, root).infos)


def _target_hash(fs: FileSystem, root: str, profile: Profile, adapter: Adapter | None) -> bytes:
    if profile == "otap":
        return OTAP_CONFIG_HASH
    if adapter is not None:
        return adapter.config_hash
    found = written_by(fs, root)
    # The constant of the other profile does not show the slot table: the default one or none was configured.
    return found.adapter.config_hash if isinstance(found.adapter, AdapterByHash) else OTAP.config_hash


# 2. Segments.


def _segments(fs: FileSystem, root: str, profile: Profile) -> list[str]:
    directory = f"{root}/{SEGMENTS_DIR}"
    if profile == "otap" or not fs.exists(directory):
        return []  # its readers accept a manifest without the column
    return [segment_name(seq) for seq in segment_numbers(fs.list_dir(directory))]


def _rewrite_segment(fs: FileSystem, path: str) -> bool:
    """Rewrite the segment at *path* without the extra column, if it has it. Durable on return."""
    mapping = fs.map_read(path)
    view = mapping.view()
    mapping.close()
    answer = decode_segment_footer(view)
    if not isinstance(answer, Frame):
        raise CorruptionError(path, len(view), "its footer can no longer be read")
    footer = answer.value
    at, end = footer.manifest_offset, footer.manifest_offset + footer.manifest_length
    table = decode_table(view[at:end], what="batch manifest", at=at)
    if isinstance(table, Damage):
        raise CorruptionError(path, table.offset, table.reason)
    if _EXTRA_COLUMN not in table.schema.names:
        return False
    if end != len(view) - (len(encode_segment_footer(footer)) + len(encode_segment_trailer(0))):
        raise CorruptionError(
            path, end, "its manifest is followed by data that this version does not know; the file was not changed"
        )
    _write_segment(fs, path, view[:at], footer, table)
    return True


def _write_segment(
    fs: FileSystem, path: str, streams: memoryview, footer: SegmentFooter, table: pa.RecordBatch
) -> None:
    # Not `drop_columns`: if two columns have that name, it finds neither.
    manifest = encode_table(table.select([name for name in table.schema.names if name != _EXTRA_COLUMN]))
    moved = SegmentFooter(
        footer.stream_count,
        footer.bundle_count,
        footer.directory_offset,
        footer.directory_length,
        footer.manifest_offset,
        len(manifest),
    )
    tail = manifest + encode_segment_footer(moved)
    tail += encode_segment_trailer(crc32(tail, crc32(streams)))
    temporary = path + TEMPORARY_SUFFIX
    remove_durably(fs, [temporary])  # a crash left it read-only
    file = fs.create(temporary)
    try:
        file.pwrite(streams, 0)
        file.pwrite(tail, len(streams))
        file.set_mode(0o440)
        file.sync()
    finally:
        file.close()
    _require_same(fs, path, temporary)
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0])


def _require_same(fs: FileSystem, path: str, temporary: str) -> None:
    old, new = SegmentReader.open(fs, path), SegmentReader.open(fs, temporary)
    new.verify()
    same = old.streams == new.streams and old.manifest.metadata == new.manifest.metadata
    count = old.bundle_count
    same = same and count == new.bundle_count
    same = same and all(old.manifest.refs(index) == new.manifest.refs(index) for index in range(count))
    same = same and all(old.ingested_at_ns(index) == new.ingested_at_ns(index) for index in range(count))
    old.close()
    new.close()
    if not same:
        raise StoreFailedError(f"{temporary} and {path} have different contents; nothing was replaced")


# 3. The log.


def _replace_log(fs: FileSystem, root: str, config_hash: bytes) -> bool:
    """
    Replace the log by an empty one with *config_hash* that starts where the log ended; return False when it has that
    hash.
    """
    directory = f"{root}/{WAL_DIR}"
    files = find_wal_files(fs, directory) if fs.exists(directory) else []
    if all(file.config_hash == config_hash for file in files):
        return False
    cursor = StoreFiles(fs, root).cursor()
    end = cursor
    for file in files:
        scan = scan_file(fs, file.path)
        needed = [one for one in scan.entries if one.entry.entry_type == ENTRY_TYPE_BUNDLE and one.end > cursor]
        if needed or scan.damage:
            raise StoreFailedError(f"{file.path} still contains bundles that are in no segment; call it again")
        end = max(end, scan.position_end)
    # The retired ones first: until the active file is replaced, all existing files have the same hash.
    remove_durably(fs, [file.path for file in files if file.number is not None])
    replace_file(fs, f"{directory}/{WAL_ACTIVE}", encode_wal_header(config_hash, end))
    return True


# 4. Progress.


def _rewrite_progress(fs: FileSystem, root: str, subscriber: str, profile: Profile) -> bool:
    progress = load_progress(fs, root, subscriber)
    if progress is None:
        return False
    infos = find_segments(fs, root).infos
    refs = [SegmentRef(info.seq, info.bundle_count) for info in infos]
    state = SubscriberState.from_progress(progress)
    segments = Segments(refs, next_seq=state.named_max + 1)
    state.advance(segments)
    written = state.to_progress(segments, profile=profile)
    data = encode_progress(written, profile=profile)
    path = progress_path(root, subscriber)
    if fs.read_all(path, size_max=SMALL_FILE_BYTES_MAX) == data:
        return False
    _require_same_progress(state, SubscriberState.from_progress(written), refs)
    # One of the profiles does not name finished segments that were deleted: store their number elsewhere first.
    raise_floor(fs, root, state.named_max + 1)
    replace_file(fs, path, data)
    return True


def _require_same_progress(old: SubscriberState, new: SubscriberState, refs: Sequence[SegmentRef]) -> None:
    pending = [Counter({ref.seq: state.pending_count(Segments([ref])) for ref in refs}) for state in (old, new)]
    if pending[0] != pending[1]:
        raise UsageError(
            "a segment has more bundles than a progress file of this profile can track: migrate after it is finished"
        )
