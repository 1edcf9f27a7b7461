"""
Records that Spark sinks staged and committed become records of the log. Only the log's owner does this.

::

    1  tasks write and sync       incoming/<writer>/<batch>-…/00000.part   nobody reads them
    2  the sink's driver commits  incoming/<writer>/<batch>.commit         durable: from here on the batch counts
    3  the owner, step by step, until all records of the batch are in the log:
         a  holds the log          others are refused with `WouldBlockError("tail")`
         b  notes                  incoming/<writer>/<batch>.begun         which records come, how many the log has
         c  appends them, in one pass into one segment, and syncs
         d  lets the log go
    4  the owner renames          <batch>.commit → <batch>.done            durable: it is not appended again
    5  the owner removes what was staged, the note, and all but the writer's last `done`

The owner is whoever has the log open: it does it when it opens the log, once a second, and when it closes it.

Records have no name that would tell those of a batch from others. But between b and d nobody else appends, and what a
crash leaves of one segment is a prefix of what was appended: what the log has more than the note says is how many of
the step are there. So where a step fails behind b, the log stays held until it is done, or the log is opened again.
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
from quiver.observe import Observer
from quiver.primitives.batch_notes import NOTE_BYTES_MAX, BatchCommit, begun_name
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.disk.staged_commits import StagedLog, noted_batches, read_note
from quiver.primitives.disk.staging import names_in
from quiver.primitives.scan import Frame

__all__ = ["StagedImport"]

_STEP_BYTES = 4 << 20
"""About as much is appended at once; a record that is larger is a step of its own."""

_PATIENCE_S = 5.0
"""For a reservation that is open, a segment to come, a sync. Then it is tried again with the next turn."""


@dataclass(slots=True)
class _Step:
    """Records on their way into the log, and how far they are."""

    path: str
    place: BatchStep
    payloads: list[memoryview]
    ext_ids: list[int]
    held: bool = False
    noted: bool = False
    appended: bool = False


class StagedImport:
    """
    Appends what sinks committed below the log's directory *root*. Thread-safe.

    Args:
        retry: calls what it is given until that no longer raises `WouldBlockError`, for so many seconds at most.
        flush: makes durable what the log has, in so many seconds at most.
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
        Find out what a crash left of batches whose import had begun. Called before anyone may append.

        Raises:
            OSError: the disk refused.
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
        Append all that is committed; return how many records came. Durable on return. One look when nothing is there.

        What cannot be appended now is reported once, and tried again at the next call.
        """
        with self._turn:
            before = self._appended
            try:
                self._import_all()
            except StoreClosedError:
                pass  # whoever opens the log next goes on
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
        """Bring the records of the step, if there is one, into the log, from where it is."""
        step = self._step
        if step is None:
            return
        if not step.held:
            self._hold(step)
        if not step.noted:
            self._note(step)
        if not step.appended:
            self._retry(lambda: self._tail.append_many(step.payloads, step.ext_ids, held=True), _PATIENCE_S)
            step.appended = True
        self._flush(_PATIENCE_S)
        self._places[step.path] = (step.place.part, step.place.index + step.place.count)
        self._let_go()
        self._appended += step.place.count
        self._observer.count("aof_sink_records_total", step.place.count)

    def _hold(self, step: _Step) -> None:
        try:
            log_records = self._retry(self._tail.hold, _PATIENCE_S)
        except BaseException:
            self._step = None
            raise
        step.held = True
        step.place = BatchStep(step.place.part, step.place.index, step.place.count, log_records)

    def _note(self, step: _Step) -> None:
        data = encode_begun(step.place)
        try:
            replace_file(self._staged.fs, step.path, data)
        except OSError:
            # The new name may be there although its sync failed. Only where it is not, nothing was begun.
            if not self._reads(step.path, data):
                self._let_go()
            raise
        step.noted = True

    def _reads(self, path: str, data: bytes) -> bool:
        try:
            return self._staged.fs.read_all(path, size_max=NOTE_BYTES_MAX) == data
        except FileNotFoundError:
            return False

    def _let_go(self) -> None:
        self._step = None
        self._tail.release()


@dataclass(slots=True)
class _Piece:
    """Records of a part that follow one another; *index* is the place of the first."""

    index: int
    payloads: list[memoryview]
    ext_ids: list[int]

    @property
    def records(self) -> tuple[list[memoryview], list[int]]:
        return self.payloads, self.ext_ids


def _steps(fs: FileSystem, path: str, part: StagedPart, first: int, *, size_max: int) -> Iterator[_Piece]:
    """
    Yield the records of a part from number *first* on, verified, a few megabytes at a time, at most *size_max*.

    Raises:
        CorruptionError: it is not what was committed.
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
        whole = RECORD_HEAD_BYTES + length
        if size_max < whole <= left:
            raise InvalidRecordError(f"{file.path}: a record of {length} bytes does not fit: raise segment_max_bytes")
        if len(data) < whole <= left:
            data = memoryview(file.pread(whole, position))
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
        raise CorruptionError(file.path, position + at, "a staged record is not what was written")
    return piece, position + at


def _is_cut(data: memoryview, at: int, left: int) -> bool:
    """Say whether the record at *at* only ends behind *data*, which is not the end of the part."""
    if len(data) >= left:
        return False
    if at + RECORD_HEAD_BYTES > len(data):
        return True
    (length, *_) = RECORD_HEAD.unpack_from(data, at)
    return at + RECORD_HEAD_BYTES + int(length) > len(data)
