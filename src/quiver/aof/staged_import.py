"""
Import of batches that Spark sinks staged and committed. Only the owner of the log imports.

::

    1  tasks write and sync       incoming/<writer>/<batch>-…/00000.part   not visible
    2  the sink's driver commits  incoming/<writer>/<batch>.commit         durable: from here on the batch counts
    3  the owner, step by step, until all records of the batch are in the log:
         a  holds the log          other appends raise `WouldBlockError("tail")`
         b  writes a note          incoming/<writer>/<batch>.begun         the next records, and the log's record count
         c  appends the records, in one pass into one segment, and syncs
         d  releases the log
    4  the owner renames          <batch>.commit → <batch>.done            durable: it is not appended again
    5  the owner removes the staged files, the note, and all but the writer's last `done`

The owner is the process that has the log open. It imports when it opens the log, once a second, and when it closes it.

Records have no mark of their batch. But there are no other appends between b and d, and a
crash leaves a prefix of what was appended to a segment. So the difference between the log's record count and the one in
the note is the number of imported records of the step. If a step fails after b, the log stays held until the step is
done or the log is opened again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from quiver.aof.append.tail import Tail
from quiver.aof.format.names import INCOMING
from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, decode_record
from quiver.aof.format.sink_batch import COMMITS, BatchStep, StagedPart, decode_begun, encode_begun
from quiver.errors import CorruptionError, InvalidRecordError, QuiverError, StoreClosedError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.batch_notes import NOTE_BYTES_MAX, BatchCommit, begun_name
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.disk.staged_commits import StagedLog, noted_batches, read_note
from quiver.primitives.disk.staging import names_in
from quiver.primitives.scan import Frame

__all__ = ["StagedImport"]

_STEP_BYTES = 4 << 20
"""The approximate size of a step; a larger record is a step by itself."""

_PATIENCE_S = 5.0
"""How long a step waits for an open reservation, a new segment or a sync. The next import tries again."""


@dataclass(slots=True)
class _Step:
    """Records that are being imported, and the progress of their step."""

    path: str
    place: BatchStep
    payloads: list[memoryview]
    ext_ids: list[int]
    is_holder: bool = False
    noted: bool = False
    appended: bool = False


class StagedImport:
    """
    Appends what sinks committed below the log's directory *root*. Thread-safe.

    Args:
        retry: calls a function until it no longer raises `WouldBlockError`, for the given number of seconds at most.
        flush: makes the log durable, within the given number of seconds at most.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        tail: Tail,
        *,
        retry: Callable[[Callable[[], Any], float], Any],
        flush: Callable[[float], None],
        observer: Observer,
    ) -> None:
        self._staged = StagedLog(fs, f"{root}/{INCOMING}", COMMITS)
        self._tail = tail
        self._retry = retry
        self._flush = flush
        self._observer = observer
        self._turn = threading.Lock()
        self._places: dict[str, tuple[int, int]] = {}
        self._step: _Step | None = None
        self._appended = 0
        self._reported: set[str] = set()

    def recover(self) -> None:
        """
        Determine how much of partly imported batches is in the log after a crash. Called before the first append.

        Raises:
            OSError: the disk failed.
        """
        log_records = self._tail.record_total
        for writer in self._staged.writers():
            directory = self._staged.directory(writer)
            names = names_in(self._staged.fs, directory)
            done = max(noted_batches(names, "done"), default=-1)
            for batch in noted_batches(names, "begun"):
                try:
                    if batch > done:
                        self._recover_batch(f"{directory}/{begun_name(batch)}", log_records)
                except CorruptionError as error:
                    self._report(error)

    def _recover_batch(self, path: str, log_records: int) -> None:
        step = read_note(self._staged.fs, path, decode_begun)
        there = min(max(0, log_records - step.log_records), step.count)
        if there < step.count:
            # From now on others append, so the number of records no longer shows how far this batch is.
            rest = BatchStep(step.part, step.index + there, 0, log_records)
            replace_file(self._staged.fs, path, encode_begun(rest))
        self._places[path] = (step.part, step.index + there)

    def import_all(self) -> int:
        """
        Append all committed batches, durably; return how many records were appended. One listing if there are none.

        A batch that cannot be appended now is reported once, and tried again at the next call.
        """
        with self._turn:
            before = self._appended
            try:
                self._import_all()
            except StoreClosedError:
                pass  # the import continues when the log is opened again
            except (QuiverError, OSError) as error:
                self._report(error)
            return self._appended - before

    def _import_all(self) -> None:
        self._advance()
        for writer in self._staged.writers():
            try:
                self._staged.import_writer(writer, self._append)
                below = f"{self._staged.directory(writer)}/"
                self._places = {path: place for path, place in self._places.items() if not path.startswith(below)}
            except (QuiverError, OSError) as error:
                if self._step is not None or isinstance(error, StoreClosedError):
                    raise  # the log is locked for a step: nothing else can be appended before it
                self._report(error)

    def _report(self, error: QuiverError | OSError) -> None:
        if str(error) not in self._reported:
            self._reported.add(str(error))
            self._observer.event("aof.sink.waits", level=logging.ERROR, problem=str(error))

    def _append(self, commit: BatchCommit[StagedPart]) -> int:
        fs, directory = self._staged.fs, self._staged.directory(commit.writer)
        path = f"{directory}/{begun_name(commit.batch)}"
        if path not in self._places and fs.exists(path):
            raise CorruptionError(
                path, 0, "the import of the batch had begun, and how much of it is in the log cannot be read"
            )
        before = self._appended
        first, index = self._places.get(path, (0, 0))
        for number in range(first, len(commit.parts)):
            part = commit.parts[number]
            size_max = self._tail.record_bytes_max
            for step in _steps(fs, f"{directory}/{part.path}", part, index, size_max=size_max):
                self._step = _Step(path, BatchStep(number, step.index, len(step.payloads), 0), *step.records)
                self._advance()
            index = 0
        return self._appended - before

    def _advance(self) -> None:
        """Continue the current step, if there is one, until its records are in the log."""
        step = self._step
        if step is None:
            return
        if not step.is_holder:
            self._hold(step)
        if not step.noted:
            self._note(step)
        if not step.appended:
            self._retry(lambda: self._tail.append_many(step.payloads, step.ext_ids, is_holder=True), _PATIENCE_S)
            step.appended = True
        are_alone = self._tail.record_total == step.place.log_records + step.place.count
        invariant(are_alone, "there are no other appends until the step of a batch is durable")
        self._flush(_PATIENCE_S)
        self._places[step.path] = (step.place.part, step.place.index + step.place.count)
        self._unlock()
        self._appended += step.place.count
        self._observer.count("aof_sink_records_total", step.place.count)

    def _hold(self, step: _Step) -> None:
        try:
            log_records = self._retry(self._tail.hold, _PATIENCE_S)
        except BaseException:
            self._step = None
            raise
        step.is_holder = True
        step.place = BatchStep(step.place.part, step.place.index, step.place.count, log_records)

    def _note(self, step: _Step) -> None:
        data = encode_begun(step.place)
        try:
            replace_file(self._staged.fs, step.path, data)
        except OSError:
            # The new name may exist although its sync failed. Only if it does not, the step has not begun.
            if not self._file_is(step.path, data):
                self._unlock()
            raise
        step.noted = True

    def _file_is(self, path: str, data: bytes) -> bool:
        try:
            return self._staged.fs.read_all(path, size_max=NOTE_BYTES_MAX) == data
        except FileNotFoundError:
            return False

    def _unlock(self) -> None:
        self._step = None
        self._tail.release()


@dataclass(slots=True)
class _Piece:
    """Consecutive records of a part; *index* is the number of the first."""

    index: int
    payloads: list[memoryview]
    ext_ids: list[int]

    @property
    def records(self) -> tuple[list[memoryview], list[int]]:
        return self.payloads, self.ext_ids


def _steps(fs: FileSystem, path: str, part: StagedPart, first: int, *, size_max: int) -> Iterator[_Piece]:
    """
    Yield the verified records of a part from number *first* on, a few megabytes at a time, at most *size_max*.

    Raises:
        CorruptionError: the part is damaged.
        InvalidRecordError: a record is larger than *size_max*.
    """
    file = fs.open_read(path)
    try:
        if file.size() != part.size_bytes:
            raise CorruptionError(path, 0, f"{file.size()} bytes where {part.size_bytes} were committed")
        position = index = 0
        while position < part.size_bytes:
            piece, end = _piece(file, position, part.size_bytes, size_max)
            count = len(piece.payloads)
            passed = min(max(0, first - index), count)
            if passed < count:
                yield _Piece(index + passed, piece.payloads[passed:], piece.ext_ids[passed:])
            position, index = end, index + count
    finally:
        file.close()
    if index != part.records:
        raise CorruptionError(path, 0, f"{index} records where {part.records} were committed")


def _piece(file: File, position: int, size_bytes: int, size_max: int) -> tuple[_Piece, int]:
    left = size_bytes - position
    data = memoryview(file.pread(min(_STEP_BYTES, size_max, left), position))
    if len(data) >= RECORD_HEAD_BYTES:
        (length, *_) = RECORD_HEAD.unpack_from(data, 0)
        record_bytes = RECORD_HEAD_BYTES + length
        if size_max < record_bytes <= left:
            raise InvalidRecordError(f"{file.path}: a record of {length} bytes does not fit: raise segment_max_bytes")
        if len(data) < record_bytes <= left:
            data = memoryview(file.pread(record_bytes, position))
    piece = _Piece(0, [], [])
    at = 0
    while at < len(data):
        answer = decode_record(data, at, len(data))
        if not isinstance(answer, Frame):
            break
        piece.payloads.append(answer.value.payload)
        piece.ext_ids.append(answer.value.ext_id)
        at = answer.end
    if not at or (at < len(data) and not _is_cut(data, at, left)):
        raise CorruptionError(file.path, position + at, "a staged record is damaged")
    return piece, position + at


def _is_cut(data: memoryview, at: int, left: int) -> bool:
    """Return whether the record at *at* extends past *data*, which is not the end of the part."""
    if len(data) >= left:
        return False
    if at + RECORD_HEAD_BYTES > len(data):
        return True
    (length, *_) = RECORD_HEAD.unpack_from(data, at)
    return at + RECORD_HEAD_BYTES + int(length) > len(data)
