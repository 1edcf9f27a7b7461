"""
Local files superseded by another owner: it has given out the same offsets for other messages.

1. A process dies with messages on its disk that are not in the object store yet. 2. When its lease has expired, another
process takes over the topic, continues after the last object, and uploads its own messages with the same offsets.
3. The first process starts again. Its files would hide the other's messages, and would be deleted because objects have
these offsets.

Therefore, before a topic's files are opened, messages that were not uploaded from here are compared with the objects at
the same offsets. A file that differs is moved to the quarantine, complete, and reported: its messages had been
confirmed. `reappend.py` appends them again, from the first one that differs.

A file also differs if it has messages between two objects. 1. The other owner starts again, too, and its first file is
quarantined. 2. It continues after that file, so no object has the last offsets of it. 3. Messages that this process
wrote there would never be uploaded, because uploads only move forward.
"""

from __future__ import annotations

import itertools
import logging

from quiver.errors import CorruptionError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.topics.cold.pieces import ColdLost, ColdPiece, ColdReader
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.names import QUARANTINE_DIR, REAPPENDED_SUFFIX, SUPERSEDED_SUFFIX, superseded_name
from quiver.topics.wal.files import FileMarks, FrameScanner, Good
from quiver.topics.wal.local_files import load_checkpoint, local_files

__all__ = ["quarantine_superseded"]


def quarantine_superseded(
    fs: FileSystem, directory: str, cold: ColdReader, *, start: int, end: int, file_name: str, observer: Observer
) -> list[str]:
    """
    Move files that differ from *cold* between *start* and *end* to the quarantine; return their new paths.

    It is durable on return. After a crash in between, the next call moves the rest.

    Raises:
        TransientError: the object store cannot be reached, so the files cannot be compared.
        OSError: the disk failed.
    """
    oldest = cold.next_offset(0)
    if start >= end or oldest is None or not fs.exists(directory):
        return []
    start = max(start, oldest)  # earlier messages were in objects and were deleted by retention
    checkpoint = load_checkpoint(fs, directory)
    known = None if isinstance(checkpoint, CorruptionError) else checkpoint
    found = [
        (one.path, one.first_offset)
        for one in local_files(fs, directory, file_name=file_name, checkpoint=known)
        if one.first_offset is not None
    ]
    kept = []
    for at, (path, first) in enumerate(found):
        after = found[at + 1][1] if at + 1 < len(found) else end
        if first >= end or after <= start:
            continue
        differs_at = _difference(fs, path, first, cold, start=start, end=min(end, max(after, first + 1)))
        if differs_at is None:
            continue
        kept.append(_quarantine(fs, directory, path, differs_at))
        observer.event(
            "danube.wal.replaced", level=logging.ERROR, path=path, kept_as=kept[-1], first_offset=differs_at,
            reason="another owner wrote other messages there",
        )  # fmt: skip
    if kept:
        fs.sync_dir(f"{directory}/{QUARANTINE_DIR}")
        fs.sync_dir(directory)
    return kept


def _difference(fs: FileSystem, path: str, first: int, cold: ColdReader, *, start: int, end: int) -> int | None:
    """
    Return the offset of the first message of a file that differs from objects; None when no message is known to be
    missing there.
    """
    unknown: int | None = None
    with FrameScanner(fs, path, position=0, end=None, expected=first, marks=FileMarks()) as scanner:
        while scanner.expected < end and (step := scanner.step()) is not None:
            if isinstance(step, Good):
                offset = max(start, step.first_offset)
                damaged, differs = _difference_in(step, cold, offset, min(end, step.first_offset + len(step.frames)))
                unknown = damaged if unknown is None else unknown
                if differs is not None:
                    return differs if unknown is None else min(differs, unknown)
    return None


def _difference_in(step: Good, cold: ColdReader, offset: int, end: int) -> tuple[int | None, int | None]:
    """Return the first offset whose object is damaged, so that it cannot be compared, and the first that differs."""
    damaged: int | None = None
    while offset < end:
        found = cold.take(offset, end)
        if isinstance(found, ColdPiece):
            for body in found.bodies:
                _, begin, after = step.frames[offset - step.first_offset]
                if step.data[begin + FRAME_HEADER_BYTES : after] != body:
                    return damaged, offset
                offset += 1
        elif isinstance(found, ColdLost):
            damaged = offset if damaged is None else damaged
            offset = found.next_offset
        else:
            return damaged, None if cold.next_offset(offset) is None else offset
    return damaged, None


def _quarantine(fs: FileSystem, directory: str, path: str, differs_at: int) -> str:
    quarantine = f"{directory}/{QUARANTINE_DIR}"
    fs.make_dirs(quarantine)
    file_name = path.rpartition("/")[2]
    names = (f"{quarantine}/{superseded_name(file_name, number, differs_at)}" for number in itertools.count())
    target = next(name for name in names if not _is_taken(fs, name))
    fs.rename(path, target)
    return target


def _is_taken(fs: FileSystem, name: str) -> bool:
    done = name.removesuffix(SUPERSEDED_SUFFIX) + REAPPENDED_SUFFIX
    return fs.exists(name) or fs.exists(done)
