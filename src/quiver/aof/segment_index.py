"""The segments of an open log for its readers: unsealed ones in memory, sealed ones in their files or hydrated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from quiver.aof.append.segment import Segment
from quiver.aof.append.tail import Tail
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.format.sparse_index import IndexMark
from quiver.aof.reading.catalog import Catalog, SealedSegment
from quiver.aof.reading.index import SparseIndexes, before_number
from quiver.aof.reading.resume import is_believed
from quiver.aof.reading.search import heads
from quiver.aof.reading.source import Extent, LogPosition, ReadableSegment
from quiver.aof.tiers.tier_manager import TierManager
from quiver.errors import CorruptionError, UnknownRecordError

__all__ = ["OpenSegments", "require_id"]


class OpenSegments:
    """
    All segments of one open log. Thread-safe.

    Attributes:
        tiers: hydrates segments; None for a log without tiers.
    """

    def __init__(self, directory: str, tail: Tail, catalog: Catalog, indexes: SparseIndexes) -> None:
        self.directory = directory
        self._tail = tail
        self._catalog = catalog
        self._indexes = indexes
        self._waits = True
        self.tiers: TierManager | None = None

    def without_waiting(self) -> OpenSegments:
        """Return the same segments for readers that do not wait for hydration."""
        found = OpenSegments(self.directory, self._tail, self._catalog, self._indexes)
        found.tiers = self.tiers
        found._waits = False
        return found

    def source(self, segment_id: int, *, durable_only: bool) -> ReadableSegment | None:
        """
        Return the segment with that id, as far as it can be read now; None when there is none, or its file was removed.

        If all copies are damaged, the source has what can still be unpacked, and its `problem` has the reason.

        Raises:
            WouldBlockError: it is being hydrated, and these readers do not wait.
            CorruptionError: none of its bytes can be read.
            ObjectsUnavailableError: the only copy is an object, and the store does not answer; try again.
        """
        with self._tail.lock:
            for one in self._tail.unsealed():
                if one.segment_id == segment_id:
                    end = max(one.durable, HEADER_BYTES) if durable_only else one.size
                    complete = one is not self._tail.segment and end == one.size
                    return ReadableSegment(
                        segment_id, one.path, one.view.toreadonly(), end, complete, one.last_timestamp,
                        self._extent_of(one), one.base_timestamp,
                    )  # fmt: skip
        sealed = self._catalog.get(segment_id)
        if sealed is None:
            return None
        view, problem = None, ""
        try:
            view = self._catalog.view(sealed) if self.tiers is None else self.tiers.view(sealed, wait=self._waits)
        except FileNotFoundError:
            return None  # retired meanwhile, or removed from outside
        except CorruptionError as damage:
            view, problem = None if self.tiers is None else self.tiers.salvage(sealed), damage.reason
            if view is None:
                raise
        if view is None:
            return None
        return ReadableSegment(
            segment_id, sealed.path, view, sealed.end, True, sealed.footer.last_timestamp, _extent_of_sealed(sealed),
            sealed.header.base_timestamp, problem,
        )  # fmt: skip

    def extent(self, segment_id: int) -> Extent | None:
        """Return the extent of the segment with that id in the log; None when there is none."""
        with self._tail.lock:
            for one in self._tail.unsealed():
                if one.segment_id == segment_id:
                    return self._extent_of(one)
        sealed = self._catalog.get(segment_id)
        return None if sealed is None else _extent_of_sealed(sealed)

    def _extent_of(self, one: Segment) -> Extent:
        is_growing = one is self._tail.segment
        count = None if is_growing else one.record_count
        return Extent(one.base_offset, None if is_growing else one.size, one.base_record_count, count)

    def next_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest segment id above *segment_id*; None when there is none."""
        with self._tail.lock:
            unsealed = [one.segment_id for one in self._tail.unsealed() if one.segment_id > segment_id]
        sealed = self.next_sealed_segment_id(segment_id)
        return min([*unsealed, *([] if sealed is None else [sealed])], default=None)

    def next_sealed_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest id of a sealed segment above *segment_id*; None when there is none."""
        sealed = self._catalog.after(segment_id)
        return None if sealed is None else sealed.segment_id

    def last_timestamp(self, segment_id: int) -> int | None:
        """Return the timestamp of the last record of a sealed segment; None for any other."""
        sealed = self._catalog.get(segment_id)
        return None if sealed is None else sealed.footer.last_timestamp

    def marks(self, segment_id: int) -> Sequence[IndexMark]:
        """
        Return the known starts of records in a sealed segment; index the segment if necessary.

        Raises:
            CorruptionError, ObjectsUnavailableError, OSError: the segment must be read for the index, and cannot be.
        """
        sealed = self._catalog.get(segment_id)
        if sealed is None:
            return ()
        found = self._indexes.marks(sealed)
        if found is None and self._indexes.enabled:
            source = self.source(segment_id, durable_only=False)
            found = None if source is None or source.problem else self._indexes.make(sealed, source.view)
        return found or ()

    def stretch(self, segment_id: int, _start: int, _end: int | None) -> ReadableSegment | None:
        """Return the complete segment with that id, because it is mapped."""
        return self.source(segment_id, durable_only=False)

    def end_place(self) -> LogPosition:
        """Return the place of the next record, if it is appended to the active segment."""
        tail = self._tail
        with tail.lock:
            one = tail.segment
            if one is None:
                begin = tail.next_base_offset + HEADER_BYTES
                return LogPosition(tail.next_segment_id << 32, begin, tail.next_base_record_count)
            count = one.base_record_count + one.record_count
            return LogPosition(one.id_base | one.size, one.base_offset + one.size, count)

    def nth(self, number: int) -> int | None:
        """Return the id of record *number* of the log, counted from 0; None when it is gone."""
        with self._tail.lock:
            spans = [(one.segment_id, one.base_record_count, one.record_count) for one in self._tail.unsealed()]
        spans += [
            (one.segment_id, one.header.base_record_count, one.footer.record_count) for one in self._catalog.all()
        ]
        for segment_id, base, count in spans:
            if base <= number < base + count:
                known, offset = before_number(self.marks(segment_id), number - base)
                source = self.source(segment_id, durable_only=False)
                at = None if source is None else next(islice(heads(source, offset), number - base - known, None), None)
                if source is not None and (at is None or not is_believed(source, at[0])):
                    raise CorruptionError(
                        source.path, offset, source.problem or f"record {number} of the log was not found"
                    )
                return None if at is None else segment_id << 32 | at[0]
        return None


def _extent_of_sealed(sealed: SealedSegment) -> Extent:
    return Extent(
        sealed.header.base_offset, sealed.end, sealed.header.base_record_count, sealed.footer.record_count
    )  # fmt: skip


def require_id(record_id: int) -> None:
    """
    Check that *record_id* is a possible record id.

    Raises:
        UnknownRecordError: no record can have such an id.
    """
    if not isinstance(record_id, int) or not 0 <= record_id < 1 << 64:
        raise UnknownRecordError(f"no record {record_id!r}: an id is an integer of 64 bits, as returned by an append")
