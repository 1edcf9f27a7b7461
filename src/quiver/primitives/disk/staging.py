"""
What writers staged and committed in a directory of their own, and what is removed when an owner took it over.

Names and notes are those of `batch_notes.py`. A batch counts from the moment its commit is durable; the last note that
it was taken over stays, because it says which batch of that writer not to take again.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver.primitives.batch_notes import ONCE_PREFIX, done_name, parse_note_name, parse_part_directory
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, remove_files_below, remove_if_empty
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["last_batch", "names_in", "remove_staged", "remove_taken"]


def names_in(fs: FileSystem, directory: str) -> list[str]:
    """Return the names in *directory*; none when it is not there, or no directory."""
    try:
        return fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def last_batch(fs: FileSystem, directory: str) -> int:
    """Return the last batch that a writer's *directory* knows to be committed, taken over or not; −1: there is none."""
    found = (parse_note_name(name) for name in names_in(fs, directory))
    return max((note[0] for note in found if note is not None and note[1] != "begun"), default=-1)


def remove_staged(fs: FileSystem, directory: str, names: Iterable[str]) -> None:
    """Remove the staging directories *names* of a writer's *directory*, whatever files are in them."""
    for name in names:
        if parse_part_directory(name) is not None:
            remove_files_below(fs, f"{directory}/{name}")


def remove_taken(fs: FileSystem, directory: str, done: int) -> None:
    """
    Remove what batch *done* and those before it left in a writer's *directory*, all but the note that *done* is taken.

    Of a writer that writes once nothing stays.

    Raises:
        OSError: some of it is there still; call it again.
    """
    names = names_in(fs, directory)
    remove_staged(fs, directory, (one for one in names if (parse_part_directory(one) or 0) <= done))
    old = []
    for name in names:
        note = parse_note_name(name)
        if note is not None and (note[0] < done or note == (done, "begun")):
            old.append(f"{directory}/{name}")
        unfinished = parse_note_name(name.removesuffix(TEMPORARY_SUFFIX))
        if note is None and unfinished is not None and unfinished[0] <= done:
            old.append(f"{directory}/{name}")
    if old:
        remove_durably(fs, old)
    parent, _, writer = directory.rpartition("/")
    if writer.startswith(ONCE_PREFIX):
        # Last: without it a commit that a crash brought back would count again.
        remove_durably(fs, [f"{directory}/{done_name(done)}"])
        remove_if_empty(fs, directory)
        fs.sync_dir(parent)
