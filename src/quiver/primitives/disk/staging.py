"""
The directory that a writer stages and commits batches in, and what is removed after their import.

`batch_notes.py` defines the names and notes. A batch counts from the moment its commit is durable. A writer's last
note stays: it records which batches of that writer must not be imported again.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver.primitives.batch_notes import ONCE_PREFIX, done_name, parse_note_name, parse_part_directory
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, remove_durably, remove_files_below, remove_if_empty
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["last_batch", "names_in", "remove_staged", "remove_taken"]


def names_in(fs: FileSystem, directory: str) -> list[str]:
    """Return the names in *directory*; none if it does not exist or is not a directory."""
    try:
        return fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def last_batch(fs: FileSystem, directory: str) -> int:
    """Return the last batch that was committed in a writer's *directory*, imported or not; −1 if there is none."""
    found = (parse_note_name(name) for name in names_in(fs, directory))
    return max((note[0] for note in found if note is not None and note[1] != "begun"), default=-1)


def remove_staged(fs: FileSystem, directory: str, names: Iterable[str]) -> None:
    """Remove the staging directories *names* of a writer's *directory*, with all files in them."""
    for name in names:
        if parse_part_directory(name) is not None:
            remove_files_below(fs, f"{directory}/{name}")


def remove_taken(fs: FileSystem, directory: str, done: int) -> None:
    """
    Remove what batch *done* and earlier ones left in a writer's *directory*, except the note that *done* is imported.

    Nothing stays of a writer that writes a single batch.

    Raises:
        OSError: some of it is still there; call again.
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
        # Last: without this note, a commit that reappears after a crash would be imported again.
        remove_durably(fs, [f"{directory}/{done_name(done)}"])
        remove_if_empty(fs, directory)
        fs.sync_dir(parent)
