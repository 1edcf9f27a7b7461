"""
The registry of describers: how `inspect`, `verify` and `stats` find out what a path is. One of them matches any path.

To support a new log or directory, add one `Describer` to `DESCRIBERS`. A new kind of file is one line in the
`FileFormat` of its log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from quiver.errors import CorruptionError, UsageError
from quiver.primitives.disk.file_system import File
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.file_kinds import UNKNOWN, FileFormat
from quiver.primitives.findings import Description, Finding, Problem, too_large_reason

if TYPE_CHECKING:
    from quiver.cli.stats.store import StoreStats
    from quiver.cli.status.tracks import Track

__all__ = ["DESCRIBERS", "Describer", "VerifySources", "describe_file", "describer_of", "refusal", "store_stats"]

_ENDS_BYTES = 4096
_SLOT_PID_FILE = ".lock.pid"
"""The process that last had a QWP slot open: in each slot that was ever opened, even if it is empty."""


@dataclass(frozen=True, slots=True)
class VerifySources:
    """What `quiver verify` reads: the directories of stores. Findings about other paths, differences to a snapshot."""

    roots: list[str]
    findings: list[Finding]
    differences: Callable[[], list[str]] = list


class _Stats(Protocol):
    def __call__(self, path: Path, *, now_ns: int, on_progress: Callable[[str], None]) -> StoreStats: ...


@dataclass(frozen=True, slots=True)
class Describer:
    """
    A kind of path.

    Attributes:
        name: the kind, as in "it is a file of a store".
        group: the command group for such paths.
        matches: returns whether a path is of this kind; reads only names, and of a file the start and the end.
        describe: returns the description of a file with so many rows of each table. None: it is a directory.
        verify: returns what `quiver verify` reads, from the path, ``--set`` and ``--run-dir``. None: not supported.
        stats: returns the figures of `quiver stats`. None: not supported.
        tracks: returns what `quiver status` draws. None: not supported.
        if_empty: what it means that a directory has no files. None: it is not of this kind then.
    """

    name: str
    group: str
    matches: Callable[[Path], bool]
    describe: Callable[[Path, int], Description] | None = None
    verify: Callable[[Path, Sequence[str] | None, Path | None], VerifySources] | None = None
    stats: _Stats | None = None
    tracks: Callable[[str], Sequence[Track]] | None = None
    if_empty: str | None = None


def describer_of(path: Path, group: str | None = None) -> Describer | None:
    """
    Return the describer that matches *path*, of *group* if it is given; None if there is none.

    Raises:
        OSError: *path* cannot be read.
    """
    return next((one for one in DESCRIBERS if group in {None, one.group} and one.matches(path)), None)


def refusal(path: Path, found: Describer) -> UsageError:
    """Return the error for a command that does not support what *path* is."""
    return UsageError(f"{path} is {found.name}; the commands for it are below `{found.group}`")


def describe_file(path: Path, rows: int, group: str) -> Description:
    """
    Describe the file at *path* with the describers of *group*. A file that none of them matches is "unknown".

    Raises:
        OSError: it cannot be read.
    """
    found = describer_of(path, group)
    if found is not None and found.describe is not None:
        return found.describe(path, rows)
    unknown = Description(str(path), UNKNOWN, REAL_FILES.stat(str(path)).size_bytes)
    unknown.problems.append(Problem(0, "a file of another program"))
    return unknown


# ---- files ---------------------------------------------------------------------------------------------


def _store_files() -> FileFormat:
    from quiver.store.format.describe.files import STORE_FILES  # noqa: PLC0415 - keeps `--help` quick

    return STORE_FILES


def _slot_files() -> FileFormat:
    from quiver.qwp.format.describe import SLOT_FILES  # noqa: PLC0415 - keeps `--help` quick

    return SLOT_FILES


def _aof_files() -> FileFormat:
    from quiver.aof.format.describe import AOF_FILES  # noqa: PLC0415 - keeps `--help` quick

    return AOF_FILES


_FORMATS = (_store_files, _slot_files, _aof_files)


def _is_file_of(own: Callable[[], FileFormat], path: Path) -> bool:
    """Return whether a file is of the format *own*: by its bytes, or by its name if no format knows the bytes."""
    if not path.is_file():
        return False
    file = REAL_FILES.open_read(str(path))
    try:
        ends = memoryview(_ends(file, file.size()))
    finally:
        file.close()
    if own().kind_of("", ends) != UNKNOWN:
        return True
    return own().kind_of(str(path), ends) != UNKNOWN and all(
        one().kind_of("", ends) == UNKNOWN for one in _FORMATS if one is not own
    )


def _describe(own: Callable[[], FileFormat], path: Path, rows: int) -> Description:
    """Describe a file. It is not read if it is too large for its kind."""
    file = REAL_FILES.open_read(str(path))
    try:
        size = file.size()
        kind = own().kind_of(str(path), memoryview(_ends(file, size)))
        size_max = own().size_max(kind)
        if size > size_max:
            found = Description(str(path), kind, size)
            found.problems.append(Problem(0, too_large_reason(size_max)))
            return found
        data = file.pread(size_max, 0)
    finally:
        file.close()
    return own().describe(str(path), memoryview(data), rows_max=rows)


def _ends(file: File, size: int) -> bytes:
    if size <= 2 * _ENDS_BYTES:
        return file.pread(2 * _ENDS_BYTES, 0)
    return file.pread(_ENDS_BYTES, 0) + file.pread(_ENDS_BYTES, size - _ENDS_BYTES)


def _is_pipeline(path: Path) -> bool:
    return path.is_file() and not any(_is_file_of(one, path) for one in _FORMATS)


def _verify_pipeline(path: Path, assignments: Sequence[str] | None, run_dir: Path | None) -> VerifySources:
    from quiver.cli.console.paths import pipeline_given  # noqa: PLC0415 - keeps `--help` quick
    from quiver.pipeline.backup import check_checkpoints, pipeline_roots  # noqa: PLC0415

    given = pipeline_given(path, assignments, run_dir)
    if given is None:
        raise UsageError(f"{path}: there is no such file")
    return VerifySources(pipeline_roots(REAL_FILES, given[0]), check_checkpoints(REAL_FILES, *given))


# ---- directories ---------------------------------------------------------------------------------------


def _is_snapshot(path: Path) -> bool:
    from quiver.store.format.snapshot_list import SNAPSHOT_LIST  # noqa: PLC0415 - keeps `--help` quick

    return REAL_FILES.exists(f"{path}/{SNAPSHOT_LIST}")


def _verify_snapshot(path: Path, _assignments: Sequence[str] | None, _run_dir: Path | None) -> VerifySources:
    from quiver.store.snapshots.snapshot import check_snapshot, snapshot_roots  # noqa: PLC0415 - keeps `--help` quick

    def differences() -> list[str]:
        try:
            _, problems = check_snapshot(REAL_FILES, str(path))
        except CorruptionError as damage:
            problems = [damage]
        return [str(problem) for problem in problems]

    return VerifySources(snapshot_roots(REAL_FILES, str(path)), [], differences)


def _is_store(path: Path) -> bool:
    """Return whether *path* has a store or several cores. A snapshot and an append-only log have similar names."""
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415 - keeps `--help` quick

    if not path.is_dir() or _is_snapshot(path) or _is_aof(path):
        return False
    try:
        return bool(instance_roots(REAL_FILES, str(path)))
    except UsageError:
        return False


def _verify_store(path: Path, _assignments: Sequence[str] | None, _run_dir: Path | None) -> VerifySources:
    from quiver.pipeline.companion_stores import find_companion_stores  # noqa: PLC0415 - keeps `--help` quick
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415

    own = instance_roots(REAL_FILES, str(path))
    try:
        companions = find_companion_stores(REAL_FILES, path)
    except OSError as error:
        reason = f"cannot look for companion stores of {path}: {error.strerror}"
        return VerifySources(own, [Finding(str(error.filename), 0, "not reached", reason)])
    return VerifySources(own + [root for roots in companions.values() for root in roots], [])


def store_stats(path: Path, *, now_ns: int, on_progress: Callable[[str], None]) -> StoreStats:
    """
    Return the figures of a store.

    Raises:
        UsageError: *path* is not a store.
        OSError: a file could not be read.
    """
    from quiver.cli.stats.store import collect_stats  # noqa: PLC0415 - keeps `--help` quick

    return collect_stats(REAL_FILES, str(path), now_ns=now_ns, on_progress=on_progress)


def _is_slot(path: Path) -> bool:
    return (path / _SLOT_PID_FILE).is_file()


def _is_parent_of_slots(path: Path) -> bool:
    from quiver.qwp.slots.inspection import slots_below  # noqa: PLC0415 - keeps `--help` quick

    return path.is_dir() and bool(slots_below(REAL_FILES, str(path)))


def _is_aof(path: Path) -> bool:
    from quiver.aof.reading.files import logs_below  # noqa: PLC0415 - keeps `--help` quick

    try:
        return path.is_dir() and bool(logs_below(REAL_FILES, str(path)))
    except UsageError:
        return False


def _is_topics(path: Path) -> bool:
    from quiver.topics.format.names import ACTIVE_FILE  # noqa: PLC0415 - keeps `--help` quick
    from quiver.topics.reading.listing import topics_below  # noqa: PLC0415

    return path.is_dir() and bool(topics_below(REAL_FILES, str(path), file_name=ACTIVE_FILE))


def _store_tracks(path: str) -> Sequence[Track]:
    from quiver.cli.status.tracks import store_tracks  # noqa: PLC0415 - keeps `--help` quick

    return store_tracks(path)


def _slot_tracks(path: str) -> Sequence[Track]:
    from quiver.cli.status.tracks import slot_tracks  # noqa: PLC0415 - keeps `--help` quick

    return slot_tracks(path)


def _slots_tracks(path: str) -> Sequence[Track]:
    from quiver.cli.status.tracks import slots_tracks  # noqa: PLC0415 - keeps `--help` quick

    return slots_tracks(path)


def _aof_tracks(path: str) -> Sequence[Track]:
    from quiver.cli.status.tracks import aof_tracks  # noqa: PLC0415 - keeps `--help` quick

    return aof_tracks(path)


def _topic_tracks(path: str) -> Sequence[Track]:
    from quiver.cli.status.tracks import topic_tracks  # noqa: PLC0415 - keeps `--help` quick

    return topic_tracks(path)


def _of_files(name: str, group: str, load: Callable[[], FileFormat]) -> Describer:
    return Describer(name, group, partial(_is_file_of, load), describe=partial(_describe, load))


DESCRIBERS: tuple[Describer, ...] = (
    _of_files("a file of a store", "quiver", _store_files),
    _of_files("a file of a QWP slot", "quiver", _slot_files),
    _of_files("a file of an append-only log", "quiver aof", _aof_files),
    Describer("a pipeline file", "quiver", _is_pipeline, verify=_verify_pipeline),
    Describer("a snapshot", "quiver", _is_snapshot, verify=_verify_snapshot, stats=store_stats),
    Describer("a store", "quiver", _is_store, verify=_verify_store, stats=store_stats, tracks=_store_tracks),
    Describer(
        "a QWP slot",
        "quiver",
        _is_slot,
        tracks=_slot_tracks,
        if_empty="an empty slot; the server has everything that was in it",
    ),
    Describer("a directory of QWP slots", "quiver qwp", _is_parent_of_slots, tracks=_slots_tracks),
    Describer("a directory of append-only logs", "quiver aof", _is_aof, tracks=_aof_tracks),
    Describer("a directory of topics", "quiver topic", _is_topics, tracks=_topic_tracks),
)
