"""
A topic's files, read without its engine while a writer may run: from another process, without locks or changes.

Messages in the object store are not included; messages in memory are in the files, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiver.errors import CorruptionError, DataLossError, UsageError
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.message import Message, MessageCodec
from quiver.topics.format.names import ACTIVE_FILE, check_topic
from quiver.topics.wal.files import FileMarks, FrameScanner, Good, OnLost
from quiver.topics.wal.local_files import LocalFile, base_name_of, load_checkpoint, local_files

__all__ = ["TopicFiles"]


class TopicFiles:
    """
    The local files of ``namespace/topic`` below *root*, as they are at each call. Can be pickled.

    Raises:
        UsageError: *topic* is not a valid name.
    """

    def __init__(self, root: str, topic: str, *, fs: FileSystem | None = None, file_name: str = ACTIVE_FILE) -> None:
        self.topic = check_topic(topic)
        self.directory = f"{root.rstrip('/')}/{self.topic}"
        self._given = fs
        self._file_name = file_name

    @property
    def _fs(self) -> FileSystem:
        return REAL_FILES if self._given is None else self._given

    def files(self) -> list[LocalFile]:
        """
        Return the files that have a complete message, oldest first.

        Raises:
            UsageError: the topic does not exist.
            OSError: the disk cannot be read.
        """
        checkpoint = load_checkpoint(self._fs, self.directory)
        known = None if isinstance(checkpoint, CorruptionError) else checkpoint
        try:
            name = (None if known is None else base_name_of(known)) or self._file_name
            found = local_files(self._fs, self.directory, file_name=name, checkpoint=known)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{self.directory} holds no topic") from error
        return [one for one in found if one.first_offset is not None]

    def start_offset(self) -> int:
        """Return the oldest offset in the files; 0 in an empty topic."""
        return next((one.first_offset for one in self.files() if one.first_offset is not None), 0)

    def next_offset(self) -> int:
        """Return the offset after the newest complete message. Reads the newest file."""
        found = self.files()
        if not found:
            return 0
        first = found[-1].first_offset or 0
        with self._scanner(found[-1], first) as scanner:
            while scanner.step() is not None:
                pass
            return scanner.expected

    def read(self, start: int = 0, stop: int | None = None, *, on_lost: OnLost = "raise") -> Iterator[Message]:
        """
        Yield the messages from *start* on and below *stop*, in order, up to the newest complete one.

        Raises:
            DataLossError: messages in between are damaged or missing; with *on_lost* ``skip`` they are skipped.
            UsageError: the topic does not exist.
            OSError: the disk cannot be read.
        """
        found = self.files()
        wanted = start
        for at, file in enumerate(found):
            after = found[at + 1].first_offset if at + 1 < len(found) else None
            if after is not None and after <= wanted:
                continue
            first = file.first_offset or 0
            if first > wanted:
                self._skip_lost(wanted, first, self.directory, 0, "no file has them", on_lost)
                wanted = first
            for message in self._read_file(file, first, wanted, after, on_lost):
                if stop is not None and message.offset >= stop:
                    return
                yield message
                wanted = message.offset + 1
            wanted = max(wanted, after or 0)

    def _read_file(
        self, file: LocalFile, first: int, wanted: int, after: int | None, on_lost: OnLost
    ) -> Iterator[Message]:
        codec = MessageCodec(self.topic)
        with self._scanner(file, first) as scanner:
            while (step := scanner.step()) is not None:
                if isinstance(step, Good):
                    for at, (_, start, end) in enumerate(step.frames, step.first_offset):
                        if at < wanted:
                            continue
                        message = codec.decode(step.data[start + FRAME_HEADER_BYTES : end])
                        if isinstance(message, Damage):
                            self._skip_lost(at, at + 1, file.path, step.position + start, message.reason, on_lost)
                        else:
                            yield message
                    wanted = max(wanted, scanner.expected)
                    continue
                known = step.next_offset if step.next_offset is not None else after
                if known is not None and known > wanted:  # otherwise it is the torn tail, or still being written
                    self._skip_lost(wanted, known, file.path, step.start, step.reason, on_lost)
                    wanted = known
        if after is not None and after > wanted:
            self._skip_lost(wanted, after, file.path, file.size_bytes, "the file ends too early", on_lost)

    def _scanner(self, file: LocalFile, first: int) -> FrameScanner:
        return FrameScanner(self._fs, file.path, position=0, end=None, expected=first, marks=FileMarks())

    @staticmethod
    def _skip_lost(first: int, after: int, path: str, position: int, reason: str, on_lost: OnLost) -> None:
        if on_lost == "raise":
            raise DataLossError(path, position, f"messages {first} to {after - 1} are lost ({reason})")
