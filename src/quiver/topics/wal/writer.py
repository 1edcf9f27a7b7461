"""
The files of one topic: append, sync, rotate, release.

``wal.log`` is followed by ``wal.1.log`` and so on; messages are appended to the one with the highest number. An append
is one gathered write, so the death of the process loses nothing that was returned. Concurrent callers share a sync. A
failed sync or write poisons the log until it is opened again.

`lock` orders appends, rotations and changes to the list of files. The group-commit lock is held while syncing or
rotating: the first caller that needs a sync runs it, others wait for it or for the next one. Without a directory there
is only the cache.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from quiver.clock import Clock
from quiver.errors import CapacityError, StoreClosedError, StoreFailedError
from quiver.observe import Observer
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.disk_full import is_full_disk, is_out_of_descriptors, passes, what_is_short
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.primitives.worker import WorkerDiedError
from quiver.topics.cache import MessageCache
from quiver.topics.format.checkpoint import WalCheckpoint, encode_wal_checkpoint
from quiver.topics.format.frame import FRAME_HEADER
from quiver.topics.format.message import MessageCodec
from quiver.topics.format.names import WAL_CHECKPOINT, wal_file_name
from quiver.topics.settings import WalSettings
from quiver.topics.wal.append_signal import AppendSignal
from quiver.topics.wal.commit_lock import GroupCommitLock
from quiver.topics.wal.file_list import SealedFiles, checkpoint_of
from quiver.topics.wal.files import MARK_MESSAGES, FileMarks, ReadStart, RecoveredWal, WalFile

__all__ = ["FILE_BYTES_MAX", "Wal"]

FILE_BYTES_MAX = 1 << 30
"""A file of this size always rotates: the last one is read completely when a topic is opened."""

_JOINED_BYTES_MAX = 4096
"""Up to this size a frame is joined and written as one buffer, which is faster than gathering it from two."""

Encode = Callable[[int, bytes, int, bytes], bytes]
"""Encodes offset, payload, publish time in milliseconds and tail as the bytes of a message."""

_NS_PER_S = 1_000_000_000
_pack_header = FRAME_HEADER.pack


class Wal:
    """
    The log of one topic. Thread-safe.

    Args:
        files, directory: the file system, and the topic's directory in it; None for memory only.
        settings: see `WalSettings`.
        codec: encodes messages.
        cache: gets each appended message.
        clock, observer: time, and where counts are sent.
        recovered: the contents of the directory.
        on_dirty: called with the first append after a sync, and again when a sync is due by size.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str | None,
        *,
        settings: WalSettings,
        codec: MessageCodec,
        cache: MessageCache,
        clock: Clock,
        observer: Observer,
        recovered: RecoveredWal,
        on_dirty: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._fs = fs
        self.directory = directory
        self._settings = settings
        self._encode = codec.encode
        self._cache = cache
        self._keep = cache.add
        self._clock = clock
        self._observer = observer
        self._on_dirty = on_dirty
        self.lock = threading.Lock()
        self._acquire_lock, self._release_lock = self.lock.acquire, self.lock.release
        self.append_signal = AppendSignal(self.lock, clock)
        self._closed = False
        self._sealing = False
        self._failure: Exception | None = None
        self._commit_lock = GroupCommitLock()
        self._due_at = -1  # the position from which on `on_dirty` is called; -1 from a sync to the next append
        self._counted_from = recovered.position
        self._batch_bytes = settings.fsync_max_batch_bytes
        self._checkpointing = threading.Lock()
        self._rotated_at: int | None = None
        self._sealed = SealedFiles(recovered.sealed)
        self.next_offset = self.synced_offset = recovered.next_offset
        self._seq = recovered.seq
        self._file = recovered.active
        self._path = recovered.active.path if recovered.active else ""
        self._first_offset = recovered.first_offset
        self._position = self._reported_bytes = recovered.position
        self._active_marks = recovered.marks or FileMarks()
        self._mark_next = 0
        self._first_append_s: float | None = clock.monotonic() if recovered.position else None
        self._full_at = min(settings.rotate_max_bytes or FILE_BYTES_MAX, FILE_BYTES_MAX)
        self.owner_check: Callable[[], None] | None = None  # called before each append; raises if fenced
        if directory is not None and self._file is None:
            self._start_file(self._path_of(self._seq))

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────

    def append(self, payload: bytes, publish_time_ms: int, tail: bytes) -> int:
        """
        Write one message and return its offset. It is in the file on return; `sync` makes it durable.

        Raises:
            CapacityError: the disk is full; nothing was stored.
            StoreFailedError: a write or sync failed, now or earlier.
            StoreClosedError: the log was closed.
        """
        # Acquired manually: a `with` statement takes twice as long.
        self._acquire_lock()
        try:
            if self.owner_check is not None:
                self.owner_check()
            if self._position >= self._full_at:
                self._rotate()
            offset = self.next_offset
            position = self._position
            body = self._encode(offset, payload, publish_time_ms, tail)
            size = len(body)
            file = self._file
            if file is not None:
                header = _pack_header(offset, size, crc32(body))
                try:
                    if size <= _JOINED_BYTES_MAX:
                        file.pwrite(header + body, position)
                    else:
                        file.pwritev((header, body), position, size + 16)
                except OSError as error:
                    self._undo(file, position, error)
                if offset >= self._mark_next:
                    self._mark(offset, position)
                self._position = position = position + size + 16
            self._keep(body)
            self.next_offset = offset + 1
            if self.append_signal.waiters:
                self.append_signal.notify()
        finally:
            self._release_lock()
        if position >= self._due_at:
            self._report_dirty(position)
        return offset

    def append_batch(self, messages: Sequence[tuple[bytes, int, bytes]], *, encode: Encode | None = None) -> int:
        """
        Write several messages in one write; return the offset of the first one.

        All of them are in the file on return, or none. *encode* replaces the log's codec.

        Raises:
            CapacityError: the disk is full; nothing was kept.
            StoreFailedError: a write or sync failed, now or earlier.
            StoreClosedError: the log was closed.
        """
        encode, pack = encode or self._encode, _pack_header
        with self.lock:
            if self.owner_check is not None:
                self.owner_check()
            if self._position >= self._full_at:
                self._rotate()
            first = offset = self.next_offset
            position = self._position
            bodies: list[bytes] = []
            parts: list[bytes] = []
            for payload, time_ms, tail in messages:
                body = encode(offset, payload, time_ms, tail)
                bodies.append(body)
                parts += (pack(offset, len(body), crc32(body)), body)
                offset += 1
            frames = b"".join(parts)
            file = self._file
            if file is not None and frames:
                try:
                    file.pwrite(frames, position)
                except OSError as error:
                    self._undo(file, position, error)
                if first >= self._mark_next:
                    self._mark(first, position)
                self._position = position = position + len(frames)
            for body in bodies:
                self._keep(body)
            self.next_offset = offset
            if self.append_signal.waiters:
                self.append_signal.notify()
        if position >= self._due_at:
            self._report_dirty(position)
        return first

    def wait_for(self, offset: int, timeout: float | None) -> bool:
        """Wait until the log has the message *offset* or is closed; return False if *timeout* seconds pass first."""
        with self.lock:
            return self.append_signal.wait(lambda: self.next_offset > offset or self._full_at < 0, timeout)

    def call_when(self, offset: int, wake: Callable[[], None]) -> None:
        """
        Call *wake* once, from any thread, when the log has the message *offset* or accepts no more; immediately if that
        is the case now.
        """
        with self.lock:
            if self.next_offset <= offset and self._full_at >= 0:
                self.append_signal.add(wake)
                return
        wake()

    def _mark(self, offset: int, position: int) -> None:
        self._active_marks.add(offset, position)
        self._mark_next = offset + MARK_MESSAGES
        if self._first_append_s is None:
            self._first_append_s = self._clock.monotonic()

    def _report_dirty(self, position: int) -> None:
        if self.directory is None:
            self._due_at = FILE_BYTES_MAX  # in memory there is nothing to sync, and there are no positions
            return
        position = min(position, self._position)  # another thread may have started another file
        is_full = position - self._counted_from >= self._batch_bytes
        if is_full:
            self._counted_from = position
        self._due_at = self._counted_from + self._batch_bytes
        self._on_dirty(is_full)

    def _undo(self, file: File, position: int, error: OSError) -> None:
        # Part of a frame may be on disk. If the next frame is shorter, the rest of this one after it could parse.
        if is_full_disk(error):
            try:
                file.truncate(position)
            except OSError as second:
                error = second
            else:
                raise CapacityError(f"the disk of {self.directory} is full") from error
        self._poison(error)
        self.append_signal.notify()
        raise self._failed() from error

    # ── syncing ──────────────────────────────────────────────────────────────────────────────────────────

    def sync(self) -> None:
        """
        Return when everything appended before the call is durable; callers that overlap share one sync.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
            StoreClosedError: the log was closed before everything was synced.
        """
        wanted = self.next_offset
        while self.synced_offset < wanted and self._commit_lock.acquire(lambda: self.synced_offset >= wanted):
            try:
                self._require_open()
                self._due_at = -1
                self._counted_from = self._position
                target, file = self.next_offset, self._file
                if file is not None:
                    self._sync_file(file, target)
                else:
                    self.synced_offset = target
            finally:
                self._commit_lock.release()
                if self._failure is not None:
                    with self.lock:
                        self.append_signal.notify()

    def _sync_file(self, file: File, target: int) -> None:
        began = self._clock.monotonic()
        try:
            file.sync_data()
        except OSError as error:
            self._poison(error)
            raise self._failed() from error
        self.synced_offset = max(self.synced_offset, target)
        written = self._position
        self._observer.count("danube_wal_bytes_written_total", written - self._reported_bytes)
        self._reported_bytes = written
        self._observer.record("danube_wal_fsync_latency_seconds", self._clock.monotonic() - began)

    def poison(self, died: WorkerDiedError) -> None:
        """Refuse all further calls: a thread that syncs, uploads or saves progress has died."""
        with self.lock:
            self._poison(died)
            self.append_signal.notify()

    def _poison(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._full_at = -1  # so that the next append checks for the failure

    def _failed(self) -> StoreFailedError:
        error = self._failure
        reason = error if isinstance(error, WorkerDiedError) else f"an earlier write or sync failed: {error}"
        return StoreFailedError(f"{self.directory or 'memory'}: {reason}; reopen to recover")

    def require_healthy(self) -> None:
        """
        Check that no write or sync has failed.

        Raises:
            StoreFailedError: a write or sync failed earlier.
        """
        if self._failure is not None:
            raise self._failed() from self._failure

    def _require_open(self) -> None:
        self.require_healthy()
        if self._closed or self._sealing:
            raise StoreClosedError(
                f"the log of {self.directory or 'memory'} was {'closed' if self._closed else 'sealed'}"
            )

    @property
    def closed(self) -> bool:
        """Whether the log accepts no more messages: closed, sealed or failed."""
        return self._full_at < 0

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def start_offset(self) -> int:
        """The oldest offset in the local files; `next_offset` when there is none."""
        sealed = self._sealed.files
        if sealed:
            return sealed[0].first_offset
        return self._first_offset if self.directory is not None else self._cache.first_offset

    def files(self) -> tuple[WalFile, ...]:
        """Return all files as of now, oldest first, the active one last."""
        with self.lock:
            return self._all_files()

    def _all_files(self) -> tuple[WalFile, ...]:
        if self._file is None:
            return self._sealed.files
        active = WalFile(
            self._path, self._seq, self._first_offset, self.next_offset, self._position,
            sealed=False, modified_ns=self._clock.now_ns(),
        )  # fmt: skip
        return (*self._sealed.files, active)

    def sealed_ranges(self) -> tuple[WalFile, ...]:
        """Return the sealed files, which nothing is written to any more, oldest first."""
        return self._sealed.files

    def rotate(self) -> None:
        """
        Seal the active file and start the next one, unless it is empty. Synced on return.

        Raises:
            CapacityError: the new file does not fit on the disk; the old one stays active.
            StoreFailedError: the disk failed, now or earlier.
        """
        with self.lock:
            self._require_open()
            if self._file is not None and self.next_offset > self._first_offset:
                self._rotate()

    def rotate_if_due(self) -> None:
        """Seal the active file when its first message is older than `rotate_max_seconds`. Raises as `rotate` does."""
        limit_s = self._settings.rotate_max_seconds
        first_s = self._first_append_s
        if limit_s is not None and first_s is not None and self._clock.monotonic() - first_s >= limit_s:
            self.rotate()

    def _rotate(self) -> None:
        self._commit_lock.acquire()
        try:
            self._require_open()
            self._rotate_in_turn()
        finally:
            self._commit_lock.release()
            if self._failure is not None:
                self.append_signal.notify()

    def _rotate_in_turn(self) -> None:
        old = self._file
        if old is None:
            return
        # Sync all of the old file before the new name appears: a file with a successor is complete and synced.
        self._sync_file(old, self.next_offset)
        sealed = replace(self._all_files()[-1], sealed=True, modified_ns=self._clock.now_ns())
        self._seq += 1
        try:
            self._start_next_file()
        except CapacityError:
            self._seq -= 1
            raise
        self._sealed.add(sealed, self._active_marks)
        self._active_marks = FileMarks()
        self._mark_next = 0
        self._first_append_s = None
        self._rotated_at = self._clock.now_ns() // _NS_PER_S
        old.close()
        self._observer.count("danube_wal_rotation_total", 1)

    def _start_next_file(self) -> None:
        path = self._path_of(self._seq)
        try:
            self._start_file(path)
        except OSError as error:
            if passes(error) and not self._fs.exists(path):
                raise CapacityError(f"{what_is_short(error, self.directory)}: no space for another file") from error
            self._poison(error)
            raise self._failed() from error

    def _start_file(self, path: str) -> None:
        file = self._fs.create(path)
        try:
            self._fs.sync_dir(path.rpartition("/")[0])
        except OSError as error:
            file.close()
            if is_out_of_descriptors(error):
                self._fs.remove(path)  # nothing was synced: another attempt makes it again
            raise
        self._file, self._path = file, path
        self._first_offset = self.next_offset
        self._position = self._reported_bytes = self._counted_from = 0
        self._due_at = -1

    def _path_of(self, seq: int) -> str:
        return f"{self.directory}/{wal_file_name(seq, self._settings.file_name)}"

    def locate(self, offset: int) -> ReadStart | None:
        """
        Return where to read *offset* from, or None if no file has it.

        Hold the path before reading, then call this again: the file may have been released in between.
        """
        with self.lock:
            for file in self._all_files():
                if file.first_offset <= offset < file.next_offset:
                    marks = self._sealed.marks_of(file.path) if file.sealed else self._active_marks
                    expected, position = marks.before(offset, file.first_offset)
                    return ReadStart(file.path, position, expected, file.size_bytes, file.next_offset)
        return None

    def marks_of(self, path: str) -> FileMarks:
        """Return the marks of a file, for readers to fill."""
        with self.lock:  # or a rotation in between would hand out those of the next file
            return self._active_marks if path == self._path else self._sealed.marks_of(path)

    def next_local(self, offset: int) -> int | None:
        """Return the first offset at or above *offset* that a file or the cache has; None if there is none."""
        with self.lock:
            found = [max(file.first_offset, offset) for file in self._all_files() if file.next_offset > offset]
            if self._cache.first_offset < self.next_offset > offset:
                found.append(max(self._cache.first_offset, offset))
        return min(found, default=None)

    def take_hold(self, path: str, owner: object) -> None:
        """Keep the file *path* on disk until `drop_hold`, or until *owner* is garbage-collected."""
        with self.lock:
            self._sealed.hold(path, owner)

    def drop_hold(self, path: str, owner: object) -> None:
        """Undo `take_hold`."""
        with self.lock:
            self._sealed.release(path, owner)

    def release_below(self, offset: int) -> tuple[WalFile, ...]:
        """
        Delete the oldest sealed files whose messages are all below *offset*, up to the first that is held.

        `start_offset` has moved durably on return. Return the deleted files.

        Raises:
            OSError: the checkpoint could not be written, and nothing was deleted; or a file could not be removed, and
                the next call tries again.
        """
        with self.lock:
            removed = self._sealed.take_below(offset)
        if not removed:
            self._sealed.remove(self._fs, ())
            return ()
        # 1. The checkpoint excludes the files. 2. They are removed. After a crash in between, opening removes them.
        try:
            self.write_checkpoint()
        except OSError:
            with self.lock:
                self._sealed.put_back(removed)
            raise
        self._sealed.remove(self._fs, removed)
        return removed

    # ── checkpoint, closing ──────────────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> WalCheckpoint:
        """Return the contents of `wal.ckpt` as of the last sync."""
        with self.lock:
            return checkpoint_of(
                self._all_files(), next_offset=self.next_offset, synced_offset=self.synced_offset, seq=self._seq,
                file_name=self._settings.file_name, rotated_at=self._rotated_at,
            )  # fmt: skip

    def write_checkpoint(self) -> None:
        """
        Replace `wal.ckpt`. Durable on return.

        Raises:
            OSError: the old checkpoint is intact.
        """
        if self.directory is None:
            return
        with self._checkpointing:
            data = encode_wal_checkpoint(self.checkpoint())
            replace_file(self._fs, f"{self.directory}/{WAL_CHECKPOINT}", data)

    def try_checkpoint(self) -> bool:
        """Replace `wal.ckpt` and return whether that succeeded: a log is complete without it."""
        try:
            self.write_checkpoint()
        except OSError as error:
            self._observer.event("danube.wal.checkpoint_failed", level=logging.WARNING, problem=str(error))
            return False
        return True

    def seal(self) -> int:
        """
        Accept no more messages, sync, and seal all files; return the next offset. Reading continues. Idempotent.

        Raises:
            CapacityError: the empty file after them does not fit on the disk; nothing has changed.
            StoreFailedError: the disk failed, now or earlier.
        """
        with self.lock:
            if self._sealing and not self._closed:
                return self.next_offset  # once more: what was to follow the first time did not succeed
            self._require_open()
            if self._file is not None and self.next_offset > self._first_offset:
                self._rotate()
            self._full_at = -1
            self._sealing = True
            self.append_signal.notify()
        self.try_checkpoint()
        return self.next_offset

    def close(self) -> None:
        """
        Sync, write the checkpoint and close the files. Idempotent. Readers that wait for a message are woken.

        Raises:
            StoreFailedError: a sync failed, now or earlier.
        """
        with self.lock:
            if self._closed:
                return
        try:
            if self._failure is None:
                self.sync()
                self.try_checkpoint()
        finally:
            self._close_file()
        if self._failure is not None:
            raise self._failed() from self._failure

    def _close_file(self) -> None:
        with self.lock:
            self._commit_lock.acquire()
            self._closed = True
            self._commit_lock.release()
            self._full_at = -1
            file = self._file
            if file is not None:
                file.close()
            self.append_signal.notify()
