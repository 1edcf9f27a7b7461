"""
The subscribers of a store and their lag, from its files alone, and the changes that an operator can make.

`summarize_subscribers` takes no lock and changes nothing. `drop` and `rewind` hold the subscriber's own lock for a
moment. So all of them work while a store is open, but `drop` and `rewind` fail while an owner works for the subscriber.
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
from quiver.store.subscribers.start import Start, start_segment
from quiver.store.subscribers.state import SegmentRef, Segments, SubscriberState

__all__ = [
    "RewindEffect",
    "SealedSegments",
    "SubscriberSummary",
    "drop",
    "find_segments",
    "rewind",
    "summarize_subscribers",
    "unresolved_by_segment",
]


@dataclass(frozen=True, slots=True)
class SealedSegments:
    """
    The sealed segments of a directory, ascending, the problems of those that cannot be read, and the numbers of those
    that are only in the object tier.
    """

    infos: tuple[SegmentInfo, ...]
    unreadable: tuple[str, ...]
    cold: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SubscriberSummary:
    """
    The lag of one subscriber, in sealed bundles. A value is None when it is unknown; `problem` has the reason.

    Attributes:
        subscriber: its id.
        lag_bundles: the bundles that it has not resolved.
        lag_segments: the segments that contain such bundles.
        lag_bytes: the share of these bundles in the bytes of the files.
        oldest_age_s: the time since the oldest segment with such a bundle was ingested.
        progress_age_s: the time since its progress file changed.
        is_owned: whether a process works for it now; None if the system does not report it.
        owner: that process or the last one, and its purpose.
        problem: why its progress is unknown.
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
class RewindEffect:
    """
    The effect of `rewind`.

    Attributes:
        segment: of the next bundle that the subscriber gets; the number of the next segment when there is none.
        index: of that bundle.
        bundles_again: how many bundles are delivered again.
        bundles_skipped: how many bundles are never delivered.
    """

    segment: int
    index: int
    bundles_again: int
    bundles_skipped: int


def find_segments(fs: FileSystem, root: str) -> SealedSegments:
    """
    Read the end of every segment of the store at *root*. A segment that a live writer deletes meanwhile is skipped.

    The metadata of segments in the object tier comes from the store's own list; the tier is not accessed.

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
        # After the files: a segment that moves to the tier in between is on the list.
        listing = read_cold_list(fs, directory)
    except (CorruptionError, SettingsError) as problem:
        unreadable.append(str(problem))
    else:
        local = {info.seq for info in infos}
        found = [] if listing is None else [entry for entry in listing.verified.values() if entry.seq not in local]
        cold = [info_of(entry, directory) for entry in found]
    every = tuple(sorted([*infos, *cold], key=lambda info: info.seq))
    return SealedSegments(every, tuple(unreadable), frozenset(info.seq for info in cold))


def summarize_subscribers(fs: FileSystem, root: str, *, now_ns: int) -> list[SubscriberSummary]:
    """
    Return the lag of every subscriber of the store at *root*, by name.

    Raises:
        OSError: a file cannot be read.
    """
    # Progress first: bundles that are acknowledged and deleted in between make the lag too large, never negative.
    known = [(subscriber, _load(fs, root, subscriber)) for subscriber in find_subscribers(fs, root)]
    segments = find_segments(fs, root).infos
    return [
        _lag_of(fs, root, subscriber, progress, segments, now_ns)
        for subscriber, progress in known
        if progress is not None
    ]


def unresolved_by_segment(fs: FileSystem, root: str) -> tuple[SealedSegments, dict[str, tuple[int, ...] | None]]:
    """
    Return the sealed segments of the store at *root*, and how many bundles of each a subscriber has not resolved.

    The counts are in the order of the segments; None if the progress of the subscriber is damaged.

    Raises:
        OSError: a file cannot be read.
    """
    known = [(subscriber, _load(fs, root, subscriber)) for subscriber in find_subscribers(fs, root)]
    sealed = find_segments(fs, root)
    unresolved: dict[str, tuple[int, ...] | None] = {}
    for subscriber, progress in known:
        if isinstance(progress, str):
            unresolved[subscriber] = None
        elif progress is not None:
            state = SubscriberState.from_progress(progress)
            unresolved[subscriber] = tuple(_pending(state, segment) for segment in sealed.infos)
    return sealed, unresolved


def _load(fs: FileSystem, root: str, subscriber: str) -> Progress | str | None:
    try:
        return load_progress(fs, root, subscriber)
    except CorruptionError as damage:
        return f"{damage.path} is damaged: {damage.reason}; run quiver repair"


def _lag_of(
    fs: FileSystem, root: str, subscriber: str, progress: Progress | str, segments: Sequence[SegmentInfo], now_ns: int
) -> SubscriberSummary:
    lock = f"{root}/{subscriber_lock_name(subscriber)}"
    is_owned, owner = is_held(fs, lock), holder_of(fs, lock)
    try:
        changed_ns = fs.stat(progress_path(root, subscriber)).modified_ns
    except FileNotFoundError:
        changed_ns = now_ns
    age_s = max(now_ns - changed_ns, 0) / 1e9
    if isinstance(progress, str):
        return SubscriberSummary(subscriber, None, None, None, None, age_s, is_owned, owner, progress)
    state = SubscriberState.from_progress(progress)
    bundles = size = 0
    incomplete: list[SegmentInfo] = []
    for segment in segments:
        left = _pending(state, segment)
        if left:
            bundles += left
            size += segment.size_bytes * left // segment.bundle_count
            incomplete.append(segment)
    times = [segment.ingested_min_ns for segment in incomplete if segment.ingested_min_ns is not None]
    oldest_s = (now_ns - min(times)) / 1e9 if times else None
    return SubscriberSummary(subscriber, bundles, len(incomplete), size, oldest_s, age_s, is_owned, owner)


def _pending(state: SubscriberState, segment: SegmentInfo) -> int:
    ref = SegmentRef(segment.seq, segment.bundle_count)
    # As in the store, an entry with another number of bundles does not count.
    state.reconcile(ref)
    return state.pending_count(Segments([ref]))


def drop(fs: FileSystem, root: str, subscriber: str) -> int | None:
    """
    Remove a subscriber, durably; return how many sealed bundles it had not resolved (None: unknown).

    A live store notices this at its next maintenance pass and may then delete the bundles.

    Raises:
        DirectoryInUseError: a process works for the subscriber: stop it first.
        UnknownSubscriberError: the subscriber does not exist.
        UsageError: the id is not valid.
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


def rewind(fs: FileSystem, root: str, subscriber: str, to: Start, *, clock: Clock = SYSTEM_CLOCK) -> RewindEffect:
    """
    Move *subscriber* to the position *to*. Durable on return.

    If *to* is before its position, the bundles that it resolved from there on are delivered again, if they still exist.
    If *to* is after its position, the bundles in between that it has not resolved are dropped for it; they are recorded
    in its drop ledger first.

    Args:
        fs: the file system.
        root: the store's directory.
        subscriber: its id.
        to: "earliest", a segment number, an aware datetime, or "latest": the next segment that is sealed.
        clock: the time that is recorded for skipped bundles.

    Raises:
        DirectoryInUseError: a process works for the subscriber: stop it first.
        UnknownSubscriberError: the subscriber does not exist.
        CorruptionError: its progress file or its drop ledger is damaged: run `quiver repair`.
        UsageError: the id is not valid, or *to* refers to no position.
        OSError: the progress could not be written and is unchanged.
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
        return RewindEffect(position.segment, position.index, again, skipped)
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
    """Record the bundles before *target* that *subscriber* has not resolved, durably; return how many there are."""
    entries = []
    for info in infos:
        left = state.pending_in(SegmentRef.of(info))
        if info.seq < target.segment and left:
            size = info.size_bytes * left // info.bundle_count
            entries.append(DroppedSegment(info.seq, left, size, "skipped", now_ns))
    record_skipped(fs, root, subscriber, entries)
    return sum(entry.bundle_count for entry in entries)


def _require(fs: FileSystem, root: str, subscriber: str) -> None:
    # Before the lock is taken: that would create a lock file for an unknown subscriber.
    if fs.exists(progress_path(root, subscriber)):
        return
    known = ", ".join(find_subscribers(fs, root)) or "none"
    raise UnknownSubscriberError(f"there is no subscriber {subscriber!r} in {root}; there are: {known}")


def _profile(fs: FileSystem, root: str, subscriber: str) -> Profile:
    data = fs.read_all(progress_path(root, subscriber), size_max=PROGRESS_BYTES_MAX)
    return "otap" if progress_checksum(memoryview(data)) == "crc32" else "spec"
