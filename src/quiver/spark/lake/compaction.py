"""
Compact the visible files of a lake: small files of one partition become one.

Only files that the Parquet exporter or an earlier compaction wrote are touched, and only when their batch is completely
published: a file whose staged part still exists would be copied to its name again after it was deleted.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from quiver.bundle import schema_fingerprint
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, ObjectNotFoundError, TransientError
from quiver.invariant import invariant
from quiver.objects.port import ObjectTier
from quiver.spark.exporters.commit_records import RECORD_BYTES_MAX
from quiver.spark.exporters.parquet_commit import RECORDS_DIR, ExportRecord, record_batch_of
from quiver.spark.exporters.row_groups import RowGroupWriter
from quiver.spark.lake.compaction_log import CompactionLog, CompactionRecord, LakeFile, visible_files
from quiver.spark.lake.object_commit import STAGED_DIR
from quiver.spark.lake.staging import send_file

__all__ = ["Compacted", "CompactionGroup", "LakeCompactor"]

_OWN_NAME = re.compile(r"(?:(?:[0-9a-f]{8}|apart-[0-9a-f]{32})-[0-9]{10}-[0-9]+|compacted-[0-9]{10})\.parquet")
_PIECE_BYTES = 8 << 20
_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """
    Files of one directory that become one, if they have the same columns.

    Attributes:
        directory: of all of them.
        files: in the order of their names.
    """

    directory: str
    files: tuple[LakeFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(one.size_bytes for one in self.files)


@dataclass(frozen=True, slots=True)
class Compacted:
    """
    A finished compaction.

    Attributes:
        directory: the directory.
        inputs: the files that were replaced.
        output: the file that replaced them.
        rows: its rows.
    """

    directory: str
    inputs: tuple[LakeFile, ...]
    output: LakeFile
    rows: int


class LakeCompactor:
    """
    Compacts the lake in *objects*. Exporters may write to it at the same time; a second compactor stops.

    Args:
        objects: the lake; keys are relative to it.
        target_bytes: files are combined up to about this size; larger ones than half of it stay as they are.
        older_than_s: younger files stay, because more are to come.
        compression: of the new files: zstd, snappy, or none.
        clock: the current time.
        random: returns a name that no other compactor has.
    """

    def __init__(
        self,
        objects: ObjectTier,
        *,
        target_bytes: int = 128 << 20,
        older_than_s: float = 3600.0,
        compression: str = "zstd",
        clock: Clock = SYSTEM_CLOCK,
        random: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._objects = objects
        self._log = CompactionLog(objects)
        self._target_bytes = target_bytes
        self._older_than_ns = round(older_than_s * 1e9)
        self._compression = compression
        self._clock = clock
        self._random = random

    def plan(self) -> list[CompactionGroup]:
        """
        Return the files that would be compacted now. Writes nothing.

        Raises:
            CorruptionError: a commit record is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        newest_ns = self._clock.now_ns() - self._older_than_ns
        current = {one.key for one in self._log.current_files()}
        found: dict[str, list[LakeFile]] = defaultdict(list)
        for info in visible_files(self._objects):
            directory, _, name = info.key.rpartition("/")
            if (
                info.key in current
                and info.modified_ns <= newest_ns
                and info.size_bytes <= self._target_bytes // 2
                and _OWN_NAME.fullmatch(name)
            ):
                found[directory].append(LakeFile(info.key, info.size_bytes))
        # In this order: a part exists before its file is visible, and never again after it was removed.
        unfinished = self._unfinished()
        groups = []
        for directory, files in sorted(found.items()):
            finished = [one for one in files if one.key not in unfinished]
            groups += [CompactionGroup(directory, one) for one in self._combined(finished)]
        return groups

    def _combined(self, files: Sequence[LakeFile]) -> Iterator[tuple[LakeFile, ...]]:
        some: list[LakeFile] = []
        size = 0
        for one in files:
            if some and size + one.size_bytes > self._target_bytes:
                if len(some) > 1:
                    yield tuple(some)
                some, size = [], 0
            some.append(one)
            size += one.size_bytes
        if len(some) > 1:
            yield tuple(some)

    def _unfinished(self) -> set[str]:
        """Return the files of batches that are still being published."""
        staged: dict[str, set[str]] = defaultdict(set)
        records: dict[str, list[str]] = defaultdict(list)
        for info in self._objects.list_below(RECORDS_DIR):
            query, _, name = info.key.removeprefix(f"{RECORDS_DIR}/").partition("/")
            if name.startswith(f"{STAGED_DIR}/"):
                staged[query].add(name.removeprefix(f"{STAGED_DIR}/"))
            elif record_batch_of(name) is not None:
                records[query].append(info.key)
        found: set[str] = set()
        for query, parts in staged.items():
            for key in records[query]:
                try:
                    record = ExportRecord.decode(self._objects.get(key, size_max=RECORD_BYTES_MAX), key)
                except ObjectNotFoundError:
                    continue  # an old record that was removed since
                found.update(f"{part.table}/{name}" for part, name in record.files if part.name in parts)
        return found

    def run(self) -> Iterator[Compacted]:
        """
        Finish a compaction that was interrupted, compact, and yield each finished compaction.

        Raises:
            TransientError: another compactor runs.
            CorruptionError: a file or a record is damaged.
            ObjectsUnavailableError: the object store does not answer. The next run continues.
        """
        last = self._log.last()
        if last is not None:
            self._log.finish(last)
        number = 0 if last is None else last.number + 1
        # Each record has the next number, so no other compactor changed a file since the plan.
        for group in self.plan():
            for record in self._compact(group, number):
                number = record.number + 1
                yield Compacted(group.directory, record.inputs, record.output, record.rows)

    def _compact(self, group: CompactionGroup, number: int) -> Iterator[CompactionRecord]:
        with contextlib.ExitStack() as opened:
            by_schema: dict[bytes, list[tuple[LakeFile, Any]]] = defaultdict(list)
            for one in group.files:
                local = self._fetched(one)
                if local is None:
                    continue  # a retention rule of the bucket removed it
                opened.callback(local.close)
                try:
                    source = pq.ParquetFile(local)
                except pa.ArrowException as error:
                    raise CorruptionError(one.key, 0, f"the file is not Parquet: {error}") from error
                by_schema[schema_fingerprint(source.schema_arrow)].append((one, source))
            for some in by_schema.values():
                if len(some) > 1:
                    record = self._merge(group.directory, some, number)
                    number += 1
                    yield record

    def _merge(self, directory: str, some: Sequence[tuple[LakeFile, Any]], number: int) -> CompactionRecord:
        part = self._log.staged_key(number, self._random())
        with tempfile.TemporaryFile(prefix="quiver-lake-") as merged:
            rows = _merge_into(merged, [source for _, source in some], self._compression)
            size_bytes = send_file(self._objects, part, merged)
        output = LakeFile(f"{directory}/compacted-{number:010}.parquet", size_bytes)
        record = CompactionRecord(number, part, output, rows, tuple(one for one, _ in some))
        if not self._log.commit(record):
            self._objects.delete([part])
            raise TransientError("another compaction of this lake runs; nothing is lost, run it again later")
        self._log.finish(record)
        return record

    def _fetched(self, one: LakeFile) -> IO[bytes] | None:
        local = tempfile.TemporaryFile(prefix="quiver-lake-")  # noqa: SIM115 - the caller closes it
        try:
            for start in range(0, one.size_bytes, _PIECE_BYTES):
                local.write(self._objects.get_range(one.key, start, min(_PIECE_BYTES, one.size_bytes - start)))
        except ObjectNotFoundError:
            local.close()
            return None
        except BaseException:
            local.close()
            raise
        if local.tell() != one.size_bytes:
            local.close()
            raise CorruptionError(one.key, one.size_bytes, "the file is shorter than its listing says")
        local.seek(0)
        return local


def _merge_into(target: IO[bytes], sources: Sequence[Any], compression: str) -> int:
    """Write the rows of all *sources* in their order, and return their number."""
    writer = RowGroupWriter(target, sources[0].schema_arrow, compression=compression)
    try:
        for source in sources:
            for batch in source.iter_batches(batch_size=_ROWS):
                writer.add(batch)
        writer.finish()
    finally:
        writer.close()
    expected = sum(source.metadata.num_rows for source in sources)
    invariant(writer.rows == expected, "a compacted file has all rows of its inputs")
    return writer.rows
