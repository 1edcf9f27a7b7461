"""
Removing the directory of a drained core that no longer exists in the settings.

Everything in it is delivered and deleted by then, so a crash at any step leaves a directory with fewer files: the next
start opens it, finds nothing to deliver, and removes the rest.
"""

from __future__ import annotations

import contextlib

from quiver.errors import DirectoryInUseError, QuiverError
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import hold
from quiver.store.format.names import (
    COLD_LIST,
    COLD_MARK,
    CURSOR_NAME,
    DEAD_LETTER_DIR,
    QUARANTINE_DIR,
    SEGMENTS_DIR,
    STORE_LOCK,
    WAL_DIR,
    segment_numbers,
)
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.reading.log_tail import sealed_and_logged

__all__ = ["remove_drained"]


def remove_drained(fs: FileSystem, directory: str) -> bool:
    """
    Remove a closed store's *directory*, durably; return False if it stays.

    It stays while another process has it open, while it still has a segment or its list names objects of a tier, and
    while an exporter's dead letters are in it. It stays permanently if a sink has staged data there, or if there are
    damaged bytes in its quarantine: only an operator may discard those.

    Raises:
        OSError: the disk refused; the rest can be opened and removed later.
    """
    boxes = _letter_boxes(fs, directory)
    with contextlib.ExitStack() as locks:
        try:
            for one in (directory, *boxes):
                locks.callback(hold(fs, f"{one}/{STORE_LOCK}", owner="removal of a drained core").release)
        except DirectoryInUseError:
            return False
        if _must_stay(fs, directory) or any(_must_stay(fs, box) or _has_logged(fs, box) for box in boxes):
            return False
        for box in boxes:
            _empty(fs, box)
            remove_durably(fs, [f"{box}/{STORE_LOCK}"])
            fs.remove_dir(box)
        # The lock's own file last: until then no other process can open the directory that is being removed.
        _empty(fs, directory)
        remove_durably(fs, [f"{directory}/{STORE_LOCK}"])
    # A process that created a file in it meanwhile keeps it.
    with contextlib.suppress(OSError):
        fs.remove_dir(directory)
        fs.sync_dir(directory.rpartition("/")[0] or "/")
    return not fs.exists(directory)


def _letter_boxes(fs: FileSystem, directory: str) -> list[str]:
    """Return the stores of dead letters in the store at *directory*."""
    return [f"{directory}/{DEAD_LETTER_DIR}/{name}" for name in _names(fs, f"{directory}/{DEAD_LETTER_DIR}")]


def _empty(fs: FileSystem, directory: str) -> None:
    """Remove everything in a store's directory except its lock, durably."""
    # The log first: without its cursor, or without progress files, its contents would be delivered again.
    log = [name for name in _names(fs, f"{directory}/{WAL_DIR}") if name != CURSOR_NAME]
    remove_durably(fs, [f"{directory}/{WAL_DIR}/{name}" for name in log])
    for name in fs.list_dir(directory):
        path = f"{directory}/{name}"
        if name == STORE_LOCK:
            continue
        try:
            within = fs.list_dir(path)
        except NotADirectoryError:
            fs.remove(path)
            continue
        remove_durably(fs, [f"{path}/{inner}" for inner in within])
        fs.remove_dir(path)
    fs.sync_dir(directory)


def _must_stay(fs: FileSystem, directory: str) -> bool:
    if fs.exists(f"{directory}/{COLD_MARK}"):
        return True
    if any(_names(fs, f"{directory}/{kept}") for kept in (QUARANTINE_DIR, INCOMING_DIR)):
        return True
    names = _names(fs, f"{directory}/{SEGMENTS_DIR}")
    return COLD_LIST in names or bool(segment_numbers(names))


def _has_logged(fs: FileSystem, directory: str) -> bool:
    """Return whether the log of a store may have bundles that are in no segment."""
    try:
        return sealed_and_logged(fs, directory)[1] > 0
    except QuiverError:
        return True  # damaged: an operator has to decide


def _names(fs: FileSystem, directory: str) -> list[str]:
    return fs.list_dir(directory) if fs.exists(directory) else []
