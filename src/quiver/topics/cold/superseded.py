"""
Local files whose messages another owner's have replaced.

1. A process dies with messages on its disk that are not in the object store yet. 2. When its lease is over, another
takes the topic, goes on behind what objects hold, and uploads messages of its own under the same offsets. 3. The first
one comes back. Its files would hide what the other wrote; and as objects hold these offsets, they would be deleted.

So before a topic's files are opened, what was not uploaded from here is compared with what objects have at these
offsets. A file that differs is moved to the quarantine, whole, and said: its messages were promised to somebody.
`reappend.py` appends them again, from the first one on that is not in objects as it is here.

A file also differs where it has messages between two objects. 1. The other one comes back, too, and its first file is
moved aside. 2. It goes on behind that file, so no object has the last offsets of it. 3. Messages that we wrote there
would never be uploaded any more: uploads only go forward.
"""

from __future__ import annotations

import itertools
import logging

from quiver.errors import CorruptionError
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem
from quiver.topics.cold.pieces import ColdLost, ColdPiece, ColdReader
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.names import QUARANTINE_DIR, REAPPENDED_SUFFIX, REPLACED_SUFFIX, replaced_name
from quiver.topics.wal.files import FileMarks, FrameScanner, Good
from quiver.topics.wal.local_files import load_checkpoint, local_files

__all__ = ["set_replaced_aside"]


def set_replaced_aside(
    fs: FileSystem, directory: str, cold: ColdReader, *, start: int, end: int, file_name: str, observer: Observer
) -> list[str]:
    """
    Move the files that have other messages than *cold* in *start* to below *end* to the quarantine; return where to.

    Durable on return. A crash in between leaves some of them for the next time.

    Raises:
        TransientError: the object store cannot be reached, so nobody can say.
        OSError: the disk failed.
    """
    oldest = cold.next_offset(0)
    if start >= end or oldest is None or not fs.exists(directory):
        return []
    start = max(start, oldest)  # what is below went by retention, and was in objects before
    checkpoint = load_checkpoint(fs, directory)
    known = None if isinstance(checkpoint, CorruptionError) else checkpoint
    found = [
        (one.path, one.first_offset)
        for one in local_files(fs, directory, file_name=file_name, checkpoint=known)
        if one.first_offset is not None
    ]
    kept = []
    for at, (path, first) in enumerate(found):
        behind = found[at + 1][1] if at + 1 < len(found) else end
        if first >= end or behind <= start:
            continue
        differs_at = _difference(fs, path, first, cold, start=start, end=min(end, max(behind, first + 1)))
        if differs_at is None:
            continue
        kept.append(_set_aside(fs, directory, path, differs_at))
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
    Return the first message of a file that is not in objects as it is here; None when none is known
    to be missing.
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
    """Return the first offset that is damaged in objects, so that nobody can say, and the first that differs there."""
    damaged: int | None = None
    while offset < end:
        found = cold.take(offset, end)
        if isinstance(found, ColdPiece):
            for body in found.bodies:
                _, begin, behind = step.frames[offset - step.first_offset]
                if step.data[begin + FRAME_HEADER_BYTES : behind] != body:
                    return damaged, offset
                offset += 1
        elif isinstance(found, ColdLost):
            damaged = offset if damaged is None else damaged
            offset = found.next_offset
        else:
            return damaged, None if cold.next_offset(offset) is None else offset
    return damaged, None


def _set_aside(fs: FileSystem, directory: str, path: str, differs_at: int) -> str:
    quarantine = f"{directory}/{QUARANTINE_DIR}"
    fs.make_dirs(quarantine)
    file_name = path.rpartition("/")[2]
    names = (f"{quarantine}/{replaced_name(file_name, number, differs_at)}" for number in itertools.count())
    target = next(name for name in names if not _is_taken(fs, name))
    fs.rename(path, target)
    return target


def _is_taken(fs: FileSystem, name: str) -> bool:
    done = name.removesuffix(REPLACED_SUFFIX) + REAPPENDED_SUFFIX
    return fs.exists(name) or fs.exists(done)
