"""
Bundles → staged segments → one committed batch, by any process, while another one may have the store open.

`store/staged_import.py` lists the files and what a crash leaves of them. A batch counts from the moment its commit is
durable. It is visible when the owner of the directory has imported it, which is at once where no store is open there.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError
from quiver.primitives.batch_notes import part_directory
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staged_commits import StagedLog, hold_patiently
from quiver.primitives.disk.staging import remove_staged
from quiver.settings import MIB
from quiver.store.encode import SlotEncoder
from quiver.store.format.names import SEGMENTS_DIR, STORE_ID, STORE_LOCK, segment_name
from quiver.store.format.segment.manifest import ManifestMetadata
from quiver.store.format.sink_commit import COMMITS, INCOMING_DIR
from quiver.store.segment.accumulator import OpenSegment
from quiver.store.segment.compression import Compression
from quiver.store.segment.writer import write_segment
from quiver.store.staged_import import StagedImport, awaits_import, first_free_segment
from quiver.store.staging.room import SinkRoom, wait_until

__all__ = ["Slots", "Staged", "StagingOptions", "await_room", "commit_batch", "discard", "is_committed", "stage"]

SEGMENT_BYTES_MAX = 32 * MIB
_STREAMS_MAX = 512
_LOCK_PATIENCE_S = 5.0
ROOM_PATIENCE_S = 10.0
_OWNER = "quiver sink"

Slots = Mapping[int, pa.RecordBatch]


class StagingOptions(Protocol):
    """How segments are staged: their compression, and how long to wait for disk space."""

    @property
    def compression(self) -> Compression:
        """The compression of the segments."""

    @property
    def timeout_s(self) -> float:
        """How long to wait for disk space."""


@dataclass(frozen=True, slots=True)
class Staged:
    """
    The files that one attempt of one task wrote and synced.

    Attributes:
        parts: the segments, relative to the writer's directory.
        rows: how many rows they have.
        size_bytes: the size of the files.
    """

    parts: tuple[str, ...] = field(default=())
    rows: int = 0
    size_bytes: int = 0


def stage(
    fs: FileSystem,
    root: str,
    bundles: Iterable[Slots],
    *,
    writer: str,
    batch: int,
    partition: int,
    attempt: str,
    options: StagingOptions,
    clock: Clock = SYSTEM_CLOCK,
) -> Staged:
    """
    Write *bundles* as staged segments, which are not visible yet. Durable on return. Runs in a task.

    Each segment waits for disk space. If staging fails, its files are removed.

    Raises:
        CapacityError: the store had no space in time.
        InvalidBundleError: a bundle cannot be stored as it is.
        OSError: the disk refused.
    """
    directory = part_directory(batch, partition, attempt)
    try:
        return _staged(fs, root, bundles, f"{INCOMING_DIR}/{writer}", directory, options, clock)
    except BaseException:
        # The next attempt needs the same space.
        with contextlib.suppress(OSError):
            remove_staged(fs, f"{root}/{INCOMING_DIR}/{writer}", [directory])
        raise


def _staged(
    fs: FileSystem,
    root: str,
    bundles: Iterable[Slots],
    writer_directory: str,
    directory: str,
    options: StagingOptions,
    clock: Clock,
) -> Staged:
    place = f"{root}/{writer_directory}/{directory}"
    room = SinkRoom(fs, root, options.timeout_s, clock)
    encoder = SlotEncoder()
    parts: list[str] = []
    rows = size_bytes = 0
    segment = OpenSegment(streams_max=_STREAMS_MAX, bytes_max=SEGMENT_BYTES_MAX)

    def seal() -> int:
        room.wait_for(segment.nbytes)
        if not parts:
            fs.make_dirs(place)
        sealed = segment.seal()
        # Never logged: with a position of the log, recovery would assume that the segment contains those entries.
        sealed.metadata = ManifestMetadata()
        number = len(parts)
        parts.append(f"{directory}/{segment_name(number)}")
        compression = options.compression
        return write_segment(fs, place, number, sealed, profile="spec", compression=compression).size_bytes

    for slots in bundles:
        encoded = encoder.encode(slots)
        rows += max(slot.row_count for slot in encoded.slots)
        if segment.append(encoded.slots, clock.now_ns(), 0, 0, 0, encoded.nbytes):
            size_bytes += seal()
            segment = OpenSegment(streams_max=_STREAMS_MAX, bytes_max=SEGMENT_BYTES_MAX)
    if not segment.is_empty:
        size_bytes += seal()
    return Staged(tuple(parts), rows, size_bytes)


def commit_batch(
    fs: FileSystem,
    root: str,
    *,
    writer: str,
    batch: int,
    staged: Sequence[Staged],
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """
    Commit everything that tasks staged for *batch*; return False when this batch was committed before.

    Durable on return. The segments are visible, too, unless a store is open in that directory: that one imports them
    with its next maintenance.

    Raises:
        CorruptionError: a commit, a staged segment or the directory is not what was written.
        OSError: the disk refused; the same batch may be tried again.
    """
    is_new = _staged_log(fs, root).commit(writer, batch, tuple(part for one in staged for part in one.parts))
    _import_now(fs, root, clock)
    return is_new


def _staged_log(fs: FileSystem, root: str) -> StagedLog[str]:
    return StagedLog(fs, f"{root}/{INCOMING_DIR}", COMMITS)


def await_room(
    fs: FileSystem, root: str, *, writer: str, timeout_s: float = ROOM_PATIENCE_S, clock: Clock = SYSTEM_CLOCK
) -> None:
    """
    Wait until everything that *writer* committed so far is imported.

    Call it before the next batch is staged: a store at its cap imports nothing, and staged files use disk space, too.

    Raises:
        CapacityError: it is not imported in time.
        CorruptionError: as for `commit_batch`, if no store is open.
        OSError: the disk refused.
    """

    def is_imported() -> bool:
        if not awaits_import(fs, root, writer=writer):
            return True
        _import_now(fs, root, clock)
        return not awaits_import(fs, root, writer=writer)

    if not wait_until(is_imported, timeout_s, clock):
        raise CapacityError(f"the store {root} imports no more staged batches", retry_after_s=ROOM_PATIENCE_S)


def is_committed(fs: FileSystem, root: str, *, writer: str, batch: int) -> bool:
    """Return whether *batch* of *writer*, or a later one, was committed."""
    return _staged_log(fs, root).is_committed(writer, batch)


def discard(fs: FileSystem, root: str, *, writer: str, batch: int, staged: Sequence[Staged]) -> None:
    """Remove what tasks staged for *batch*, unless it is committed."""
    _staged_log(fs, root).discard(writer, batch, [part for one in staged for part in one.parts])


def _import_now(fs: FileSystem, root: str, clock: Clock) -> None:
    """Make segments of what is committed, unless a store that is open in the directory does it."""
    fs.make_dirs(root)
    lock = hold_patiently(
        fs, f"{root}/{STORE_LOCK}", owner=_OWNER, patience_s=_LOCK_PATIENCE_S, clock=clock, only_for_owner=True
    )
    if lock is None:
        return
    try:
        fs.make_dirs(f"{root}/{SEGMENTS_DIR}")
        if not fs.exists(f"{root}/{STORE_ID}"):
            replace_file(fs, f"{root}/{STORE_ID}", f"{uuid.uuid4()}\n".encode())  # noqa: TID251 - made once
        free: list[int] = []

        def next_segment() -> int:
            free.append(free[-1] + 1 if free else first_free_segment(fs, root))
            return free[-1]

        StagedImport(fs, root, next_segment=next_segment).import_all()
    finally:
        lock.release()
