"""
A slot: the directory of one sender, held by one process, with its ring.

::

    lock → holder's pid → recovery → watermark → ring        closing: remove drained files, release the lock last
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import CorruptionError, DirectoryInUseError, SettingsError, UnsupportedFormatError
from quiver.observe import Observer
from quiver.primitives.disk.atomic import remove_durably, replace_file
from quiver.primitives.disk.file_system import File, FileSystem, Lock
from quiver.qwp.format.dead_letters import DeadLetterRecord
from quiver.qwp.format.names import (
    FAILED_NAME,
    LOCK_NAME,
    PID_NAME,
    SYMBOLS_NAME,
    WATERMARK_NAME,
    check_sender_id,
    is_segment_name,
    is_sender_id,
)
from quiver.qwp.format.watermark import WATERMARK, encode_watermark
from quiver.qwp.slots.dead_letters import DEAD_LETTERS_BYTES_MAX, DeadLetterFiles
from quiver.qwp.slots.recovery import recover_slot
from quiver.qwp.slots.ring import Ring, RingSettings
from quiver.qwp.slots.segment_files import DiskSegments, MemorySegments

__all__ = [
    "MemorySlot",
    "Slot",
    "find_orphans",
    "holder_of_slot",
    "mark_failed",
    "memory_slot",
    "open_slot",
]

_SMALL_FILE_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class MemorySlot:
    """A ring in memory."""

    ring: Ring
    symbols: Sequence[str] = ()
    directory: str | None = None

    def keep_dead_letter(self, letter: DeadLetterRecord) -> int:  # noqa: ARG002
        """Discard the letter, because a slot in memory has no directory. Returns that one letter was dropped."""
        return 1

    def close(self) -> None:
        """Release the memory."""
        self.ring.close()


def memory_slot(settings: RingSettings, *, clock: Clock, observer: Observer) -> MemorySlot:
    """Return an empty slot in memory."""
    return MemorySlot(Ring(settings, MemorySegments(), clock=clock, observer=observer))


class Slot:
    """
    An open slot. Created by `open_slot`.

    Attributes:
        directory: its path.
        ring: its frames.
        symbols: symbols that frames of a newer client refer to; empty in a slot of ours.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        lock: Lock,
        ring: Ring,
        symbols: Sequence[str],
        letters: DeadLetterFiles,
    ) -> None:
        self._letters = letters
        self.directory = directory
        self.ring = ring
        self.symbols = symbols
        self._fs = fs
        self._lock = lock

    def keep_dead_letter(self, letter: DeadLetterRecord) -> int:
        """
        Store a frame that is about to be dropped; it is durable on return. Returns how many letters were removed for
        it.

        Raises:
            OSError: the letter could not be stored.
        """
        return self._letters.keep(letter)

    def close(self) -> None:
        """
        Close the slot: remove all files if everything is confirmed, otherwise only release the lock. Idempotent.

        Raises:
            StoreFailedError: appended frames could not be made durable, or confirmed files could not be removed.
            OSError: the same, for the small files.
        """
        self._letters.close()
        try:
            self.ring.close(remove_all=True)
            if self.ring.is_drained:
                names = (SYMBOLS_NAME, WATERMARK_NAME)
                # The watermark last: without segments it has no meaning, and the next start ignores it.
                remove_durably(self._fs, [f"{self.directory}/{name}" for name in names])
        finally:
            self._lock.release()


def open_slot(
    fs: FileSystem,
    sf_dir: str,
    sender_id: str,
    settings: RingSettings,
    *,
    observer: Observer,
    clock: Clock = SYSTEM_CLOCK,
    is_adopted: bool = False,
    dead_letters_bytes_max: int = DEAD_LETTERS_BYTES_MAX,
) -> Slot:
    """
    Create or recover the slot *sender_id* below *sf_dir*, and lock it. If the slot *is_adopted* from another sender
    and cannot be recovered, it is marked, so that drainers do not retry it.

    Raises:
        SettingsError: *sender_id* is not a valid directory name.
        DirectoryInUseError: another process holds the slot; the message names it.
        UnsupportedFormatError: a newer version wrote a file. Nothing was changed.
        CorruptionError: frames are missing. Nothing was deleted.
        OSError: a disk error.
    """
    check_sender_id(sender_id)
    if settings.bytes_max < 2 * settings.segment_bytes:
        raise SettingsError("sf_max_total_bytes must be at least 2 * sf_max_bytes")
    directory = f"{sf_dir.rstrip('/')}/{sender_id}"
    fs.make_dirs(directory, mode=0o755)
    lock = fs.try_lock(f"{directory}/{LOCK_NAME}", note="qwp sender")
    if lock is None:
        raise DirectoryInUseError(directory, f"process {holder_of_slot(fs, directory) or 'unknown'}")
    try:
        _write_pid(fs, directory)
        found = recover_slot(fs, directory, observer=observer)
        watermark = _open_watermark(fs, directory, found.confirmed if found.segments else -1)
        ring = Ring(
            settings,
            DiskSegments(fs, directory, durable=settings.durability != "memory"),
            clock=clock,
            observer=observer,
            segments=found.segments,
            next_fsn=found.next_fsn,
            confirmed=found.confirmed,
            next_generation=found.next_generation,
            watermark=watermark,
        )
    except CorruptionError as error:
        if is_adopted and not isinstance(error, UnsupportedFormatError):
            # While the lock is held, so that no other drainer starts on it in between.
            mark_failed(fs, directory, str(error))
        lock.release()
        raise
    except BaseException:
        lock.release()
        raise
    letters = DeadLetterFiles(fs, directory, dead_letters_bytes_max, clock=clock, observer=observer)
    return Slot(fs, directory, lock, ring, found.symbols, letters)


def _write_pid(fs: FileSystem, directory: str) -> None:
    file = fs.create_or_truncate(f"{directory}/{PID_NAME}", mode=0o644)
    try:
        file.pwrite(f"{os.getpid()}\n".encode(), 0)
    finally:
        file.close()


def _open_watermark(fs: FileSystem, directory: str, confirmed: int) -> File:
    # Rewritten if it differs from the recovered number: later, an old number could match frames of this life.
    path = f"{directory}/{WATERMARK_NAME}"
    expected = encode_watermark(confirmed) if confirmed >= 0 else bytes(WATERMARK.size)
    try:
        stored = fs.read_all(path, size_max=_SMALL_FILE_BYTES_MAX)
    except FileNotFoundError:
        stored = b""
    if stored != expected:
        replace_file(fs, path, expected, mode=0o644)
    return fs.open_write(path)


def holder_of_slot(fs: FileSystem, directory: str) -> str | None:
    """Return the pid of the last holder of a slot, or None. The process may have released the slot since."""
    try:
        note = fs.read_all(f"{directory}/{PID_NAME}", size_max=_SMALL_FILE_BYTES_MAX)
    except OSError:
        return None
    return note.decode("ascii", "replace").strip() or None


def mark_failed(fs: FileSystem, directory: str, reason: str) -> None:
    """
    Mark the slot, so that drainers ignore it until an operator intervenes. Durable on return.

    Raises:
        OSError: a disk error.
    """
    replace_file(fs, f"{directory}/{FAILED_NAME}", (reason + "\n").encode(), mode=0o644)


def find_orphans(fs: FileSystem, sf_dir: str, own_id: str) -> list[str]:
    """
    Return the names of the slots below *sf_dir* that have segments, are not *own_id*, and are not marked as failed.

    Locks are not checked: that would race with other processes that take them.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for name in fs.list_dir(sf_dir):
        if name == own_id or not is_sender_id(name):
            continue
        with suppress(NotADirectoryError, FileNotFoundError):
            names = fs.list_dir(f"{sf_dir}/{name}")
            if any(is_segment_name(one) for one in names) and FAILED_NAME not in names:
                found.append(name)
    return found
