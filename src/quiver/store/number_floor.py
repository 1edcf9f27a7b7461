"""The file with the lowest segment number that is still unused: it is raised, never lowered."""

from __future__ import annotations

from quiver.clock import Clock
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.floor import Floor, encode_floor
from quiver.store.format.names import SEGMENT_FLOOR, SEGMENTS_DIR
from quiver.store.reading.store_files import StoreFiles

__all__ = ["number_beyond", "raise_floor", "skip_numbers"]

_FLOOR_STEP = 2**32
"""The increment if the clock is not set: one segment for each millisecond of seven weeks."""


def raise_floor(fs: FileSystem, root: str, floor: int) -> None:
    """
    Ensure that no new segment gets a number below *floor*. Durable on return.

    Raises:
        OSError: it could not be read or written.
    """
    known = StoreFiles(fs, root).floor()
    if floor > known.value:
        _write(fs, root, Floor(floor, known.skipped))


def skip_numbers(fs: FileSystem, root: str, floor: int) -> None:
    """
    Set the number of the next segment to *floor*, and record that the skipped numbers do not exist here.

    Raises:
        OSError: it could not be read or written.
    """
    known = StoreFiles(fs, root).floor()
    if floor > known.value:
        _write(fs, root, Floor(floor, range(known.value, floor)))


def _write(fs: FileSystem, root: str, floor: Floor) -> None:
    data = encode_floor(floor.value, skipped=floor.skipped)
    replace_file(fs, f"{root}/{SEGMENTS_DIR}/{SEGMENT_FLOOR}", data)


def number_beyond(floor: int, clock: Clock) -> int:
    """
    Return a segment number above all that the store can have used since its snapshot had *floor*, and above those of
    every store that was restored from that snapshot before.

    It is the number of microseconds since 1970. A clock below *floor* is not set.
    """
    now_us = clock.now_ns() // 1_000
    return now_us if now_us > floor else floor + _FLOOR_STEP
