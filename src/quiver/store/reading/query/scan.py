"""
A table that is read in place, and the plan of what it reads from one directory.

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

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.errors import CorruptionError, QuiverError
from quiver.html_tables import facts_html, rows_html, section_html
from quiver.store.format.wal_entry import WalEntry
from quiver.store.reading.digests import SegmentDigests
from quiver.store.reading.log_tail import snapshot_log, uncovered
from quiver.store.reading.query.row_origin import RowOrigin
from quiver.store.wal.replay import decode_slots
from quiver.store.wal.scan import ScannedEntry

__all__ = ["Part", "Scan", "entry_batches", "plan"]


_ROWS_SHOWN = 5
_COLUMNS_SHOWN = 12
"""The part of a scan that a notebook shows."""


@dataclass(slots=True)
class Part:
    """The parts of one directory to read: segments by number, and entries of the log with the path of their file."""

    digests: SegmentDigests
    segments: list[int]
    tail: list[tuple[str, ScannedEntry]]


class Scan(ABC):
    """
    The rows of one slot or view, bundle after bundle, as Arrow batches of one schema. Can be iterated repeatedly.

    Programs that support the Arrow C stream interface can read it directly, among them DuckDB and Polars. Small batches
    are combined; large uncompressed ones of a slot point into the mapped file. Damage that is found while reading is
    collected by the reader that created the scan; only the damaged rows are missing.

    Attributes:
        schema: every column, or the requested ones. For a slot, each in the widest type that a bundle has it in.
    """

    schema: pa.Schema

    def __init__(self, parts: list[Part], origin: RowOrigin | None = None) -> None:
        self._parts = parts
        self._origin = origin

    @abstractmethod
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows in the order of their bundles: first those of sealed segments, then those that are only in the
        log.

        Raises:
            UsageError: a value does not fit the schema, for example a time that cannot be counted in nanoseconds.
            CorruptionError: a file is damaged, and the reader is strict.
        """

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

    def _repr_html_(self) -> str:
        """Return the columns and the first rows: a notebook must not read a complete store to show a scan."""
        columns = self.schema.names[:_COLUMNS_SHOWN]
        try:
            first = next(iter(self), None)
            rows = [] if first is None else first.select(columns).slice(0, _ROWS_SHOWN).to_pylist()
        except (QuiverError, OSError) as error:
            return section_html(repr(self), facts_html({"problem": str(error)}))
        more = len(self.schema.names) - len(columns)
        title = f"The first {len(rows)} rows" + (f", without {more} columns" if more else "")
        return section_html(title, rows_html(rows, columns))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _placed(self, batch: pa.RecordBatch, part: Part, seq: int) -> pa.RecordBatch:
        """Return *batch*, which was read from segment *seq* of *part*, with the columns that say so, if any."""
        if self._origin is None:
            return batch
        return self._origin.place(batch, self.schema, part.digests.directory.path, seq)

    def _described(self) -> str:
        """Return the number of segments and log entries to read, and the columns."""
        segments = sum(len(part.segments) for part in self._parts)
        entries = sum(len(part.tail) for part in self._parts)
        return f"segments={segments}, log_entries={entries}, columns={self.schema.names}"


def plan(digests: SegmentDigests, slots: Collection[int]) -> Part:
    """Return the segments of a directory, and the entries of its log with one of *slots* that no segment contains."""
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
        if scanned.entry.sequence > sealed and any(found.slot in slots for found in scanned.entry.slots)
    ]
    return Part(digests, [seq for seq in segments if seq not in damaged], tail)


def entry_batches(
    digests: SegmentDigests, path: str, scanned: ScannedEntry, slots: Collection[int]
) -> dict[int, pa.RecordBatch] | None:
    """Return the batches of an entry in *slots*; None when they cannot be decoded, which is reported."""
    only: WalEntry = scanned.entry._replace(slots=tuple(found for found in scanned.entry.slots if found.slot in slots))
    try:
        return decode_slots(only, path=path, position=scanned.start)
    except CorruptionError as damage:
        digests.directory.report(damage)
        return None


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
