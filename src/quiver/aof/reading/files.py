"""
The files of a log, read by another process while a writer may have the log open. Takes no lock and changes nothing.

Segments without a file are read from their packed files or objects; nothing is hydrated. A segment counts as sealed if
`current.sealed` covers it. Of any other, only the part in the durability snapshot counts as durable; the snapshot is up
to about a second old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quiver.aof.format.durability import DURABILITY_BYTES_MAX, decode_durability
from quiver.aof.format.names import (
    DURABILITY,
    IDENTITY_NAME,
    POINTER_NAME,
    SEGMENTS,
    WARM,
    SegmentName,
    durability_name,
    is_stream_name,
    parse_segment_name,
    stream_folder,
)
from quiver.aof.format.record import scan_records
from quiver.aof.format.sealed_pointer import POINTER_BYTES, SealedPointer, decode_pointer, pointer_problem
from quiver.aof.format.segment_file import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    SegmentFooter,
    SegmentHeader,
    agrees_with,
    decode_footer,
    decode_header,
)
from quiver.aof.format.sparse_index import IndexMark
from quiver.aof.format.tier_entry import TierEntry
from quiver.aof.reading.index import load_index
from quiver.aof.reading.manifest import replay_manifest
from quiver.aof.reading.source import TIME_UNKNOWN, Extent, ReadableSegment
from quiver.aof.tiers.copies import Copies
from quiver.aof.tiers.state import TierState
from quiver.errors import CorruptionError, UsageError
from quiver.objects import ObjectLocation, open_objects
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.findings import NO_FILE_ERRORS, no_file_reason
from quiver.primitives.scan import Frame, as_damage

__all__ = ["LogFiles", "SegmentFile", "is_log_directory", "logs_below"]

_IDENTITY_BYTES_MAX = 64
_ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """
    The file of a segment, described by its first and last bytes.

    Attributes:
        header: None when it cannot be read; `problem` has the reason.
        footer: None when the segment is unsealed, or the footer cannot be read.
        size_bytes: the size of the file.
        durable: the offset up to which its records are known to be synced.
        problem: the known damage; empty when there is none.
        is_sealed: whether it was sealed, so that its records end at `durable`.
    """

    name: SegmentName
    path: str
    header: SegmentHeader | None
    footer: SegmentFooter | None
    size_bytes: int
    durable: int
    problem: str = ""
    is_sealed: bool = False

    @property
    def extent(self) -> Extent:
        """Its extent in the log."""
        return Extent(
            self.name.base_offset,
            self.durable if self.is_sealed else None,
            None if self.header is None else self.header.base_record_count,
            None if self.footer is None else self.footer.record_count,
        )


class LogFiles:
    """
    The files of the log in *directory*. Every call reads their present state. Can be pickled.

    Args:
        objects: the location of the log's objects, as in its settings; None: objects cannot be read.
    """

    def __init__(
        self,
        directory: str,
        *,
        fs: FileSystem | None = None,
        objects: str | Mapping[str, object] | ObjectLocation | None = None,
    ) -> None:
        self.directory = directory.rstrip("/")
        self._given = fs
        self._objects = objects
        self._made: Copies | None = None
        self._known: tuple[object, TierState] = (None, TierState())
        self._end_if_believed: tuple[bytes | None, SealedPointer | None] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        # Connections cannot be pickled.
        return {**self.__dict__, "_made": None}

    @property
    def _copies(self) -> Copies:
        if self._made is None:
            location = self._objects
            opened = None if location is None else lambda: open_objects(location, writable=False, fs=self._fs)
            self._made = Copies(self._fs, f"{self.directory}/{WARM}", objects=opened)
        return self._made

    def tiers(self) -> TierState:
        """
        Return the copies of the segments according to the manifest log.

        Raises:
            OSError: the disk cannot be read.
        """
        stream_id = self.stream_id()
        folder = "" if stream_id is None else f"{self.directory}/{stream_folder(stream_id)}"
        if stream_id is None or not self._fs.exists(folder):
            return TierState()
        # Chunks only grow, until a chunk with another name replaces them.
        seen = []
        for name in self._fs.list_dir(folder):
            with contextlib.suppress(FileNotFoundError):
                seen.append((name, self._fs.stat(f"{folder}/{name}").size_bytes))
        if self._known[0] != seen:
            self._known = (seen, replay_manifest(self._fs, self.directory, stream_id).state)
        return self._known[1]

    @property
    def _fs(self) -> FileSystem:
        return REAL_FILES if self._given is None else self._given

    def stream_id(self) -> int | None:
        """Return the number of the log; None when it cannot be read."""
        text = self._first_bytes(f"{self.directory}/{IDENTITY_NAME}", _IDENTITY_BYTES_MAX)
        word = (text or b"").decode("ascii", "replace").strip()
        return int(word) if word.isascii() and word.isdecimal() else None

    def pointer(self) -> SealedPointer | None:
        """
        Return the pointer to the segment that was sealed last: `current.sealed`, or one derived from the segments if
        that is missing or contradicts them; None when neither is known.
        """
        data = self._first_bytes(f"{self.directory}/{SEGMENTS}/{POINTER_NAME}", POINTER_BYTES)
        if data is None or data != self._end_if_believed[0]:
            problem = self._pointer_problem(data)
            answer = decode_pointer(memoryview(data or b""))
            if problem is not None or not isinstance(answer, Frame):
                return self._second_footer()
            self._end_if_believed = (data, answer.value)
        return self._end_if_believed[1]

    def pointer_problem(self) -> str | None:
        """Return why `current.sealed` is ignored; None when it is valid or missing."""
        data = self._first_bytes(f"{self.directory}/{SEGMENTS}/{POINTER_NAME}", POINTER_BYTES)
        return None if data is None else self._pointer_problem(data)

    def _pointer_problem(self, data: bytes | None) -> str | None:
        answer = decode_pointer(memoryview(data or b""))
        if not isinstance(answer, Frame):
            return as_damage(answer, 0).reason
        names = {one.segment_id: one for one in self._listed()}
        named = names.get(answer.value.segment_id)
        footer = None if named is None else self._footer_of(named)
        return pointer_problem(answer.value, {one: name.base_offset for one, name in names.items()}, footer)

    def _second_footer(self) -> SealedPointer | None:
        """
        Derive the pointer from the segments: each is sealed durably before the next one. The seal of the newest is
        certain only if a later segment is known to be durable.
        """
        newest: SegmentFooter | None = None
        durable_id = max((one for one, end in self._durable().items() if end > HEADER_BYTES), default=-1)
        try:
            names = sorted(self._listed(), reverse=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        for name in names:
            footer = self._footer_of(name)
            if footer is not None and (newest is not None or name.segment_id < durable_id):
                return SealedPointer(footer.segment_index, footer.coordinator_watermark, footer.durable_bytes)
            newest = footer or newest
        return None

    def _footer_of(self, name: SegmentName) -> SegmentFooter | None:
        path = f"{self.directory}/{SEGMENTS}/{name}"
        head = decode_header(memoryview(self._first_bytes(path, HEADER_BYTES) or b""))
        if not isinstance(head, Frame):
            return None
        try:
            return self._footer(path, head.value, self._fs.stat(path).size_bytes)
        except FileNotFoundError:
            return None

    def segment_files(self) -> list[SegmentFile]:
        """
        Return the segments that have a file in `segments/`, oldest first.

        Raises:
            UsageError: the directory holds no log.
            OSError: the disk cannot be read.
        """
        durable, pointer = self._known_durable()
        found = []
        for name in self.names():
            one = self._segment_file(name, pointer, durable)
            if one is not None:
                found.append(one)
        return found

    def names(self) -> list[SegmentName]:
        """
        Return the names of the segments in `segments/`, oldest first, without gaps below the last one.

        Raises:
            UsageError: the directory holds no log.
            OSError: the disk cannot be read.
        """
        try:
            # A listing may show the second of two files that are created meanwhile, but not the first: only files that
            # existed before a listing began count.
            newest = max(self._listed(), default=None)
            found = sorted(one for one in self._listed() if newest is not None and one <= newest)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{self.directory} holds no append-only log") from error
        if not found and not is_log_directory(self._fs, self.directory):
            raise UsageError(f"{self.directory} holds no append-only log")
        return found

    def _listed(self) -> Iterator[SegmentName]:
        return filter(None, map(parse_segment_name, self._fs.list_dir(f"{self.directory}/{SEGMENTS}")))

    def lost_segments(self) -> dict[int, int]:
        """Return the unsealed segments without a file, and the offset up to which each was durable."""
        durable = self._durable()  # first: a segment that is sealed meanwhile may be evicted before the listing
        here = {name.segment_id for name in self.names()}
        pointer = self.pointer()
        return {
            segment_id: end
            for segment_id, end in durable.items()
            if segment_id not in here and end > HEADER_BYTES and (pointer is None or segment_id > pointer.segment_id)
        }

    def source(self, segment_id: int, *, durable_only: bool) -> ReadableSegment | None:
        """
        Return the segment with that id, as far as it can be read now; None when there is none.

        Raises:
            CorruptionError: its header is damaged.
        """
        return self.piece(segment_id, 0, None, durable_only=durable_only)

    def piece(self, segment_id: int, start: int, end: int | None, *, durable_only: bool) -> ReadableSegment | None:
        """
        Return a segment for reading its records from offset *start* to *end* (None: all).

        Only the necessary frames of a packed segment are unpacked, and only the necessary ranges of an object fetched.

        Raises:
            CorruptionError: it is damaged.
            ObjectsUnavailableError: it is an object, and the store does not answer.
            UsageError: it is an object, and the location of the objects is unknown.
        """
        for _ in range(_ATTEMPTS_MAX):
            # In this order: the manifest is updated before a file is removed.
            name = next((one for one in self.names() if one.segment_id == segment_id), None)
            durable, pointer = self._known_durable()
            found = None if name is None else self._segment_file(name, pointer, durable)
            source = None
            if found is not None and not found.problem:
                source = self._of_file(found, durable_only=durable_only)
            if source is not None:
                return source
            entry = self.tiers().entries.get(segment_id)
            if entry is None:
                return None if found is None else self._of_file(found, durable_only=durable_only)
            try:
                return self._of_copy(entry, start, end)
            except FileNotFoundError:
                source = self._of_damaged_file(found, durable_only=durable_only)
            except (CorruptionError, UsageError):
                source = self._of_damaged_file(found, durable_only=durable_only)
                if source is None and self._is_current(entry):
                    raise
            if source is not None:
                return source
            # Otherwise it moved to another tier meanwhile.
        raise CorruptionError(
            f"{self.directory}/{WARM}",
            0,
            f"segment {segment_id} kept moving between tiers while it was read; read it again",
        )

    def _is_current(self, entry: TierEntry) -> bool:
        """Return whether *entry* is still in the manifest: a retired segment has no copies."""
        # A replay between the two syncs of a write sees the same length as one after both.
        self._known = (None, TierState())
        return self.tiers().entries.get(entry.segment_id) == entry

    def _of_copy(self, entry: TierEntry, start: int, end: int | None) -> ReadableSegment:
        stop = entry.original_bytes if end is None else min(end, entry.original_bytes)
        name, data, problem = self._copied(entry, start, stop)
        view = memoryview(data)
        if start:
            # Untouched memory costs nothing, and offsets stay those of the segment.
            padded = bytearray(stop)
            padded[start:stop] = data
            view = memoryview(padded)
        return ReadableSegment(
            entry.segment_id, name, view, stop, True, entry.footer.last_timestamp, _extent_of(entry),
            entry.header.base_timestamp, problem,
        )  # fmt: skip

    def _copied(self, entry: TierEntry, start: int, stop: int) -> tuple[str, bytes, str]:
        """Read a copy of a segment; return its name, its bytes from *start* to *stop*, and their problem."""
        copies = self._copies
        damaged: CorruptionError | None = None
        if copies.warm_bytes(entry) == entry.warm_bytes:
            try:
                packed = copies.open_warm(entry)
                return packed.name, packed.read(start, stop), ""
            except CorruptionError as error:
                damaged = error
        if entry.remote is not None and (damaged is None or copies.has_objects):
            try:
                packed = copies.open_object(entry)
                return packed.name, packed.read(start, stop), ""
            except CorruptionError as error:
                damaged = damaged or error
        if damaged is None:
            name = SegmentName(entry.segment_id, entry.header.base_offset, entry.header.created_at)
            if self._fs.exists(f"{self.directory}/{SEGMENTS}/{name}"):
                raise FileNotFoundError  # it was hydrated
            raise CorruptionError(
                f"{self.directory}/{WARM}/{entry.warm_name}", 0, "the only copy of a segment is missing"
            )
        found = copies.salvage(entry, start, stop)
        if found is None:
            raise damaged
        return damaged.path, found, damaged.reason

    def _of_damaged_file(self, found: SegmentFile | None, *, durable_only: bool) -> ReadableSegment | None:
        """Return what can be read of a segment's damaged file, because no copy is better."""
        with contextlib.suppress(CorruptionError):
            return None if found is None else self._of_file(found, durable_only=durable_only)
        return None

    def _of_file(self, found: SegmentFile, *, durable_only: bool) -> ReadableSegment | None:
        if found.header is None and not found.is_sealed and found.durable <= HEADER_BYTES:
            raise CorruptionError(found.path, 0, found.problem)
        first = max(0, found.name.created_at) if found.header is None else found.header.base_timestamp
        last = TIME_UNKNOWN if found.footer is None else found.footer.last_timestamp
        try:
            if found.is_sealed and not found.problem:
                data = self._fs.map_read(found.path).view()
            else:
                # Read, not mapped: recovery truncates such files, and access to a truncated mapping ends the process.
                limit = found.durable if durable_only or found.is_sealed else found.size_bytes
                data = memoryview(self._first_bytes(found.path, max(limit, HEADER_BYTES)) or b"")
        except FileNotFoundError:
            return None
        end = max(found.durable, HEADER_BYTES)
        if not found.is_sealed and not durable_only and end <= len(data):
            end = scan_records(data, end, len(data)).end
        return ReadableSegment(
            found.name.segment_id, found.path, data, end, found.is_sealed, last, found.extent, first, found.problem,
        )  # fmt: skip

    def extent(self, segment_id: int) -> Extent | None:
        """
        Return the extent of the segment with that id in the log; None when there is none.

        Raises:
            UsageError: the directory holds no log.
            OSError: the disk cannot be read.
        """
        found = self._file_of(segment_id)
        entry = None if found is not None and not found.problem else self.tiers().entries.get(segment_id)
        if entry is not None:
            return _extent_of(entry)
        return None if found is None else found.extent

    def next_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest segment id above *segment_id*; None when there is none."""
        ids = [one.segment_id for one in self.names()] + list(self.tiers().entries)
        return min((one for one in ids if one > segment_id), default=None)

    def next_sealed_segment_id(self, segment_id: int) -> int | None:
        """Return the lowest id of a sealed segment above *segment_id*; None when there is none."""
        pointer = self.pointer()
        following = self.next_segment_id(segment_id)
        return following if following is not None and pointer and following <= pointer.segment_id else None

    def last_timestamp(self, segment_id: int) -> int | None:
        """Return the timestamp of the last record of a sealed segment; None for any other."""
        found = self._file_of(segment_id)
        if found is not None and found.footer is not None:
            return found.footer.last_timestamp
        entry = None if found is not None and not found.problem else self.tiers().entries.get(segment_id)
        return None if entry is None else entry.footer.last_timestamp

    def marks(self, segment_id: int) -> Sequence[IndexMark]:
        """Return the stored index marks of a sealed segment; no index is made here."""
        extent = self.extent(segment_id)
        if extent is None or extent.end is None:
            return ()
        index = load_index(self._fs, self.directory, segment_id, extent.base_offset, extent.end)
        return () if index is None else index.marks

    def _file_of(self, segment_id: int) -> SegmentFile | None:
        name = next((one for one in self.names() if one.segment_id == segment_id), None)
        return None if name is None else self._segment_file(name, self.pointer(), {})

    def stretch(self, segment_id: int, start: int, end: int | None) -> ReadableSegment | None:
        """
        Return a segment for reading only the bytes from offset *start* to *end* (None: all).

        Raises:
            CorruptionError, ObjectsUnavailableError, UsageError: as `piece`.
        """
        return self.piece(segment_id, start, end, durable_only=False)

    def _segment_file(
        self, name: SegmentName, pointer: SealedPointer | None, durable: dict[int, int]
    ) -> SegmentFile | None:
        try:
            return self._inspect(name, pointer, durable)
        except FileNotFoundError:
            return None  # removed after it was listed

    def _inspect(self, name: SegmentName, pointer: SealedPointer | None, durable: dict[int, int]) -> SegmentFile | None:
        path = f"{self.directory}/{SEGMENTS}/{name}"
        try:
            head = self._first_bytes(path, HEADER_BYTES)
        except NO_FILE_ERRORS as error:
            return SegmentFile(name, path, None, None, 0, 0, no_file_reason(error))
        if head is None:
            return None  # removed after it was listed
        size = self._fs.stat(path).size_bytes
        header, problem = _header_of(name, head)
        if pointer is None or name.segment_id > pointer.segment_id:
            end_max = max(size, 0 if header is None else header.max_size)  # it may be truncated
            return SegmentFile(name, path, header, None, size, min(durable.get(name.segment_id, 0), end_max), problem)
        assumed = header or SegmentHeader(name.segment_id & 0xFFFF_FFFF, 0, name.base_offset, size, name.created_at, 0)
        footer = self._footer(path, assumed, size, is_assumed=header is None)
        if footer is None:
            problem = problem or "it was sealed, and its footer is damaged"
            end = self._end_of(name, size, pointer)
        else:
            end = footer.durable_bytes - name.base_offset
        return SegmentFile(name, path, header, footer, size, end, problem, is_sealed=True)

    def _end_of(self, name: SegmentName, size: int, pointer: SealedPointer) -> int:
        """Return where the records of a sealed segment without a footer end: directly before the next segment."""
        following = [one.base_offset for one in self._listed() if one.segment_id == name.segment_id + 1]
        entry = self.tiers().entries.get(name.segment_id + 1)
        if name.segment_id == pointer.segment_id:
            next_base = pointer.durable_bytes + FOOTER_BYTES
        elif following or entry is not None:
            next_base = min(following) if following or entry is None else entry.header.base_offset
        else:
            next_base = name.base_offset + size
        return max(HEADER_BYTES, min(next_base - FOOTER_BYTES - name.base_offset, SEGMENT_BYTES_MAX))

    def _footer(self, path: str, header: SegmentHeader, size: int, *, is_assumed: bool = False) -> SegmentFooter | None:
        """Return the footer if it agrees with the header; an assumed header has no record count to compare."""
        if not HEADER_BYTES + FOOTER_BYTES < header.max_size <= size:
            return None
        file = self._fs.open_read(path)
        try:
            answer = decode_footer(memoryview(file.pread(FOOTER_BYTES, header.max_size - FOOTER_BYTES)))
        finally:
            file.close()
        if not isinstance(answer, Frame):
            return None
        if is_assumed:
            header = replace(header, base_record_count=answer.value.base_record_count)
        return answer.value if agrees_with(answer.value, header) is None else None

    def _known_durable(self) -> tuple[dict[int, int], SealedPointer | None]:
        """
        Return how far unsealed segments are durable, and the pointer, read in this order: a segment that is sealed
        meanwhile moves from the snapshot to the pointer, and in the other order it would be in neither.
        """
        durable = self._durable()
        return durable, self.pointer()

    def _durable(self) -> dict[int, int]:
        stream_id = self.stream_id()
        path = f"{self.directory}/{DURABILITY}/{durability_name(stream_id or 0)}"
        data = None if stream_id is None else self._first_bytes(path, DURABILITY_BYTES_MAX)
        answer = None if data is None else decode_durability(memoryview(data))
        return {one.segment_id: one.durable_bytes for one in answer.value} if isinstance(answer, Frame) else {}

    def _first_bytes(self, path: str, size: int) -> bytes | None:
        try:
            file = self._fs.open_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return file.pread(size, 0)
        finally:
            file.close()


def _header_of(name: SegmentName, head: bytes) -> tuple[SegmentHeader | None, str]:
    """Return the header of the segment *name*, or why there is none."""
    answer = decode_header(memoryview(head))
    if not isinstance(answer, Frame):
        return None, "the file is too short" if len(head) < HEADER_BYTES else as_damage(answer, len(head)).reason
    header = answer.value
    if (header.segment_index, header.base_offset) != (name.segment_id & 0xFFFF_FFFF, name.base_offset):
        return None, "its header belongs to another segment than its name"
    return header, ""


def _extent_of(entry: TierEntry) -> Extent:
    header = entry.header
    return Extent(header.base_offset, entry.original_bytes, header.base_record_count, entry.footer.record_count)


def is_log_directory(fs: FileSystem, directory: str) -> bool:
    """Return whether *directory* is that of a log: with `segments/`, and with a number or AOF segments."""
    if not fs.exists(f"{directory}/{SEGMENTS}"):
        return False
    if fs.exists(f"{directory}/{IDENTITY_NAME}"):
        return True
    names = fs.list_dir(f"{directory}/{SEGMENTS}")
    return POINTER_NAME in names or any(parse_segment_name(name) is not None for name in names)


def logs_below(fs: FileSystem, root: str) -> dict[str, str]:
    """
    Return name → directory of the logs in *root*, or *root* itself if it is a log.

    Raises:
        UsageError: there are none.
    """
    top = root.rstrip("/") or "/"
    if is_log_directory(fs, top):
        return {top.rpartition("/")[2]: top}
    try:
        names = fs.list_dir(top)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{top} holds no append-only log") from error
    # A log that is being restored has a name that is invalid for logs.
    names = sorted(filter(is_stream_name, names))
    found = {name: f"{top}/{name}" for name in names if is_log_directory(fs, f"{top}/{name}")}
    if not found:
        raise UsageError(f"{top} holds no append-only log")
    return found
