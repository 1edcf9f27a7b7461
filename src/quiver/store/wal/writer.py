"""
Append to the log: one gathered write per entry, shared syncs, zeros ahead, rotation, caps, purge.

There are four locks. The store's own lock orders appends and rotations (one writer). `_sync` decides who syncs: the
first caller that needs a sync runs it, and callers that arrive meanwhile wait for it or for the next one. `_growth` is
held by any code that changes the length of the active file: an append past its end, the thread that writes zeros ahead,
rotation. `_next.lock` guards the file that is prepared for the next rotation.

A failed sync poisons the writer: the state of the disk is unknown until the directory is recovered.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quiver.errors import CapacityError, StoreFailedError
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.disk_full import is_full_disk, passes, what_is_short
from quiver.primitives.disk.file_system import Buffer, File, FileSystem
from quiver.primitives.disk.prealloc import zero_fill
from quiver.primitives.worker import WorkerDiedError
from quiver.store.format.cursor import encode_cursor
from quiver.store.format.names import CURSOR_NAME, WAL_ACTIVE, wal_rotated_name
from quiver.store.format.wal_entry import ENTRY_BYTES_MAX
from quiver.store.format.wal_file import WAL_HEADER_BYTES, encode_wal_header
from quiver.store.wal.moved import DirectoryMovedError
from quiver.store.wal.next_file import NextFile
from quiver.store.wal.reread import LogSpan

__all__ = ["RotatedFile", "WalLimits", "WalWriter"]

ZERO_AHEAD_BYTES = 8 * 1024 * 1024
ZERO_AHEAD_ENTRY_BYTES_MAX = 128 * 1024
"""Zeros ahead cost a second write of every byte: worth it for synced entries up to this size."""

_ZERO_STEP_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WalLimits:
    """Caps of the log, all counted on disk: zeros ahead of the tail count, too."""

    bytes_max: int
    rotate_bytes: int
    files_max: int


@dataclass(frozen=True, slots=True)
class RotatedFile:
    """A retired file: it is deleted when the cursor reaches `position_end`."""

    path: str
    number: int
    position_end: int
    size_bytes: int


class WalWriter:
    """
    The writing end of one log. `append`, `rotate`, `forget` are called under the store's lock,
    `advance_cursor` by one thread at a time.

    Args:
        fs: the file system.
        directory: the `wal` directory.
        config_hash: written to the header of each new file.
        limits: caps.
        rotated: files that are already retired, oldest first.
        cursor: position that is durable in the cursor file.
        sync_data: makes a file's data durable.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        config_hash: bytes,
        limits: WalLimits,
        rotated: Sequence[RotatedFile],
        cursor: int,
        sync_data: Callable[[File], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._config_hash = config_hash
        # The store reads a complete file when it opens: a file without a size limit could not be opened again.
        self._limits = replace(limits, rotate_bytes=min(limits.rotate_bytes, ENTRY_BYTES_MAX))
        self._rotated = list(rotated)
        self._rotated_bytes = sum(file.size_bytes for file in rotated)
        self._next_number = max((file.number for file in rotated), default=0) + 1
        self._file: File | None = None
        self._offset = 0
        self._header_bytes = 0
        self._file_bytes = 0
        self._shift = 0
        self._sync_data = sync_data
        self.before_rotation: Callable[[], None] = lambda: None
        """Raises if the directory is not the one that was opened."""
        self._sync = threading.Condition()
        self._syncing = False
        self._failure: Exception | None = None
        self._growth = threading.RLock()
        self._next = NextFile(fs, directory, config_hash)
        self._is_name_durable = True
        self._easy_end = 0
        self._granted_end: int | None = None
        self.zeros_wanted = False
        """Set by `append` if `fill_ahead` would make the next syncs cheaper."""
        self.cursor = cursor
        self._cursor_wanted = cursor
        self.written = cursor
        self.synced = cursor
        self.syncs = 0

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────

    def resume_file(self, file: File, *, header_bytes: int, position_start: int, offset: int, size_bytes: int) -> None:
        """Continue in an existing active file at byte *offset*; everything before it is durable."""
        self._file = file
        self._header_bytes = header_bytes
        self._shift = position_start - header_bytes
        self._offset = offset
        self._file_bytes = max(size_bytes, offset)
        self._find_easy_end()
        self.written = self.synced = offset + self._shift

    def start(self, position: int) -> None:
        """Begin a new active file whose first data byte has stream position *position*. Durable on return."""
        file = self._next.take(position)
        self._fs.rename(self._next.path, self._path(WAL_ACTIVE))
        self._fs.sync_dir(self._directory)
        self._use(file, position)
        self.written = self.synced = position

    # ── appending ────────────────────────────────────────────────────────────────────────────────────

    def has_room(self, nbytes: int) -> bool:
        """
        Return whether an entry of *nbytes* certainly fits: without rotation, below the caps, and within the grant. If
        not, call `room_for`.
        """
        return self._offset + nbytes <= self._easy_end

    def grant(self, nbytes: int) -> None:
        """Let `has_room` return True for at most *nbytes* more: the caller has checked a cap unknown to the log."""
        self._granted_end = self.written + nbytes
        self._find_easy_end()

    def _find_easy_end(self) -> None:
        # The next file counts even if it is not prepared yet.
        space = self._limits.bytes_max - self._rotated_bytes - WAL_HEADER_BYTES
        self._easy_end = min(self._header_bytes + self._limits.rotate_bytes, space)
        if self._granted_end is not None:
            self._easy_end = min(self._easy_end, self._granted_end - self._shift)

    def growth(self, nbytes: int) -> int:
        """Return by how much an entry of *nbytes* makes the log larger: it replaces zeros ahead."""
        return max(0, self._offset + nbytes - self._file_bytes)

    def room_for(self, nbytes: int) -> str | None:
        """Return None if an entry of *nbytes* fits under the caps, else the cap that is full."""
        if self._offset - self._header_bytes >= self._limits.rotate_bytes:
            total = self._rotated_bytes + self._file_bytes + WAL_HEADER_BYTES + nbytes
            if len(self._rotated) + 2 > self._limits.files_max:
                return f"wal.max_rotated_files ({self._limits.files_max})"
        else:
            # The zeros ahead are counted already: the entry replaces them.
            total = self._rotated_bytes + self._file_bytes + self.growth(nbytes)
            if self._next.is_prepared or self._is_half_full:  # any thread may prepare it now
                total += WAL_HEADER_BYTES
        if total > self._limits.bytes_max:
            return f"wal.max_size ({self._limits.bytes_max} bytes)"
        return None

    def append(self, entry: Sequence[Buffer], nbytes: int, *, zero_ahead: bool) -> int:
        """
        Write *entry*, whose pieces have *nbytes* together, and return the stream position after it.

        Readers see it on return; it is durable after `sync_through`. Rotates first if the file is due.

        Raises:
            CapacityError: the disk is full; nothing was kept.
            StoreFailedError: the log is poisoned.
        """
        if self._offset - self._header_bytes >= self._limits.rotate_bytes:
            self.rotate()
        file = self._file
        if file is None or self._failure is not None:
            raise self._failed_earlier() from self._failure
        offset = self._offset
        end = offset + nbytes
        if zero_ahead and end + ZERO_AHEAD_BYTES // 2 > self._file_bytes and nbytes <= ZERO_AHEAD_ENTRY_BYTES_MAX:
            self.zeros_wanted = True
        try:
            if end <= self._file_bytes:
                file.pwritev(entry, offset, nbytes)
            else:
                with self._growth:  # zeros that are being written must not overwrite the entry
                    file.pwritev(entry, offset, nbytes)
                    self._file_bytes = max(self._file_bytes, end)
        except OSError as error:
            self._undo(file, offset, error)
            raise CapacityError(f"the disk of {self._directory} is full") from error
        self._offset = end
        self.written = position = end + self._shift
        return position

    def _undo(self, file: File, offset: int, error: OSError) -> None:
        # Part of the entry may be on disk. If it stayed and the next entry were shorter, the bytes after the tail
        # could parse as an entry after a crash: truncate them before anything else is written.
        if not is_full_disk(error):
            self.poison(error)
            raise StoreFailedError(f"{file.path}: append failed: {error}; reopen to recover") from error
        with self._growth:
            invariant(offset >= self._offset, "a failed write removes no entry of the log")
            try:
                file.truncate(offset)
            except OSError as second:
                self.poison(second)
                raise StoreFailedError(f"{file.path}: could not cut a failed append: {second}") from second
            self._file_bytes = offset

    def fill_ahead(self, bytes_max: int = ZERO_AHEAD_BYTES) -> None:
        """
        Write zeros ahead of the tail if an append requested them, as far as caps and rotation allow.

        Any thread may call it at any time. *bytes_max* is the maximum growth of the log.
        Syncs of entries that overwrite zeros do not have to write the file's new length. A full disk ends the filling,
        but is not a failure: the entry itself may still fit.

        Raises:
            StoreFailedError: the disk failed in another way, now or earlier.
        """
        if not self.zeros_wanted:
            return
        self.zeros_wanted = False
        target = min(self._offset + ZERO_AHEAD_BYTES, self._file_bytes + bytes_max)
        while self._fill_step(target):
            pass

    def _fill_step(self, target: int) -> bool:
        with self._growth:
            self.require_healthy()
            file, start = self._file, self._file_bytes
            end = min(
                target,
                start + _ZERO_STEP_BYTES,
                self._header_bytes + self._limits.rotate_bytes,
                start + self._limits.bytes_max - self.disk_bytes,
            )
            if file is None or end <= start:
                return False
            invariant(start >= self._offset, "zeros are written only after the end of the log")
            try:
                zero_fill(file, start, end - start)
            except OSError as error:
                # The tail may have advanced, but never past `start`.
                self._undo(file, start, error)
                return False
            self._file_bytes = end
            return True

    # ── syncing ──────────────────────────────────────────────────────────────────────────────────────

    def sync_through(self, position: int) -> None:
        """
        Wait until everything before *position* is durable; callers that overlap share one sync.

        Raises:
            StoreFailedError: the sync failed, now or earlier.
        """
        if self.synced >= position:
            return
        with self._sync:
            while True:
                self.require_healthy()
                if self.synced >= position:
                    return
                if not self._syncing:
                    self._syncing = True
                    break
                self._sync.wait()
            file, target = self._file, self.written
        self._run_sync(file, target)

    def _run_sync(self, file: File | None, target: int) -> None:
        failure: OSError | None = None
        try:
            if file is not None:
                self._sync_name()
                self._sync_data(file)
        except OSError as error:
            failure = error
        except StoreFailedError:  # the directory was moved, and the log is poisoned
            self._follow()
            raise
        with self._sync:
            self._syncing = False
            self.syncs += 1
            if failure is None:
                self.synced = max(self.synced, target)
            else:
                self._failure = failure
            self._sync.notify_all()
        if failure is not None:
            raise StoreFailedError(f"{self._directory}: sync failed: {failure}; reopen to recover") from failure

    def _sync_name(self) -> None:
        if not self._is_name_durable:
            self.before_rotation()  # if the directory was moved, another one may have its path
            self._fs.sync_dir(self._directory)
            self._is_name_durable = True

    def poison(self, error: OSError | WorkerDiedError) -> None:
        """Refuse everything from now on: the disk's state is unknown, or a thread that callers wait for has died."""
        with self._sync:
            self._failure = self._failure or error
            self._sync.notify_all()

    def require_healthy(self) -> None:
        """
        Check that nothing has failed so far.

        Raises:
            StoreFailedError: a write or sync failed earlier.
        """
        if self._failure is not None:
            raise self._failed_earlier() from self._failure

    def _failed_earlier(self) -> StoreFailedError:
        error = self._failure
        reason = (
            error
            if isinstance(error, WorkerDiedError | DirectoryMovedError)
            else f"an earlier write or sync failed: {error}"
        )
        return StoreFailedError(f"{self._directory}: {reason}; reopen to recover")

    @property
    def failure(self) -> Exception | None:
        """The error that poisoned the log, or None."""
        return self._failure

    # ── rotation, cursor, purge ──────────────────────────────────────────────────────────────────────

    @property
    def disk_bytes(self) -> int:
        """Bytes of all WAL files on disk, including zeros ahead and the prepared next file."""
        return self._rotated_bytes + self._file_bytes + self._next.nbytes

    def stats(self) -> dict[str, int]:
        """Return the current figures, as `Store.stats` names them."""
        return {
            "wal_bytes": self.disk_bytes,
            "wal_files": len(self._rotated) + 1,
            "wal_position": self.written,
            "wal_synced_position": self.synced,
            "wal_syncs": self.syncs,
        }

    def rotate(self) -> None:
        """
        Retire the active file under the next number and start a new one after it.

        Raises:
            CapacityError: no space or no descriptor for the new file; the old one stays active.
            StoreFailedError: the disk failed halfway, or the directory was moved; reopening the store resolves it.
        """
        self.before_rotation()
        self._lead()
        try:
            with self._growth, self._next.lock:
                self._rotate_as_leader()
        finally:
            self._follow()

    def prepare_next(self) -> None:
        """
        Create the next file in advance if the active one is at least half full.

        Any thread may call it at any time. A full disk, or the lack of a descriptor, is not a failure: the rotation
        tries again.

        Raises:
            StoreFailedError: the disk failed in another way, or the directory was moved.
        """
        if self._next.is_prepared or not self._is_half_full:
            return
        with self._next.lock:
            if self._file is None or self._next.is_prepared or not (self._is_half_full and self._has_space_for_next):
                return
            self.require_healthy()
            self.before_rotation()
            try:
                self._next.prepare(self.written)
            except OSError as error:
                if not passes(error):
                    self.poison(error)
                    raise StoreFailedError(f"{self._directory}: preparing a rotation failed: {error}") from error

    @property
    def _is_half_full(self) -> bool:
        return 2 * (self._offset - self._header_bytes) >= self._limits.rotate_bytes

    @property
    def _has_space_for_next(self) -> bool:
        return (
            len(self._rotated) + 2 <= self._limits.files_max
            and self.disk_bytes + WAL_HEADER_BYTES <= self._limits.bytes_max
        )

    def retire_covered(self) -> None:
        """
        Rotate early if nothing in the active file is needed any more, so that its space can be freed.

        Without this, a bundle larger than the rest of the caps next to the active file would be refused forever.

        Raises:
            CapacityError: no space for the new file.
            StoreFailedError: the disk failed halfway.
        """
        if self._offset > self._header_bytes and self.written <= self.cursor:
            self.rotate()

    def _lead(self) -> None:
        with self._sync:
            while self._syncing:
                self._sync.wait()
            self.require_healthy()
            self._syncing = True

    def _follow(self) -> None:
        with self._sync:
            self._syncing = False
            self._sync.notify_all()

    def _rotate_as_leader(self) -> None:
        old = self._file
        if old is None:
            raise StoreFailedError(f"{self._directory}: the log is closed")
        position = self.written
        try:
            fresh = self._next.take(position)
        except OSError as error:
            if passes(error):
                raise CapacityError(what_is_short(error, self._directory)) from error
            self._failure = error
            raise StoreFailedError(f"{self._directory}: rotation failed: {error}") from error
        number = self._next_number
        retired = self._path(wal_rotated_name(number))
        try:
            # 1. The old file ends with its data and is durable under its own name …
            self._cut_zeros(old)
            old.sync_data()
            # 2. … then it gets its number. Crash here: no active file; open continues after the numbered one.
            self._fs.rename(self._path(WAL_ACTIVE), retired)
            # 3. That name must be durable before `quiver.wal` refers to another file, or the old one could be lost.
            self._fs.sync_dir(self._directory)
            self._fs.rename(self._next.path, self._path(WAL_ACTIVE))
            # 4. The next sync makes this name durable, before the entries under it.
            self._is_name_durable = False
        except OSError as error:
            self._failure = error
            raise StoreFailedError(f"{self._directory}: rotation failed: {error}; reopen to recover") from error
        old.close()
        self._next_number = number + 1
        self._rotated.append(RotatedFile(retired, number, position, self._offset))
        self._rotated_bytes += self._offset
        self.synced = position
        self._use(fresh, position)

    def _cut_zeros(self, file: File) -> None:
        if self._file_bytes > self._offset:
            file.truncate(self._offset)
            self._file_bytes = self._offset

    def _use(self, file: File, position: int) -> None:
        header_bytes = len(encode_wal_header(self._config_hash, position))
        file.path = self._path(WAL_ACTIVE)
        self._file = file
        self._header_bytes = self._offset = self._file_bytes = header_bytes
        self._shift = position - header_bytes
        self._find_easy_end()

    def advance_cursor(self, position: int = 0, *, or_never: bool = False) -> None:
        """
        Record durably that nothing before *position*, or before the position of an earlier call, is needed any more.

        Raises:
            OSError: the cursor file could not be replaced; the old value remains, and the next call tries again. With
                *or_never*, it does not: if this call fails, everything before *position* is still needed.
        """
        invariant(position <= self.written, f"the cursor must not pass the end of the log ({position}, {self.written})")
        wanted = max(self._cursor_wanted, position)
        if not or_never:
            self._cursor_wanted = wanted
        if wanted > self.cursor:
            replace_file(self._fs, self._path(CURSOR_NAME), encode_cursor(wanted))
            self.cursor = wanted

    def purgeable(self) -> list[RotatedFile]:
        """Return the rotated files that are completely before the cursor."""
        return [file for file in self._rotated if file.position_end <= self.cursor]

    def spans(self, start: int, end: int) -> list[LogSpan]:
        """
        Return the files with the entries from stream position *start* to *end*; the next rotation renames the
        last one.
        """
        found = []
        begin = 0
        for file in self._rotated:
            found.append(LogSpan(file.path, begin, file.position_end, file.position_end - file.size_bytes))
            begin = file.position_end
        found.append(LogSpan(self._path(WAL_ACTIVE), begin, self.written, self._shift))
        return [span for span in found if span.start < end and span.end > start]

    def forget(self, removed: Sequence[RotatedFile]) -> None:
        """Stop counting rotated files that have been removed from disk."""
        self._rotated = [file for file in self._rotated if file not in removed]
        self._rotated_bytes = sum(file.size_bytes for file in self._rotated)
        self._find_easy_end()

    def close(self) -> None:
        """
        Truncate the zeros, make everything durable and release the file. Idempotent.

        Raises:
            StoreFailedError: the last sync failed, now or earlier.
        """
        file = self._file
        if file is None:
            return
        with contextlib.suppress(StoreFailedError):
            self._lead()  # a running sync must not meet a closed descriptor
        try:
            if self._failure is None:
                with self._growth:
                    self._cut_zeros(file)
                    self._file = None  # so that it is never filled again
                self._sync_name()
                file.sync()
                self.synced = self.written
        except OSError as error:
            self.poison(error)
            raise StoreFailedError(f"{file.path}: closing failed: {error}; reopen to recover") from error
        finally:
            self._file = None
            file.close()
            self._next.discard(removes=self._failure is None)
            self._follow()

    def abandon(self) -> None:
        """Release the file as it is: opening the store failed, and the next attempt reads it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
        self._next.discard(removes=False)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
