"""
The bundles that are only in a store's log, for a batch read.

A segment that is sealed during the plan has bundles that the log has, too. So the plan reads the log first, and then
only the segments that existed when the log had been read: the same order as in `store/reading/query/scan.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

import pyarrow as pa

from quiver.bundle import SLOT_MAX, BundleRef, batch_bytes
from quiver.instant import IngestedAt
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.digests import SegmentDigests
from quiver.store.reading.directory import StoreDirectory
from quiver.store.reading.offsets import StartingOffsets
from quiver.store.reading.partitions import PARTITION_BYTES_MIN
from quiver.store.reading.query.scan import entry_batches, plan

__all__ = ["LoggedBundle", "Unsealed", "pack_logged", "read_unsealed"]


@dataclass(frozen=True, slots=True)
class LoggedBundle:
    """A bundle that no segment has yet. Its batches are part of the plan of a task, since the log may move on."""

    path: str
    ref: BundleRef
    ingested_at_ns: int
    stored: dict[int, pa.RecordBatch]

    @property
    def ingested_at_us(self) -> int | None:
        """Microseconds since the epoch."""
        return self.ingested_at_ns // 1000

    def schema(self, slot: int) -> pa.Schema:
        """Return the schema of its batch in *slot*, without columns if it has none."""
        return self.stored[slot].schema if slot in self.stored else pa.schema([])

    def batches(
        self, slots: Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> dict[int, pa.RecordBatch]:
        """Return its batches, or those of *slots* only, with *columns* only."""
        wanted = self.stored.keys() if slots is None else self.stored.keys() & set(slots)
        return {slot: _only(self.stored[slot], columns) for slot in sorted(wanted)}


@dataclass(frozen=True, slots=True)
class Unsealed:
    """The bundles that are only in the log, and the segments that have all others."""

    bundles: tuple[LoggedBundle, ...]
    segments: frozenset[int]

    def between(
        self, starting: StartingOffsets, ending: StartingOffsets, start: BundleRef, end: BundleRef
    ) -> Iterator[LoggedBundle]:
        """
        Return the bundles between the bounds of a batch read.

        Args:
            starting: the lower bound of the options.
            ending: the upper bound of the options.
            start: the position of the first sealed bundle after *starting*.
            end: the position of the first sealed bundle that is not before *ending*.
        """
        sealed_end = BundleRef(max(self.segments, default=-1) + 1, 0)
        found: Iterable[LoggedBundle] = self.bundles
        if starting == "latest" or isinstance(ending, BundleRef) or ending == "earliest":
            found = ()
        if isinstance(ending, IngestedAt):
            limit_ns = ending.time_ns
            # A sealed bundle is at or after the end, and all of these come after it.
            found = () if end < sealed_end else takewhile(lambda one: one.ingested_at_ns < limit_ns, found)
        if isinstance(starting, IngestedAt) and start >= sealed_end:
            first_ns = starting.time_ns
            found = dropwhile(lambda one: one.ingested_at_ns < first_ns, found)
        return (one for one in found if not isinstance(starting, BundleRef) or one.ref >= starting)


def read_unsealed(root: str, slots: frozenset[int], *, fail_on_data_loss: bool) -> Unsealed:
    """
    Return the bundles of the store at *root* that are only in its log and have one of *slots*.

    Their references are provisional, as those of `quiver.read`.

    Raises:
        CorruptionError: the log is damaged, and the reader stops on data loss.
    """
    directory = StoreDirectory(root, fs=REAL_FILES, strict=fail_on_data_loss)
    part = plan(SegmentDigests(directory), range(SLOT_MAX + 1))
    number = max(directory.floor(), max(part.segments, default=-1) + 1)
    found = []
    for index, (path, scanned) in enumerate(part.tail):
        if any(one.slot in slots for one in scanned.entry.slots):
            batches = entry_batches(part.digests, path, scanned, slots)
            if batches is not None:
                found.append(LoggedBundle(path, BundleRef(number, index), scanned.entry.ingested_at_ns, batches))
    return Unsealed(tuple(found), frozenset(part.segments))


def pack_logged(bundles: Iterable[LoggedBundle]) -> Iterator[tuple[LoggedBundle, ...]]:
    """Yield what each task reads of *bundles*, in order."""
    current: list[LoggedBundle] = []
    size = 0
    for bundle in bundles:
        nbytes = sum(batch_bytes(batch) for batch in bundle.stored.values())
        if current and size + nbytes > PARTITION_BYTES_MIN:
            yield tuple(current)
            current, size = [], 0
        current.append(bundle)
        size += nbytes
    if current:
        yield tuple(current)


def _only(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    if columns is None:
        return batch
    return batch.select([name for name in batch.schema.names if name in set(columns)])
