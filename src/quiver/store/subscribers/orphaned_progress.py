"""
Sealed segments that are gone although a subscriber had begun them: somebody else removed their files.

What proves it is an entry of a progress file with bundles to come. It is written only for a segment that was there, and
whatever removes one says so first: every progress file has it resolved, the drop ledger or a record of another core
names it, or it lies in quarantine. A number without an entry proves nothing, and beside an object tier nothing is said:
see docs/decisions/0060-what-shows-that-a-segment-was-removed.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_checked
from quiver.store.format.cores import EVICTED
from quiver.store.format.drop_ledger import DROP_LEDGER_BYTES_MAX, decode_drop_ledger
from quiver.store.format.names import (
    COLD_LIST,
    COLD_MARK,
    DROP_LEDGER,
    QUARANTINE_DIR,
    SEGMENTS_DIR,
    parse_segment_name,
    progress_name,
    segment_name,
)
from quiver.store.format.progress import Progress, SegmentProgress
from quiver.store.subscribers.progress_store import SubscriberFile, find_subscribers, load_progress

__all__ = ["MissingSegment", "explained", "find_missing", "give_up", "without_missing"]

_NAME_CHARS = len(segment_name(0))


class MissingSegment(NamedTuple):
    """A segment that is nowhere, and how many bundles of it a subscriber had still to get."""

    seq: int
    subscriber: str
    bundles: int
    path: str


def find_missing(fs: FileSystem, root: str, subscribers: Sequence[str] | None = None) -> list[MissingSegment]:
    """
    Return what was removed by hand of the store at *root*, by subscriber and number. Reads only; safe beside a writer.

    *subscribers* are those to look at, all by default. When a file is damaged that may say where a segment went, the
    answer is empty: then nobody can tell.

    Raises:
        OSError: a file could not be read.
    """
    if subscribers is None:
        subscribers = find_subscribers(fs, root)
    before = _progress(fs, root, subscribers)
    found = [one for subscriber, progress in before.items() for one in _begun(fs, root, subscriber, progress)]
    if not found:
        return []
    known = explained(fs, root)
    if known is None:
        return []
    found = [one for one in found if one.seq not in known]
    # Once more: what left the ledger since is resolved there. A drop goes from the ledger to progress, never back.
    after = _progress(fs, root, subscribers) if found else {}
    return [one for one in found if one.subscriber in after and _left(after[one.subscriber], one.seq)]


def _progress(fs: FileSystem, root: str, subscribers: Sequence[str]) -> dict[str, Progress]:
    # One that was begun anew from its backup speaks of segments that went since then, rightly: its copy tells.
    kept = _names(fs, f"{root}/{QUARANTINE_DIR}")
    found: dict[str, Progress] = {}
    for subscriber in subscribers:
        if any(name.startswith(f"{progress_name(subscriber)}.") for name in kept):
            continue
        try:
            progress = load_progress(fs, root, subscriber)
        except CorruptionError:
            continue
        if progress is not None:
            found[subscriber] = progress
    return found


def _begun(fs: FileSystem, root: str, subscriber: str, progress: Progress) -> Iterable[MissingSegment]:
    for seq in progress.entries:
        path = f"{root}/{SEGMENTS_DIR}/{segment_name(seq)}"
        left = _left(progress, seq)
        if left and not fs.exists(path):
            yield MissingSegment(seq, subscriber, left, path)


def give_up(fs: FileSystem, root: str, one: MissingSegment) -> None:
    """
    Resolve what *one* subscriber had still to get of a segment that is gone. Durable on return.

    Raises:
        DirectoryInUseError: somebody works for the subscriber.
        OSError: the disk refused; nothing changed.
    """
    with SubscriberFile(fs, root, one.subscriber) as file:
        progress = file.written
        entry = None if progress is None else progress.entries.get(one.seq)
        if progress is not None and entry is not None:
            full = SegmentProgress(entry.bundle_count, (1 << entry.bundle_count) - 1)
            file.put(Progress(progress.oldest_incomplete, {**progress.entries, one.seq: full}))


def without_missing(fs: FileSystem, root: str, progress: Progress) -> Progress:
    """
    Return *progress* for the copy of a store at *root*: without entries of segments that the copy does not have.

    They speak of what was sealed, or went, while the copy was made. What its own ledger names keeps its entry.

    Raises:
        OSError: a file could not be read.
    """
    begun = {one.seq for one in _begun(fs, root, "", progress)}
    known = explained(fs, root) if begun else None
    if known is None or begun <= known:
        return progress
    entries = {seq: entry for seq, entry in progress.entries.items() if seq not in begun or seq in known}
    return Progress(progress.oldest_incomplete, entries, progress.flags)


def _left(progress: Progress, seq: int) -> int:
    entry = progress.entries.get(seq)
    # Without a single resolved bundle it was not begun: an entry whose number was given to another segment is that.
    return entry.bundle_count - entry.bitmap.bit_count() if entry is not None and entry.bitmap else 0


def explained(fs: FileSystem, root: str) -> set[int] | None:
    """
    Return the numbers of segments whose absence something at *root* accounts for; None when what may account for one
    is damaged, or is in an object tier.

    Raises:
        OSError: a file could not be read.
    """
    if fs.exists(f"{root}/{SEGMENTS_DIR}/{COLD_LIST}") or fs.exists(f"{root}/{COLD_MARK}"):
        return None
    found: set[int] = set()
    # In the order in which a removed segment is passed on: from the record of another core to the ledger.
    for name in (EVICTED, DROP_LEDGER):
        try:
            dropped = read_checked(fs, f"{root}/{name}", decode_drop_ledger, DROP_LEDGER_BYTES_MAX) or ()
        except CorruptionError:
            return None
        found.update(entry.seq for entry in dropped)
    for name in _names(fs, f"{root}/{QUARANTINE_DIR}"):
        if name.startswith((DROP_LEDGER, EVICTED, COLD_LIST)):
            return None
        seq = parse_segment_name(name[:_NAME_CHARS])
        if seq is not None:
            found.add(seq)
    return found


def _names(fs: FileSystem, directory: str) -> list[str]:
    return fs.list_dir(directory) if fs.exists(directory) else []
