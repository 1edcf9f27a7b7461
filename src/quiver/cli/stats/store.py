"""The figures of `quiver stats`, read from files. Safe while a writer runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cores.instances import instance_roots
from quiver.store.format.names import (
    DEAD_LETTER_DIR,
    QUARANTINE_DIR,
    WAL_ACTIVE,
    WAL_DIR,
    parse_wal_rotated_name,
)
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.limits.tree_bytes import tree_bytes
from quiver.store.reading.listing import SubscriberSummary, find_segments, summarize_subscribers

__all__ = ["CoreStats", "StoreStats", "SubscriberStats", "collect_stats"]


@dataclass(frozen=True, slots=True)
class SubscriberStats:
    """The lag of a subscriber in sealed bundles, over all cores. `problem` is the reason if it is unknown."""

    subscriber: str
    lag_bundles: int | None
    lag_segments: int | None
    lag_bytes: int | None
    oldest_age_s: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CoreStats:
    """
    The sizes of one instance: sealed segments, segments that are only in the object tier, log, staged batches of Spark
    sinks, dead letters, and the sum.
    """

    directory: str
    segments: int
    bundles: int
    segment_bytes: int
    wal_files: int
    wal_bytes: int
    quarantine_files: int
    oldest_age_s: float | None
    cold_segments: int = 0
    cold_bytes: int = 0
    staged_bytes: int = 0
    dead_letter_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The figures of a store, summed over its cores. Ages are since ingestion; None without sealed bundles."""

    directory: str
    segments: int
    bundles: int
    segment_bytes: int
    wal_files: int
    wal_bytes: int
    quarantine_files: int
    oldest_age_s: float | None
    subscribers: tuple[SubscriberStats, ...]
    cores: tuple[CoreStats, ...]
    unreadable: tuple[str, ...]
    cold_segments: int = 0
    cold_bytes: int = 0
    staged_bytes: int = 0
    dead_letter_bytes: int = 0
    disk_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict."""
        return asdict(self)


def collect_stats(
    fs: FileSystem, root: str, *, now_ns: int, on_progress: Callable[[str], None] | None = None
) -> StoreStats:
    """
    Return the figures of the store at *root*. *on_progress* is called with each path that is read.

    Raises:
        UsageError: *root* is not a store.
        OSError: a file could not be read.
    """
    cores: list[CoreStats] = []
    lags: dict[str, list[SubscriberSummary]] = {}
    unreadable: list[str] = []
    roots = instance_roots(fs, root)
    for one in roots:
        if on_progress is not None:
            on_progress(one)
        # Read progress first: acknowledgements and deletions in between make the lag too large, never negative.
        for found in summarize_subscribers(fs, one, now_ns=now_ns):
            lags.setdefault(found.subscriber, []).append(found)
        core, problems = _core(fs, one, now_ns)
        cores.append(core)
        unreadable += problems
    return StoreStats(
        directory=root,
        segments=sum(core.segments for core in cores),
        bundles=sum(core.bundles for core in cores),
        segment_bytes=sum(core.segment_bytes for core in cores),
        wal_files=sum(core.wal_files for core in cores),
        wal_bytes=sum(core.wal_bytes for core in cores),
        quarantine_files=sum(core.quarantine_files for core in cores),
        oldest_age_s=_oldest(core.oldest_age_s for core in cores),
        subscribers=tuple(_together(lags[name]) for name in sorted(lags)),
        cores=tuple(cores),
        unreadable=tuple(unreadable),
        cold_segments=sum(core.cold_segments for core in cores),
        cold_bytes=sum(core.cold_bytes for core in cores),
        staged_bytes=sum(core.staged_bytes for core in cores),
        dead_letter_bytes=sum(core.dead_letter_bytes for core in cores),
        disk_bytes=sum(core.disk_bytes for core in cores),
    )


def _core(fs: FileSystem, root: str, now_ns: int) -> tuple[CoreStats, tuple[str, ...]]:
    sealed = find_segments(fs, root)
    wal_sizes = _wal_sizes(fs, root)
    times = [info.ingested_min_ns for info in sealed.infos if info.ingested_min_ns is not None]
    core = CoreStats(
        directory=root,
        segments=len(sealed.infos),
        bundles=sum(info.bundle_count for info in sealed.infos),
        segment_bytes=sum(info.size_bytes for info in sealed.infos if info.seq not in sealed.cold),
        wal_files=len(wal_sizes),
        wal_bytes=sum(wal_sizes),
        quarantine_files=len(_names(fs, f"{root}/{QUARANTINE_DIR}")),
        oldest_age_s=(now_ns - min(times)) / 1e9 if times else None,
        cold_segments=len(sealed.cold),
        cold_bytes=sum(info.size_bytes for info in sealed.infos if info.seq in sealed.cold),
        staged_bytes=tree_bytes(fs, f"{root}/{INCOMING_DIR}"),
        dead_letter_bytes=tree_bytes(fs, f"{root}/{DEAD_LETTER_DIR}"),
        disk_bytes=tree_bytes(fs, root),
    )
    return core, sealed.unreadable


def _names(fs: FileSystem, directory: str) -> list[str]:
    try:
        return fs.list_dir(directory)
    except FileNotFoundError:
        return []


def _wal_sizes(fs: FileSystem, root: str) -> list[int]:
    directory = f"{root}/{WAL_DIR}"
    sizes: list[int] = []
    for name in _names(fs, directory):
        if name != WAL_ACTIVE and parse_wal_rotated_name(name) is None:
            continue
        try:
            sizes.append(fs.stat(f"{directory}/{name}").size_bytes)
        except FileNotFoundError:
            continue
    return sizes


def _together(found: Sequence[SubscriberSummary]) -> SubscriberStats:
    """Return one subscriber's lag over all cores; unknown if it is unknown for one of them."""
    problems = [one.problem for one in found if one.problem is not None]
    if problems:
        return SubscriberStats(found[0].subscriber, None, None, None, None, "; ".join(problems))
    return SubscriberStats(
        found[0].subscriber,
        sum(one.lag_bundles or 0 for one in found),
        sum(one.lag_segments or 0 for one in found),
        sum(one.lag_bytes or 0 for one in found),
        _oldest(one.oldest_age_s for one in found),
    )


def _oldest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)
