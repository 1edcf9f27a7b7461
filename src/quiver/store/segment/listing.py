"""The segments of a directory, listed next to a live writer."""

from __future__ import annotations

from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.names import segment_numbers

__all__ = ["list_segments"]


def list_segments(fs: FileSystem, directory: str) -> list[int]:
    """
    Return the numbers of the segments in *directory*, ascending, without gaps for segments that exist.

    Segments are named in the order of their numbers. Still, one listing may show the second of two that were named
    during the listing, and not the first; a reader that continued after the second would never read the first.
    Therefore only segments that were named before a listing began count.

    Raises:
        FileNotFoundError: the directory does not exist.
    """
    before = segment_numbers(fs.list_dir(directory))
    if not before:
        return []
    return [number for number in segment_numbers(fs.list_dir(directory)) if number <= before[-1]]
