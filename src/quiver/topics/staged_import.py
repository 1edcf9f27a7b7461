"""
Messages that Spark sinks staged and committed become messages of their topics. Only the directory's owner does this.

::

    1  tasks write and sync       .incoming/<writer>/<batch>-…/….part   nobody reads them
    2  the sink's driver commits  .incoming/<writer>/<batch>.commit     durable: from here on the batch counts
    3  the owner notes            .incoming/<writer>/<batch>.begun      from which offset on each topic may have them
    4  the owner appends each message, named after writer, batch, part and place, and syncs the logs
    5  the owner renames          <batch>.commit → <batch>.done         durable: it is not appended again
    6  the owner removes what was staged, the note, and all but the writer's last `done`

The owner is whoever holds the lock of the directory: a `TopicStore` that is open in any process does it when it opens,
with its upkeep, and when it closes. A crash between 3 and 5 leaves some messages of the batch in the log, after a power
loss perhaps with holes between them: the log is read from the noted offsets on, and what is not there is appended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from quiver.errors import CorruptionError, QuiverError
from quiver.observe import Observer
from quiver.primitives.batch_notes import (
    NOTE_BYTES_MAX,
    ONCE_PREFIX,
    begun_name,
    commit_name,
    done_name,
    parse_note_name,
)
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staging import names_in, remove_taken
from quiver.primitives.scan import Damage
from quiver.primitives.small_file import checked_value, read_bounded, read_checked
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.sink_batch import (
    INCOMING_DIR,
    BatchNote,
    decode_begun,
    decode_commit,
    decode_staged,
    encode_begun,
    message_name,
    named_tail,
)
from quiver.topics.log import TopicLog
from quiver.topics.wal.files import read_frames

__all__ = ["SinkAdoption", "load_batch"]

_CHUNK_MESSAGES = 1024

T = TypeVar("T")


def load_batch(files: FileSystem, path: str) -> BatchNote:
    """
    Read the commit at *path*.

    Raises:
        CorruptionError: it is not what was written.
        FileNotFoundError: there is none.
    """
    data = read_bounded(files, path, NOTE_BYTES_MAX)
    return checked_value(decode_commit(data), path, len(data))


class SinkAdoption:
    """
    Appends what sinks committed below *root*, whose lock the caller holds. Thread-safe.

    Args:
        files: the file system.
        root: of the topics.
        topic: opens a topic's log.
        observer: where counts and events go.
    """

    def __init__(self, files: FileSystem, root: str, *, topic: Callable[[str], TopicLog], observer: Observer) -> None:
        self._files = files
        self._incoming = f"{root}/{INCOMING_DIR}"
        self._topic = topic
        self._observer = observer
        self._turn = threading.Lock()
        self._reported: set[str] = set()

    def adopt(self) -> int:
        """
        Append all that is committed; return how many messages came. Durable on return. One look when nothing is there.

        What cannot be appended now is reported once, and tried again at the next call.
        """
        with self._turn:
            adopted = 0
            try:
                writers = names_in(self._files, self._incoming) if self._files.exists(self._incoming) else []
            except OSError as error:
                self._report(error)
                return 0
            for writer in writers:
                try:
                    adopted += self._adopt_writer(f"{self._incoming}/{writer}")
                except (QuiverError, OSError) as error:
                    self._report(error)
            return adopted

    def _report(self, error: QuiverError | OSError) -> None:
        if str(error) not in self._reported:
            self._reported.add(str(error))
            self._observer.event("danube.sink.waits", level=logging.ERROR, problem=str(error))

    def _adopt_writer(self, directory: str) -> int:
        names = names_in(self._files, directory)
        notes = [note for name in names if (note := parse_note_name(name)) is not None]
        done = max((batch for batch, kind in notes if kind == "done"), default=-1)
        adopted = 0
        for batch in sorted(batch for batch, kind in notes if kind == "commit"):
            if batch > done:
                adopted += self._append(directory, load_batch(self._files, f"{directory}/{commit_name(batch)}"))
                done = batch
        if done >= 0 and (adopted or len(names) > 1 or directory.rpartition("/")[2].startswith(ONCE_PREFIX)):
            remove_taken(self._files, directory, done)
        return adopted

    def _append(self, directory: str, note: BatchNote) -> int:
        files = self._files
        logs = {part.topic: self._topic(part.topic) for part in note.parts}
        path = f"{directory}/{begun_name(note.batch)}"
        there: set[str] = set()
        begun = read_checked(files, path, decode_begun, NOTE_BYTES_MAX)
        if begun is None:
            # What is not durable may be gone after a power loss, and its offsets are then given out again, to us.
            replace_file(files, path, encode_begun({topic: log.durable_offset() for topic, log in logs.items()}))
        else:
            for topic, log in logs.items():
                there |= _named_since(log, begun.get(topic, 0), f"{note.writer}:{note.batch}:")
        count = 0
        for number, part in enumerate(note.parts):
            for chunk in _chunks(files, f"{directory}/{part.path}", note, number, part.messages):
                wanted = [(payload, time_ms, tail) for name, payload, time_ms, tail in chunk if name not in there]
                if wanted:
                    logs[part.topic].wal.append_batch(wanted)
                    count += len(wanted)
        for log in logs.values():
            log.flush()
        self._observer.count("danube_sink_messages_total", count)
        files.rename(f"{directory}/{commit_name(note.batch)}", f"{directory}/{done_name(note.batch)}")
        files.sync_dir(directory)
        return count


def _named_since(log: TopicLog, offset: int, prefix: str) -> set[str]:
    with log.reader(max(offset, log.start_offset()), follow=False, on_lost="skip") as reader:
        return {message.producer_name for message in reader if message.producer_name.startswith(prefix)}


def _chunks(
    files: FileSystem, path: str, note: BatchNote, number: int, messages: int
) -> Iterator[list[tuple[str, bytes, int, bytes]]]:
    index = 0
    for places, data, position in read_frames(files, path):
        chunk = []
        for offset, start, end in places:
            found = decode_staged(data[start + FRAME_HEADER_BYTES : end])
            if isinstance(found, Damage) or offset != index:
                reason = found.reason if isinstance(found, Damage) else f"message {offset} where {index} belongs"
                raise CorruptionError(path, position + start, reason)
            name = message_name(note, number, index)
            chunk.append((name, found.payload, found.time_ms, named_tail(found.tail, name)))
            index += 1
        for first in range(0, len(chunk), _CHUNK_MESSAGES):
            yield chunk[first : first + _CHUNK_MESSAGES]
    if index != messages:
        raise CorruptionError(path, 0, f"{index} messages where {messages} were committed")
