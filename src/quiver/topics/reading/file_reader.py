"""
One topic, read while its writer runs: its files, and objects for the rest. Takes no locks and changes nothing.

A plan consists of ranges of offsets, not of files: when a task starts to read, a file may have moved to the object
store, and a new one may exist. Each piece is looked up at exactly the next offset.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from quiver.errors import CorruptionError, DataLossError, UsageError
from quiver.invariant import invariant
from quiver.metadata.opening import open_metadata
from quiver.objects.opening import open_objects
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.pieces import ColdLost, ColdPiece
from quiver.topics.cold.reader import ObjectReader
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.message import NS_PER_MS, MessageCodec
from quiver.topics.format.names import METADATA_FILE, parse_wal_file_name
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.ranges import Stretch
from quiver.topics.wal.files import FileMarks, FrameScanner, Good
from quiver.topics.wal.local_files import LocalFile, load_checkpoint, local_files

__all__ = ["LostRange", "MessageRun", "TopicFileReader", "open_cold"]

_EACH_ONCE = "a reader returns each message once, and reports those that it skips"
_LISTINGS_MAX = 8
_FILES_MAX = 256

_Mark = tuple[int, int]
_marks: OrderedDict[tuple[str, int], list[_Mark]] = OrderedDict()
"""Offsets and positions of frames that this process has read in each file, so that the next task can start there."""


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Consecutive messages, not decoded: the first one's offset, and each one's bytes."""

    first: int
    bodies: list[bytes]


@dataclass(frozen=True, slots=True)
class LostRange:
    """Messages from *first* (inclusive) to *after* (exclusive) that are lost, and why."""

    first: int
    after: int
    where: str
    reason: str

    def error(self) -> DataLossError:
        """Return the error that reports it."""
        return DataLossError(self.where, 0, f"messages {self.first} to {self.after - 1} are lost ({self.reason})")


def open_cold(place: TopicPlace, topic: str) -> ObjectReader | None:
    """
    Return a reader of the topic's objects; None if *place* has no object store.

    Raises:
        SettingsError: the location is not valid.
        AccessDeniedError, ObjectsUnavailableError, MetadataUnavailableError: the store does not answer.
    """
    found = _catalog(place, topic)
    if found is None:
        return None
    objects = open_objects(place.objects or "", writable=False)
    return ObjectReader(objects, found, observer=InMemoryObserver(), follows_others=True)


def _catalog(place: TopicPlace, topic: str) -> ObjectCatalog | None:
    if place.objects is None:
        return None
    url = place.metadata or f"sqlite://{os.path.abspath(place.root or '.')}/{METADATA_FILE}"  # noqa: PTH100
    return ObjectCatalog(open_metadata(url), root=place.root_prefix, topic=topic)


@dataclass(slots=True)
class _Tail:
    """The part of the newest file that was read: complete messages up to byte `position`, before offset `expected`."""

    seq: int
    path: str
    inode: int
    position: int
    expected: int
    marks: list[_Mark]


class TopicFileReader:
    """
    One topic, read while its writer runs. Not thread-safe. Each process creates its own.

    Args:
        place: the location of the topics.
        topic: ``namespace/topic``.
        fs: the file system.
    """

    def __init__(self, place: TopicPlace, topic: str, *, fs: FileSystem = REAL_FILES) -> None:
        self.topic = topic
        self._place = place
        self._fs = fs
        self.directory = None if place.root is None else f"{place.root}/{topic}"
        self._seen: tuple[tuple[int, ...], list[LocalFile]] = ((), [])
        self._tail: _Tail | None = None
        self._synced = 0
        self._catalog: ObjectCatalog | None = None
        self._cold: ObjectReader | None = None

    # ── contents ─────────────────────────────────────────────────────────────────────────────────────────

    def next_offset(self, *, durable: bool = False) -> int:
        """
        Return the offset after the newest complete message. Reads only what was written since the last call.

        With *durable*, the messages below it survive a power loss from then on, even if their writer has not synced.

        Raises:
            UsageError: the topic does not exist.
            OSError: the disk cannot be read, or not synced.
        """
        found = self._local()
        if not found:
            catalog = self._objects()
            return max(self._checkpoint_offset(), 0 if catalog is None else catalog.next_offset)
        tail = self._read_tail(found[-1])
        if durable and tail.expected > self._synced:
            # 1. Spark records that it has read up to here. 2. Power is lost, and with it unsynced messages. 3. Their
            # offsets are given to other messages, which the query would never read.
            file = self._fs.open_read(tail.path)
            try:
                file.sync()
            finally:
                file.close()
            self._synced = tail.expected
        return tail.expected

    def start_offset(self) -> int:
        """Return the oldest offset in files or objects; that of the next message when there are none."""
        found = self._local()
        first = found[0].first_offset if found else None
        catalog = self._objects()
        cold = None if catalog is None else catalog.start_offset
        known = [one for one in (first, cold) if one is not None]
        return min(known) if known else self.next_offset()

    def stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        """
        Yield the known stretches of the messages from *start* on and below *stop*, ascending and without gaps.

        Raises:
            UsageError: the topic does not exist.
            OSError, MetadataUnavailableError: as they describe.
        """
        found = self._local()
        local = stop if not found else max(found[0].first_offset or 0, start)
        at = start
        for one in self._cold_stretches(start, min(local, stop)) if start < local else ():
            yield from self._hole(at, one.start)
            yield one
            at = one.stop
        yield from self._hole(at, min(local, stop))
        for one in self._local_stretches(found, max(local, start), stop):
            first, after = max(one.start, local), min(one.stop, stop)
            if first < after:
                size = one.size_bytes * (after - first) // (one.stop - one.start)
                yield Stretch(self.topic, first, after, size, one.mark)

    def _hole(self, start: int, stop: int) -> Iterator[Stretch]:
        if start < stop:
            yield Stretch(self.topic, start, stop, 0)

    def _cold_stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        catalog = self._objects()
        for one in catalog.between(start, stop) if catalog is not None else ():
            index = one.offset_index or ((one.start_offset, 0),)
            ends = [*index[1:], (one.end_offset + 1, one.size)]
            for (offset, byte), (after, end) in zip(index, ends, strict=True):
                first, last = max(offset, start), min(after, stop)
                if first < last:
                    yield Stretch(self.topic, first, last, (end - byte) * (last - first) // (after - offset))

    def _local_stretches(self, found: list[LocalFile], start: int, stop: int) -> Iterator[Stretch]:
        for at, file in enumerate(found):
            first = file.first_offset or 0
            if first >= stop or (at + 1 < len(found) and (found[at + 1].first_offset or 0) <= start):
                continue
            if at + 1 < len(found):
                after = found[at + 1].first_offset or 0
                known = _marks.get((file.path, self._inode(file.path)), ())
                places, end = [(first, 0), *(one for one in known if first < one[0] < after)], file.size_bytes
            else:
                tail = self._read_tail(file)
                places, after, end = tail.marks, tail.expected, tail.position
            for (offset, byte), (last, upto) in zip(places, [*places[1:], (after, end)], strict=True):
                if offset < last:
                    yield Stretch(self.topic, offset, last, upto - byte, (file.seq, offset, byte))

    def _objects(self) -> ObjectCatalog | None:
        if self._catalog is None:
            self._catalog = _catalog(self._place, self.topic)
        if self._catalog is not None:
            self._catalog.refresh()
        return self._catalog

    def _checkpoint_offset(self) -> int:
        # All messages may be in objects or deleted: the checkpoint has the offset that the log had reached.
        checkpoint = None if self.directory is None else load_checkpoint(self._fs, self.directory)
        return 0 if checkpoint is None or isinstance(checkpoint, CorruptionError) else checkpoint.last_offset + 1

    def _inode(self, path: str) -> int:
        try:
            return self._fs.stat(path).inode
        except FileNotFoundError:
            return 0

    def _local(self) -> list[LocalFile]:
        """
        Return the files that have a complete message, oldest first. It lists the directory and reads the size of the
        newest file.
        """
        if self.directory is None:
            return []
        name = self._place.file_name
        try:
            listed = self._fs.list_dir(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._place.objects is not None:
                return []
            raise UsageError(f"{self.directory} holds no topic") from error
        seqs = tuple(sorted(seq for one in listed if (seq := parse_wal_file_name(one, name)) is not None))
        if not seqs and self._place.objects is None:
            raise UsageError(f"{self.directory} holds no topic, or its first log file is not called {name}")
        if seqs != self._seen[0] or not self._seen[1] or self._seen[1][-1].seq != seqs[-1]:
            self._seen = (seqs, self._list_files())
        return self._seen[1]

    def _list_files(self) -> list[LocalFile]:
        directory = self.directory or ""
        checkpoint = load_checkpoint(self._fs, directory)
        known = None if isinstance(checkpoint, CorruptionError) else checkpoint
        try:
            found = local_files(self._fs, directory, file_name=self._place.file_name, checkpoint=known)
        except FileNotFoundError:
            return []  # a file was removed meanwhile; the next call lists them again
        return [one for one in found if one.first_offset is not None]

    def _read_tail(self, newest: LocalFile) -> _Tail:
        status = self._fs.stat(newest.path)
        tail = self._tail
        if tail is None or (tail.path, tail.inode) != (newest.path, status.inode) or tail.position > status.size_bytes:
            first = newest.first_offset or 0
            tail = _Tail(newest.seq, newest.path, status.inode, 0, first, [(first, 0)])
            self._tail = tail
            self._synced = 0
        if status.size_bytes > tail.position:
            with self._scanner(newest.path, tail.position, tail.expected) as scanner:
                while (step := scanner.step()) is not None:
                    if isinstance(step, Good):
                        if step.first_offset > tail.marks[-1][0]:
                            tail.marks.append((step.first_offset, step.position))
                        tail.position, tail.expected = scanner.position, scanner.expected
        return tail

    def _scanner(self, path: str, position: int, expected: int) -> FrameScanner:
        return FrameScanner(self._fs, path, position=position, end=None, expected=expected, marks=FileMarks())

    def offset_at(self, time_ns: int) -> int:
        """
        Return the offset of the first message published at or after *time_ns*; `next_offset` if there is none yet.

        It is exact if publish times, which come from producers, only increase.

        Raises:
            UsageError: the topic does not exist.
            OSError, ObjectsUnavailableError, MetadataUnavailableError: as they describe.
        """
        time_ms = -(-time_ns // NS_PER_MS)
        if self._cold is None:
            self._cold = open_cold(self._place, self.topic)
        found = None if self._cold is None else self._cold.offset_at(time_ms)
        if found is not None:
            return found
        tip = self.next_offset()
        begin = tip
        for file in reversed(self._local()):
            begin = file.first_offset or 0
            first = next(self._times(begin, tip), None)
            if first is not None and first[1] < time_ms:
                break
        return next((offset for offset, at_ms in self._times(begin, tip) if at_ms >= time_ms), tip)

    def _times(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        decode = MessageCodec(self.topic).decode
        for found in self.read(start, stop):
            for offset, body in enumerate(found.bodies, found.first) if isinstance(found, MessageRun) else ():
                message = decode(body)
                if not isinstance(message, Damage):
                    yield offset, message.publish_time_ns // NS_PER_MS

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def read(self, start: int, stop: int, mark: tuple[int, int, int] | None = None) -> Iterator[MessageRun | LostRange]:
        """
        Yield the messages from *start* on and below *stop*, in order; each offset is in exactly one result.

        Args:
            start: the first offset.
            stop: the offset after the last.
            mark: number of the file, offset and position of a frame at or before *start*, from a stretch.

        Raises:
            UsageError: the topic does not exist.
            OSError, ObjectsUnavailableError, MetadataUnavailableError: as they describe.
        """
        wanted = start
        tries = 0
        while wanted < stop:
            found = self._local()
            at = bisect.bisect_right([one.first_offset or 0 for one in found], wanted) - 1
            after = found[at + 1].first_offset if at + 1 < len(found) else None
            began = wanted
            if at < 0:
                for one in self._read_cold(wanted, stop if after is None else min(after, stop), "no file has them"):
                    invariant(one.first == wanted, _EACH_ONCE)
                    yield one
                    wanted = one.after if isinstance(one, LostRange) else one.first + len(one.bodies)
                continue
            try:
                for one in self._read_file(found[at], wanted, stop, after, mark):
                    invariant(one.first == wanted, _EACH_ONCE)
                    yield one
                    wanted = one.after if isinstance(one, LostRange) else one.first + len(one.bodies)
            except FileNotFoundError:
                self._seen = ((), [])  # it was uploaded and removed, or deleted
            # A new file may have been started after the end of the newest one: list the files again.
            tries = 0 if wanted > began else tries + 1
            self._seen = ((), []) if tries else self._seen
            if tries > 1 and (after is None or tries > _LISTINGS_MAX):
                yield from self._read_cold(wanted, stop, f"{found[at].path} ends before them")
                return

    def _read_file(
        self, file: LocalFile, wanted: int, stop: int, after: int | None, mark: tuple[int, int, int] | None
    ) -> Iterator[MessageRun | LostRange]:
        end = stop if after is None else min(stop, after)
        expected, position = self._begin(file, wanted, mark)
        key = (file.path, self._inode(file.path))
        with self._scanner(file.path, position, expected) as scanner:
            while wanted < end and (step := scanner.step()) is not None:
                if not isinstance(step, Good):
                    known = step.next_offset if step.next_offset is not None else after
                    if known is not None and known > wanted:  # else it is the torn tail, or still being written
                        yield from self._read_cold(wanted, min(known, end), step.reason, file.path)
                        wanted = min(known, end)
                    continue
                _remember(key, (step.first_offset, step.position))
                skip = max(0, wanted - step.first_offset)
                frames = step.frames[skip : max(0, end - step.first_offset)]
                if frames:
                    data = step.data
                    bodies = [data[start + FRAME_HEADER_BYTES : last] for _, start, last in frames]
                    yield MessageRun(step.first_offset + skip, bodies)
                    wanted = step.first_offset + skip + len(bodies)
        if wanted < end and after is not None:
            yield from self._read_cold(wanted, end, "the file ends too early", file.path)

    def _begin(self, file: LocalFile, wanted: int, mark: tuple[int, int, int] | None) -> _Mark:
        known = list(_marks.get((file.path, self._inode(file.path)), ()))
        if mark is not None and mark[0] == file.seq:
            bisect.insort(known, (mark[1], mark[2]))
        at = bisect.bisect_right(known, wanted, key=lambda one: one[0]) - 1
        return known[at] if at >= 0 else (file.first_offset or 0, 0)

    def _read_cold(self, wanted: int, stop: int, reason: str, where: str = "") -> Iterator[MessageRun | LostRange]:
        """Yield the messages in objects that no file has, and the lost ranges."""
        place = where or self.directory or self._place.metadata_shown
        if self._cold is None:
            self._cold = open_cold(self._place, self.topic)
        if self._cold is None:
            yield LostRange(wanted, stop, place, f"{reason}; if the object store has them, say where: objects")
            return
        while wanted < stop:
            found = self._cold.take(wanted, stop)
            if isinstance(found, ColdPiece):
                yield MessageRun(wanted, list(found.bodies))
                wanted += len(found.bodies)
            elif isinstance(found, ColdLost):
                yield LostRange(wanted, min(found.next_offset, stop), found.name, found.reason)
                wanted = found.next_offset
            else:
                after = self._cold.next_offset(wanted)
                after = stop if after is None else min(after, stop)
                yield LostRange(wanted, after, place, f"{reason}, and no object")
                wanted = after


def _remember(key: tuple[str, int], mark: _Mark) -> None:
    known = _marks.setdefault(key, [])
    _marks.move_to_end(key)
    at = bisect.bisect_left(known, mark)
    if at == len(known) or known[at] != mark:
        known.insert(at, mark)
    if len(_marks) > _FILES_MAX:
        _marks.popitem(last=False)
