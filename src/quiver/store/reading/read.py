"""
`quiver.read`: every bundle in a store's directory, whether or not a writer has it open.

Takes no lock and changes nothing. The writer may continue meanwhile, so one pass reads in an order that neither misses
a bundle nor yields one twice::

    1  segments, listed again until none is new
    2  the log: the active file first, then the retired ones    (entries only ever move from the first to these)
    3  the cursor
    4  segments, once more                                       (all that the cursor covers is in them, or deleted)
    5  entries of 2 that neither the cursor nor a segment covers

A bundle that is sealed between 2 and 4 is read from its segment, one that is sealed after 4 from the log: segments are
not listed again after 4. A segment that disappears meanwhile was finished by every subscriber.
"""

from __future__ import annotations

import importlib
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from quiver.bundle import OTAP, SLOT_MAX, Adapter, Bundle, BundleRef
from quiver.errors import CorruptionError, QuiverError, UsageError
from quiver.html_tables import facts_html, section_html
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.primitives.disk.file_system import FileSystem, directory_name
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.cold.files import OpenTier
from quiver.store.format.cores import core_directory, parse_core_directory
from quiver.store.format.fleet.names import INBOX_FOLDER, NODES_FOLDER
from quiver.store.format.names import SEGMENTS_DIR, WAL_DIR
from quiver.store.reading.digests import SegmentDigests
from quiver.store.reading.directory import StoreDirectory
from quiver.store.reading.fleet.directories import FleetDirectories
from quiver.store.reading.log_tail import LogFile, snapshot_log, uncovered
from quiver.store.reading.query.row_origin import ORIGIN_SCHEMA, RowOrigin
from quiver.store.reading.query.scan import Scan, plan
from quiver.store.reading.query.slot_scan import SlotScan, table_names
from quiver.store.reading.query.time_range import By, Moment
from quiver.store.segment.info import SegmentInfo, SegmentStatistics
from quiver.store.segment.reader import SegmentReader
from quiver.store.segment.verified import VerifiedSegments
from quiver.store.wal.replay import decode_slots
from quiver.store.wal.scan import ScannedEntry

__all__ = ["StoreReader", "read"]


def read(
    path: str | os.PathLike[str],
    *,
    fs: FileSystem = REAL_FILES,
    adapter: Adapter = OTAP,
    strict: bool = False,
    objects: ObjectTier | ObjectLocation | None = None,
    options: Mapping[str, object] | None = None,
) -> StoreReader:
    """
    Open the store in directory *path* for reading, whether or not a writer has it open. Takes no lock, changes nothing.

    Of a fleet, what is in its bucket is read, one node after the other; nothing is acknowledged.

    Args:
        path: the directory of one store, or of several cores, which are read one after the other. Or a fleet: its URL,
            such as s3://bucket/fleet-a, or its directory.
        fs: the file system.
        adapter: the slot table that resolves slot names.
        strict: raise at the first damage instead of collecting it in `StoreReader.problems`.
        objects: the object tier or its location, for segments that exist only there. By default the location comes from
            the store's own list, and credentials from the provider's usual places.
        options: of the object store, if *path* is a URL, for example `endpoint`.

    Raises:
        UsageError: the directory contains no store, or the bucket no fleet.
        ObjectsUnavailableError, AccessDeniedError: the bucket of a fleet cannot be read.
        OSError: the directory cannot be read.
    """
    fleet = _fleet_at(path, fs=fs, objects=objects, options=options)
    if fleet is not None:
        return StoreReader(os.fspath(path), fs=fs, adapter=adapter, strict=strict, fleet=fleet)
    root = directory_name(path)
    open_tier: OpenTier | None = None
    if isinstance(objects, ObjectLocation):
        place = objects
        open_tier = lambda _: open_objects(place, writable=False, fs=fs)  # noqa: E731
    elif objects is not None:
        tier = objects
        open_tier = lambda _: tier  # noqa: E731
    reader = StoreReader(root, fs=fs, adapter=adapter, strict=strict, open_tier=open_tier)
    if not reader.directories():
        raise UsageError(
            f"{root} holds no store: it has neither {SEGMENTS_DIR}/ nor {WAL_DIR}/, nor a core's directory"
        )
    return reader


def _fleet_at(
    path: str | os.PathLike[str],
    *,
    fs: FileSystem,
    objects: ObjectTier | ObjectLocation | None,
    options: Mapping[str, object] | None,
) -> ObjectTier | None:
    """Return the objects of the fleet at *path*; None if it is the directory of a store."""
    is_url = isinstance(path, str) and "://" in path
    if not is_url:
        if options:
            raise UsageError(f"options are those of an object store, and {path!s} is a directory")
        root = directory_name(path)
        names = set(fs.list_dir(root))
        if not names & {INBOX_FOLDER, NODES_FOLDER} or names & {SEGMENTS_DIR, WAL_DIR}:
            return None
    elif objects is not None:
        raise UsageError(f"{path!s} is a fleet, whose objects are there: leave out objects=, and give options=")
    tier = open_objects(ObjectLocation.from_url(os.fspath(path), options), writable=False, fs=fs)
    if not any(next(iter(tier.list_below(folder)), None) for folder in (INBOX_FOLDER, NODES_FOLDER)):
        raise UsageError(f"{path!s} holds no fleet: no node has a record or an object there")
    return tier


class StoreReader:
    """
    The contents of a directory or a fleet. Each iteration is a separate pass over its current contents.

    Attributes:
        problems: the damage found so far, each with path, offset and reason. Everything else is still returned.
    """

    def __init__(
        self,
        root: str,
        *,
        fs: FileSystem,
        adapter: Adapter,
        strict: bool = False,
        verified: VerifiedSegments | None = None,
        open_tier: OpenTier | None = None,
        fleet: ObjectTier | None = None,
    ) -> None:
        self.path = root
        self._fs = fs
        self._adapter = adapter
        self._strict = strict
        self._verified = verified
        self._open_tier = open_tier
        self._lock = threading.Lock()
        self._known: dict[str, SegmentDigests] = {}
        self.problems: list[CorruptionError] = []
        self._fleet = None if fleet is None else FleetDirectories(fleet, strict=strict, problems=self.problems)

    def directories(self) -> list[str]:
        """
        Return the directories of all stores: the directory itself, those of its cores, or both; of a fleet, the
        identities of its nodes.
        """
        if self._fleet is not None:
            return [one.directory.path for one in self._fleet.digests()]
        names = self._fs.list_dir(self.path)
        alone = [self.path] if SEGMENTS_DIR in names or WAL_DIR in names else []
        cores = sorted(core for core in map(parse_core_directory, names) if core is not None)
        return alone + [f"{self.path}/{core_directory(core)}" for core in cores]

    def _stores(self) -> list[SegmentDigests]:
        """Return the digests of each store. A core may have been added since the last call."""
        if self._fleet is not None:
            return self._fleet.digests()
        with self._lock:
            found = self.directories()
            self._known = {root: self._known.get(root) or self._digests(root) for root in found}
            return list(self._known.values())

    def _digests(self, root: str) -> SegmentDigests:
        directory = StoreDirectory(
            root,
            fs=self._fs,
            strict=self._strict,
            problems=self.problems,
            verified=self._verified,
            open_tier=self._open_tier,
        )
        return SegmentDigests(directory)

    def segments(self) -> list[SegmentInfo]:
        """
        Return the metadata of every sealed segment, ascending; with several cores, one core after the other.

        The streams are not read.

        Raises:
            CorruptionError: a segment is damaged, and the reader is strict.
        """
        return [reader.info for _, reader in self._segment_readers()]

    def statistics(self) -> list[SegmentStatistics]:
        """
        Return the metadata of every sealed segment for each stream, in the order of `segments`.

        The data is not read.

        Raises:
            CorruptionError: a segment is damaged, and the reader is strict.
        """
        found = []
        for directory, reader in self._segment_readers():
            try:
                found.append(reader.statistics())
            except CorruptionError as damage:
                directory.report(damage)
        return found

    def _segment_readers(self) -> Iterator[tuple[StoreDirectory, SegmentReader]]:
        for digests in self._stores():
            for seq in digests.directory.segments():
                reader = digests.directory.open_segment(seq)
                if reader is not None:
                    yield digests.directory, reader

    def bundles(self, slots: Iterable[int | str] | None = None) -> Iterator[tuple[BundleRef, Bundle]]:
        """
        Yield every bundle once, in order: first sealed segments, then the bundles that are only in the log.

        A bundle that is only in the log has no final address. Its reference is provisional: the number that the next
        segment will get, counted from 0; the segment may end earlier than the log does now. With several cores, one
        core comes after the other, and each has its own references.

        Args:
            slots: ids or names. Bundles contain only these slots; bundles with none of them are skipped.

        Raises:
            InvalidBundleError: an unknown slot.
            CorruptionError: a file is damaged, and the reader is strict.
        """
        wanted = None if slots is None else frozenset(self._adapter.slot(slot) for slot in slots)
        passes = (_Pass(digests.directory, self._adapter, wanted).run() for digests in self._stores())
        return itertools.chain.from_iterable(passes)

    def slots(self) -> list[int]:
        """
        Return the slots that have data, also if it is only in the log, ascending. The data is not read.

        Raises:
            CorruptionError: a file is damaged, and the reader is strict.
        """
        found: set[int] = set()
        for digests in self._stores():
            part = plan(digests, range(SLOT_MAX + 1))
            for seq in part.segments:
                digest = digests.get(seq)
                found.update(stream.slot for stream in (() if digest is None else digest.streams))
            found.update(slot.slot for _, scanned in part.tail for slot in scanned.entry.slots)
        return sorted(found)

    def tables(self) -> list[str]:
        """
        Return the names of the tables that were received over QWP, for `scan`.

        Raises:
            CorruptionError: a file is damaged, and the reader is strict.
        """
        return table_names(self._stores())

    def schema(self, slot: int | str, columns: Sequence[str] | None = None) -> pa.Schema:
        """
        Return the schema that `scan` has: every column of *slot*, in the widest type that a bundle has it in.

        Raises:
            UsageError: as `scan`.
            CorruptionError: a file is damaged, and the reader is strict.
        """
        return self.scan(slot, columns).schema

    def scan(
        self,
        slot: int | str | None = None,
        columns: Sequence[str] | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        by: By = "ingested",
        table: str | None = None,
        view: str | None = None,
        nodes: Sequence[str] | None = None,
        include_metadata: bool = False,
    ) -> Scan:
        """
        Return the rows of one slot or view as one table: first sealed segments, then bundles that are only in the log.

        The scan is planned now and returns the same bundles each time it is read. Schemas of a slot may differ between
        bundles: a column that a bundle lacks is null there, and types are widened.

        Args:
            slot: id or name.
            columns: the columns to read, in this order. No other column is read. Of a fleet, also `_node`, the
                identity of the node that a row is from, and `_segment`, the number of its segment there.
            start: the first time of the range: an aware datetime, or nanoseconds since the epoch.
            end: the end of the range, exclusive.
            by: whether the times are those of ingestion ("ingested" or "ingest"), which bundles have, or of the events
                ("event"), which rows have. A bundle without a recorded ingestion time is in every range, a row without
                an event time in none.
            table: only rows that were received over QWP for this table (slot `quiver.bundle.QWP_SLOT`), which have
                their own schema.
            view: instead of a slot, "logs", "spans" or "metrics": one row per log record, span or data point, decoded
                from OTLP requests and OTAP tables.
            nodes: of a fleet, the names or identities of the nodes to read; by default all.
            include_metadata: of a fleet, add the columns `_node` and `_segment`.

        Raises:
            InvalidBundleError: an unknown slot.
            UsageError: neither a slot nor a view, or both; an unknown node; a column that no bundle has, or whose types
                cannot be combined; a time without a time zone; event times or a table for a slot that has none.
            CorruptionError: a file is damaged, and the reader is strict.
        """
        if (slot is None) == (view is None) or (view is not None and table is not None):
            raise UsageError('give either a slot, as in scan("logs"), or a view, as in scan(view="logs")')
        sources = self._sources(nodes)
        origin = self._origin(columns, is_included=include_metadata)
        if view is not None:
            # Imported only when used: decoding needs the packages of the extra `otlp`.
            views: Any = importlib.import_module("quiver.store.reading.query.view_scan")
            found: Scan = views.ViewScan(sources, view, columns, start=start, end=end, by=by, origin=origin)
            return found
        number = self._adapter.slot(slot) if slot is not None else 0
        return SlotScan(sources, number, columns, start=start, end=end, by=by, table=table, origin=origin)

    def _origin(self, columns: Sequence[str] | None, *, is_included: bool) -> RowOrigin | None:
        if self._fleet is None:
            if is_included:
                raise UsageError(f"include_metadata=True adds the node of a row: {self.path} is a store, not a fleet")
            return None
        is_used = is_included or any(name in ORIGIN_SCHEMA.names for name in columns or ())
        return RowOrigin(columns, is_included=is_included) if is_used else None

    def _sources(self, nodes: Sequence[str] | None) -> list[SegmentDigests]:
        if self._fleet is not None:
            if isinstance(nodes, str):
                raise UsageError(f"nodes={nodes!r} is one text: write a list, nodes=[{nodes!r}]")
            return self._fleet.planned(nodes)
        if nodes is not None:
            raise UsageError(f"nodes={nodes!r}: {self.path} is a store, not a fleet")
        return self._stores()

    def _repr_html_(self) -> str:
        title = f"Contents of {self.path}"
        try:
            segments = self.segments()
            facts: dict[str, object] = {
                "stores": len(self.directories()),
                "segments": len(segments),
                "bundles": sum(one.bundle_count for one in segments),
                "segment_bytes": sum(one.size_bytes for one in segments),
                "slots": ", ".join(map(str, self.slots())),
                "problems": len(self.problems) or None,
            }
        except (QuiverError, OSError) as error:  # a notebook shows it in place of a traceback
            facts = {"problem": str(error)}
        return section_html(title, facts_html(facts))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no resources are held between two passes."""


class _Pass:
    """One pass over a directory: the segments it has seen, and the part of the log that they cover."""

    def __init__(self, directory: StoreDirectory, adapter: Adapter, slots: frozenset[int] | None) -> None:
        self._directory = directory
        self._adapter = adapter
        self._slots = slots
        self._seen: set[int] = set()
        self._sequence_sealed = -1
        """Segments are sealed in the order of the log: every bundle with this sequence or a lower one was sealed."""

    def run(self) -> Iterator[tuple[BundleRef, Bundle]]:
        while new := self._new_segments():
            for seq in new:
                yield from self._segment(seq)
        log = snapshot_log(self._directory, sequence_sealed=self._sequence_sealed)
        cursor = self._directory.cursor()
        for seq in self._new_segments():
            yield from self._segment(seq)
        yield from self._tail(log, cursor)

    def _new_segments(self) -> list[int]:
        return [seq for seq in self._directory.segments() if seq not in self._seen]

    def _segment(self, seq: int) -> Iterator[tuple[BundleRef, Bundle]]:
        self._seen.add(seq)
        source = self._directory.open_segment(seq)
        if source is None:
            return
        try:
            source.verify()
        except CorruptionError as damage:
            self._directory.report(damage)
            return
        self._sequence_sealed = max(
            self._sequence_sealed, -1 if source.info.sequence_last is None else source.info.sequence_last
        )
        try:
            for index in range(source.bundle_count):
                try:
                    batches = source.bundle(index, self._slots)
                except CorruptionError as damage:
                    self._directory.report(damage)
                    continue
                if batches or self._slots is None:
                    yield BundleRef(seq, index), self._bundle(batches, source.ingested_at_ns(index))
        finally:
            source.close()

    def _bundle(self, batches: dict[int, pa.RecordBatch], ingested_at_ns: int | None) -> Bundle:
        return Bundle(batches, ingested_at_ns=ingested_at_ns, adapter=self._adapter)

    def _tail(self, log: list[LogFile], cursor: int) -> Iterator[tuple[BundleRef, Bundle]]:
        number = max(self._directory.floor(), max(self._seen, default=-1) + 1)
        unsealed = (one for one in uncovered(log, cursor) if one[1].entry.sequence > self._sequence_sealed)
        for index, (path, scanned) in enumerate(unsealed):
            batches = self._decode(scanned, path)
            if batches is not None and (batches or self._slots is None):
                yield BundleRef(number, index), self._bundle(batches, scanned.entry.ingested_at_ns)

    def _decode(self, scanned: ScannedEntry, path: str) -> dict[int, pa.RecordBatch] | None:
        try:
            batches = decode_slots(scanned.entry, path=path, position=scanned.start)
        except CorruptionError as damage:
            self._directory.report(damage)
            return None
        return {slot: batch for slot, batch in batches.items() if self._slots is None or slot in self._slots}
