"""
Disk space for staged segments: Spark sinks learn the cap of an open store, and report what they wait for.

::

    owner   quiver.cap     the maximum size of all files     written if it changed by a 64th
    sink    adds up the files before it writes another one; if there are too many: writes quiver.wanted and waits
    owner   frees finished segments, removes quiver.wanted   at its next maintenance
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Answer
from quiver.primitives.small_file import read_if_valid
from quiver.store.format.names import DEAD_LETTER_DIR
from quiver.store.format.room import (
    CAP_NOTE,
    ROOM_NOTE_BYTES_MAX,
    ROOM_WANTED,
    decode_cap_note,
    decode_room_wanted,
    encode_cap_note,
    encode_room_wanted,
)
from quiver.store.limits.tree_bytes import tree_bytes

__all__ = ["RoomFound", "RoomNotes", "ask_for_room", "find_room"]

STEPS = 64
"""The note is written again if the cap changed by this fraction of it."""


class RoomFound(NamedTuple):
    """The cap on all files of a store's directory, and their size."""

    cap_bytes: int
    used_bytes: int


class RoomNotes:
    """
    The owner's side.

    Args:
        fs: the file system.
        root: the store's directory.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._published: int | None = -1

    def publish(self, cap_bytes: int | None) -> None:
        """
        Publish the maximum size of all files in the directory; None withdraws it.

        Raises:
            OSError: the disk refused; the next call tries again.
        """
        before = self._published
        path = f"{self._root}/{CAP_NOTE}"
        if cap_bytes is None:
            if before is not None:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.remove(path)
            self._published = None
            return
        if before is not None and before >= 0 and abs(cap_bytes - before) <= max(cap_bytes, before) // STEPS:
            return
        _write(self._fs, path, encode_cap_note(cap_bytes))
        self._published = cap_bytes

    def wanted_bytes(self) -> int:
        """
        Return how many bytes a process waits to stage, and record the request; 0 if there is none.

        Raises:
            OSError: the disk refused.
        """
        path = f"{self._root}/{ROOM_WANTED}"
        if not self._fs.exists(path):
            return 0
        wanted = _read(self._fs, path, decode_room_wanted)
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(path)
        return wanted or 0


def find_room(fs: FileSystem, root: str) -> RoomFound | None:
    """
    Return the cap of the store at *root* and the size of its files; None if it has no cap. Dead letters have their own.

    Raises:
        OSError: the directory cannot be read.
    """
    cap = _read(fs, f"{root}/{CAP_NOTE}", decode_cap_note)
    return None if cap is None else RoomFound(cap, tree_bytes(fs, root, skip=(DEAD_LETTER_DIR,)))


def ask_for_room(fs: FileSystem, root: str, wanted_bytes: int) -> None:
    """
    Notify the owner of the store at *root* that a process waits to stage *wanted_bytes*.

    Raises:
        OSError: the disk refused.
    """
    _write(fs, f"{root}/{ROOM_WANTED}", encode_room_wanted(wanted_bytes))


def _write(fs: FileSystem, path: str, data: bytes) -> None:
    file = fs.create_or_truncate(path)
    try:
        file.pwrite(data, 0)
    finally:
        file.close()


def _read(fs: FileSystem, path: str, decode: Callable[[memoryview], Answer[int]]) -> int | None:
    """Return the number in a note; None if there is none, or if it is being written now."""
    return read_if_valid(fs, path, decode, ROOM_NOTE_BYTES_MAX)
