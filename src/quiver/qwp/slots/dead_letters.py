"""
The dead letters of a slot on disk: appended by its sender, read and removed by people beside it.

::

    .dead-letters      the first file
    .dead-letters-1    … -2, -3: the next ones; only the newest is appended to
    .dead-letters.lock held for each change, by the sender and by commands

A letter is durable before its frame counts as confirmed. Appending takes the same time however many letters there are.
All files together are bounded: the oldest one is removed for the newest letter, and its letters are counted.

A crash leaves at most an unfinished record at the end of a file. Nothing is written behind it or over it: the next
letter begins a new file.
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
from quiver.primitives.scan import Frame
from quiver.qwp.format.dead_letters import (
    DEAD_LETTER_HEAD_BYTES,
    DEAD_LETTERS_HEADER,
    DeadLetter,
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
    "LettersDamage",
    "StoredLetter",
    "count_dead_letters",
    "dead_letters_of",
    "read_dead_letters",
    "remove_dead_letters",
]

DEAD_LETTERS_BYTES_MAX = 256 << 20
"""What the dead letters of a slot may take together, unless it is set otherwise."""
_HEADER_BYTES = DEAD_LETTERS_HEADER.size
_FILES = 8
_SHARE_BYTES_MAX = 128 << 20
"""A file is read as a whole; with a larger bound there are more of them."""
_FILE_BYTES_MAX = 1 << 32
_LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter, and what it is called: the number of its frame, and a checksum that tells it from others."""

    id: str
    letter: DeadLetter


@dataclass(frozen=True, slots=True)
class LettersDamage:
    """Bytes of a file that are no letter, although letters follow; or a file that cannot be read at all."""

    path: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: damaged at offset {self.offset}: {self.reason}"


class DeadLetterFiles:
    """
    Where a sender keeps what it gives up. For one thread.

    Args:
        fs: the disk.
        directory: of the slot.
        bytes_max: of all files together; None removes nothing.
        clock, observer: as everywhere.
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
        self._file: File | None = None  # the one that is appended to, `_end` bytes long
        self._inode = -1
        self._end = 0
        self._sizes: dict[int, int] | None = None  # number of each file → bytes; None: to be looked up
        self._has_failed = False  # the newest file is not appended to any more

    def keep(self, letter: DeadLetter) -> int:
        """
        Keep a frame that is about to be given up, durably on return. Returns how many letters were dropped for that:
        those of the oldest file, or this one when it is larger than all files may be.

        Raises:
            OSError: it could not be kept.
        """
        record = encode_dead_letter(letter)
        need = len(record) + _HEADER_BYTES
        if need > self._bytes_max:
            self._report(1, f"a letter of {need} bytes; all of them may take {self._bytes_max}")
            return 1
        with _locked(self._fs, self._directory, self._clock) as is_held:
            sizes = self._look(may_append=is_held)
            file = self._file
            if file is None or (self._end > _HEADER_BYTES and self._end + len(record) > self._share):
                self.close()
                number = max(sizes, default=-1) + 1
                dropped = self._make_room(sizes, number, need) if is_held else 0
                self._begin(number, record)
                self._sizes = sizes | {number: need}
                return dropped
            number = max(sizes)
            dropped = self._make_room(sizes, number, len(record))
            self._append(file, record)
            sizes[number] = self._end
            return dropped

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _path(self, number: int) -> str:
        return f"{self._directory}/{dead_letters_name(number)}"

    def _look(self, *, may_append: bool) -> dict[int, int]:
        """
        Return the files by number, and open the newest one, unless all of that is known and nobody
        has changed it.
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
        if end != size:  # cut short by a crash, or damaged: the next letter has a file of its own
            file.close()
            return
        try:
            # What is seen after a crash, the name too, may not be durable yet.
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
            # Part of the record may be there, and after a sync that failed nobody knows what is durable.
            self.close()
            self._has_failed = True
            raise
        self._end += len(record)

    def _make_room(self, sizes: dict[int, int], newest: int, need: int) -> int:
        """
        Remove the oldest files until *need* more bytes fit; return how many letters were in them.

        A file that is half of everything or more stays: it is from a time without a bound, and holds too much to be
        removed for one letter.
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
            self._report(dropped, f"dead letters take {self._bytes_max} bytes, the oldest were removed for a new one")
        return dropped

    def _report(self, letters: int, reason: str) -> None:
        self._observer.count("quiver.qwp.dead_letters_dropped_total", letters)
        self._observer.event(
            "qwp.dead_letters_dropped", level=logging.ERROR, slot=self._directory, letters=letters, reason=reason
        )


@contextmanager
def _locked(fs: FileSystem, directory: str, clock: Clock) -> Iterator[bool]:
    """Hold the lock of the dead letters; False when somebody else held it all the time."""
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
    """Return the end of the last record that can be read from the beginning on."""
    header = decode_dead_letters_header(data)
    if not isinstance(header, Frame):
        return 0
    end = header.end
    while isinstance(answer := decode_dead_letter(data, end), Frame):
        end = answer.end
    return end


def _records(data: memoryview, path: str) -> Iterator[tuple[int, int, DeadLetter] | LettersDamage]:
    """
    Yield where each record begins and ends, and its letter; what stands between them, when letters follow, as
    damage.
    """
    header = decode_dead_letters_header(data)
    if not isinstance(header, Frame):
        yield LettersDamage(path, 0, getattr(header, "reason", "cut short"))
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
            return  # never finished, as far as anybody can tell
        yield LettersDamage(path, at, getattr(answer, "reason", "a record that ends inside of another one"))
        at = after


def _id_of(data: memoryview, start: int, letter: DeadLetter) -> str:
    return f"{letter.fsn}.{int.from_bytes(data[start : start + 4], 'little'):08x}"


def _read(fs: FileSystem, path: str) -> memoryview:
    return memoryview(fs.read_all(path, size_max=_FILE_BYTES_MAX))


def dead_letters_of(fs: FileSystem, directory: str) -> Iterator[StoredLetter | LettersDamage]:
    """
    Yield the frames of a slot that were given up, oldest first, and what of them is damaged. May run beside a sender.

    Raises:
        OSError: a file cannot be read. That there is none is no error.
    """
    for number in _numbers(fs, directory):
        path = f"{directory}/{dead_letters_name(number)}"
        try:
            data = _read(fs, path)
        except FileNotFoundError:
            continue
        for one in _records(data, path):
            yield one if isinstance(one, LettersDamage) else StoredLetter(_id_of(data, one[0], one[2]), one[2])


def read_dead_letters(fs: FileSystem, directory: str) -> list[DeadLetter]:
    """
    Return the frames of a slot that were given up, oldest first; what is damaged is left out.

    Raises:
        OSError: a file cannot be read. That there is none is no error.
    """
    return [one.letter for one in dead_letters_of(fs, directory) if isinstance(one, StoredLetter)]


def count_dead_letters(fs: FileSystem, directory: str) -> int:
    """
    Return how many letters a slot has, without reading them.

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
    if at < size:  # cut short or damaged: only reading tells
        count = sum(not isinstance(one, LettersDamage) for one in _records(_read(fs, path), path))
    return count


def remove_dead_letters(
    fs: FileSystem, directory: str, ids: Collection[str] | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> int:
    """
    Remove letters by their ids, or with None every file of them, damaged bytes included; return how many were removed.

    Durable on return. A crash in between leaves a file as it was, or without its letters. May run beside a sender.

    Raises:
        TransientError: somebody else changed the letters all the time.
        OSError: the disk refused; some letters may be gone.
    """
    removed = 0
    with _locked(fs, directory, clock) as is_held:
        if not is_held:
            raise TransientError(f"{directory}: the dead letters are being changed by another process; try again")
        for number in _numbers(fs, directory):
            path = f"{directory}/{dead_letters_name(number)}"
            data = _read(fs, path)
            found = [one for one in _records(data, path) if not isinstance(one, LettersDamage)]
            gone = [one for one in found if ids is None or _id_of(data, one[0], one[2]) in ids]
            removed += len(gone)
            if ids is None or (gone and sum(end - start for start, end, _ in gone) == len(data) - _HEADER_BYTES):
                remove_durably(fs, [path])
            elif gone:
                replace_file(fs, path, _without(data, gone), mode=0o600)
    return removed


def _without(data: memoryview, gone: list[tuple[int, int, DeadLetter]]) -> bytes:
    parts, at = [], 0
    for start, end, _ in gone:
        parts.append(data[at:start])
        at = end
    return b"".join([*parts, data[at:]])
