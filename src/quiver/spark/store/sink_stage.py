"""Rows → staged segments in a task, staged segments → one committed batch in the driver."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from quiver.bundle import OTLP_SCHEMA, batch_bytes
from quiver.errors import UsageError
from quiver.otap import VIEW_SLOTS
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.bundles import unpacked
from quiver.spark.cast import spark_schema
from quiver.spark.otlp_rows import request_of_rows
from quiver.spark.store.sink_options import SinkOptions
from quiver.store.format.cores import core_directory, parse_core_directory
from quiver.store.format.snapshot_list import SNAPSHOT_LIST
from quiver.store.segment.cast import cast_to_schema
from quiver.store.staging.batches import Slots, Staged, await_room, commit_batch, discard, stage

__all__ = ["StoreSink", "bundles_of", "sink_root", "stage_here", "store_sink", "task_place"]


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
    fitting = max(1, bytes_max * batch.num_rows // max(1, batch_bytes(batch)))
    step = min(rows_max, fitting)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


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
