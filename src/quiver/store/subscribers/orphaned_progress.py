"""
Detect sealed segments whose files were removed manually although a subscriber had begun them.

The proof is a progress entry with pending bundles. An entry is written only for a segment that exists, and Quiver
records every removal before it happens: every progress file has the segment resolved, the drop ledger or a record of
another core lists it, or it is in quarantine. A number without an entry proves nothing, and with an object tier nothing
is reported: see docs/decisions/0060-detect-removed-segments.md.
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
    """A segment whose file is missing, and how many of its bundles a subscriber had not resolved."""

    seq: int
    subscriber: str
    bundles: int
    path: str


def find_missing(fs: FileSystem, root: str, subscribers: Sequence[str] | None = None) -> list[MissingSegment]:
    """
    Return the segments removed manually from the store at *root*, by subscriber and number.

    Only reads; safe while another process writes. *subscribers* defaults to all. If a file that may explain a missing
    segment is damaged, the result is empty: then the cause is unknown.

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
    # Read progress again: an entry that left the ledger meanwhile is resolved there. It never returns to the ledger.
    after = _progress(fs, root, subscribers) if found else {}
    return [one for one in found if one.subscriber in after and _left(after[one.subscriber], one.seq)]


def _progress(fs: FileSystem, root: str, subscribers: Sequence[str]) -> dict[str, Progress]:
    # Progress restored from a backup may list segments that were deleted since; the copy in quarantine shows that.
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
    Resolve the remaining bundles of a missing segment for its subscriber. Durable on return.

    Raises:
        DirectoryInUseError: another process owns the subscriber.
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
    Return *progress* for the copy of a store at *root*: without entries of segments that are not in the copy.

    Those segments were sealed or deleted while the copy was made. Segments in the copy's drop ledger keep their entry.

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
    # A segment without any resolved bundle was not begun: its number may have been given to another segment.
    return entry.bundle_count - entry.bitmap.bit_count() if entry is not None and entry.bitmap else 0


def explained(fs: FileSystem, root: str) -> set[int] | None:
    """
    Return the numbers of missing segments that are explained by a file at *root*.

    None if such a file is damaged, or if there is an object tier.

    Raises:
        OSError: a file could not be read.
    """
    if fs.exists(f"{root}/{SEGMENTS_DIR}/{COLD_LIST}") or fs.exists(f"{root}/{COLD_MARK}"):
        return None
    found: set[int] = set()
    # A removal moves from the record of another core to the ledger; read them in the same order.
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
