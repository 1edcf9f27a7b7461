"""
The dead letters of a slot on disk: appended by its sender, read and removed by operators while it runs.

::

    .dead-letters      the first file
    .dead-letters-1    … -2, -3: the next ones; only the newest is appended to
    .dead-letters.lock held during each change, by the sender and by commands

A dead letter is durable before its frame counts as confirmed. The cost of an append does not depend on the number of
dead letters. The total size is bounded: the oldest file is removed to make space for a new letter, and the removed
letters are counted.

A crash leaves at most an unfinished record at the end of a file. Nothing is appended to or written over it: the next
letter starts a new file.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import TransientError
from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.scan import Frame, as_damage
from quiver.qwp.format.dead_letters import (
    DEAD_LETTER_HEAD_BYTES,
    DEAD_LETTERS_HEADER,
    DeadLetterRecord,
    decode_dead_letter,
    decode_dead_letters_header,
    encode_dead_letter,
    encode_dead_letters_header,
    end_of_dead_letter,
    find_dead_letter,
)
from quiver.qwp.format.names import DEAD_LETTERS_LOCK_NAME, dead_letters_name, number_of_dead_letters

__all__ = [
    "DEAD_LETTERS_BYTES_MAX",
    "DeadLetterFiles",
    "DeadLettersDamage",
    "StoredDeadLetter",
    "count_dead_letters",
    "dead_letters_of",
    "read_dead_letters",
    "remove_dead_letters",
]

DEAD_LETTERS_BYTES_MAX = 256 << 20
"""The default limit on the total size of the dead letters of a slot."""
_HEADER_BYTES = DEAD_LETTERS_HEADER.size
_FILES = 8
_SHARE_BYTES_MAX = 128 << 20
"""Files are read completely; a larger limit means more files, not larger ones."""
_FILE_BYTES_MAX = 1 << 32
_LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter and its id: the number of its frame, and a checksum that distinguishes letters of one frame."""

    id: str
    letter: DeadLetterRecord


@dataclass(frozen=True, slots=True)
class DeadLettersDamage:
    """Bytes that are not a letter although letters follow, or a file that cannot be read."""

    path: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: damaged at offset {self.offset}: {self.reason}"


class DeadLetterFiles:
    """
    Stores the frames that a sender drops. For one thread.

    Args:
        fs: the disk.
        directory: the directory of the slot.
        bytes_max: the limit on the total size; None means no limit.
        clock, observer: time, and the receiver of events and metrics.
    """

    def __init__(
        self, fs: FileSystem, directory: str, bytes_max: int | None, *, clock: Clock, observer: Observer
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._bytes_max: float = math.inf if bytes_max is None else bytes_max
        share = (DEAD_LETTERS_BYTES_MAX if bytes_max is None else bytes_max) // _FILES
        self._share = min(max(1, share), _SHARE_BYTES_MAX)
        self._clock = clock
        self._observer = observer
        self._file: File | None = None  # open for appending, `_end` bytes long
        self._inode = -1
        self._end = 0
        self._sizes: dict[int, int] | None = None  # number of each file → bytes; None: unknown
        self._has_failed = False  # whether appending to the newest file failed

    def keep(self, letter: DeadLetterRecord) -> int:
        """
        Store a frame that is about to be dropped; it is durable on return. Returns how many letters were removed for
        it: those of the oldest file, or this one if it exceeds the limit by itself.

        Raises:
            OSError: the letter could not be stored.
        """
        record = encode_dead_letter(letter)
        need = len(record) + _HEADER_BYTES
        if need > self._bytes_max:
            self._report(1, f"the letter has {need} bytes; the limit for all of them is {self._bytes_max}")
            return 1
        with _locked(self._fs, self._directory, self._clock) as is_held:
            sizes = self._look(may_append=is_held)
            file = self._file
            if file is None or (self._end > _HEADER_BYTES and self._end + len(record) > self._share):
                self.close()
                number = max(sizes, default=-1) + 1
                dropped = self._free_space(sizes, number, need) if is_held else 0
                self._begin(number, record)
                self._sizes = sizes | {number: need}
                return dropped
            number = max(sizes)
            dropped = self._free_space(sizes, number, len(record))
            self._append(file, record)
            sizes[number] = self._end
            return dropped

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _path(self, number: int) -> str:
        return f"{self._directory}/{dead_letters_name(number)}"

    def _look(self, *, may_append: bool) -> dict[int, int]:
        """
        Return the sizes of the files by number, and open the newest one. Does nothing if the state is known and no
        other process has changed it.
        """
        if self._sizes is not None and self._file is not None and may_append:
            with contextlib.suppress(FileNotFoundError):
                found = self._fs.stat(self._path(max(self._sizes)))
                if (found.inode, found.size_bytes) == (self._inode, self._end):
                    return self._sizes
        self.close()
        self._sizes = {
            number: self._fs.stat(self._path(number)).size_bytes for number in _numbers(self._fs, self._directory)
        }
        newest = max(self._sizes, default=None)
        if newest is not None and may_append and not self._has_failed and self._sizes[newest] < self._share:
            self._open(newest)
        return self._sizes

    def _open(self, number: int) -> None:
        path = self._path(number)
        file = self._fs.open_write(path)
        size = file.size()
        end = _end_of(memoryview(file.pread(size, 0)))
        if end != size:  # truncated by a crash, or damaged: the next letter gets a new file
            file.close()
            return
        try:
            # After a crash, bytes and names that are visible may not be durable yet.
            file.sync_data()
            self._fs.sync_dir(self._directory)
        except OSError:
            file.close()
            self._has_failed = True
            raise
        self._file, self._end, self._inode = file, end, self._fs.stat(path).inode

    def _begin(self, number: int, record: bytes) -> None:
        path = self._path(number)
        self._sizes = None
        replace_file(self._fs, path, encode_dead_letters_header() + record, mode=0o600)
        self._has_failed = False
        self._file = self._fs.open_write(path)
        self._end, self._inode = self._file.size(), self._fs.stat(path).inode

    def _append(self, file: File, record: bytes) -> None:
        try:
            file.pwrite(record, self._end)
            file.sync_data()
        except OSError:
            # Part of the record may be on disk, and after a failed sync it is unknown what is durable.
            self.close()
            self._has_failed = True
            raise
        self._end += len(record)

    def _free_space(self, sizes: dict[int, int], newest: int, need: int) -> int:
        """
        Remove the oldest files until *need* more bytes fit. Return the number of removed letters.

        A file that takes half of the limit or more stays: it was written without a limit, and has too many letters to
        be removed for a single one.
        """
        dropped = 0
        while (total := sum(sizes.values()) + need) > self._bytes_max:
            oldest = min(sizes, default=newest)
            if oldest == newest or total - sizes[oldest] < self._bytes_max // 2:
                break
            dropped += _count(self._fs, self._path(oldest))
            remove_durably(self._fs, [self._path(oldest)])
            del sizes[oldest]
        if dropped:
            self._report(dropped, f"dead letters take {self._bytes_max} bytes; the oldest were removed for a new one")
        return dropped

    def _report(self, letters: int, reason: str) -> None:
        self._observer.count("quiver.qwp.dead_letters_dropped_total", letters)
        self._observer.event(
            "qwp.dead_letters_dropped", level=logging.ERROR, slot=self._directory, letters=letters, reason=reason
        )


@contextmanager
def _locked(fs: FileSystem, directory: str, clock: Clock) -> Iterator[bool]:
    """Hold the lock of the dead letters. Yields False if another process held it for the entire wait."""
    deadline = clock.monotonic() + _LOCK_WAIT_S
    pause = threading.Condition()
    lock = fs.try_lock(f"{directory}/{DEAD_LETTERS_LOCK_NAME}", note="dead letters")
    while lock is None and clock.monotonic() < deadline:
        with pause:
            clock.wait(pause, _LOCK_POLL_S)
        lock = fs.try_lock(f"{directory}/{DEAD_LETTERS_LOCK_NAME}", note="dead letters")
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _numbers(fs: FileSystem, directory: str) -> list[int]:
    found = (number_of_dead_letters(name) for name in fs.list_dir(directory))
    return sorted(number for number in found if number is not None)


def _end_of(data: memoryview) -> int:
    """Return the end of the last record that can be read from the start of the file."""
    header = decode_dead_letters_header(data)
    if not isinstance(header, Frame):
        return 0
    end = header.end
    while isinstance(answer := decode_dead_letter(data, end), Frame):
        end = answer.end
    return end


def _records(data: memoryview, path: str) -> Iterator[tuple[int, int, DeadLetterRecord] | DeadLettersDamage]:
    """Yield the start, end and letter of each record. Unreadable bytes before a letter are yielded as damage."""
    header = decode_dead_letters_header(data)
    if not isinstance(header, Frame):
        yield DeadLettersDamage(path, 0, as_damage(header, len(data)).reason)
        return
    at = header.end
    while at < len(data):
        answer = decode_dead_letter(data, at)
        if isinstance(answer, Frame):
            yield at, answer.end, answer.value
            at = answer.end
            continue
        after = find_dead_letter(data, at)
        if after is None:
            return  # presumably never finished
        yield DeadLettersDamage(path, at, getattr(answer, "reason", "a record that ends inside of another one"))
        at = after


def _id_of(data: memoryview, start: int, letter: DeadLetterRecord) -> str:
    return f"{letter.fsn}.{int.from_bytes(data[start : start + 4], 'little'):08x}"


def _read(fs: FileSystem, path: str) -> memoryview:
    return memoryview(fs.read_all(path, size_max=_FILE_BYTES_MAX))


def dead_letters_of(fs: FileSystem, directory: str) -> Iterator[StoredDeadLetter | DeadLettersDamage]:
    """
    Yield the dropped frames of a slot, oldest first, and what is damaged. Safe while a sender runs.

    Raises:
        OSError: a file cannot be read. A missing file is not an error.
    """
    for number in _numbers(fs, directory):
        path = f"{directory}/{dead_letters_name(number)}"
        try:
            data = _read(fs, path)
        except FileNotFoundError:
            continue
        for one in _records(data, path):
            yield one if isinstance(one, DeadLettersDamage) else StoredDeadLetter(_id_of(data, one[0], one[2]), one[2])


def read_dead_letters(fs: FileSystem, directory: str) -> list[DeadLetterRecord]:
    """
    Return the dropped frames of a slot, oldest first, without damaged ones.

    Raises:
        OSError: a file cannot be read. A missing file is not an error.
    """
    return [one.letter for one in dead_letters_of(fs, directory) if isinstance(one, StoredDeadLetter)]


def count_dead_letters(fs: FileSystem, directory: str) -> int:
    """
    Return the number of dead letters of a slot, without reading them.

    Raises:
        OSError: a file cannot be read.
    """
    count = 0
    for number in _numbers(fs, directory):
        with contextlib.suppress(FileNotFoundError):
            count += _count(fs, f"{directory}/{dead_letters_name(number)}")
    return count


def _count(fs: FileSystem, path: str) -> int:
    file = fs.open_read(path)
    try:
        size, at, count = file.size(), _HEADER_BYTES, 0
        while (end := end_of_dead_letter(file.pread(DEAD_LETTER_HEAD_BYTES, at), at)) is not None and end <= size:
            at, count = end, count + 1
    finally:
        file.close()
    if at < size:  # truncated or damaged: the records must be read
        count = sum(not isinstance(one, DeadLettersDamage) for one in _records(_read(fs, path), path))
    return count


def remove_dead_letters(
    fs: FileSystem, directory: str, ids: Collection[str] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> int:
    """
    Remove letters by their ids, or with None all files, including damaged bytes. Return the number of removed letters.

    Durable on return. A crash leaves each file either unchanged or without the letters. Safe while a sender runs.

    Raises:
        TransientError: another process was changing the letters for the entire wait.
        OSError: a disk error; some letters may have been removed.
    """
    removed = 0
    with _locked(fs, directory, clock) as is_held:
        if not is_held:
            raise TransientError(f"{directory}: another process is changing the dead letters; try again")
        for number in _numbers(fs, directory):
            path = f"{directory}/{dead_letters_name(number)}"
            data = _read(fs, path)
            found = [one for one in _records(data, path) if not isinstance(one, DeadLettersDamage)]
            chosen = [one for one in found if ids is None or _id_of(data, one[0], one[2]) in ids]
            removed += len(chosen)
            if ids is None or (chosen and sum(end - start for start, end, _ in chosen) == len(data) - _HEADER_BYTES):
                remove_durably(fs, [path])
            elif chosen:
                replace_file(fs, path, _without(data, chosen), mode=0o600)
    return removed


def _without(data: memoryview, chosen: list[tuple[int, int, DeadLetterRecord]]) -> bytes:
    parts, at = [], 0
    for start, end, _ in chosen:
        parts.append(data[at:start])
        at = end
    return b"".join([*parts, data[at:]])
