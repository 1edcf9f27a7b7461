"""The rows of one slot as a table: one schema, even if schemas changed, and only segments in the range of times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from quiver.bundle import QWP_SLOT, QWP_TABLE_KEY
from quiver.errors import CorruptionError, UsageError
from quiver.store.reading.digests import SegmentDigest, SegmentDigests
from quiver.store.reading.query.row_origin import RowOrigin
from quiver.store.reading.query.scan import Part, Scan, entry_batches, plan
from quiver.store.reading.query.time_range import By, Moment, TimeRange, check_by, moment_ns
from quiver.store.segment.cast import cast_to_schema, coalesce
from quiver.store.segment.event_time import event_field, is_event_type, rows_between
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.schemas import has_dictionaries, is_of_table
from quiver.store.segment.type_promotion import columns_of, common_schema
from quiver.store.wal.scan import ScannedEntry

__all__ = ["SlotScan", "table_names"]


class SlotScan(Scan):
    """The rows of one slot. See `Scan`."""

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
        origin: RowOrigin | None = None,
    ) -> None:
        by_event = check_by(by)
        if isinstance(columns, str):
            raise UsageError(f"columns={columns!r} is one text: write a list, columns=[{columns!r}]")
        if table is not None:
            _check_table(table, slot)
        self._slot = slot
        self._table = table
        self._range = TimeRange(moment_ns(start, "start"), moment_ns(end, "end"))
        super().__init__([plan(source, (slot,)) for source in sources], origin)
        schemas = list(dict.fromkeys(schema for part in self._parts for schema in _take_schemas(part, slot, table)))
        self._stored = common_schema(schemas, columns if origin is None else origin.stored(columns_of(schemas)))
        self.schema = self._stored if origin is None else origin.schema(self._stored)
        is_event_range = by_event and bool(schemas) and self._range.is_bounded
        self._column = _event_column(schemas, slot) if is_event_range else None
        """The column whose times must be in the range; None if the times of ingestion must be."""
        for part in self._parts:
            digests = [(seq, part.digests.get(seq)) for seq in part.segments]
            part.segments = [
                seq for seq, digest in digests if digest and digest.of_slot(slot) and self._may_have(digest)
            ]
            part.tail = [one for one in part.tail if self._has_ingested(one[1].entry.ingested_at_ns)]

    def _may_have(self, digest: SegmentDigest) -> bool:
        """Return whether a segment may contain rows in the range."""
        if self._column is None:
            return self._range.may_have_ingested(digest.info.ingested_min_ns, digest.info.ingested_max_ns)
        ranges = [stream.event_range_ns(self._column) for stream in digest.of_slot(self._slot)]
        return any(found is None or self._range.touches(*found) for found in ranges)

    def _has_ingested(self, ingested_at_ns: int | None) -> bool:
        return self._column is not None or self._range.has_ingested(ingested_at_ns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; see `Scan`."""
        # Batches of one stream share their dictionaries; those of different streams may need different key types.
        is_plain = not has_dictionaries(self.schema)
        return coalesce((None if is_plain else group, batch) for group, batch in self._batches())

    def __repr__(self) -> str:
        return f"Scan(slot={self._slot}, {self._described()})"

    def _is_wanted(self, schema: pa.Schema) -> bool:
        return self._table is None or is_of_table(schema, self._table)

    def _batches(self) -> Iterator[tuple[tuple[int, int, int], pa.RecordBatch]]:
        for number, part in enumerate(self._parts):
            for seq in part.segments:
                for stream_id, batch in self._segment(part, seq):
                    yield (number, seq, stream_id), self._placed(batch, part, seq)
            for at, (path, scanned) in enumerate(part.tail):
                batches = entry_batches(part.digests, path, scanned, (self._slot,))
                if batches is not None:
                    found = self._finish(batches[self._slot])
                    if found is not None:
                        yield (number, -1, at), found

    def _segment(self, part: Part, seq: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        reader = part.digests.directory.open_segment(seq)
        if reader is None:
            return
        try:
            names = self._stored.names if self._column is None else [*self._stored.names, self._column]
            for stream_id, chunk in self._chunks(reader):
                try:
                    batch = reader.batch(stream_id, chunk, names)
                except CorruptionError as damage:
                    part.digests.directory.report(damage)
                    continue
                found = self._finish(batch)
                if found is not None:
                    yield stream_id, found
        except CorruptionError as damage:
            part.digests.directory.report(damage)
        finally:
            reader.close()

    def _chunks(self, reader: SegmentReader) -> Iterator[tuple[int, int]]:
        """Yield streams and chunks that may contain rows in the range."""
        chunks = reader.slot_chunks(self._slot)
        if self._table is not None:
            wanted = {at for at in {at for _, at, _ in chunks} if self._is_wanted(reader.schema(at))}
            chunks = [chunk for chunk in chunks if chunk[1] in wanted]
        column = self._column
        if column is None:
            for index, stream_id, chunk in chunks:
                if self._range.has_ingested(reader.ingested_at_ns(index)):
                    yield stream_id, chunk
            return
        times = reader.event_times()
        names = {stream_id: reader.schema(stream_id).names for _, stream_id, _ in chunks}
        indexed = {
            event.stream_id
            for event in reader.manifest.event_columns
            if column in names.get(event.stream_id, ()) and names[event.stream_id].index(column) == event.column
        }
        for _, stream_id, chunk in chunks:
            if stream_id in indexed:
                low, high = times[stream_id][2 * chunk], times[stream_id][2 * chunk + 1]
                if not self._range.touches(low, high):
                    continue
            yield stream_id, chunk

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the rows of *batch* in the range, in the schema of what is read; None when there are none."""
        if self._column is not None:
            if self._column not in batch.schema.names:
                return None
            times = batch.column(batch.schema.names.index(self._column))
            batch = batch.filter(rows_between(times, self._range.start_ns, self._range.end_ns))
        return cast_to_schema(batch, self._stored) if batch.num_rows else None


def table_names(sources: Sequence[SegmentDigests]) -> list[str]:
    """Return the names of the tables that were received over QWP, each as it was first spelled."""
    names: dict[str, str] = {}
    for part in [plan(source, (QWP_SLOT,)) for source in sources]:
        for schema in _take_schemas(part, QWP_SLOT, None):
            name = (schema.metadata or {}).get(QWP_TABLE_KEY, b"").decode("utf-8", "replace")
            names.setdefault(name.casefold(), name)
    return sorted(name for name in names.values() if name)


def _check_table(table: object, slot: int) -> None:
    if not isinstance(table, str) or not table:
        raise UsageError(f"table={table!r} is not the name of a table")
    if slot != QWP_SLOT:
        raise UsageError(f"table={table!r} selects rows received over QWP, which are in slot {QWP_SLOT}, not in {slot}")


def _take_schemas(part: Part, slot: int, table: str | None) -> list[pa.Schema]:
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


def _entry_schema(digests: SegmentDigests, path: str, scanned: ScannedEntry, slot: int) -> pa.Schema | None:
    """Return the schema of one slot of an entry; None when it cannot be decoded, which is reported."""
    fingerprint = next(found.fingerprint for found in scanned.entry.slots if found.slot == slot)
    known = digests.schema_of(fingerprint)
    if known is not None:
        return known
    batches = entry_batches(digests, path, scanned, (slot,))
    return None if batches is None else digests.learn(fingerprint, batches[slot].schema)


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
