"""
The rows of one slot as a table: one schema, even if schemas changed, and only segments in the range of times.

A `Scan` is planned when it is created, and returns the same bundles each time it is read. The plan may be made while a
writer has the store open, so it reads in an order that neither misses a bundle nor has one twice::

    1  the log: the active file first, then the retired ones    (entries only ever move from the first to these)
    2  the cursor
    3  segments                                                  (all that the cursor covers is in them, or deleted)
    4  entries of 1 that neither the cursor nor a segment covers

The scan holds the log's entries in memory, but of the segments only their metadata. A segment that every subscriber has
finished may be deleted before it is read; its rows are then left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa

from quiver.bundle import QWP_SLOT, QWP_TABLE_KEY
from quiver.errors import CorruptionError, UsageError
from quiver.store.format.wal_entry import WalEntry
from quiver.store.reading.digests import SegmentDigest, SegmentDigests
from quiver.store.reading.log_tail import snapshot_log, uncovered
from quiver.store.segment.cast import cast_to_schema, coalesce
from quiver.store.segment.event_time import event_field, is_event_type, rows_between
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.schemas import has_dictionaries, is_of_table
from quiver.store.segment.type_promotion import columns_of, common_schema
from quiver.store.wal.replay import decode_slots
from quiver.store.wal.scan import ScannedEntry

__all__ = ["By", "Moment", "Scan", "table_names"]

By = Literal["ingested", "event"]
"""The times of a range: when bundles were ingested, or the event times in the rows."""

Moment = datetime | int
"""A datetime with a zone, or nanoseconds since the epoch."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Range:
    """Times from *start_ns* to *end_ns*, exclusive; None is unbounded. With event times, *column* has them."""

    start_ns: int | None
    end_ns: int | None
    column: str | None = None

    def touches(self, low: int, high: int) -> bool:
        """Return whether a time from *low* to *high*, both included, may be in the range."""
        return (
            low <= high
            and (self.start_ns is None or high >= self.start_ns)
            and (self.end_ns is None or low < self.end_ns)
        )

    def covers(self, low: int, high: int) -> bool:
        """Return whether every time from *low* to *high* is in the range."""
        return (self.start_ns is None or low >= self.start_ns) and (self.end_ns is None or high < self.end_ns)

    def has_ingested(self, ingested_at_ns: int | None) -> bool:
        """Return whether a bundle ingested at that time is in the range; True when the time was not recorded."""
        return self.column is not None or ingested_at_ns is None or self.touches(ingested_at_ns, ingested_at_ns)

    def may_have(self, digest: SegmentDigest, slot: int) -> bool:
        """Return whether a segment may contain rows in the range."""
        if self.column is None:
            info = digest.info
            unknown = info.ingested_min_ns is None or info.ingested_max_ns is None
            return unknown or self.touches(info.ingested_min_ns or 0, info.ingested_max_ns or 0)
        ranges = [stream.event_range_ns(self.column) for stream in digest.of_slot(slot)]
        return any(found is None or self.touches(*found) for found in ranges)


@dataclass(slots=True)
class _Part:
    """The parts of one directory to read: segments by number, and entries of the log with the path of their file."""

    digests: SegmentDigests
    segments: list[int]
    tail: list[tuple[str, ScannedEntry]]


class Scan:
    """
    The rows of one slot, bundle after bundle, as Arrow batches of one schema. Can be iterated any number of times.

    Programs that support the Arrow C stream interface can read it directly, among them DuckDB and Polars. Small batches
    are combined; large uncompressed ones point into the mapped file. Damage that is found while reading is collected by
    the reader that created the scan; only the damaged rows are missing.

    Attributes:
        schema: every column, or the requested ones, each in the widest type that a bundle has it in.
    """

    def __init__(
        self,
        sources: Sequence[SegmentDigests],
        slot: int,
        columns: Sequence[str] | None = None,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        by: By = "ingested",
        table: str | None = None,
    ) -> None:
        if by not in {"ingested", "event"}:
            raise UsageError(f"by={by!r} is neither ingested nor event")
        if isinstance(columns, str):
            raise UsageError(f"columns={columns!r} is one text: write a list, columns=[{columns!r}]")
        if table is not None:
            _check_table(table, slot)
        self._slot = slot
        self._table = table
        limits = _Range(_moment_ns(start, "start"), _moment_ns(end, "end"))
        self._parts = [_plan(source, slot) for source in sources]
        schemas = list(dict.fromkeys(schema for part in self._parts for schema in _take_schemas(part, slot, table)))
        self.schema = common_schema(schemas, columns)
        if by == "event" and schemas and (start is not None or end is not None):
            limits = replace(limits, column=_event_column(schemas, slot))
        self._range = limits
        for part in self._parts:
            digests = [(seq, part.digests.get(seq)) for seq in part.segments]
            part.segments = [
                seq for seq, digest in digests if digest and digest.of_slot(slot) and limits.may_have(digest, slot)
            ]
            part.tail = [one for one in part.tail if limits.has_ingested(one[1].entry.ingested_at_ns)]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows in the order of their bundles: first those of sealed segments, then those that are only in the
        log.

        Raises:
            UsageError: a value does not fit the schema, for example a time that cannot be counted in nanoseconds.
            CorruptionError: a file is damaged, and the reader is strict.
        """
        # Batches of one stream share their dictionaries; those of different streams may need different key types.
        is_plain = not has_dictionaries(self.schema)
        return coalesce((None if is_plain else group, batch) for group, batch in self._batches())

    @property
    def problems(self) -> list[CorruptionError]:
        """The damage found so far, each with path, offset and reason. Everything else is still returned."""
        found = {id(damage): damage for part in self._parts for damage in part.digests.directory.problems}
        return list(found.values())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return one pass over the rows as an Arrow reader."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """
        Return all rows as a table.

        Raises:
            UsageError: as iteration.
            CorruptionError: as iteration.
        """
        return pa.Table.from_batches(iter(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        segments = sum(len(part.segments) for part in self._parts)
        entries = sum(len(part.tail) for part in self._parts)
        return f"Scan(slot={self._slot}, segments={segments}, log_entries={entries}, columns={self.schema.names})"

    def _is_wanted(self, schema: pa.Schema) -> bool:
        return self._table is None or is_of_table(schema, self._table)

    def _batches(self) -> Iterator[tuple[tuple[int, int, int], pa.RecordBatch]]:
        for number, part in enumerate(self._parts):
            for seq in part.segments:
                for stream_id, batch in self._segment(part, seq):
                    yield (number, seq, stream_id), batch
            for at, (path, scanned) in enumerate(part.tail):
                batch = _entry_batch(part.digests, path, scanned, self._slot)
                if batch is not None:
                    found = self._finish(batch, self._range)
                    if found is not None:
                        yield (number, -1, at), found

    def _segment(self, part: _Part, seq: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        reader = part.digests.directory.open_segment(seq)
        if reader is None:
            return
        try:
            names = self.schema.names if self._range.column is None else [*self.schema.names, self._range.column]
            for stream_id, chunk, limits in self._chunks(reader):
                try:
                    batch = reader.batch(stream_id, chunk, names)
                except CorruptionError as damage:
                    part.digests.directory.report(damage)
                    continue
                found = self._finish(batch, limits)
                if found is not None:
                    yield stream_id, found
        except CorruptionError as damage:
            part.digests.directory.report(damage)
        finally:
            reader.close()

    def _chunks(self, reader: SegmentReader) -> Iterator[tuple[int, int, _Range | None]]:
        """Yield streams and chunks that may contain rows in the range. The range is None where all rows are in it."""
        limits = self._range
        chunks = reader.slot_chunks(self._slot)
        if self._table is not None:
            wanted = {at for at in {at for _, at, _ in chunks} if self._is_wanted(reader.schema(at))}
            chunks = [chunk for chunk in chunks if chunk[1] in wanted]
        if limits.column is None:
            for index, stream_id, chunk in chunks:
                if limits.has_ingested(reader.ingested_at_ns(index)):
                    yield stream_id, chunk, None
            return
        times = reader.event_times()
        names = {stream_id: reader.schema(stream_id).names for _, stream_id, _ in chunks}
        indexed = {
            event.stream_id
            for event in reader.manifest.event_columns
            if limits.column in names.get(event.stream_id, ())
            and names[event.stream_id].index(limits.column) == event.column
        }
        for _, stream_id, chunk in chunks:
            if stream_id in indexed:
                low, high = times[stream_id][2 * chunk], times[stream_id][2 * chunk + 1]
                if not limits.touches(low, high):
                    continue
            yield stream_id, chunk, limits

    def _finish(self, batch: pa.RecordBatch, limits: _Range | None) -> pa.RecordBatch | None:
        """Return the rows of *batch* in *limits*, in the schema of the scan; None when there are none."""
        if limits is not None and limits.column is not None:
            if limits.column not in batch.schema.names:
                return None
            times = batch.column(batch.schema.names.index(limits.column))
            batch = batch.filter(rows_between(times, limits.start_ns, limits.end_ns))
        return cast_to_schema(batch, self.schema) if batch.num_rows else None


def _plan(digests: SegmentDigests, slot: int) -> _Part:
    directory = digests.directory
    log = snapshot_log(directory, sequence_sealed=-1)
    cursor = directory.cursor()
    segments = directory.segments()
    digests.keep_only(segments)
    tail = list(uncovered(log, cursor))
    sealed = -1
    damaged = set()
    if tail:
        first = min(scanned.entry.sequence for _, scanned in tail)
        for seq in segments:
            digest = digests.get(seq)
            last = None if digest is None else digest.info.sequence_last
            if last is None or last < first or last <= sealed:
                continue
            # A segment's own metadata decides which log entries are left out, so it must be valid.
            if _is_valid(digests, seq):
                sealed = last
            else:
                damaged.add(seq)
    tail = [
        (path, scanned)
        for path, scanned in tail
        if scanned.entry.sequence > sealed and any(found.slot == slot for found in scanned.entry.slots)
    ]
    return _Part(digests, [seq for seq in segments if seq not in damaged], tail)


def table_names(sources: Sequence[SegmentDigests]) -> list[str]:
    """Return the names of the tables that were received over QWP, each as it was first spelled."""
    names: dict[str, str] = {}
    for part in [_plan(source, QWP_SLOT) for source in sources]:
        for schema in _take_schemas(part, QWP_SLOT, None):
            name = (schema.metadata or {}).get(QWP_TABLE_KEY, b"").decode("utf-8", "replace")
            names.setdefault(name.casefold(), name)
    return sorted(name for name in names.values() if name)


def _check_table(table: object, slot: int) -> None:
    if not isinstance(table, str) or not table:
        raise UsageError(f"table={table!r} is not the name of a table")
    if slot != QWP_SLOT:
        raise UsageError(f"table={table!r} selects rows received over QWP, which are in slot {QWP_SLOT}, not in {slot}")


def _take_schemas(part: _Part, slot: int, table: str | None) -> list[pa.Schema]:
    """
    Return each schema of *slot* in *part* (of *table* only, if given), those of the oldest bundles first.

    Entries of the log are decoded if necessary; those of other tables and unreadable ones are removed from *part*.
    """
    found: dict[pa.Schema, None] = {}
    for seq in part.segments:
        digest = part.digests.get(seq)
        if digest is not None:
            schemas = [stream.schema for stream in digest.of_slot(slot)]
            found.update(dict.fromkeys(one for one in schemas if table is None or is_of_table(one, table)))
    kept = []
    for path, scanned in part.tail:
        schema = _entry_schema(part.digests, path, scanned, slot)
        if schema is not None and (table is None or is_of_table(schema, table)):
            kept.append((path, scanned))
            found.setdefault(schema)
    part.tail = kept
    return list(found)


def _is_valid(digests: SegmentDigests, seq: int) -> bool:
    reader = digests.directory.open_segment(seq)
    if reader is None:
        return False
    try:
        reader.verify()
    except CorruptionError as damage:
        digests.directory.report(damage)
        return False
    finally:
        reader.close()
    return True


def _entry_schema(digests: SegmentDigests, path: str, scanned: ScannedEntry, slot: int) -> pa.Schema | None:
    """Return the schema of one slot of an entry; None when it cannot be decoded, which is reported."""
    fingerprint = next(found.fingerprint for found in scanned.entry.slots if found.slot == slot)
    known = digests.schema_of(fingerprint)
    if known is not None:
        return known
    batch = _entry_batch(digests, path, scanned, slot)
    return None if batch is None else digests.learn(fingerprint, batch.schema)


def _entry_batch(digests: SegmentDigests, path: str, scanned: ScannedEntry, slot: int) -> pa.RecordBatch | None:
    only: WalEntry = scanned.entry._replace(slots=tuple(found for found in scanned.entry.slots if found.slot == slot))
    try:
        return decode_slots(only, path=path, position=scanned.start)[slot]
    except CorruptionError as damage:
        digests.directory.report(damage)
        return None


def _event_column(schemas: list[pa.Schema], slot: int) -> str:
    fields = []
    for name in columns_of(schemas):
        if any(is_event_type(field.name, field.type) for schema in schemas for field in schema if field.name == name):
            try:
                fields.append(common_schema(schemas, [name]).field(0))
            except UsageError:
                continue  # the column has times in one schema and other values in another: it cannot be used
    found = event_field(pa.schema(fields))
    if found is None:
        raise UsageError(f"slot {slot} has no column of event times; choose a range with by='ingested'")
    return found


def _moment_ns(moment: Moment | None, what: str) -> int | None:
    if moment is None or (isinstance(moment, int) and not isinstance(moment, bool)):
        return moment
    if not isinstance(moment, datetime):
        raise UsageError(f"{what}={moment!r} is neither a datetime nor nanoseconds since the epoch")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise UsageError(f"{what}={moment.isoformat()} has no time zone; write for example datetime.now(timezone.utc)")
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1_000
