"""
The Spark sink `quiver-aof`: batch and streaming writes to append-only logs, each batch exactly once.

Tasks stage rows in files that no reader looks at. A batch counts from the moment its commit is durable. Its records
are in the log when the log's owner has appended them, which is immediately if no process has it open.
`aof/staged_import.py` lists the files and what a crash leaves of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from quiver.aof.format.names import INCOMING
from quiver.aof.format.record import RECORD_HEAD, checksum_of
from quiver.aof.format.sink_batch import COMMITS, PART_NAME, StagedPart
from quiver.aof.manager import AofManager
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DirectoryInUseError, UsageError
from quiver.primitives.batch_notes import part_directory
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staged_commits import StagedLog, hold_patiently
from quiver.spark.aof.sink_options import AofSinkOptions
from quiver.spark.store.sink_stage import task_place

__all__ = [
    "AofSink",
    "StagedRecords",
    "commit_records",
    "discard_records",
    "is_records_batch_committed",
    "records_of",
    "stage_records",
]

_WRITE_BYTES = 1024 * 1024
_EXT_ID_MASK = (1 << 64) - 1
_LOCK_PATIENCE_S = 30.0
_SINK_LOCK = "sink.lock"

_log = logging.getLogger("quiver")


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """
    The file that one attempt of one task wrote and synced, relative to the writer's directory.

    None if the task had no rows.
    """

    part: StagedPart | None = None


def records_of(batches: Iterable[pa.RecordBatch], options: AofSinkOptions) -> Iterator[tuple[bytes, int]]:
    """
    Yield the record of each row: payload and ext_id.

    Raises:
        UsageError: a row has no payload, or one that is empty or too large.
    """
    for batch in batches:
        payloads = batch.column("payload").cast(pa.binary()).to_pylist()
        marks = batch.column("ext_id").to_pylist() if "ext_id" in batch.schema.names else [0] * len(payloads)
        for payload, mark in zip(payloads, marks, strict=True):
            if not payload:
                raise UsageError("a row has no payload: payload is null or empty, and a record needs at least one byte")
            if len(payload) > options.record_bytes_max:
                raise UsageError(f"a payload of {len(payload)} bytes exceeds maxRecordSize")
            # Spark has no unsigned integers: a read shows the upper half of them as negative.
            yield payload, (mark or 0) & _EXT_ID_MASK


def stage_records(
    fs: FileSystem,
    root: str,
    records: Iterable[tuple[bytes, int]],
    *,
    writer: str,
    batch: int,
    partition: int,
    attempt: str,
) -> StagedRecords:
    """
    Write *records* to a staged file. Durable on return. Runs in a task.

    Raises:
        OSError: the disk refused.
    """
    directory = part_directory(batch, partition, attempt)
    place = f"{root}/{INCOMING}/{writer}/{directory}"
    waiting = bytearray()
    position = count = 0
    file = None
    try:
        for payload, mark in records:
            if file is None:
                fs.make_dirs(place)
                file = fs.create_or_truncate(f"{place}/{PART_NAME}")
            waiting += RECORD_HEAD.pack(len(payload), checksum_of(payload), 0, mark)
            waiting += payload
            count += 1
            if len(waiting) >= _WRITE_BYTES:
                file.pwrite(waiting, position)
                position += len(waiting)
                waiting = bytearray()
        if file is None:
            return StagedRecords()
        file.pwrite(waiting, position)
        file.sync()
    finally:
        if file is not None:
            file.close()
    fs.sync_dir(place)
    return StagedRecords(StagedPart(f"{directory}/{PART_NAME}", count, position + len(waiting)))


# ── committing ───────────────────────────────────────────────────────────────────────────────────────


def _staged_log(fs: FileSystem, root: str) -> StagedLog[StagedPart]:
    return StagedLog(fs, f"{root}/{INCOMING}", COMMITS)


def is_records_batch_committed(fs: FileSystem, root: str, *, writer: str, batch: int) -> bool:
    """Return whether *batch* of *writer*, or a later one, was committed."""
    return _staged_log(fs, root).is_committed(writer, batch)


def commit_records(
    fs: FileSystem,
    root: str,
    *,
    writer: str,
    batch: int,
    staged: Sequence[StagedRecords],
    clock: Clock = SYSTEM_CLOCK,
) -> bool:
    """
    Commit everything that tasks staged for *batch*; return False when this batch was committed before.

    Durable on return. The records are in the log, too, unless another process has it open: that one appends them
    within a second.

    Raises:
        OSError: the disk refused; the same batch may be tried again.
    """
    log = _staged_log(fs, root)
    is_new = log.commit(writer, batch, tuple(one.part for one in staged if one.part is not None))
    _import_now(fs, root, clock)
    if log.awaits_import(writer, batch):
        _log.info("quiver.spark.aof_batch_waits path=%s batch=%d", log.directory(writer), batch)
    return is_new


def discard_records(fs: FileSystem, root: str, *, writer: str, batch: int, staged: Sequence[StagedRecords]) -> None:
    """Remove what tasks staged for *batch*, unless it is committed."""
    _staged_log(fs, root).discard(writer, batch, [one.part for one in staged if one.part is not None])


def _import_now(fs: FileSystem, root: str, clock: Clock) -> None:
    """Append what is committed, unless a process that has the log open does it."""
    if not fs.exists(f"{root}/{INCOMING}"):
        return
    lock = hold_patiently(
        fs, f"{root}/{INCOMING}/{_SINK_LOCK}", owner="quiver-aof sink", patience_s=_LOCK_PATIENCE_S, clock=clock
    )
    if lock is None:
        return  # the other sink appends a lot; the next one imports ours
    parent, _, name = root.rpartition("/")
    try:
        with AofManager.open(parent or "/", fs=fs, clock=clock, background=False) as manager:
            manager.log(name)  # opening imports it
    except DirectoryInUseError:
        return  # the owner imports it, when it closes at the latest
    finally:
        lock.release()


# ── the sink ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AofSink:
    """The sink of the format `quiver-aof`."""

    options: AofSinkOptions

    @property
    def transaction(self) -> tuple[str, int] | None:
        """The writer and number that the program gave this write, if any."""
        return self.options.transaction

    def stage(self, rows: Iterator[pa.RecordBatch], *, writer: str, batch: int) -> StagedRecords:
        """Write and sync one partition, in a task."""
        partition, attempt = task_place()
        found = records_of(rows, self.options)
        return stage_records(
            REAL_FILES, self.options.path, found, writer=writer, batch=batch, partition=partition, attempt=attempt
        )

    def commit(self, *, writer: str, batch: int, staged: Sequence[StagedRecords]) -> None:
        """Commit everything that was staged as one batch, unless that batch was committed before."""
        commit_records(REAL_FILES, self.options.path, writer=writer, batch=batch, staged=staged)

    def discard(self, *, writer: str, batch: int, staged: Sequence[StagedRecords]) -> None:
        """Remove what was staged, unless it is committed."""
        discard_records(REAL_FILES, self.options.path, writer=writer, batch=batch, staged=staged)
