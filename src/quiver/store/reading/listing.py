"""
Who subscribes to a store and how each of them stands, from the files alone; and what an operator may change there.

`standings` takes no lock and changes nothing: it works beside a live writer. `drop` and `rewind` take the
subscriber's own lock for a moment, so they work beside a live store too, but never under an owner that is at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, SettingsError, UnknownSubscriberError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import holder_of, is_held
from quiver.settings import Profile
from quiver.store.cold.files import read_cold_list
from quiver.store.cold.register import info_of
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.format.names import SEGMENTS_DIR, subscriber_lock_name
from quiver.store.format.progress import Progress, progress_checksum
from quiver.store.reading.store_files import StoreFiles
from quiver.store.removal.skips import record_skipped
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader
from quiver.store.subscribers.progress_store import (
    PROGRESS_BYTES_MAX,
    delete,
    find_subscribers,
    load_progress,
    lock_subscriber,
    progress_path,
    save_rewound,
)
from quiver.store.subscribers.state import SegmentRef, Segments, Start, SubscriberState, start_segment

__all__ = ["Rewound", "SealedSegments", "Standing", "drop", "find_segments", "rewind", "standings"]


@dataclass(frozen=True, slots=True)
class SealedSegments:
    """
    The sealed segments of a directory, ascending, what could not be read of them, and which only the object tier
    has.
    """

    infos: tuple[SegmentInfo, ...]
    unreadable: tuple[str, ...]
    cold: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Standing:
    """
    How one subscriber stands, in sealed bundles. None: not known, `problem` says why.

    Attributes:
        subscriber: its id.
        lag_bundles: bundles that it has not resolved.
        lag_segments: segments with such bundles.
        lag_bytes: their share of these files' bytes.
        oldest_age_s: since the oldest segment with such a bundle was ingested.
        progress_age_s: since its progress file changed.
        is_owned: somebody works for it at this moment; None where the system does not tell.
        owner: who does, or did last: process and purpose.
        problem: why its progress is not known.
    """

    subscriber: str
    lag_bundles: int | None
    lag_segments: int | None
    lag_bytes: int | None
    oldest_age_s: float | None
    progress_age_s: float | None
    is_owned: bool | None
    owner: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Rewound:
    """
    What `rewind` did.

    Attributes:
        segment: of the next bundle that the subscriber gets; the number of the next segment when nothing is left.
        index: of that bundle.
        bundles_again: how many come once more.
        bundles_skipped: how many never come.
    """

    segment: int
    index: int
    bundles_again: int
    bundles_skipped: int


def find_segments(fs: FileSystem, root: str) -> SealedSegments:
    """
    Read the end of every segment of the store at *root*. One that a live writer deletes meanwhile is passed over.
    Of those that only the object tier has, the store's list says enough: nothing is asked of the tier.

    Raises:
        OSError: a file cannot be read.
    """
    directory = f"{root}/{SEGMENTS_DIR}"
    infos: list[SegmentInfo] = []
    unreadable: list[str] = []
    files = StoreFiles(fs, root)
    for seq in files.segments():
        try:
            reader = SegmentReader.open(fs, files.segment_path(seq))
        except FileNotFoundError:
            continue
        except CorruptionError as damage:
            unreadable.append(str(damage))
            continue
        infos.append(reader.info)
        reader.close()
    cold: list[SegmentInfo] = []
    try:
        # After the files: what goes to the tier in between is on the list.
        listing = read_cold_list(fs, directory)
    except (CorruptionError, SettingsError) as problem:
        unreadable.append(str(problem))
    else:
        local = {info.seq for info in infos}
        found = [] if listing is None else [entry for entry in listing.verified.values() if entry.seq not in local]
        cold = [info_of(entry, directory) for entry in found]
    every = tuple(sorted([*infos, *cold], key=lambda info: info.seq))
    return SealedSegments(every, tuple(unreadable), frozenset(info.seq for info in cold))


def standings(fs: FileSystem, root: str, *, now_ns: int) -> list[Standing]:
    """
    Return how every subscriber of the store at *root* stands, by name.

    Raises:
        OSError: a file cannot be read.
    """
    # Progress first: what is acknowledged and deleted in between makes the lag too large, never negative.
    known = [(subscriber, _load(fs, root, subscriber)) for subscriber in find_subscribers(fs, root)]
    segments = find_segments(fs, root).infos
    return [
        _standing(fs, root, subscriber, progress, segments, now_ns)
        for subscriber, progress in known
        if progress is not None
    ]


def _load(fs: FileSystem, root: str, subscriber: str) -> Progress | str | None:
    try:
        return load_progress(fs, root, subscriber)
    except CorruptionError as damage:
        return f"{damage.path} is damaged: {damage.reason}; run quiver repair"


def _standing(
    fs: FileSystem, root: str, subscriber: str, progress: Progress | str, segments: Sequence[SegmentInfo], now_ns: int
) -> Standing:
    lock = f"{root}/{subscriber_lock_name(subscriber)}"
    held, owner = is_held(fs, lock), holder_of(fs, lock)
    try:
        changed_ns = fs.stat(progress_path(root, subscriber)).modified_ns
    except FileNotFoundError:
        changed_ns = now_ns
    age_s = max(now_ns - changed_ns, 0) / 1e9
    if isinstance(progress, str):
        return Standing(subscriber, None, None, None, None, age_s, held, owner, progress)
    state = SubscriberState.from_progress(progress)
    bundles = size = 0
    behind: list[SegmentInfo] = []
    for segment in segments:
        left = _pending(state, segment)
        if left:
            bundles += left
            size += segment.size_bytes * left // segment.bundle_count
            behind.append(segment)
    times = [segment.ingested_min_ns for segment in behind if segment.ingested_min_ns is not None]
    oldest_s = (now_ns - min(times)) / 1e9 if times else None
    return Standing(subscriber, bundles, len(behind), size, oldest_s, age_s, held, owner)


def _pending(state: SubscriberState, segment: SegmentInfo) -> int:
    ref = SegmentRef(segment.seq, segment.bundle_count)
    # As the store does: an entry for another number of bundles counts for nothing.
    state.reconcile(ref)
    return state.pending_count(Segments([ref]))


def drop(fs: FileSystem, root: str, subscriber: str) -> int | None:
    """
    Remove a subscriber for good, durably; return how many sealed bundles it had not resolved (None: unknown).

    A live store notices at its next maintenance pass and lets its data go.

    Raises:
        DirectoryInUseError: somebody works for it: stop that first.
        UnknownSubscriberError: there is no such subscriber.
        UsageError: not a valid id.
        OSError: the files could not be removed.
    """
    _require(fs, root, subscriber)
    lock = lock_subscriber(fs, root, subscriber)
    try:
        progress = _load(fs, root, subscriber)
        pending = None
        if isinstance(progress, Progress):
            state = SubscriberState.from_progress(progress)
            pending = sum(_pending(state, segment) for segment in find_segments(fs, root).infos)
        delete(fs, root, subscriber)
    finally:
        lock.release()
    return pending


def rewind(fs: FileSystem, root: str, subscriber: str, to: Start, *, clock: Clock = SYSTEM_CLOCK) -> Rewound:
    """
    Let *subscriber* go on at *to*. Durable on return.

    Behind its position: what it resolved from *to* on is delivered again, as far as it still exists. Ahead of it: what
    it had not resolved before *to* is dropped for it, and recorded in its drop ledger before that.

    Args:
        fs: the file system.
        root: the store's directory.
        subscriber: its id.
        to: "earliest", a segment number, an aware datetime, or "latest": the next segment that is sealed.
        clock: says when something was skipped.

    Raises:
        DirectoryInUseError: somebody works for it: stop that first.
        UnknownSubscriberError: there is no such subscriber.
        CorruptionError: its progress file, or its drop ledger, is not what was written: `quiver repair`.
        UsageError: not a valid id, or *to* names nothing.
        OSError: the progress could not be written; it is what it was.
    """
    _require(fs, root, subscriber)
    lock = lock_subscriber(fs, root, subscriber)
    try:
        progress = load_progress(fs, root, subscriber)
        if progress is None:
            raise UnknownSubscriberError(f"there is no subscriber {subscriber!r} in {root}")
        infos = find_segments(fs, root).infos
        refs = [SegmentRef(info.seq, info.bundle_count, info.ingested_max_ns) for info in infos]
        state = SubscriberState.from_progress(progress)
        for ref in refs:
            state.reconcile(ref)
        segments = Segments(refs, next_seq=max(StoreFiles(fs, root).floor().value, state.named_max + 1))
        target = BundleRef(start_segment(to, segments), 0)
        before = state.pending_count(segments)
        profile = _profile(fs, root, subscriber)
        skipped = 0
        if target > state.position(segments):
            skipped = _skip(fs, root, subscriber, state, infos, target, now_ns=clock.now_ns())
            state.resolve_through(target, segments)
            moved = state.to_progress(segments, profile=profile, over_gaps=False)
        else:
            entries = {seq: entry for seq, entry in progress.entries.items() if seq < target.segment}
            moved = Progress(min(progress.oldest_incomplete, target.segment), entries)
            state = SubscriberState.from_progress(moved)
        if moved != progress:
            save_rewound(fs, root, subscriber, moved, profile=profile)
        position = state.position(segments)
        again = state.pending_count(segments) - before + skipped
        return Rewound(position.segment, position.index, again, skipped)
    finally:
        lock.release()


def _skip(
    fs: FileSystem,
    root: str,
    subscriber: str,
    state: SubscriberState,
    infos: Sequence[SegmentInfo],
    target: BundleRef,
    *,
    now_ns: int,
) -> int:
    """Record what *subscriber* has not resolved before *target*, durably; return how many bundles that is."""
    entries = []
    for info in infos:
        left = state.pending_in(SegmentRef.of(info))
        if info.seq < target.segment and left:
            size = info.size_bytes * left // info.bundle_count
            entries.append(DroppedSegment(info.seq, left, size, "skipped", now_ns))
    record_skipped(fs, root, subscriber, entries)
    return sum(entry.bundle_count for entry in entries)


def _require(fs: FileSystem, root: str, subscriber: str) -> None:
    # Before the lock is taken: that would make a lock file for a name that nobody has.
    if fs.exists(progress_path(root, subscriber)):
        return
    known = ", ".join(find_subscribers(fs, root)) or "none"
    raise UnknownSubscriberError(f"there is no subscriber {subscriber!r} in {root}; there are: {known}")


def _profile(fs: FileSystem, root: str, subscriber: str) -> Profile:
    data = fs.read_all(progress_path(root, subscriber), size_max=PROGRESS_BYTES_MAX)
    return "otap" if progress_checksum(memoryview(data)) == "crc32" else "spec"
