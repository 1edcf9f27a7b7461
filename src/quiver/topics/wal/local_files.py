"""
The log files of a topic's directory as they are found on disk: in order, each with its first offset.

Recovery and readers in other processes share this module, which only reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import checked_value, read_bounded
from quiver.topics.format.checkpoint import CHECKPOINT_BYTES_MAX, WalCheckpoint, decode_wal_checkpoint
from quiver.topics.format.frame import FRAME_HEADER, FRAME_HEADER_BYTES, take_frames
from quiver.topics.format.names import WAL_CHECKPOINT, parse_wal_file_name, wal_file_name
from quiver.topics.format.salvage import offset_within
from quiver.topics.wal.files import FileMarks, FrameScanner, Lost, WalFile

__all__ = ["LocalFile", "base_name_of", "first_offset_of", "in_ranges", "load_checkpoint", "local_files"]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A log file whose end is not known yet. `first_offset` is None when it has no complete message."""

    path: str
    seq: int
    size_bytes: int
    modified_ns: int
    first_offset: int | None


def base_name_of(checkpoint: WalCheckpoint) -> str | None:
    """Return the value of `wal.file_name` when *checkpoint* was written; None if it cannot be determined."""
    name = checkpoint.file_path.rpartition("/")[2]
    base = name.replace(f".{checkpoint.file_seq}.", ".", 1)
    return base if base and wal_file_name(checkpoint.file_seq, base) == name else None


def in_ranges(found: list[LocalFile], *, next_offset: int, newest_bytes: int) -> list[WalFile]:
    """
    Return the range of offsets of each file: up to the first offset of the next file, and for the last one up to
    *next_offset*.
    """
    named = [one for one in found if one.first_offset is not None]
    ranges = []
    for at, one in enumerate(named):
        is_last = at + 1 == len(named)
        end = next_offset if is_last else named[at + 1].first_offset
        size = newest_bytes if is_last else one.size_bytes
        start = one.first_offset or 0
        ranges.append(WalFile(one.path, one.seq, start, max(start, end or 0), size, True, one.modified_ns))
    return ranges


def load_checkpoint(fs: FileSystem, directory: str) -> WalCheckpoint | CorruptionError | None:
    """
    Return a topic's checkpoint, the error if it is damaged, or None if there is none.

    Raises:
        OSError: it cannot be read, or it is not a regular file.
    """
    path = f"{directory}/{WAL_CHECKPOINT}"
    try:
        data = read_bounded(fs, path, CHECKPOINT_BYTES_MAX)
        return checked_value(decode_wal_checkpoint(data), path, len(data))
    except FileNotFoundError:
        return None
    except CorruptionError as error:
        return error


def local_files(fs: FileSystem, directory: str, *, file_name: str, checkpoint: WalCheckpoint | None) -> list[LocalFile]:
    """Return the log files of a directory, oldest message first. Only the first frame of an intact file is read."""
    numbers = sorted(
        seq for name in fs.list_dir(directory) if (seq := parse_wal_file_name(name, file_name)) is not None
    )
    known = {seq: first for seq, _, first in checkpoint.rotated_files} if checkpoint is not None else {}
    if checkpoint is not None and checkpoint.active_file_first_offset is not None:
        known[checkpoint.file_seq] = checkpoint.active_file_first_offset
    found: list[LocalFile] = []
    above = 0
    for seq in numbers:
        path = f"{directory}/{wal_file_name(seq, file_name)}"
        stat = fs.stat(path)
        first = first_offset_of(fs, path, stat.size_bytes, known=known.get(seq), above=above)
        found.append(LocalFile(path, seq, stat.size_bytes, stat.modified_ns, first))
        above = above if first is None else first + 1
    # A file that was renamed or copied belongs where its messages belong, regardless of its number.
    in_order = iter(
        sorted(
            (one for one in found if one.first_offset is not None), key=lambda one: (one.first_offset, one.size_bytes)
        )
    )
    return [one if one.first_offset is None else next(in_order) for one in found]


def first_offset_of(fs: FileSystem, path: str, size: int, *, known: int | None, above: int) -> int | None:
    """
    Return the first offset of a log file; None when it has no whole message. *above* is the lowest that it can be.

    Raises:
        OSError: it cannot be read.
    """
    file = fs.open_read(path)  # also an empty one: a pipe has no size either, and is refused
    try:
        if size <= FRAME_HEADER_BYTES:
            return None
        head = file.pread(FRAME_HEADER_BYTES, 0)
        _, length, _ = FRAME_HEADER.unpack(head)
        data = head + file.pread(min(length, size - FRAME_HEADER_BYTES), FRAME_HEADER_BYTES)
    finally:
        file.close()
    frames, _, _ = take_frames(data, count_max=1)
    offset = offset_within(data, frames[0]) if frames else None
    if offset is not None:
        return offset
    # The first message is damaged. Is there an intact one after it?
    expected = above if known is None else known
    with FrameScanner(fs, path, position=0, end=None, expected=expected, marks=FileMarks()) as scanner:
        step = scanner.step()
    after = step.next_offset if isinstance(step, Lost) else None
    if after is None:
        return None
    return after - 1 if known is None else known
