"""
Rows → staged segments in a task, staged segments → one committed batch in the driver.

`store/staged_import.py` lists the files and what a crash leaves of them. A batch counts from the moment its commit is
durable. It is visible when the owner of the directory has imported it, which is at once where no store is open there.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from quiver.bundle import OTLP_SCHEMA
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CapacityError, UsageError
from quiver.otap import VIEW_SLOTS
from quiver.primitives.batch_notes import part_directory
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staged_commits import StagedLog, hold_patiently
from quiver.primitives.disk.staging import remove_staged
from quiver.settings import MIB
from quiver.spark.bundles import unpacked
from quiver.spark.cast import spark_schema
from quiver.spark.otlp_rows import request_of_rows
from quiver.spark.store.sink_options import SinkOptions
from quiver.spark.store.sink_room import SinkRoom, wait_until
from quiver.store.encode import SlotEncoder
from quiver.store.format.cores import core_directory, parse_core_directory
from quiver.store.format.names import SEGMENTS_DIR, STORE_ID, STORE_LOCK, segment_name
from quiver.store.format.segment.manifest import ManifestMetadata
from quiver.store.format.sink_commit import COMMITS, INCOMING_DIR
from quiver.store.format.snapshot_list import SNAPSHOT_LIST
from quiver.store.segment.accumulator import OpenSegment
from quiver.store.segment.cast import cast_to_schema
from quiver.store.segment.writer import write_segment
from quiver.store.staged_import import StagedImport, awaits_import, first_free_segment

__all__ = [
    "Staged",
    "StoreSink",
    "await_room",
    "bundles_of",
    "commit_batch",
    "discard",
    "is_committed",
    "sink_root",
    "stage",
    "stage_here",
    "store_sink",
    "task_place",
]

SEGMENT_BYTES_MAX = 32 * MIB
_STREAMS_MAX = 512
_LOCK_PATIENCE_S = 5.0
ROOM_PATIENCE_S = 10.0
_OWNER = "quiver sink"

Slots = Mapping[int, pa.RecordBatch]


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


def sink_root(fs: FileSystem, path: str) -> str:
    """
    Return the directory that a sink with the option *path* writes to: the first core of a store with several.

    Raises:
        UsageError: *path* is a snapshot.
    """
    root = os.path.abspath(path)  # noqa: PTH100 - kept as text
    if not fs.exists(root):
        return root
    names = fs.list_dir(root)
    if SNAPSHOT_LIST in names:
        raise UsageError(f"{root} is a snapshot; restore it to a store first")
    cores = [core for core in map(parse_core_directory, names) if core is not None]
    return f"{root}/{core_directory(min(cores))}" if cores else root


def bundles_of(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[Slots]:
    """
    Yield the bundles that *batches* are stored as, as slot → batch.

    Raises:
        UsageError: the rows do not fit the view, or are not rows of mode ipc.
    """
    if options.mode == "ipc":
        for _, _, slots in unpacked(batches):
            yield slots
        return
    for batch in batches:
        plain = cast_to_schema(batch, spark_schema(batch.schema))
        for piece in _pieces(plain, options.bundle_rows_max, options.bundle_bytes_max):
            if options.view is None:
                yield {options.slot or 0: piece}
            else:
                data = request_of_rows(piece, options.view).SerializeToString()
                yield {VIEW_SLOTS[options.view]: pa.record_batch({"data": [data]}, schema=OTLP_SCHEMA)}


def _pieces(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    fitting = max(1, bytes_max * batch.num_rows // max(1, batch.nbytes))
    step = min(rows_max, fitting)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def stage(
    fs: FileSystem,
    root: str,
    bundles: Iterable[Slots],
    *,
    writer: str,
    batch: int,
    partition: int,
    attempt: str,
    options: SinkOptions,
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
    options: SinkOptions,
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


def task_place() -> tuple[int, str]:
    """Return the partition of the running task, and a unique name of this attempt."""
    from pyspark import TaskContext  # noqa: PLC0415 - there is a context in tasks only

    context = TaskContext.get()
    token = os.urandom(6).hex()
    # Attempts are counted per application: a crashed one may have left files under the same number.
    return (0, token) if context is None else (context.partitionId(), f"{context.taskAttemptId()}x{token}")


def stage_here(
    root: str, batches: Iterable[pa.RecordBatch], *, writer: str, batch: int, options: SinkOptions
) -> Staged:
    """Stage *batches* in the running task."""
    partition, attempt = task_place()
    return stage(
        REAL_FILES,
        root,
        bundles_of(batches, options),
        writer=writer,
        batch=batch,
        partition=partition,
        attempt=attempt,
        options=options,
    )


@dataclass(frozen=True, slots=True)
class StoreSink:
    """The sink of the format `quiver`, into the store at *root*."""

    options: SinkOptions
    root: str

    @property
    def transaction(self) -> tuple[str, int] | None:
        """The writer and number that the program gave this write, if any."""
        return self.options.transaction

    def stage(self, rows: Iterable[pa.RecordBatch], *, writer: str, batch: int) -> Staged:
        """Write and sync one partition, in a task, after the store has imported earlier batches of *writer*."""
        await_room(REAL_FILES, self.root, writer=writer, timeout_s=self.options.timeout_s)
        return stage_here(self.root, rows, writer=writer, batch=batch, options=self.options)

    def commit(self, *, writer: str, batch: int, staged: Sequence[Staged]) -> None:
        """Commit everything that was staged as one batch, unless that batch was committed before."""
        commit_batch(REAL_FILES, self.root, writer=writer, batch=batch, staged=staged)

    def discard(self, *, writer: str, batch: int, staged: Sequence[Staged]) -> None:
        """Remove what was staged, unless it is committed."""
        discard(REAL_FILES, self.root, writer=writer, batch=batch, staged=staged)


def store_sink(options: SinkOptions) -> StoreSink:
    """
    Return the sink that *options* describe. It writes to the first core of a store with several.

    Raises:
        UsageError: the path is a snapshot.
    """
    return StoreSink(options, sink_root(REAL_FILES, options.path))
