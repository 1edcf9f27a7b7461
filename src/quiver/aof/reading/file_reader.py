"""
A log that another process writes, read by Spark: the available ranges, the plan of a batch, the records of one piece.

Only durable records are planned: after a power loss, ids of lost records are used again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, join_record_id, split_record_id
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES
from quiver.aof.reading.batch import RecordRun, read_run
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.position import AofBound, AofPosition
from quiver.aof.reading.resume import is_believed, resume_after
from quiver.aof.reading.search import begin_at, require_place
from quiver.aof.reading.source import ReadableSegment
from quiver.errors import CorruptionError, DataLossError, QuiverError, UnknownRecordError
from quiver.instant import IngestedAt

__all__ = ["AOF_SCHEMA", "METADATA_SCHEMA", "LogFileReader", "RecordSpan", "read_piece"]

AOF_SCHEMA = pa.schema([
    pa.field("record_id", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("ext_id", pa.int64(), nullable=False),
    pa.field("payload", pa.binary(), nullable=False),
])  # fmt: skip
METADATA_SCHEMA = pa.schema([
    pa.field("_segment", pa.int64(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_timestamp_ns", pa.int64(), nullable=False),
])  # fmt: skip

_PIECE_BYTES = 16 * 1024 * 1024
_log = logging.getLogger("quiver")


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Records of one segment, from offset *start* to *stop*. `here`: the segment has a local, unpacked file."""

    segment_id: int
    start: int
    stop: int
    here: bool = True

    @property
    def size_bytes(self) -> int:
        """The size of the piece."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Extent:
    """The durable part of a segment."""

    segment_id: int
    base_offset: int
    end: int
    sealed: bool
    records: int | None
    here: bool


class LogFileReader:
    """
    One log that another process writes. Not thread-safe.

    Args:
        fail_on_data_loss: whether missing records are an error.
    """

    def __init__(self, files: LogFiles, *, fail_on_data_loss: bool) -> None:
        self._files = files
        self._fails = fail_on_data_loss

    @property
    def identity(self) -> str:
        """The identity of the log: its number."""
        return str(self._files.stream_id())

    def _extents(self) -> list[_Extent]:
        found: dict[int, _Extent] = {}
        for one in self._files.segment_files():
            if one.durable > HEADER_BYTES:
                extent, is_intact = one.extent, not one.problem
                found[one.name.segment_id] = _Extent(
                    one.name.segment_id, extent.base_offset, one.durable, one.is_sealed,
                    extent.record_count if is_intact else None, here=is_intact,
                )  # fmt: skip
        pointer = self._files.pointer()
        for segment_id, entry in self._files.tiers().entries.items():
            if segment_id not in found and pointer is not None and segment_id <= pointer.segment_id:
                found[segment_id] = _Extent(
                    segment_id, entry.header.base_offset, entry.original_bytes, sealed=True,
                    records=entry.footer.record_count, here=False,
                )  # fmt: skip
        return [found[segment_id] for segment_id in sorted(found)]

    def _lost(self, where: str, reason: str) -> None:
        _report_loss(DataLossError(where, 0, reason), fails=self._fails)

    def end(self) -> AofPosition:
        """Return the position after the last durable record."""
        extents = self._extents()
        if not extents:
            return AofPosition(0)
        last = extents[-1]
        return AofPosition(join_record_id(last.segment_id, last.end), last.base_offset + last.end)

    def resolve(self, bound: AofBound) -> AofPosition:
        """
        Resolve *bound* to a position.

        Raises:
            UnknownRecordError: it is an id inside a record.
        """
        if isinstance(bound, IngestedAt):
            found = begin_at(self._files, bound.time_ns)
            return self.end() if found is None else AofPosition(found)
        if isinstance(bound, int):
            try:
                require_place(self._files, bound)
            except UnknownRecordError:
                raise
            except (QuiverError, OSError) as error:
                _log.info("quiver.spark.aof_unread position=%d problem=%s", bound, error)  # reading it raises the error
            return AofPosition(bound)
        return AofPosition(0) if bound == "earliest" else self.end()

    def pieces(self, start: AofPosition, stop: AofPosition) -> list[RecordSpan]:
        """
        Return the records from *start* to before *stop*, one piece for each segment.

        Raises:
            DataLossError: some are missing.
            UsageError: the directory holds no log.
        """
        first, first_offset = split_record_id(start.record_id)
        last, last_offset = split_record_id(stop.record_id)
        extents = [one for one in self._extents() if first <= one.segment_id <= last]
        self._check_complete(extents, start, stop)
        found = []
        for one in extents:
            begin = max(first_offset, HEADER_BYTES) if one.segment_id == first else HEADER_BYTES
            until = min(last_offset, one.end) if one.segment_id == last else one.end
            if begin < until:
                found.append(RecordSpan(one.segment_id, begin, until, one.here))
        return found

    def _check_complete(self, extents: list[_Extent], start: AofPosition, stop: AofPosition) -> None:
        if stop.record_id <= start.record_id:
            return
        where = self._files.directory
        first, _ = split_record_id(start.record_id)
        last, last_offset = split_record_id(stop.record_id)
        expected = None if start.log_bytes is None else start.log_bytes + FOOTER_BYTES
        place = start.record_id
        for one in extents:
            follows = one.segment_id == first or start.record_id == 0
            if (one is not extents[0] or not follows) and expected != one.base_offset:
                resume = join_record_id(one.segment_id, HEADER_BYTES)
                self._lost(where, f"records from {place} on are gone; the log continues with record {resume}")
            expected = one.base_offset + one.end + FOOTER_BYTES
            place = join_record_id(one.segment_id, one.end)
        reaches = bool(extents) and (extents[-1].segment_id, extents[-1].end) >= (last, last_offset)
        if not reaches and last_offset > HEADER_BYTES:
            self._lost(where, f"records from {place} up to {stop.record_id} are gone")

    def reach(self, start: AofPosition, stop: AofPosition, *, rows_max: int | None, bytes_max: int) -> AofPosition:
        """Return the end of a batch from *start*: *stop*, or where the first limit is reached; never *start*."""
        bases = {one.segment_id: one for one in self._extents()}
        rows = size = 0
        for piece in self.pieces(start, stop):
            extent = bases[piece.segment_id]
            covers_segment = (piece.start, piece.stop) == (HEADER_BYTES, extent.end) and extent.records is not None
            count = extent.records if covers_segment else None
            fits = size + piece.size_bytes <= bytes_max
            if rows_max is not None:
                fits = fits and count is not None and rows + count <= rows_max
            if fits:
                rows += count or 0
                size += piece.size_bytes
                continue
            left_rows = None if rows_max is None else rows_max - rows
            at, seen = self._walk(piece, left_rows, bytes_max - size, at_least=0 if size else 1)
            rows, size = rows + seen, size + at - piece.start
            if at < piece.stop:
                return AofPosition(join_record_id(piece.segment_id, at), extent.base_offset + at)
        return stop

    def _walk(self, piece: RecordSpan, rows_max: int | None, bytes_max: int, *, at_least: int) -> tuple[int, int]:
        """
        Return the end of the records of *piece* that fit, and their number. The end is the start of a record.

        A piece that cannot be read is included completely: its task raises the error.
        """
        source = self._source(piece)
        at, count = piece.start, 0
        while source is not None and at + RECORD_HEAD_BYTES < piece.stop:
            (length, *_) = RECORD_HEAD.unpack_from(source.view, at)
            end = at + RECORD_HEAD_BYTES + length
            is_full = (rows_max is not None and count >= rows_max) or end - piece.start > bytes_max
            fits = length > 0 and end <= piece.stop
            if (count >= at_least and is_full) or not fits:
                if is_believed(source, at):
                    return at, count
                # Damage: a position, or the beginning of another task, would be inside a record.
                end = resume_after(source, at).offset
            at, count = end, count + 1
        return piece.stop, count

    def _source(self, piece: RecordSpan) -> ReadableSegment | None:
        try:
            source = self._files.piece(piece.segment_id, piece.start, piece.stop, durable_only=True)
        except CorruptionError:
            return None
        return source if source is not None and source.limit >= piece.stop else None

    def tasks(self, pieces: list[RecordSpan], *, parallelism: int, partitions_min: int) -> list[tuple[RecordSpan, ...]]:
        """Distribute *pieces* in order to tasks of about equal size. Pieces in local files are split if that helps."""
        total = sum(piece.size_bytes for piece in pieces)
        wanted = max(1, partitions_min, min(parallelism, -(-total // _PIECE_BYTES)))
        share = max(1, -(-total // wanted))
        cut = [part for piece in pieces for part in self._cut(piece, share)]
        packed: list[list[RecordSpan]] = []
        filled = 0
        for piece in cut:
            if not packed or filled + piece.size_bytes // 2 >= share * len(packed):
                packed.append([])
            packed[-1].append(piece)
            filled += piece.size_bytes
        return [tuple(one) for one in packed]

    def _cut(self, piece: RecordSpan, share: int) -> list[RecordSpan]:
        found = []
        while piece.here and piece.size_bytes > share + share // 2:
            at, _ = self._walk(piece, None, share, at_least=1)
            if at >= piece.stop:
                break
            found.append(RecordSpan(piece.segment_id, piece.start, at))
            piece = RecordSpan(piece.segment_id, at, piece.stop)
        return [*found, piece]


def read_piece(
    files: LogFiles, piece: RecordSpan, columns: tuple[str, ...], *, include_metadata: bool, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """
    Yield the verified records of *piece*, in a task.

    Raises:
        DataLossError: records are missing or damaged, and *fail_on_data_loss* is set.
    """
    try:
        source = files.piece(piece.segment_id, piece.start, piece.stop, durable_only=True)
    except CorruptionError as damaged:
        reason = f"no copy of segment {piece.segment_id} can be read: {damaged.reason}"
        _report_loss(DataLossError(damaged.path, damaged.offset, reason), fails=fail_on_data_loss)
        return
    if source is None:
        _report_loss(DataLossError(files.directory, 0, f"segment {piece.segment_id} is gone"), fails=fail_on_data_loss)
        return
    if source.problem:
        _log.warning("quiver.spark.segment_damaged path=%s reason=%s", source.path, source.problem)
    source = source._replace(end=piece.stop)
    offset = piece.start
    while offset < piece.stop:
        run, offset, damage = read_run(source, offset, records_max=65_536)
        if len(run):
            yield _batch(run, columns, include_metadata=include_metadata)
        if damage is None:
            continue
        offset = resume_after(source, damage.offset, files.marks(piece.segment_id)).offset
        first, resume = join_record_id(piece.segment_id, damage.offset), join_record_id(piece.segment_id, offset)
        reason = f"records from {first} up to {resume} are lost ({damage.reason})"
        _report_loss(DataLossError(source.path, damage.offset, reason), fails=fail_on_data_loss)


def _report_loss(problem: DataLossError, *, fails: bool) -> None:
    if fails:
        raise problem
    _log.warning("quiver.spark.records_skipped reason=%s", problem)


def _batch(run: RecordRun, columns: tuple[str, ...], *, include_metadata: bool) -> pa.RecordBatch:
    ids = run.record_ids.view(np.int64)
    nanos = run.timestamps.view(np.int64)
    made: dict[str, Any] = {
        "record_id": lambda: pa.array(ids),
        "timestamp": lambda: pa.array(nanos // 1000).cast(pa.timestamp("us", tz="UTC")),
        "ext_id": lambda: pa.array(run.ext_ids.view(np.int64)),
        "payload": lambda: run.to_arrow().column("payload").cast(pa.binary()),
    }
    arrays = [made[name]() for name in columns]
    fields = [AOF_SCHEMA.field(name) for name in columns]
    if include_metadata:
        arrays += [pa.array(ids >> 32), pa.array(ids & 0xFFFF_FFFF), pa.array(nanos)]
        fields += list(METADATA_SCHEMA)
    return pa.record_batch(arrays, schema=pa.schema(fields))
