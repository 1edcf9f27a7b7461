"""
What `quiver stats` counts, from the files alone. Reads only, safe beside a live writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quiver.errors import Damaged
from quiver.primitives.files import FileSystem
from quiver.primitives.scan import Frame
from quiver.store.check import SMALL_FILE_BYTES_MAX, require_store
from quiver.store.format.names import (
    SEGMENTS_DIR,
    WAL_ACTIVE,
    WAL_DIR,
    parse_progress_name,
    parse_segment_name,
    parse_wal_rotated_name,
)
from quiver.store.format.progress import Progress, decode_progress
from quiver.store.segment.info import SegmentInfo
from quiver.store.segment.reader import SegmentReader

__all__ = ["StoreStats", "SubscriberStats", "collect_stats"]


@dataclass(frozen=True, slots=True)
class SubscriberStats:
    """
    How far a subscriber is behind, in sealed bundles. `problem` says why it is not known.
    """

    subscriber: str
    lag_bundles: int | None
    lag_segments: int | None
    oldest_age_s: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StoreStats:
    """
    One look at a store. Ages count from ingestion; None when nothing is sealed.
    """

    directory: str
    segments: int
    bundles: int
    segment_bytes: int
    wal_files: int
    wal_bytes: int
    oldest_age_s: float | None
    subscribers: tuple[SubscriberStats, ...]
    unreadable: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """
        Return all of it as plain values.
        """
        return asdict(self)


def collect_stats(fs: FileSystem, root: str, *, now_ns: int) -> StoreStats:
    """
    Count what the store at *root* holds.

    Raises:
        WrongUse: *root* is not a store.
        OSError: a file could not be read.
    """
    require_store(fs, root)
    # Progress first: what is acknowledged and deleted in between makes the lag too large, never negative.
    progress = _progress(fs, root)
    segments, unreadable = _segments(fs, root)
    wal_sizes = _wal_sizes(fs, root)
    return StoreStats(
        directory=root,
        segments=len(segments),
        bundles=sum(segment.bundle_count for segment in segments),
        segment_bytes=sum(segment.size_bytes for segment in segments),
        wal_files=len(wal_sizes),
        wal_bytes=sum(wal_sizes),
        oldest_age_s=_oldest_age_s(segments, now_ns),
        subscribers=tuple(_lag(name, found, segments, now_ns) for name, found in progress),
        unreadable=tuple(unreadable),
    )


def _segments(fs: FileSystem, root: str) -> tuple[list[SegmentInfo], list[str]]:
    directory = f"{root}/{SEGMENTS_DIR}"
    found: list[SegmentInfo] = []
    unreadable: list[str] = []
    for name in fs.list_dir(directory) if fs.exists(directory) else []:
        if parse_segment_name(name) is None:
            continue
        try:
            found.append(SegmentReader.open(fs, f"{directory}/{name}").info)
        except FileNotFoundError:
            continue  # delivered and deleted since the listing
        except Damaged as damage:
            unreadable.append(str(damage))
    return found, unreadable


def _wal_sizes(fs: FileSystem, root: str) -> list[int]:
    directory = f"{root}/{WAL_DIR}"
    sizes: list[int] = []
    for name in fs.list_dir(directory) if fs.exists(directory) else []:
        if name != WAL_ACTIVE and parse_wal_rotated_name(name) is None:
            continue
        try:
            sizes.append(fs.stat(f"{directory}/{name}").size_bytes)
        except FileNotFoundError:
            continue
    return sizes


def _progress(fs: FileSystem, root: str) -> list[tuple[str, Progress | str]]:
    found: list[tuple[str, Progress | str]] = []
    for name in fs.list_dir(root):
        subscriber = parse_progress_name(name)
        if subscriber is None:
            continue
        path = f"{root}/{name}"
        try:
            answer = decode_progress(memoryview(fs.read_all(path, size_max=SMALL_FILE_BYTES_MAX)))
        except FileNotFoundError:
            continue
        problem = f"{path} is damaged; run quiver verify"
        found.append((subscriber, answer.value if isinstance(answer, Frame) else problem))
    return found


def _lag(subscriber: str, progress: Progress | str, segments: Sequence[SegmentInfo], now_ns: int) -> SubscriberStats:
    if isinstance(progress, str):
        return SubscriberStats(subscriber, None, None, None, progress)
    lag = 0
    behind: list[SegmentInfo] = []
    for segment in segments:
        entry = progress.entries.get(segment.seq)
        if entry is not None:
            left = segment.bundle_count - entry.bitmap.bit_count()
        else:
            left = 0 if segment.seq < progress.oldest_incomplete else segment.bundle_count
        if left > 0:
            lag += left
            behind.append(segment)
    return SubscriberStats(subscriber, lag, len(behind), _oldest_age_s(behind, now_ns))


def _oldest_age_s(segments: Sequence[SegmentInfo], now_ns: int) -> float | None:
    times = [segment.ingested_min_ns for segment in segments if segment.ingested_min_ns is not None]
    return (now_ns - min(times)) / 1e9 if times else None
