"""
The files and positions of any log, in the form in which the status page draws them.

A track is one log: its files as cells, oldest first, and below them the positions that read it. Positions count up, so
two readings of one track give rates, whichever kind of log it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from quiver.primitives.disk.real_files import REAL_FILES

if TYPE_CHECKING:
    from quiver.qwp.slots.inspection import SlotReport

__all__ = [
    "CELLS_MAX",
    "Cell",
    "Cursor",
    "Track",
    "aof_tracks",
    "slot_tracks",
    "slots_tracks",
    "store_tracks",
    "topic_tracks",
]

CELLS_MAX = 120
"""More files are drawn together: a page needs no more cells than a screen has."""


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One file, or consecutive files.

    Attributes:
        name: of the file, or the first and the last name.
        size_bytes: on disk or in the object tier.
        entries: bundles, messages, frames or bytes, as the track counts; None if that is unknown.
        state: `sealed`, `open`, or where the data is (`object tier`, `evicted`).
    """

    name: str
    size_bytes: int
    entries: int | None
    state: str = "sealed"


@dataclass(frozen=True, slots=True)
class Cursor:
    """
    A position in a track.

    Attributes:
        name: of the subscriber, the subscription, or the confirmation.
        position: how far it is; None if that is unknown.
        lag: how many entries it has not resolved yet.
        resolved: for each cell, the resolved share, from 0 to 1.
        problem: why its position is unknown.
    """

    name: str
    position: int | None
    lag: int | None
    resolved: tuple[float, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """
    One log.

    Attributes:
        name: a name that is unique on the page.
        unit: of entries and positions.
        head: the position after the newest entry; None if it is unknown.
        cells: its files, oldest first.
        cursors: the positions that read it.
        facts: other figures, by name.
        problems: what cannot be read.
    """

    name: str
    unit: str
    head: int | None
    cells: tuple[Cell, ...]
    cursors: tuple[Cursor, ...]
    facts: Mapping[str, int | str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def store_tracks(path: str) -> list[Track]:
    """
    Return a track for each core of the store at *path*.

    Raises:
        UsageError: *path* is not a store.
        OSError: a file cannot be read.
    """
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415 - keeps `--help` quick

    roots = instance_roots(REAL_FILES, path)
    return [_store_track(root, path if len(roots) == 1 else root) for root in roots]


def _store_track(root: str, name: str) -> Track:
    from quiver.store.format.names import WAL_DIR  # noqa: PLC0415 - keeps `--help` quick
    from quiver.store.limits.tree_bytes import tree_bytes  # noqa: PLC0415
    from quiver.store.reading.listing import unresolved_by_segment  # noqa: PLC0415

    sealed, unresolved = unresolved_by_segment(REAL_FILES, root)
    head = max((info.sequence_last + 1 for info in sealed.infos if info.sequence_last is not None), default=None)
    counts = [info.bundle_count for info in sealed.infos]
    cells = [
        Cell(str(info.seq), info.size_bytes, info.bundle_count, "object tier" if info.seq in sealed.cold else "sealed")
        for info in sealed.infos
    ]
    groups = _groups(cells)
    cursors = []
    for subscriber, left in unresolved.items():
        if left is None:
            cursors.append(Cursor(subscriber, None, None, problem="its progress file is damaged; run quiver repair"))
            continue
        lag = sum(left)
        shares = tuple(_share(sum(counts[a:b]) - sum(left[a:b]), sum(counts[a:b])) for a, b in groups)
        cursors.append(Cursor(subscriber, None if head is None else head - lag, lag, shares))
    log = Cell("log", tree_bytes(REAL_FILES, f"{root}/{WAL_DIR}"), None, "open")
    return Track(name, "bundles", head, (*_merged(cells, groups), log), tuple(cursors), problems=sealed.unreadable)


def topic_tracks(path: str) -> list[Track]:
    """
    Return a track for each topic below *path*.

    Raises:
        OSError: a file cannot be read.
    """
    from quiver.topics.format.names import ACTIVE_FILE  # noqa: PLC0415 - keeps `--help` quick
    from quiver.topics.reading.listing import topics_below  # noqa: PLC0415

    return [_topic_track(path, topic) for topic in topics_below(REAL_FILES, path, file_name=ACTIVE_FILE)]


def _topic_track(root: str, topic: str) -> Track:
    from quiver.topics.reading.check import saved_subscriptions  # noqa: PLC0415 - keeps `--help` quick
    from quiver.topics.reading.read import TopicFiles  # noqa: PLC0415
    from quiver.topics.wal.local_files import in_ranges  # noqa: PLC0415

    source = TopicFiles(root, topic)
    found = source.files()
    head = source.next_offset()
    ranges = in_ranges(found, next_offset=head, newest_bytes=found[-1].size_bytes if found else 0)
    cells = [
        Cell(Path(one.path).name, one.size_bytes, one.next_offset - one.first_offset, _open_if(at == len(ranges) - 1))
        for at, one in enumerate(ranges)
    ]
    groups = _groups(cells)
    subscriptions, findings = saved_subscriptions(REAL_FILES, source.directory)
    cursors = []
    for saved in subscriptions:
        acked = sum(after - first for first, after in saved.acked)
        spans = [(ranges[a].first_offset, ranges[b - 1].next_offset) for a, b in groups]
        shares = tuple(_share(min(saved.next_offset, after) - first, after - first) for first, after in spans)
        cursors.append(Cursor(saved.name, saved.next_offset, max(0, head - saved.next_offset - acked), shares))
    problems = tuple(f"{one.path}: {one.reason}" for one in findings)
    return Track(topic, "messages", head, _merged(cells, groups), tuple(cursors), problems=problems)


def aof_tracks(path: str) -> list[Track]:
    """
    Return a track for each append-only log at *path*, with the position up to which it is durable.

    Raises:
        OSError: a file cannot be read.
    """
    from quiver.aof.reading.check import check_log_directory  # noqa: PLC0415 - keeps `--help` quick
    from quiver.aof.reading.files import logs_below  # noqa: PLC0415

    tracks = []
    for name, directory in logs_below(REAL_FILES, path).items():
        found = check_log_directory(REAL_FILES, name, directory, read_records=False)
        cells = [Cell(str(one.segment_id), one.size_bytes, one.end, one.state) for one in found.segments]
        groups = _groups(cells)
        ends, durable = ([getattr(one, key) for one in found.segments] for key in ("end", "durable"))
        shares = tuple(_share(sum(durable[a:b]), sum(ends[a:b])) for a, b in groups)
        last = found.segments[-1] if found.segments else None
        head = 0 if last is None else last.base_offset + last.end
        position = 0 if last is None else last.base_offset + last.durable
        cursor = Cursor("durable", position, head - position, shares)
        problems = tuple(f"{one.path}: {one.reason}" for one in found.findings if one.damaged)
        facts = {"records": found.records, "staged batches": found.sink_batches}
        tracks.append(Track(name, "bytes", head, _merged(cells, groups), (cursor,), facts, problems))
    return tracks


def slot_tracks(path: str) -> list[Track]:
    """
    Return the track of the QWP slot at *path*.

    Raises:
        OSError: a file cannot be read.
    """
    from quiver.qwp.slots.inspection import inspect_slot  # noqa: PLC0415 - keeps `--help` quick

    place = Path(path).resolve()
    return [_slot_track(inspect_slot(REAL_FILES, str(place.parent), place.name))]


def slots_tracks(path: str) -> list[Track]:
    """
    Return a track for each QWP slot below *path*.

    Raises:
        OSError: a file cannot be read.
    """
    from quiver.qwp.slots.inspection import inspect_slot, slots_below  # noqa: PLC0415 - keeps `--help` quick

    return [_slot_track(inspect_slot(REAL_FILES, path, name)) for name in slots_below(REAL_FILES, path)]


def _slot_track(found: SlotReport) -> Track:
    frames = list(found.segments.values())
    share = found.size_bytes // max(1, len(frames))  # segments of a slot have one size
    cells = [Cell(Path(name).name, share, found.segments[name]) for name in found.segments]
    if cells:
        cells[-1] = Cell(cells[-1].name, share, frames[-1], "open")
    starts = [found.first_fsn + sum(frames[:at]) for at in range(len(frames) + 1)]
    groups = _groups(cells)
    spans = [(starts[a], starts[b]) for a, b in groups]
    shares = tuple(_share(min(found.confirmed + 1, after) - first, after - first) for first, after in spans)
    cursor = Cursor("confirmed by the server", found.confirmed + 1, found.backlog, shares)
    facts: dict[str, int | str] = {"unconfirmed bytes": found.backlog_bytes, "dead letters": found.dead_letters}
    if found.failed is not None:
        facts["ignored by drainers"] = found.failed
    problems = [found.problem] if found.problem is not None else []
    problems += [f"{one}: a copy of a damaged file" for one in found.damaged_copies]
    return Track(found.sender_id, "frames", found.next_fsn, _merged(cells, groups), (cursor,), facts, tuple(problems))


def _open_if(is_last: bool) -> str:
    return "open" if is_last else "sealed"


def _groups(cells: Sequence[Cell]) -> list[tuple[int, int]]:
    """Return the ranges of cells that are drawn as one."""
    count = min(CELLS_MAX, len(cells))
    bounds = [len(cells) * at // count for at in range(count + 1)] if count else []
    return list(pairwise(bounds))


def _merged(cells: Sequence[Cell], groups: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    return tuple(_together(cells[start:end]) for start, end in groups)


def _together(cells: Sequence[Cell]) -> Cell:
    if len(cells) == 1:
        return cells[0]
    counts = [one.entries for one in cells]
    states = {one.state for one in cells}
    return Cell(
        f"{cells[0].name} – {cells[-1].name}",
        sum(one.size_bytes for one in cells),
        None if None in counts else sum(count or 0 for count in counts),
        states.pop() if len(states) == 1 else "sealed",
    )


def _share(part: int, whole: int) -> float:
    return 1.0 if whole <= 0 else min(1.0, max(0.0, part / whole))
