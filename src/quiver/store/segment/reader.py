"""
A segment file → bundles, without copying, never before its checksum is verified.

Opening reads only the end of the file: trailer, footer, directory, manifest. The first request for a batch,
or `SegmentReader.verify`, reads the whole file once for its checksum; no batch reaches Arrow's decoder before
that, since Arrow trusts the offsets it reads. Batches point into the mapped file and keep it mapped, even after
the reader is closed and the file is unlinked; batches of a compressed stream have their own memory.

The schema of a stream can be returned without reading its data: the manifest has the directory's checksum, the
directory has the digest of each schema.
"""

from __future__ import annotations

import posixpath
import threading
from bisect import bisect_right
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat, starmap
from operator import length_hint
from typing import Any, Self

import pyarrow as pa

from quiver.bundle import Adapter, Bundle, schema_fingerprint
from quiver.errors import CorruptionError, StoreClosedError, UnsupportedFormatError
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.mapping import release_pages
from quiver.primitives.scan import Damage, NeedMore, as_damage
from quiver.store.format.names import parse_segment_name
from quiver.store.format.segment.file import (
    SegmentFooter,
    StreamEntry,
    check_directory,
    check_segment_checksum,
    decode_directory,
    decode_segment_footer,
)
from quiver.store.format.segment.ipc_table import ascending
from quiver.store.format.segment.manifest import Manifest, check_manifest, decode_manifest
from quiver.store.segment.in_order import InOrder
from quiver.store.segment.info import SegmentInfo, SegmentStatistics, StreamStatistics
from quiver.store.segment.verified import VerifiedSegments

__all__ = ["SegmentReader"]

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError)

_CRC_BYTES = 4
_FILES_MAX = 1024
"""The number of Arrow readers that are kept, one for each stream and choice of columns."""


class SegmentReader:
    """
    One sealed segment, mapped. Thread-safe. Make one with `SegmentReader.open`.

    Attributes:
        path: of the file.
        manifest: which chunks of which streams make up each bundle. Until `verify` has passed, a bit may be flipped.
        streams: the directory, by stream id; the same applies.
    """

    def __init__(
        self,
        path: str,
        view: memoryview,
        footer: SegmentFooter,
        streams: Mapping[int, StreamEntry],
        manifest: Manifest,
        verified: VerifiedSegments | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.streams = streams
        self._size_bytes = len(view)
        self._footer = footer
        self._lock = threading.Lock()
        self._view: memoryview | None = view
        self._known_valid = verified
        self._verified = verified is not None and verified.has(path, len(view), bytes(view[-_CRC_BYTES:]))
        self._is_directory_valid = False
        # One per stream, and more for choices of columns.
        self._complete_files: dict[int, Any] = {}
        self._compressed: dict[int, bool] = {}
        self._files: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._in_order = InOrder()
        self._next_in_order = self._in_order.next
        self._places = manifest.ends, manifest.slot_ids, manifest.stream_ids, manifest.chunk_indexes

    @classmethod
    def open(cls, fs: FileSystem, path: str, *, verified: VerifiedSegments | None = None) -> SegmentReader:
        """
        Map the segment at *path* and read its directory and manifest.

        With *verified*, the checksum of a file that is listed there is not computed again, and a file is added to it
        once it is verified.

        Raises:
            CorruptionError: it is not a complete segment; the error has the place and the reason.
            UnsupportedFormatError: a valid segment of a newer version.
            OSError: it cannot be read; FileNotFoundError if it does not exist.
        """
        mapping = fs.map_read(path)
        view = mapping.view()
        mapping.close()
        return cls.from_view(path, view, verified=verified)

    @classmethod
    def from_view(cls, path: str, view: memoryview, *, verified: VerifiedSegments | None = None) -> Self:
        """
        Read directory and manifest of the segment in *view*, which errors call *path*.

        Raises:
            CorruptionError: it is not a complete segment; the error has the place and the reason.
            UnsupportedFormatError: a valid segment of a newer version.
        """
        answer = decode_segment_footer(view)
        if isinstance(answer, NeedMore):
            raise CorruptionError(path, len(view), as_damage(answer, len(view)).reason)
        if isinstance(answer, Damage):
            raise _footer_damage(path, view, answer)
        footer = answer.value
        directory = decode_directory(
            _region(view, footer.directory_offset, footer.directory_length), at=footer.directory_offset
        )
        if isinstance(directory, Damage):
            raise CorruptionError(path, directory.offset, directory.reason)
        problem = check_directory(directory, footer)
        if problem is not None:
            raise CorruptionError(path, problem.offset, problem.reason)
        region = _region(view, footer.manifest_offset, footer.manifest_length)
        manifest = decode_manifest(region, footer.bundle_count, at=footer.manifest_offset)
        if isinstance(manifest, Damage):
            raise CorruptionError(path, manifest.offset, manifest.reason)
        return cls(path, view, footer, {stream.stream_id: stream for stream in directory}, manifest, verified)

    @cached_property
    def info(self) -> SegmentInfo:
        """Counts, sizes, log positions and times. Until `verify` has passed, it may have a flipped bit."""
        return _info(self.path, self._size_bytes, self.manifest)

    @property
    def bundle_count(self) -> int:
        """Number of bundles."""
        return self.manifest.bundle_count

    def verify(self) -> None:
        """
        Check that every byte is as it was written and that the tables agree. The first success is remembered.

        Raises:
            CorruptionError: the checksum does not match, or directory and manifest contradict each other.
            StoreClosedError: the reader was closed.
        """
        if self._verified:
            return
        view = self._open_view()
        problem = check_segment_checksum(view)
        if problem is None:
            problem = check_manifest(self.manifest, tuple(self.streams.values()), at=self._footer.manifest_offset)
        if problem is not None:
            raise CorruptionError(self.path, problem.offset, problem.reason)
        self._verified = True
        if self._known_valid is not None:
            self._known_valid.add(self.path, len(view), bytes(view[-_CRC_BYTES:]))

    def verify_directory(self) -> None:
        """
        Check that the directory, and with it the list of streams, is as it was written.

        Reads the whole file only if the manifest does not have the directory's checksum, or has another one.

        Raises:
            CorruptionError: as `verify`.
            StoreClosedError: the reader was closed.
        """
        if self._is_directory_valid or self._verified:
            return
        footer, stored = self._footer, self.manifest.metadata.directory_crc32
        region = _region(self._open_view(), footer.directory_offset, footer.directory_length)
        if stored is None or stored != crc32(region):
            self.verify()
        self._is_directory_valid = True

    def schema(self, stream_id: int) -> pa.Schema:
        """
        Return the schema of one stream. Its data is read only if nothing else proves the schema.

        Raises:
            CorruptionError: the file is not what was written, or has no such stream.
            StoreClosedError: the reader was closed.
        """
        self.verify_directory()
        with self._lock:
            schema: pa.Schema = self._file(stream_id).schema
        try:
            is_proven = self._verified or schema_fingerprint(schema) == self.streams[stream_id].fingerprint
        except ValueError as error:  # a name that is not UTF-8
            raise self._unreadable(stream_id, error) from error
        if not is_proven:
            self.verify()
        return schema

    def bundle(
        self, index: int, slots: Container[int] | None = None, columns: Sequence[str] | None = None
    ) -> dict[int, pa.RecordBatch]:
        """
        Return bundle *index* as slot → batch, ascending; only *slots*, and only *columns* of each, when given.

        Raises:
            BundleUnavailableError: the bundle does not exist.
            CorruptionError: the file is not what was written.
            StoreClosedError: the reader was closed.
        """
        if not self._verified:
            self.verify()
        manifest = self.manifest
        if not 0 <= index < manifest.bundle_count:
            manifest.refs(index)  # raises the reason
        ends, slot_ids, stream_ids, chunks = self._places
        start, end = ends[index], ends[index + 1]
        if end - start == 1 and slots is None and columns is None:  # the common case, on every delivery
            return {slot_ids[start]: self._whole(stream_ids[start], chunks[start])}
        places = [at for at in range(start, end) if slots is None or slot_ids[at] in slots]
        places.sort(key=slot_ids.__getitem__)  # ours are ascending; other engines write them in any order
        return {slot_ids[at]: self.batch(stream_ids[at], chunks[at], columns) for at in places}

    def bundles(self, first: int, end: int, adapter: Adapter) -> Generator[Bundle]:
        """
        Yield the bundles *first* to *end* (excluded), each read when it is due.

        Bundles with a single slot that lie in sequence in one stream are read message after message, without a lock or
        a look-up for each.

        Raises:
            BundleUnavailableError: one of the bundles does not exist.
            CorruptionError: the file is not what was written.
            StoreClosedError: the reader was closed.
        """
        place = self._sequence(first, end)
        if place is not None:
            slot, stream_id, chunk = place
            begin = chunk - first
            if chunk == 0:  # begins the sequence
                yield self._bundle(first, adapter)
                first += 1
            with self._lock:
                read_next = self._in_order.lend(stream_id, first + begin)
            if read_next is not None:
                times_ns = self.manifest.ingested_times_ns
                known = iter([None] * (end - first) if times_ns is None else times_ns[first:end].tolist())
                try:
                    batches = starmap(read_next, repeat((), end - first))
                    yield from Bundle.each_of_read(slot, batches, known, adapter)
                    if length_hint(known):
                        read_next = None  # the stream ended early: the table of the file decides
                except _ARROW_ERRORS:
                    read_next = None
                finally:
                    first = end - length_hint(known)
                    # Perhaps called by the garbage collector, in a thread that holds the lock.
                    if read_next is not None and self._view is not None:
                        self._in_order.give_back(stream_id, first + begin, read_next)
        for index in range(first, end):
            yield self._bundle(index, adapter)

    def _bundle(self, index: int, adapter: Adapter) -> Bundle:
        return Bundle.of_read(self.bundle(index), self.ingested_at_ns(index), adapter)

    def _sequence(self, first: int, end: int) -> tuple[int, int, int] | None:
        """Return slot, stream and first chunk if the bundles are single chunks in sequence in one stream."""
        if not self._verified:
            self.verify()
        if not 0 <= first < end <= self.manifest.bundle_count:
            return None
        ends, slot_ids, stream_ids, chunks = self._places
        start, count = ends[first], end - first
        # Compared as bytes: a view creates an object for each number.
        if ends[first : end + 1].tobytes() != ascending(start, count + 1):
            return None
        stream_id, chunk = stream_ids[start], chunks[start]
        if stream_ids[start : start + count].tobytes() != stream_ids[start : start + 1].tobytes() * count:
            return None
        if chunks[start : start + count].tobytes() != ascending(chunk, count):
            return None
        return slot_ids[start], stream_id, chunk

    def batch(self, stream_id: int, chunk_index: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """
        Return one batch of one stream. Its buffers point into the file and stay valid as long as they are referenced.

        With *columns*, only those that the stream has, in the stream's order; the buffers of others are not read.

        Raises:
            CorruptionError: the file is not what was written, or has no such stream or chunk.
            StoreClosedError: the reader was closed.
        """
        if not self._verified:
            self.verify()
        if columns is None:
            return self._whole(stream_id, chunk_index)
        wanted = set(columns)
        with self._lock:
            names = self._file(stream_id).schema.names
            fields = tuple(place for place, name in enumerate(names) if name in wanted)
            if len(fields) == len(names) or not self._is_compressed(stream_id):
                # Only addresses: Arrow's own selection of fields would copy the buffers out of the mapping.
                batch = self._chunk(stream_id, chunk_index)
                return batch if len(fields) == len(names) else batch.select(list(fields))
            # Arrow reads "no field" as "all": read the cheapest one, for the number of rows.
            batch = self._chunk(stream_id, chunk_index, fields or (0,))
        return batch if fields else batch.select([])

    def _whole(self, stream_id: int, chunk_index: int) -> pa.RecordBatch:
        # An Arrow file reader loads its dictionaries on first use and must not be shared before that.
        with self._lock:
            batch = self._next_in_order(stream_id, chunk_index)
            if batch is None:
                batch = self._chunk(stream_id, chunk_index)
                stream = self.streams[stream_id]
                if chunk_index == 0 and stream.chunk_count > 1:
                    data = _region(self._open_view(), stream.byte_offset, stream.byte_length)
                    self._in_order.begin(stream_id, data, batch)
            return batch

    def _chunk(self, stream_id: int, chunk_index: int, fields: tuple[int, ...] = ()) -> pa.RecordBatch:
        file = None if fields else self._complete_files.get(stream_id)
        if file is None:
            file = self._file(stream_id, fields)
        try:
            return file.get_batch(chunk_index)
        except _ARROW_ERRORS as error:
            raise self._unreadable(stream_id, error) from error

    def _is_compressed(self, stream_id: int) -> bool:
        """Return whether a buffer of the stream's first chunk has its own memory, outside of the mapping."""
        known = self._compressed.get(stream_id)
        if known is None:
            start = pa.py_buffer(self._open_view()).address
            end = start + self._size_bytes
            columns = self._chunk(stream_id, 0).columns if self.streams[stream_id].chunk_count else []
            buffers = (buffer for column in columns for buffer in column.buffers())
            known = any(buffer is not None and buffer.size and not start <= buffer.address < end for buffer in buffers)
            self._compressed[stream_id] = known
        return known

    def stream_batches(self, stream_id: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """
        Yield all batches of one stream in the order of their bundles, only with *columns* if given.

        Raises:
            CorruptionError: the file is not what was written, or has no such stream.
            StoreClosedError: the reader was closed.
        """
        self.verify()
        with self._lock:
            count = self._file(stream_id).num_record_batches
        for chunk_index in range(count):
            yield self.batch(stream_id, chunk_index, columns)

    def slot_chunks(self, slot: int) -> list[tuple[int, int, int]]:
        """
        Return (bundle index, stream id, chunk index) of each bundle that has *slot*, in the order of the bundles.

        Raises:
            CorruptionError: the file is not what was written.
            StoreClosedError: the reader was closed.
        """
        self.verify()
        manifest, ends = self.manifest, self.manifest.ends
        streams, chunks = manifest.stream_ids, manifest.chunk_indexes
        places = [at for at, found in enumerate(manifest.slot_ids) if found == slot]
        return [(bisect_right(ends, at) - 1, streams[at], chunks[at]) for at in places]

    def slot_batches(self, slot: int, columns: Sequence[str] | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """
        Yield (bundle index, batch) of each bundle that has *slot*, only with *columns* if given.

        Raises:
            CorruptionError: the file is not what was written.
            StoreClosedError: the reader was closed.
        """
        for index, stream_id, chunk_index in self.slot_chunks(slot):
            yield index, self.batch(stream_id, chunk_index, columns)

    def event_times(self) -> Mapping[int, Sequence[int]]:
        """
        Return, by stream id, the earliest and the latest event time of each chunk, in nanoseconds since the epoch.

        Streams for which none were recorded are omitted; in a chunk without any, the latest time is before the
        earliest.

        Raises:
            CorruptionError: they do not fit the directory.
        """
        found = self.manifest.event_times(self.streams.values(), at=self._footer.manifest_offset)
        if isinstance(found, Damage):
            raise CorruptionError(self.path, found.offset, found.reason)
        return found

    def statistics(self) -> SegmentStatistics:
        """
        Return the statistics of the segment, stream by stream, without reading its data.

        Raises:
            CorruptionError: the file is not what was written.
            StoreClosedError: the reader was closed.
        """
        schemas = {stream_id: self.schema(stream_id) for stream_id in self.streams}
        events = {event.stream_id: event for event in self.manifest.event_columns}
        slot_columns: dict[int, dict[str, None]] = {}
        for stream_id, stream in self.streams.items():
            slot_columns.setdefault(stream.slot, {}).update(dict.fromkeys(schemas[stream_id].names))
        streams = []
        for stream_id, stream in self.streams.items():
            names = schemas[stream_id].names
            event = events.get(stream_id)
            known = event is not None and event.column < len(names) and event.min_ns <= event.max_ns
            streams.append(
                StreamStatistics(
                    stream_id=stream_id,
                    slot=stream.slot,
                    row_count=stream.row_count,
                    chunk_count=stream.chunk_count,
                    size_bytes=stream.byte_length,
                    columns=tuple(names),
                    omitted=tuple(name for name in slot_columns[stream.slot] if name not in names),
                    event_column=names[event.column] if event is not None and event.column < len(names) else None,
                    event_min_ns=event.min_ns if event is not None and known else None,
                    event_max_ns=event.max_ns if event is not None and known else None,
                    item_count=self.manifest.stream_items.get(stream_id),
                )
            )
        counts = self.manifest.item_counts
        return SegmentStatistics(self.info, tuple(streams), None if counts is None else sum(counts))

    def ingested_at_ns(self, index: int) -> int | None:
        """
        Return the time of ingestion of bundle *index* in nanoseconds since the epoch; None if it was not recorded.

        Raises:
            BundleUnavailableError: the bundle does not exist.
        """
        return self.manifest.ingested_at_ns(index)

    def release_pages(self) -> None:
        """
        Release the memory that reading took. The reader and its batches stay valid, and read from
        the file again.
        """
        view = self._view
        if view is not None:
            release_pages(view)

    def close(self) -> None:
        """Close the file. Batches that were returned stay valid. Idempotent."""
        with self._lock:
            self._view = None
            self._complete_files.clear()
            self._files.clear()
            self._in_order.clear()

    def _open_view(self) -> memoryview:
        view = self._view
        if view is None:
            raise StoreClosedError(f"{self.path}: the reader was closed")
        return view

    def _file(self, stream_id: int, fields: tuple[int, ...] = ()) -> Any:
        """Return the Arrow reader of one stream; only for *fields*, given by index, if there are any."""
        file = self._files.get((stream_id, fields)) if fields else self._complete_files.get(stream_id)
        if file is not None:
            return file
        view = self._open_view()
        stream = self.streams.get(stream_id)
        if stream is None:
            raise CorruptionError(self.path, self._footer.directory_offset, f"there is no stream {stream_id}")
        try:
            options = pa.ipc.IpcReadOptions(included_fields=list(fields))
            file = pa.ipc.open_file(
                pa.py_buffer(_region(view, stream.byte_offset, stream.byte_length)), options=options
            )
        except _ARROW_ERRORS as error:
            raise self._unreadable(stream_id, error) from error
        if file.num_record_batches != stream.chunk_count:
            reason = f"stream {stream_id} has {file.num_record_batches} chunks, the directory says {stream.chunk_count}"
            raise CorruptionError(self.path, stream.byte_offset, reason)
        if len(self._files) + len(self._complete_files) >= _FILES_MAX:
            self._files.clear()
            self._complete_files.clear()
            self._in_order.clear()
        if fields:
            self._files[stream_id, fields] = file
        else:
            self._complete_files[stream_id] = file
        return file

    def _unreadable(self, stream_id: int, error: Exception) -> CorruptionError:
        reason = f"stream {stream_id} is not a readable Arrow IPC file: {error}"
        return CorruptionError(self.path, self.streams[stream_id].byte_offset, reason)


def _region(view: memoryview, offset: int, length: int) -> memoryview:
    return view[offset : offset + length]


def _footer_damage(path: str, view: memoryview, damage: Damage) -> CorruptionError:
    # The version is newer only if the checksum is right; otherwise it is a flipped bit.
    if damage.reason.startswith("unsupported version") and check_segment_checksum(view) is None:
        return UnsupportedFormatError(path, damage.offset, damage.reason)
    return CorruptionError(path, damage.offset, damage.reason)


def _info(path: str, size_bytes: int, manifest: Manifest) -> SegmentInfo:
    seq = parse_segment_name(posixpath.basename(path))
    times = manifest.ingested_times_ns
    return SegmentInfo(
        seq=-1 if seq is None else seq,
        path=path,
        bundle_count=manifest.bundle_count,
        size_bytes=size_bytes,
        wal_position_start=manifest.wal_position_start,
        wal_position_end=manifest.wal_position_end,
        sequence_first=manifest.sequence_first,
        sequence_last=manifest.sequence_last,
        ingested_min_ns=min(times) if times else None,
        ingested_max_ns=max(times) if times else None,
    )
