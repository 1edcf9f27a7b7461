"""Which segments a directory has, seen beside a live writer."""

from __future__ import annotations

from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.names import segment_numbers

__all__ = ["list_segments"]


def list_segments(fs: FileSystem, directory: str) -> list[int]:
    """
    Return the numbers of the segments in *directory*, ascending; below the last of them none is missing that is there.

    Segments get their names in the order of their numbers. One listing may all the same show the second of two that
    were named while it was made, and not the first: whoever went on behind the second would never read the first. So
    nothing counts that was not named before a listing began.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    before = segment_numbers(fs.list_dir(directory))
    if not before:
        return []
    return [number for number in segment_numbers(fs.list_dir(directory)) if number <= before[-1]]
