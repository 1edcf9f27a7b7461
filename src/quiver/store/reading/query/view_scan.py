"""
The rows of one view as a table: log records, spans or data points of OTLP requests and OTAP tables.

Requests are decoded while the scan is read. An unreadable request is reported as damage of its file; all other rows are
returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError, UsageError
from quiver.otap.stored import StoredTables, slots_of_view, stored_requests
from quiver.otap.views.event_time import event_time_columns, event_times
from quiver.otap.views.schemas import VIEW_SLOTS, projected_schema, view_name, view_schema
from quiver.otap.views.view import decode_groups
from quiver.primitives.scan import Damage
from quiver.store.reading.digests import SegmentDigest, SegmentDigests
from quiver.store.reading.query.row_origin import RowOrigin
from quiver.store.reading.query.scan import Part, Scan, entry_batches, plan
from quiver.store.reading.query.time_range import By, Moment, TimeRange, check_by, moment_ns
from quiver.store.segment.cast import coalesce
from quiver.store.segment.event_time import rows_between
from quiver.store.segment.reader import SegmentReader

__all__ = ["ViewScan"]

Origin = tuple[str, int, str]
"""The file, the offset and the name of a bundle, for reports of damage."""


class ViewScan(Scan):
    """The rows of one view. See `Scan`."""

    def __init__(
        self,
        sources: Sequence[SegmentDigests],
        view: str,
        columns: Sequence[str] | None = None,
        *,
        start: Moment | None = None,
        end: Moment | None = None,
        by: By = "ingested",
        origin: RowOrigin | None = None,
    ) -> None:
        by_event = check_by(by)
        if isinstance(columns, str):
            raise UsageError(f"columns={columns!r} is one text: write a list, columns=[{columns!r}]")
        self._view = view_name(view)
        stored = columns if origin is None else origin.stored(view_schema(self._view).names)
        self._stored = projected_schema(self._view, None if stored is None else list(stored))
        self.schema = self._stored if origin is None else origin.schema(self._stored)
        self._slots = frozenset(slots_of_view(self._view))
        self._range = TimeRange(moment_ns(start, "start"), moment_ns(end, "end"))
        self._is_event_range = by_event and self._range.is_bounded
        needed = event_time_columns(self._view) if self._is_event_range else ()
        self._decoded_columns = list(dict.fromkeys((*self._stored.names, *needed)))
        super().__init__([plan(source, self._slots) for source in sources], origin)
        for part in self._parts:
            digests = [(seq, part.digests.get(seq)) for seq in part.segments]
            part.segments = [seq for seq, digest in digests if digest and self._may_have(digest)]
            part.tail = [one for one in part.tail if self._has_ingested(one[1].entry.ingested_at_ns)]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; see `Scan`."""
        return coalesce((None, batch) for batch in self._batches())

    def __repr__(self) -> str:
        return f"Scan(view={self._view}, {self._described()})"

    def _may_have(self, digest: SegmentDigest) -> bool:
        """Return whether a segment may contain rows in the range."""
        streams = [stream for stream in digest.streams if stream.slot in self._slots]
        if not self._is_event_range:
            info = digest.info
            return bool(streams) and self._range.may_have_ingested(info.ingested_min_ns, info.ingested_max_ns)
        # A stream whose range is unknown is read, as are tables: one of their rows can have its time in another column.
        raw = VIEW_SLOTS[self._view]
        ranges = [stream.event_range_ns("data") if stream.slot == raw else None for stream in streams]
        return any(found is None or self._range.touches(*found) for found in ranges)

    def _has_ingested(self, ingested_at_ns: int | None) -> bool:
        return self._is_event_range or self._range.has_ingested(ingested_at_ns)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for part in self._parts:
            for seq in part.segments:
                for batch in self._segment(part, seq):
                    yield self._placed(batch, part, seq)
            yield from self._rows(part, self._logged(part))

    def _segment(self, part: Part, seq: int) -> Iterator[pa.RecordBatch]:
        reader = part.digests.directory.open_segment(seq)
        if reader is None:
            return
        try:
            yield from self._rows(part, self._sealed(part, reader, seq))
        except CorruptionError as damage:
            part.digests.directory.report(damage)
        finally:
            reader.close()

    def _sealed(
        self, part: Part, reader: SegmentReader, seq: int
    ) -> Iterator[tuple[Origin, Mapping[int, pa.RecordBatch]]]:
        """Yield the batches of each bundle of a segment that may have rows in the range."""
        skipped = self._outside(reader) if self._is_event_range else frozenset()
        for index in range(reader.bundle_count):
            if index not in skipped and self._has_ingested(reader.ingested_at_ns(index)):
                try:
                    yield (reader.path, 0, f"bundle {BundleRef(seq, index)}"), reader.bundle(index, self._slots)
                except CorruptionError as damage:
                    part.digests.directory.report(damage)

    def _outside(self, reader: SegmentReader) -> frozenset[int]:
        """Return the bundles whose requests have no event time in the range."""
        recorded = {event.stream_id for event in reader.manifest.event_columns}
        times = reader.event_times()
        outside = set()
        for index, stream_id, chunk in reader.slot_chunks(VIEW_SLOTS[self._view]):
            if stream_id in recorded and reader.schema(stream_id).names == ["data"]:
                low, high = times[stream_id][2 * chunk], times[stream_id][2 * chunk + 1]
                if not self._range.touches(low, high):
                    outside.add(index)
        for slot in self._slots - {VIEW_SLOTS[self._view]}:
            outside.difference_update(index for index, _, _ in reader.slot_chunks(slot))
        return frozenset(outside)

    def _logged(self, part: Part) -> Iterator[tuple[Origin, Mapping[int, pa.RecordBatch]]]:
        for path, scanned in part.tail:
            batches = entry_batches(part.digests, path, scanned, self._slots)
            if batches is not None:
                yield (path, scanned.start, "this entry"), batches

    def _rows(
        self, part: Part, bundles: Iterator[tuple[Origin, Mapping[int, pa.RecordBatch]]]
    ) -> Iterator[pa.RecordBatch]:
        """Decode *bundles* and yield the rows in the range."""
        origins: deque[Origin] = deque()
        taken = 0
        for group in decode_groups(self._requests(bundles, origins), self._view, columns=self._decoded_columns):
            while taken < group.first:
                origins.popleft()
                taken += 1
            for index, reason in group.bad:
                path, offset, name = origins[index]
                damage = CorruptionError(path, offset, f"a request of {name} cannot be decoded: {reason}")
                part.digests.directory.report(damage)
            batch = self._finish(group.batch)
            if batch.num_rows:
                yield batch

    def _requests(
        self, bundles: Iterator[tuple[Origin, Mapping[int, pa.RecordBatch]]], origins: deque[Origin]
    ) -> Iterator[bytes | StoredTables | Damage]:
        for origin, batches in bundles:
            for request in stored_requests(batches, self._view):
                origins.append(origin)
                yield request

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of *batch* in the range, with the columns that are read."""
        if self._is_event_range:
            times = event_times(batch, self._view)
            batch = batch.filter(rows_between(times, self._range.start_ns, self._range.end_ns))
        return batch if batch.schema.names == self._stored.names else batch.select(self._stored.names)
