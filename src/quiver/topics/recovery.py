"""
The steps of opening a topic, in order. Recovering twice has the same result as recovering once.

====  ==================================================================================================
step  action and reason
====  ==================================================================================================
1     create and sync the directory: a name in it may not be durable yet
2     remove the temporary file of a replaced checkpoint
3     read the checkpoint, a hint and a low bound for offsets; count and quarantine it if it is damaged
4     read the first frame of every file; remove files below the checkpoint's `start_offset`: their deletion was
      interrupted
5     empty the files after the last one that has a message: they have no complete frame
6     scan that last one to its end; copy, count and skip damage in its middle
7     truncate its torn tail. Bytes that were synced are not a torn tail: copy them first
8     write and sync again what the checkpoint does not record as synced: after a failed sync the kernel may consider
      pages clean that never reached the disk
9     continue after every offset that was found, synced or uploaded; after a gap, start a new file
====  ==================================================================================================
"""

from __future__ import annotations

import contextlib
import logging

from quiver.errors import CorruptionError, SettingsError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably
from quiver.primitives.disk.copying import keep_damaged
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.scan import is_zero
from quiver.topics.format.checkpoint import CHECKPOINT_BYTES_MAX, WalCheckpoint
from quiver.topics.format.names import QUARANTINE_DIR, WAL_CHECKPOINT
from quiver.topics.wal.files import FileMarks, FrameScanner, Good, Lost, RecoveredWal, WalFile, quarantine_damage
from quiver.topics.wal.local_files import LocalFile, base_name_of, in_ranges, load_checkpoint, local_files

__all__ = ["recover"]

_REWRITE_BYTES = 4 * 1024 * 1024


def recover(
    fs: FileSystem, directory: str, *, file_name: str, observer: Observer, next_offset_min: int = 0
) -> RecoveredWal:
    """
    Recover a topic's directory and return where to continue.

    *next_offset_min* is the lowest offset that no other process has given out.

    Raises:
        SettingsError: the directory has files with another name.
        OSError: the disk failed; nothing that was there is lost.
    """
    fs.make_dirs(directory)
    fs.sync_dir(directory)
    with contextlib.suppress(FileNotFoundError):
        fs.remove(f"{directory}/{WAL_CHECKPOINT}{TEMPORARY_SUFFIX}")
    found = _recover_files(fs, directory, file_name=file_name, observer=observer, next_offset_min=next_offset_min)
    invariant(found.next_offset >= next_offset_min, "no offset is given out twice")
    return found


def _recover_files(
    fs: FileSystem, directory: str, *, file_name: str, observer: Observer, next_offset_min: int
) -> RecoveredWal:
    checkpoint = _checkpoint_or_none(fs, directory, observer)
    if checkpoint is not None and (called := base_name_of(checkpoint)) not in {file_name, None}:
        # With another name the topic would start from the beginning, next to its existing files.
        raise SettingsError(f"the files in {directory} are called {called}, and wal.file_name is {file_name}")
    found = local_files(fs, directory, file_name=file_name, checkpoint=checkpoint)
    synced = checkpoint.last_offset if checkpoint is not None else -1
    floor = max(next_offset_min, synced + 1)
    at = max((index for index, one in enumerate(found) if one.first_offset is not None), default=-1)
    highest = max((one.seq for one in found), default=-1)
    seq = max(highest, checkpoint.file_seq if checkpoint is not None else -1) + 1
    spare = found[at + 1 :]
    if at < 0:
        spare = _emptied(fs, spare, was_synced=synced >= 0, observer=observer)
        return _go_on(fs, (), spare, next_offset=floor, seq=seq)
    end, next_offset, marks = _scan_to_end(fs, found[at], synced=synced, sealed=bool(spare), observer=observer)
    spare = _emptied(fs, spare, was_synced=synced >= next_offset, observer=observer)
    kept = in_ranges(found[: at + 1], next_offset=next_offset, newest_bytes=end)
    if checkpoint is not None:
        below = [one.path for one in kept[:-1] if one.next_offset <= checkpoint.start_offset]
        remove_durably(fs, below)
        kept = kept[len(below) :]
    if spare or max(next_offset, floor) > next_offset or kept[-1].seq < highest:
        # There is a file after it, a gap, or its number is not the last: nothing is appended to it.
        return _go_on(fs, tuple(kept), spare, next_offset=max(next_offset, floor), seq=seq)
    active = fs.open_write(kept[-1].path)
    return RecoveredWal(tuple(kept[:-1]), active, kept[-1].seq, kept[-1].first_offset, end, next_offset, marks)


def _emptied(fs: FileSystem, spare: list[LocalFile], *, was_synced: bool, observer: Observer) -> list[LocalFile]:
    for one in spare:
        if one.size_bytes:
            torn = Lost(0, one.size_bytes, "no complete message in it", 0, None)
            file = fs.open_write(one.path)
            try:
                _cut(fs, file, torn, end=0, was_synced=was_synced, observer=observer)
                file.sync()
            finally:
                file.close()
    remove_durably(fs, [one.path for one in spare[:-1]])
    return spare[-1:]


def _go_on(
    fs: FileSystem, sealed: tuple[WalFile, ...], spare: list[LocalFile], *, next_offset: int, seq: int
) -> RecoveredWal:
    if spare:
        active = fs.open_write(spare[0].path)
        return RecoveredWal(sealed, active, spare[0].seq, next_offset, 0, next_offset)
    return RecoveredWal(sealed, None, seq, next_offset, 0, next_offset)


def _checkpoint_or_none(fs: FileSystem, directory: str, observer: Observer) -> WalCheckpoint | None:
    loaded = load_checkpoint(fs, directory)
    if not isinstance(loaded, CorruptionError):
        return loaded
    data = fs.read_all(loaded.path, size_max=CHECKPOINT_BYTES_MAX)
    keep_damaged(fs, f"{directory}/{QUARANTINE_DIR}", WAL_CHECKPOINT, data)
    observer.count("danube_wal_damage_total", 1)
    observer.event(
        "danube.wal.damaged", level=logging.ERROR, path=loaded.path, offset=loaded.offset, reason=loaded.reason
    )
    return None


def _scan_to_end(
    fs: FileSystem, newest: LocalFile, *, synced: int, sealed: bool, observer: Observer
) -> tuple[int, int, FileMarks]:
    """Return the end of a file's good frames, the next offset, and marks. All frames are durable on return."""
    marks = FileMarks()
    end = 0
    next_offset = newest.first_offset or 0
    unsynced_from: int | None = None
    torn: Lost | None = None
    with FrameScanner(fs, newest.path, position=0, end=None, expected=next_offset, marks=marks) as scanner:
        while (step := scanner.step()) is not None:
            if isinstance(step, Good):
                if unsynced_from is None and step.first_offset + len(step.frames) > synced + 1:
                    unsynced_from = step.position + step.frames[max(0, synced + 1 - step.first_offset)][1]
                end, next_offset = scanner.position, scanner.expected
            elif step.next_offset is None:
                torn = step
            else:
                quarantine_damage(fs, newest.path, step, observer)
    file = fs.open_write(newest.path)
    try:
        if torn is not None:
            _cut(fs, file, torn, end=end, was_synced=sealed or synced >= next_offset, observer=observer)
        if unsynced_from is not None:
            _write_again(file, unsynced_from, end)
        if torn is not None or unsynced_from is not None:
            file.sync()
    finally:
        file.close()
    return end, next_offset, marks


def _cut(fs: FileSystem, file: File, torn: Lost, *, end: int, was_synced: bool, observer: Observer) -> None:
    size = torn.end - torn.start
    if was_synced:
        quarantine_damage(fs, file.path, torn, observer)
    elif not is_zero(memoryview(file.pread(size, torn.start))):
        observer.count("danube_wal_torn_bytes_total", size)
        observer.event("danube.wal.torn", path=file.path, offset=torn.start, size_bytes=size)
    file.truncate(end)


def _write_again(file: File, start: int, end: int) -> None:
    while start < end:
        data = file.pread(min(_REWRITE_BYTES, end - start), start)
        file.pwrite(data, start)
        start += len(data)
