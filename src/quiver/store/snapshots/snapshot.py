"""
Copies stores while writers have them open, and restores them, for `quiver snapshot` and `quiver restore`.

Everything that was accepted before `snapshot` was called is in the copy, or every subscriber had resolved it before the
copy was finished. `copying.py` has the order in which the files of one store are taken.

Several stores that feed each other are one unit. They are copied in the order of the flow, each after those that write
into it, so bundles that one copy has passed on are in the copies that follow. A snapshot has this layout::

    quiver.snapshot              the list of all files, with their checksums
    wal/ segments/ …             the store whose directory was given
    beside/<ending>/…            the companion stores of a pipeline: `<directory>.<ending>`
    buffers/<name>/…             of a complete pipeline: each of its buffers
    checkpoints/<exporter>/…     of a complete pipeline: the Spark checkpoint of each exporter on Spark

The copy is built under another name and renamed last, so a directory with the final name is complete. Sealed segments
and retired log files never change, so they are linked if the file system supports that.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, UsageError
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.copying import checksum_of, copy_file, link_or_copy
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_checked, read_if_valid
from quiver.store.cores.instances import instance_roots
from quiver.store.format.early_progress import EARLY_BYTES_MAX, decode_early_progress, encode_early_progress
from quiver.store.format.names import (
    EARLY_PROGRESS,
    SEGMENT_FLOOR,
    SEGMENTS_DIR,
    STORE_ID,
    parse_segment_name,
    parse_wal_rotated_name,
    segment_numbers,
)
from quiver.store.format.snapshot_list import (
    SNAPSHOT_LIST,
    SNAPSHOT_LIST_BYTES_MAX,
    Snapshot,
    SnapshotFile,
    decode_snapshot_list,
    encode_snapshot_list,
)
from quiver.store.number_floor import number_beyond, skip_numbers
from quiver.store.reading.check import check_store
from quiver.store.reading.store_files import StoreFiles
from quiver.store.segment.reader import SegmentReader
from quiver.store.snapshots.copying import Copied, StoreCopy
from quiver.store.snapshots.early_numbers import renumbered
from quiver.store.snapshots.new_directory import begin_directory, finish_directory

__all__ = [
    "BUFFERS_DIR",
    "CHECKPOINTS_DIR",
    "COMPANIONS_DIR",
    "Copied",
    "CopyPositions",
    "SnapshotStore",
    "check_snapshot",
    "places_in",
    "restore",
    "restore_parts",
    "snapshot",
    "snapshot_parts",
    "snapshot_roots",
]

COMPANIONS_DIR = "beside"
BUFFERS_DIR = "buffers"
CHECKPOINTS_DIR = "checkpoints"

CopyPositions = Callable[[FileSystem, str], Iterable[SnapshotFile]]
"""
Copies the positions that consumers keep outside of the store to the given directory; returns the copied files, relative
to it.
"""


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """
    One store of a snapshot, with its cores.

    Attributes:
        path: the store's directory.
        below: its place in the snapshot; empty for the root.
        positions: place in the snapshot → copies the positions that consumers of the store keep outside of it.
    """

    path: str
    below: str = ""
    positions: Mapping[str, CopyPositions] | None = None


def snapshot(
    fs: FileSystem, root: str, target: str, *, now_ns: int, companions: Mapping[str, str] | None = None
) -> Copied:
    """
    Copy the store at *root*, or all its cores, to the new directory *target*. Durable and complete on return.

    Args:
        fs: the file system.
        root: the store's directory.
        target: must not exist.
        now_ns: the time.
        companions: ending → directory of each companion store that a pipeline keeps next to *root*.

    Raises:
        UsageError: *root* is not a store, or *target* exists or is inside it.
        OSError: the disk reported an error; there is no *target*.
    """
    others = {ending: SnapshotStore(path, f"{COMPANIONS_DIR}/{ending}") for ending, path in (companions or {}).items()}
    # An intake writes into the store, and the store into the others.
    before = [part for ending, part in others.items() if ending.startswith("intake")]
    after = [part for part in others.values() if part not in before]
    return snapshot_parts(fs, [*before, SnapshotStore(root), *after], target, now_ns=now_ns)


def snapshot_parts(fs: FileSystem, parts: Sequence[SnapshotStore], target: str, *, now_ns: int) -> Copied:
    """
    Copy *parts*, in the order of the flow, to the new directory *target*. Durable and complete on return.

    Raises:
        UsageError: a part is not a store, or *target* exists or is inside one.
        OSError: the disk reported an error; *target* was not created.
    """
    roots = [instance_roots(fs, part.path) for part in parts]
    partial = begin_directory(fs, [part.path for part in parts], target)
    done = Copied(target)
    files: list[SnapshotFile] = []
    identity = ""
    for part, cores in zip(parts, roots, strict=True):
        copies = []
        for root in cores:
            core = posixpath.relpath(root, part.path)
            below = "/".join(name for name in (part.below, "" if core == "." else core) if name)
            copies.append((below, StoreCopy(fs, root, f"{partial}/{below}".rstrip("/"), done)))
        for _, copy in copies:
            copy.copy_store()
        for below, copy_positions in (part.positions or {}).items():
            files += _moved(below, copy_positions(fs, f"{partial}/{below}"))
        for below, copy in copies:
            copy.copy_undelivered()
            files += _moved(below, copy.files)
        if not part.below or not identity:
            identity = StoreFiles(fs, cores[0]).identity()
    replace_file(fs, f"{partial}/{SNAPSHOT_LIST}", encode_snapshot_list(Snapshot(now_ns, identity, tuple(files))))
    finish_directory(fs, partial, target)
    done.files = len(files)
    done.size_bytes = sum(file.size_bytes for file in files)
    return done


def _moved(below: str, files: Iterable[SnapshotFile]) -> list[SnapshotFile]:
    if not below:
        return list(files)
    return [SnapshotFile(f"{below}/{file.path}", file.size_bytes, file.crc32) for file in files]


def check_snapshot(fs: FileSystem, source: str) -> tuple[Snapshot, list[CorruptionError]]:
    """
    Read every file of the snapshot at *source* to its last byte; return its list, and the damage found.

    Raises:
        UsageError: the snapshot is missing or not finished.
        CorruptionError: its list is damaged.
        OSError: a file cannot be read.
    """
    listed = _listed(fs, source)
    problems: list[CorruptionError] = []
    for file in listed.files:
        try:
            _check_file(fs, f"{source}/{file.path}", file)
        except CorruptionError as damage:
            problems.append(damage)
    return listed, problems


def _listed(fs: FileSystem, source: str) -> Snapshot:
    path = f"{source}/{SNAPSHOT_LIST}"
    found = read_checked(fs, path, decode_snapshot_list, SNAPSHOT_LIST_BYTES_MAX)
    if found is None:
        raise UsageError(f"{source} is not a finished snapshot: it has no {SNAPSHOT_LIST}")
    return found


def places_in(fs: FileSystem, source: str) -> list[str]:
    """
    Return the places of the snapshot at *source*: the empty one if a store is in its root, and each directory of
    `beside/`, `buffers/` and `checkpoints/`.

    Raises:
        UsageError: the snapshot is missing or not finished.
        CorruptionError: its list is damaged.
    """
    return list(dict.fromkeys(_place_of(file.path) for file in _listed(fs, source).files))


def _place_of(path: str) -> str:
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 and parts[0] in {COMPANIONS_DIR, BUFFERS_DIR, CHECKPOINTS_DIR} else ""


def snapshot_roots(fs: FileSystem, source: str) -> list[str]:
    """
    Return the directories of all stores and cores in the snapshot at *source*. Its list is not needed.

    Raises:
        UsageError: the snapshot contains no store.
    """
    places = [f"{below}/{name}" for below in (COMPANIONS_DIR, BUFFERS_DIR) for name in _names(fs, f"{source}/{below}")]
    found = []
    for place in places:
        found += instance_roots(fs, f"{source}/{place}")
    if found and not fs.exists(f"{source}/{SEGMENTS_DIR}"):
        return found
    return instance_roots(fs, source) + found


def _names(fs: FileSystem, directory: str) -> list[str]:
    return fs.list_dir(directory) if fs.exists(directory) else []


def restore(
    fs: FileSystem,
    source: str,
    target: str,
    *,
    identity: str | None,
    damaged_too: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Copied:
    """
    Create the directory *target* from the snapshot at *source*. Durable, checked and complete on return.

    Companion stores are restored next to *target*.

    Args:
        fs: the file system.
        source: a snapshot; it is not changed.
        target: must not exist.
        identity: a UUID for the restored store; with several cores, each gets a UUID that is derived from it. None
            keeps the identity of the original. Two stores with one identity mislead Spark's checkpoints: keep it only
            if the original no longer exists. With None, segment numbers continue above all that the original can have
            used.
        damaged_too: restore even if files are damaged or missing; the store quarantines them when it is opened.
        clock: used to find segment numbers that the original cannot have used.

    Raises:
        UsageError: the snapshot is not finished, or is one of a pipeline, or *target* exists.
        CorruptionError: a file of the snapshot is damaged. *target* was not created.
        OSError: the disk reported an error; *target* was not created.
    """
    places = places_in(fs, source)
    if places and "" not in places:
        raise UsageError(f"{source} is the snapshot of a pipeline: quiver restore {source} PIPELINE.yaml")
    target = posixpath.normpath(target)
    targets = {place: f"{target}.{posixpath.basename(place)}" if place else target for place in places}
    return restore_parts(
        fs,
        source,
        targets or {"": target},
        identity=identity,
        damaged_too=damaged_too,
        clock=clock,
        moves_on=identity is None,
    )


def restore_parts(
    fs: FileSystem,
    source: str,
    targets: Mapping[str, str],
    *,
    identity: str | None,
    damaged_too: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    moves_on: bool = True,
    positions: Callable[[str, str, Mapping[str, str]], None] | None = None,
) -> Copied:
    """
    Create the directories *targets* from the snapshot at *source*. Durable, checked and complete on return.

    Args:
        fs: the file system.
        source: a snapshot that `snapshot_parts` created.
        targets: place in the snapshot → new directory. The first one is renamed last. Other places are not restored.
        identity: as for `restore`.
        damaged_too: as for `restore`.
        clock: as for `restore`.
        moves_on: whether segment numbers continue above all that the original can have used.
        positions: called for each place of `checkpoints/`, with its name, the directory that it was copied to, and old
            identity → new one of all stores.

    Raises:
        UsageError, CorruptionError, OSError: as `restore`.
    """
    listed, problems = check_snapshot(fs, source)
    if problems and not damaged_too:
        raise problems[0]
    partials = {place: begin_directory(fs, [source], target) for place, target in targets.items()}
    done = Copied(next(iter(targets.values())))
    done.notes += [str(problem) for problem in problems]
    copied = _copy_back(fs, source, listed, partials, done)
    identities: dict[str, str] = {}
    for place, partial in partials.items():
        for path in copied[place]:
            if posixpath.basename(path) == STORE_ID:
                root = posixpath.dirname(path)
                old = StoreFiles(fs, root).identity()
                identities[old] = old if identity is None else _new_identity(identity, place, partial, root)
                if identity is not None:
                    replace_file(fs, path, f"{identities[old]}\n".encode())
            elif posixpath.basename(path) == SEGMENT_FLOOR and moves_on:
                root = posixpath.dirname(posixpath.dirname(path))
                floor = number_beyond(StoreFiles(fs, root).floor().value, clock)
                skip_numbers(fs, root, floor)
                _move_early_progress(fs, root, floor)
    for place, partial in partials.items():
        if not place.startswith(f"{CHECKPOINTS_DIR}/"):
            for root in instance_roots(fs, partial):
                done.notes += [
                    f"{finding.path}: {finding.reason}" for finding in check_store(fs, root).findings if finding.damaged
                ]
        elif positions is not None:
            positions(posixpath.basename(place), partial, identities)
    for place in reversed(list(targets)):
        finish_directory(fs, partials[place], targets[place])
    return done


def _move_early_progress(fs: FileSystem, root: str, floor: int) -> None:
    path = f"{root}/{EARLY_PROGRESS}"
    early = read_if_valid(fs, path, decode_early_progress, EARLY_BYTES_MAX)
    if early is not None:
        sealed = segment_numbers(fs.list_dir(f"{root}/{SEGMENTS_DIR}"))
        replace_file(fs, path, encode_early_progress(renumbered(early, floor, sealed)))


def _copy_back(
    fs: FileSystem, source: str, listed: Snapshot, partials: Mapping[str, str], done: Copied
) -> dict[str, list[str]]:
    """Copy the files of each place; return their new paths."""
    copied: dict[str, list[str]] = {place: [] for place in partials}
    for file in listed.files:
        place = _place_of(file.path)
        path = f"{source}/{file.path}"
        if place not in partials or not fs.exists(path):
            continue
        into = f"{partials[place]}/{file.path[len(place) :].lstrip('/')}"
        fs.make_dirs(posixpath.dirname(into))
        if _never_changes(posixpath.basename(into)):
            linked = link_or_copy(fs, path, into, mode=0o440)
            done.linked_bytes += file.size_bytes if linked else 0
        else:
            copy_file(fs, path, into)
        done.files += 1
        done.size_bytes += file.size_bytes
        copied[place].append(into)
    return copied


def _new_identity(identity: str, place: str, partial: str, root: str) -> str:
    # Cores contain the same places, but exporters of several cores distinguish their bundles by identity.
    below = posixpath.relpath(root, partial)
    names = [name for name in (place, "" if below == "." else below) if name]
    return str(uuid.uuid5(uuid.UUID(identity), "/".join(names))) if names else identity


def _check_file(fs: FileSystem, path: str, file: SnapshotFile) -> None:
    try:
        if file.crc32 is None:
            size, crc = fs.stat(path).size_bytes, None
        else:
            size, crc = checksum_of(fs, path)
    except FileNotFoundError:
        raise CorruptionError(path, 0, "the file is missing, but the snapshot lists it") from None
    if size != file.size_bytes or crc != file.crc32:
        raise CorruptionError(path, 0, f"the size is {size} bytes, but {file.size_bytes} were copied")
    if file.crc32 is None:
        reader = SegmentReader.open(fs, path)
        reader.verify()
        reader.close()


def _never_changes(name: str) -> bool:
    return parse_segment_name(name) is not None or parse_wal_rotated_name(name) is not None
