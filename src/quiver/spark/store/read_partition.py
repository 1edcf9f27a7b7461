"""
Reading in a Spark task: open segments by path, verify them, return Arrow batches of the declared schema.

A task knows a list of ranges of bundles, and nothing else of the store. Each file is verified completely once per
process, before its first batch is returned. Everything here can be pickled.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.bundle import OTLP_FINGERPRINT, BundleRef
from quiver.errors import CorruptionError, DataLossError
from quiver.otap import decode_groups, slots_of_view, view_schema
from quiver.otap.stored import StoredTables, stored_requests
from quiver.otap.views.event_time import event_time_columns, event_times
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage
from quiver.spark.store.unsealed import LoggedBundle
from quiver.spark.task_process import skip_modules_in_collections
from quiver.store.cold.files import COLD_INODE, ColdFiles
from quiver.store.reading.partitions import BundleRange
from quiver.store.reading.query.time_range import ALL_TIMES, TimeRange
from quiver.store.reading.stream_options import METADATA_COLUMNS, Mode
from quiver.store.segment.cast import cast_to_schema, coalesce
from quiver.store.segment.event_time import rows_between
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.schemas import is_of_table
from quiver.store.segment.tail import read_tail

__all__ = [
    "BUNDLE_SCHEMA",
    "IPC_SCHEMA",
    "METADATA_SCHEMA",
    "ROWS_FIELD",
    "PartitionReader",
    "StoredBundle",
    "open_checked",
]

_TIME = pa.timestamp("us", tz="UTC")

METADATA_SCHEMA = pa.schema(
    [("_segment", pa.int64()), ("_index", pa.int32()), ("_row", pa.int64()), ("_ingested_at", _TIME)]
)
"""The columns of `includeMetadata`: the place of a row, and when its bundle was ingested."""

BUNDLE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("segment", pa.int64()),
        ("index", pa.int32()),
        ("slots", pa.list_(pa.field("element", pa.int32()))),
        ("ingested_at", _TIME),
    ]
)
"""Mode `bundles`: a descriptor, from which `map_bundles` opens the bundle."""

ROWS_FIELD = pa.field("rows", pa.map_(pa.int32(), pa.int64()))
"""The column of `includeMetadata` in mode `bundles`: how many rows each slot has."""

IPC_SCHEMA = pa.schema(
    [
        ("segment", pa.int64()),
        ("index", pa.int32()),
        ("slot", pa.int32()),
        ("ingested_at", _TIME),
        ("ipc", pa.binary()),
    ]
)
"""Mode `ipc`: each slot of each bundle as one Arrow IPC stream, with unchanged types."""

_IPC_BATCH_BYTES = 16 * 1024 * 1024
_READERS_MAX = 64
"""Readers of verified files, kept open for the next task of this process. Those of deleted files are closed."""

ViewData = bytes | StoredTables | Damage
"""The data of a view in a bundle, as `decode_groups` takes it."""

_readers: OrderedDict[tuple[str, int, int, int], SegmentReader] = OrderedDict()

_fs = ColdFiles(REAL_FILES)
"""A segment that only the object tier has is fetched by the task that reads it."""

_log = logging.getLogger("quiver")


def open_checked(path: str, *, fail_on_data_loss: bool) -> SegmentReader | None:
    """
    Open a segment and verify its checksum, once per process.

    Returns:
        None if the segment is missing or damaged and *fail_on_data_loss* is False.

    Raises:
        DataLossError: the file is missing.
        CorruptionError: the file is damaged.
    """
    skip_modules_in_collections()
    try:
        return _reader(path)
    except FileNotFoundError as error:
        problem: CorruptionError = DataLossError(
            path,
            0,
            "the segment was deleted before it was read: a batch read holds no position in the store, "
            "so read again, give deletion a longer retention.delete_grace, or set failOnDataLoss=false",
        )
        if fail_on_data_loss:
            raise problem from error
    except CorruptionError as damage:
        if fail_on_data_loss:
            raise
        problem = damage
    _log.warning("quiver.spark.segment_skipped path=%s reason=%s", path, problem)
    return None


def _reader(path: str) -> SegmentReader:
    # The key has the inode, too: a path may be reused with other contents, in another store.
    status = _fs.stat(path)
    key = (path, status.inode, status.size_bytes, status.modified_ns)
    latest = next(reversed(_readers), key)
    if latest != key:
        # A task reads one segment after the other. Pages that were read count as memory of the worker, and a
        # cluster may kill a worker that uses too much.
        _readers[latest].release_pages()
    reader = _readers.get(key)
    if reader is None:
        # An open file keeps its disk space even after it is deleted.
        for deleted in [known for known in _readers if not _fs.exists(known[0])]:
            del _readers[deleted]
        reader = SegmentReader.open(_fs, path)
        reader.verify()
        if status.inode == COLD_INODE:
            # It is in memory completely, and a task reads one segment after the other.
            for cold in [known for known in _readers if known[1] == COLD_INODE]:
                del _readers[cold]
        _readers[key] = reader
        if len(_readers) > _READERS_MAX:
            _readers.popitem(last=False)
    else:
        _readers.move_to_end(key)
    return reader


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """One bundle in an open segment."""

    reader: SegmentReader
    ref: BundleRef

    @property
    def path(self) -> str:
        """The file."""
        return self.reader.path

    @property
    def ingested_at_us(self) -> int | None:
        """Microseconds since the epoch, or None if the segment does not record it."""
        nanos = self.reader.ingested_at_ns(self.ref.index)
        return None if nanos is None else nanos // 1000

    @property
    def slots(self) -> list[int]:
        """The slots it has, ascending."""
        return sorted(ref.slot for ref in self.reader.manifest.refs(self.ref.index))

    def schema(self, slot: int) -> pa.Schema:
        """Return the schema of its batch in *slot*, without columns if it has none. No value is read."""
        for ref in self.reader.manifest.refs(self.ref.index):
            if ref.slot == slot:
                return self.reader.schema(ref.stream_id)
        return pa.schema([])

    def row_counts(self) -> dict[int, int]:
        """Return how many rows each slot has. Reads no values, only lengths."""
        return {slot: batch.num_rows for slot, batch in self.batches().items()}

    def batches(
        self, slots: Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> dict[int, pa.RecordBatch]:
        """Return its batches, or those of *slots* only, with *columns* only."""
        return self.reader.bundle(self.ref.index, None if slots is None else tuple(slots), columns)


AnyBundle = StoredBundle | LoggedBundle


@dataclass(frozen=True)
class PartitionReader:
    """
    Reads ranges of bundles in one mode.

    Attributes:
        mode: rows, bundles or ipc.
        view: the view to decode, in mode rows.
        slot: the slot to read, in mode rows; the only slot to return, in mode ipc.
        target: the exact schema of every batch.
        fail_on_data_loss: False skips missing, damaged and undecodable data, with a warning.
        table: read only rows that arrived over QWP for this table, in mode rows.
        event_times: read only rows of the view with these times.
    """

    mode: Mode
    view: str | None
    slot: int | None
    target: pa.Schema
    fail_on_data_loss: bool
    table: str | None = None
    event_times: TimeRange = ALL_TIMES

    def read(self, ranges: Sequence[BundleRange | LoggedBundle]) -> Iterator[pa.RecordBatch]:
        """
        Yield the batches of *ranges*, in order.

        Raises:
            DataLossError: a segment is missing.
            CorruptionError: a segment or a request in it cannot be read.
            UsageError: a stored column does not fit the declared schema.
        """
        if self.mode == "bundles":
            yield from self._descriptors(ranges)
        elif self.mode == "ipc":
            yield from self._ipc(ranges)
        elif self.view is not None:
            yield from coalesce((None, batch) for batch in self._view_rows(ranges, self.view))
        else:
            yield from coalesce((None, batch) for batch in self._slot_rows(ranges, self.slot or 0))

    def _bundles(self, ranges: Sequence[BundleRange | LoggedBundle]) -> Iterator[StoredBundle | LoggedBundle]:
        for bundle_range in ranges:
            if isinstance(bundle_range, LoggedBundle):
                yield bundle_range
            elif not self._is_outside(bundle_range.path):
                yield from self._sealed(bundle_range)

    def _sealed(self, *ranges: BundleRange) -> Iterator[StoredBundle]:
        for bundle_range in ranges:
            reader = open_checked(bundle_range.path, fail_on_data_loss=self.fail_on_data_loss)
            if reader is None:
                continue
            for index in range(bundle_range.start, min(bundle_range.stop, reader.bundle_count)):
                yield StoredBundle(reader, BundleRef(bundle_range.segment, index))

    def _is_outside(self, path: str) -> bool:
        """Return whether the end of a segment shows that no row of the view has its time in the range."""
        if self.view is None or not self.event_times.is_bounded:
            return False
        try:
            tail = read_tail(_fs, path)
        except (OSError, CorruptionError):
            return False  # reported when the segment is opened
        if tail is None or tail.streams is None or tail.event_columns is None:
            return False
        ranges = {event.stream_id: (event.min_ns, event.max_ns) for event in tail.event_columns if event.column == 0}
        slots = slots_of_view(self.view)
        for stream in tail.streams:
            if stream.slot in slots and stream.chunk_count:
                found = ranges.get(stream.stream_id) if stream.fingerprint == OTLP_FINGERPRINT else None
                if found is None or self.event_times.touches(*found):
                    return False
        return True

    def _slot_rows(self, ranges: Sequence[BundleRange | LoggedBundle], slot: int) -> Iterator[pa.RecordBatch]:
        for bundle in self._bundles(ranges):
            if self.table is not None and not is_of_table(bundle.schema(slot), self.table):
                continue
            batch = bundle.batches((slot,), self.target.names).get(slot)
            if batch is not None and batch.num_rows:
                yield self._finish(batch, [(bundle, batch.num_rows)])

    def _view_rows(self, ranges: Sequence[BundleRange | LoggedBundle], view: str) -> Iterator[pa.RecordBatch]:
        needed = event_time_columns(view) if self.event_times.is_bounded else ()
        wanted = [name for name in self.target.names if name in view_schema(view).names]
        columns = list(dict.fromkeys((*wanted, *needed)))
        origins: deque[AnyBundle] = deque()
        taken = 0
        for group in decode_groups(self._requests(ranges, view, origins), view, columns=columns):
            while taken < group.first:
                origins.popleft()
                taken += 1
            for index, reason in group.bad:
                self._refuse(origins[index], reason)
            if group.batch.num_rows:
                rows = self._finish(group.batch, list(zip(origins, group.rows, strict=False)))
                if rows.num_rows:
                    yield rows

    def _requests(
        self, ranges: Sequence[BundleRange | LoggedBundle], view: str, origins: deque[AnyBundle]
    ) -> Iterator[ViewData]:
        slots = slots_of_view(view)
        for bundle in self._bundles(ranges):
            for request in stored_requests(bundle.batches(slots), view):
                origins.append(bundle)
                yield request

    def _refuse(self, bundle: AnyBundle, reason: str) -> None:
        problem = CorruptionError(bundle.path, 0, f"a request of bundle {bundle.ref} cannot be decoded: {reason}")
        if self.fail_on_data_loss:
            raise problem
        _log.warning("quiver.spark.request_skipped reason=%s", problem)

    def _finish(self, batch: pa.RecordBatch, origins: list[tuple[AnyBundle, int]]) -> pa.RecordBatch:
        """Cast to the declared schema, and add the metadata columns that it has."""
        names = self.target.names
        wanted = [name for name in METADATA_COLUMNS if name in names]
        if wanted:
            metadata = _metadata(origins, batch.num_rows)
            for name in wanted:
                if name not in batch.schema.names:
                    batch = batch.append_column(METADATA_SCHEMA.field(name), metadata.column(name))
        if self.view is not None and self.event_times.is_bounded:
            times = event_times(batch, self.view)
            batch = batch.filter(rows_between(times, self.event_times.start_ns, self.event_times.end_ns))
        return cast_to_schema(batch, self.target)

    def _descriptors(self, ranges: Sequence[BundleRange | LoggedBundle]) -> Iterator[pa.RecordBatch]:
        for bundle_range in ranges:
            if isinstance(bundle_range, LoggedBundle):
                continue
            found = list(self._sealed(bundle_range))
            if found:
                columns = [
                    pa.repeat(bundle_range.path, len(found)),
                    pa.repeat(pa.scalar(bundle_range.segment, pa.int64()), len(found)),
                    pa.array([bundle.ref.index for bundle in found], pa.int32()),
                    pa.array([bundle.slots for bundle in found], BUNDLE_SCHEMA.field("slots").type),
                    pa.array([bundle.ingested_at_us for bundle in found], _TIME),
                ]
                batch = pa.RecordBatch.from_arrays(columns, schema=BUNDLE_SCHEMA)
                if ROWS_FIELD.name in self.target.names:
                    counts = [list(bundle.row_counts().items()) for bundle in found]
                    batch = batch.append_column(ROWS_FIELD, pa.array(counts, ROWS_FIELD.type))
                yield cast_to_schema(batch, self.target)

    def _ipc(self, ranges: Sequence[BundleRange | LoggedBundle]) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[StoredBundle, int, bytes]] = []
        size = 0
        for bundle in self._sealed(*(one for one in ranges if not isinstance(one, LoggedBundle))):
            for slot, batch in bundle.batches(None if self.slot is None else (self.slot,)).items():
                rows.append((bundle, slot, _ipc_stream(batch)))
                size += len(rows[-1][2])
            if size >= _IPC_BATCH_BYTES:
                yield self._ipc_batch(rows)
                rows, size = [], 0
        if rows:
            yield self._ipc_batch(rows)

    def _ipc_batch(self, rows: list[tuple[StoredBundle, int, bytes]]) -> pa.RecordBatch:
        columns = [
            pa.array([bundle.ref.segment for bundle, _, _ in rows], pa.int64()),
            pa.array([bundle.ref.index for bundle, _, _ in rows], pa.int32()),
            pa.array([slot for _, slot, _ in rows], pa.int32()),
            pa.array([bundle.ingested_at_us for bundle, _, _ in rows], _TIME),
            pa.array([data for _, _, data in rows], pa.binary()),
        ]
        return cast_to_schema(pa.RecordBatch.from_arrays(columns, schema=IPC_SCHEMA), self.target)


def _metadata(origins: list[tuple[AnyBundle, int]], rows: int) -> pa.RecordBatch:
    """Return the metadata columns for *origins*: (bundle, number of rows), in the order of the rows."""
    segments: list[int] = []
    indexes: list[int] = []
    numbers: list[int] = []
    times: list[int | None] = []
    before: BundleRef | None = None
    for bundle, count in origins:
        # A bundle may contain several requests; its rows are numbered consecutively.
        first = numbers[-1] + 1 if numbers and bundle.ref == before else 0
        segments += [bundle.ref.segment] * count
        indexes += [bundle.ref.index] * count
        numbers += range(first, first + count)
        times += [bundle.ingested_at_us] * count
        before = bundle.ref if count else before
    columns: tuple[list[Any], ...] = (segments, indexes, numbers, times)
    arrays = [pa.array(values[:rows], field.type) for values, field in zip(columns, METADATA_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=METADATA_SCHEMA)


def _ipc_stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
