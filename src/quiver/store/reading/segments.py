"""The sealed segments of a store, listed by a reader while a writer may have the store open."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from quiver.bundle import BundleRef, schema_fingerprint
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, DataLossError, UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cold.files import COLD_INODE
from quiver.store.format.cores import core_directory, parse_core_directory
from quiver.store.format.names import (
    SEGMENTS_DIR,
)
from quiver.store.format.segment.file import StreamEntry
from quiver.store.reading.offsets import STORE_UNKNOWN
from quiver.store.reading.partitions import SegmentSummary
from quiver.store.reading.store_files import StoreFiles
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.tail import read_tail

__all__ = ["SegmentList", "store_identities", "store_identity", "store_root", "store_roots"]

_LISTING_SETTLES_NS = 100_000_000
"""If a directory changed this shortly before it was listed, it may change again without a new modification time."""

_log = logging.getLogger("quiver")


def store_identity(fs: FileSystem, root: str) -> str:
    """Return the store's identity, or "unknown" for a store that has none."""
    return StoreFiles(fs, root).identity() or STORE_UNKNOWN


def store_root(segment_path: str) -> str:
    """Return the directory of the store that contains the segment at *segment_path*."""
    return segment_path.rpartition("/")[0].rpartition("/")[0]


def store_roots(fs: FileSystem, path: str) -> dict[int | None, str]:
    """
    Return the stores below *path*: its cores by number, or None → *path* itself for a single store.

    Raises:
        UsageError: *path* contains no store.
    """
    try:
        cores = sorted(core for core in map(parse_core_directory, fs.list_dir(path)) if core is not None)
    except (FileNotFoundError, NotADirectoryError):
        cores = []
    # A core that is just being created or removed does not count.
    found: dict[int | None, str] = {}
    for core in cores:
        root = f"{path}/{core_directory(core)}"
        if fs.exists(f"{root}/{SEGMENTS_DIR}"):
            found[core] = root
    if found:
        return found
    if not fs.exists(f"{path}/{SEGMENTS_DIR}"):
        raise UsageError(f"{path} is not the directory of a store: it has no {SEGMENTS_DIR}/")
    return {None: path}


def store_identities(fs: FileSystem, path: str) -> dict[str, str]:
    """
    Return the directories of the stores below *path*, each with its identity.

    Raises:
        UsageError: *path* contains no store.
    """
    return {root: store_identity(fs, root) for root in store_roots(fs, path).values()}


class SegmentList:
    """
    The segments of the store at *root*, and what the plan needs of each. Not thread-safe.

    Args:
        fs: the file system.
        root: the store's directory.
        slots: sizes and rows count only these slots; None counts all.
        fail_on_data_loss: whether a damaged segment stops the reader or is skipped with a warning.
        clock: used to decide whether a listing is still current.

    Raises:
        UsageError: *root* is not the directory of a store.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        slots: frozenset[int] | None,
        fail_on_data_loss: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._fs = fs
        self._store = StoreFiles(fs, root)
        self._root = root
        self._directory = self._store.segments_directory
        self._slots = slots
        self._fail = fail_on_data_loss
        self._clock = clock
        self._numbers: list[int] = []
        self._listed: tuple[int, int] | None = None
        self._summaries: dict[int, SegmentSummary] = {}
        self._seen: set[int] = set()
        if not fs.exists(self._directory):
            raise UsageError(f"{root} is not the directory of a store: it has no {SEGMENTS_DIR}/")

    def numbers(self) -> Sequence[int]:
        """Return the numbers of the sealed segments, ascending."""
        modified_ns = self._fs.stat(self._directory).modified_ns
        if self._listed is not None:
            known_ns, listed_ns = self._listed
            if modified_ns == known_ns and listed_ns - known_ns > _LISTING_SETTLES_NS:
                return self._numbers
        self._listed = (modified_ns, self._clock.now_ns())
        self._numbers = self._store.segments()
        self._seen.update(self._numbers)
        present = set(self._numbers)
        self._summaries = {number: known for number, known in self._summaries.items() if number in present}
        return self._numbers

    def path(self, number: int) -> str:
        """Return the path of segment *number*, whether or not the file exists."""
        return self._store.segment_path(number)

    def first(self) -> BundleRef:
        """Return the position of the oldest bundle; 0:0 in an empty store."""
        numbers = self.numbers()
        return BundleRef(numbers[0] if numbers else 0, 0)

    def end(self, start: BundleRef) -> BundleRef:
        """Return the position after the newest segment, never one below *start*."""
        numbers = self.numbers()
        return max(start, BundleRef(numbers[-1] + 1, 0)) if numbers else start

    def ingested_from(self, time_ns: int) -> BundleRef:
        """
        Return the first bundle ingested at *time_ns* or later; the position after the last one when there is none.

        A bundle without a recorded time counts as one of them.

        Raises:
            CorruptionError: a segment cannot be read, and the reader stops on data loss.
        """
        for number in list(self.numbers()):
            reader = self._open(self.path(number))
            times = None if reader is None else reader.manifest.ingested_times_ns
            if reader is None or (times is not None and not any(time >= time_ns for time in times)):
                continue
            return BundleRef(number, 0 if times is None else next(i for i, time in enumerate(times) if time >= time_ns))
        return self.end(BundleRef(0, 0))

    def from_position(self, start: BundleRef) -> Iterator[SegmentSummary]:
        """
        Yield the segments from *start* on, ascending. Each is opened only when it is requested.

        Raises:
            CorruptionError: a segment cannot be read, and the reader stops on data loss.
        """
        numbers = self.numbers()
        for number in list(numbers[bisect_left(numbers, start.segment) :]):
            summary = self._summary(number)
            if summary is not None:
                yield summary

    def existing(self) -> Iterator[SegmentSummary]:
        """
        Yield all segments, ascending, without those that are deleted meanwhile: every subscriber has finished those.

        Raises:
            CorruptionError: a segment cannot be read, and the reader stops on data loss.
        """
        for number in list(self.numbers()):
            try:
                yield self._read_summary(number)
            except FileNotFoundError:
                continue
            except CorruptionError as problem:
                self._skip_or_raise(self.path(number), problem)

    def schemas(self) -> Iterator[pa.Schema]:
        """
        Yield each distinct schema of the slots, those of the oldest segments first. The data is not read.

        Raises:
            CorruptionError: a segment cannot be read, and the reader stops on data loss.
        """
        known: set[bytes] = set()
        seen: set[pa.Schema] = set()
        for summary in self.from_position(BundleRef(0, 0)):
            if known >= summary.fingerprints:
                continue
            for fingerprint, schema in self._stream_schemas(summary.path):
                # A fingerprint of another engine may have several schemas.
                if schema_fingerprint(schema) == fingerprint:
                    known.add(fingerprint)
                if schema not in seen:
                    seen.add(schema)
                    yield schema

    def _stream_schemas(self, path: str) -> list[tuple[bytes, pa.Schema]]:
        try:
            reader = SegmentReader.open(self._fs, path)
            return [
                (entry.fingerprint, reader.schema(stream_id))
                for stream_id, entry in reader.streams.items()
                if entry.chunk_count and (self._slots is None or entry.slot in self._slots)
            ]
        except (FileNotFoundError, CorruptionError) as problem:
            self._skip_or_raise(path, problem)
            return []

    def _open(self, path: str) -> SegmentReader | None:
        try:
            return SegmentReader.open(self._fs, path)
        except (FileNotFoundError, CorruptionError) as problem:
            self._skip_or_raise(path, problem)
            return None

    def _summary(self, number: int) -> SegmentSummary | None:
        try:
            return self._read_summary(number)
        except (FileNotFoundError, CorruptionError) as problem:
            self._skip_or_raise(self.path(number), problem)
            return None

    def _read_summary(self, number: int) -> SegmentSummary:
        known = self._summaries.get(number)
        if known is not None:
            return known
        path = self.path(number)
        bundle_count, every = self._read_directory(path)
        streams = [entry for entry in every if self._slots is None or entry.slot in self._slots]
        summary = SegmentSummary(
            number,
            path,
            bundle_count,
            sum(entry.byte_length for entry in streams),
            sum(entry.row_count for entry in streams),
            frozenset(entry.fingerprint for entry in streams if entry.chunk_count),
        )
        self._summaries[number] = summary
        return summary

    def _read_directory(self, path: str) -> tuple[int, Collection[StreamEntry]]:
        # If the segment is only in the object tier, read only its end here; the task that reads it fetches all of it.
        tail = read_tail(self._fs, path) if self._fs.stat(path).inode == COLD_INODE else None
        streams = None if tail is None else tail.streams
        if tail is not None and streams is not None:
            return tail.info.bundle_count, streams
        reader = SegmentReader.open(self._fs, path)
        return reader.bundle_count, reader.streams.values()

    def _skip_or_raise(self, path: str, problem: FileNotFoundError | CorruptionError) -> None:
        if not self._fail:
            _log.warning("quiver.spark.segment_skipped path=%s reason=%s", path, problem)
            return
        if isinstance(problem, CorruptionError):
            raise problem
        raise DataLossError(path, 0, "the segment was deleted while it was being listed") from problem

    def check_complete(self, start: BundleRef, end: BundleRef) -> None:
        """
        Refuse to plan from *start* to before *end* when a segment between them is known to be missing.

        Both ends come from this source, so there is a segment right before *end*. Numbers may have gaps: a segment
        counts as missing only if it was seen before, if an end refers to it, or if it is in quarantine.

        Raises:
            DataLossError: names the first missing segment, unless data loss is to be ignored.
        """
        if start >= end:
            return
        present = set(self.numbers())
        needed = {number for number in self._seen if number >= start.segment}
        needed.update(self._store.quarantined())
        if start.index > 0:
            needed.add(start.segment)
        needed.add(end.segment if end.index > 0 else end.segment - 1)
        last = end.segment if end.index > 0 else end.segment - 1
        missing = sorted(number for number in needed - present if start.segment <= number <= last)
        if not missing:
            return
        path = self.path(missing[0])
        reason = (
            f"segment {missing[0]}, between the unread positions {start} and {end}, is missing; "
            "failOnDataLoss=false continues without it"
        )
        if self._fail:
            raise DataLossError(path, 0, reason)
        _log.warning("quiver.spark.segments_missing path=%s count=%d reason=%s", path, len(missing), reason)
        self._seen.difference_update(missing)

    def check_reached(self, position: BundleRef) -> None:
        """
        Refuse a position that the store has not reached: the bundles it gets next would count as read.

        A store that was restored from a copy may be older than what was read before. Nothing is refused if no file has
        the lowest free number; other engines do not write one.

        Raises:
            DataLossError: names the position that the store has reached.
        """
        end = self.end(BundleRef(0, 0))
        if position <= end:
            return
        floor = self._store.floor().value
        reached = max(floor, *(number + 1 for number in self._store.quarantined()), end.segment)
        if floor and position > BundleRef(reached, 0):
            raise DataLossError(
                self._root,
                0,
                f"the checkpoint is ahead of the store: it is at {position}, and the store has only reached {reached}; "
                "the store is an older copy of the one that was read; start with a new checkpoint",
            )

    def is_between_copies(self, position: BundleRef, reached: BundleRef) -> bool:
        """
        Return whether this store never had a segment between *position* and *reached*. This is the case after it was
        restored from a copy: it continues above all numbers that the original can have used.
        """
        skipped = self._store.floor().skipped
        return (
            skipped is not None
            and BundleRef(skipped.start, 0) <= position
            and position.segment < skipped.stop
            and reached <= BundleRef(skipped.stop, 0)
        )

    def forget_before(self, position: BundleRef) -> None:
        """Stop expecting segments below *position*: their bundles are confirmed."""
        self._seen = {number for number in self._seen if number >= position.segment}
