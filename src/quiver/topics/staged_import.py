"""
Import the messages that Spark sinks staged and committed. Only the directory's owner does this.

::

    1  tasks write and sync       .incoming/<writer>/<batch>-…/….part   not visible
    2  the sink's driver commits  .incoming/<writer>/<batch>.commit     durable: from here on the batch counts
    3  the owner writes           .incoming/<writer>/<batch>.begun      from which offset each topic may have them
    4  the owner appends each message, named after writer, batch, part and place, and syncs the logs
    5  the owner renames          <batch>.commit → <batch>.done         durable: it is not appended again
    6  the owner removes what was staged, the note, and all but the writer's last `done`

The owner holds the lock of the directory. A `TopicStore` that is open in any process imports when it opens, during its
maintenance, and when it closes. A crash between 3 and 5 leaves some messages of the batch in the log; after a power
loss there may be gaps between them. Then the owner reads the log from the noted offsets, and appends what is missing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from quiver.errors import CorruptionError, QuiverError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.batch_notes import NOTE_BYTES_MAX, BatchCommit, begun_name
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.staged_commits import StagedLog
from quiver.primitives.scan import Damage
from quiver.primitives.small_file import read_checked
from quiver.topics.engine import TopicEngine
from quiver.topics.format.frame import FRAME_HEADER_BYTES
from quiver.topics.format.sink_batch import (
    COMMITS,
    INCOMING_DIR,
    SinkPart,
    decode_begun,
    decode_staged,
    encode_begun,
    message_name,
    named_tail,
)
from quiver.topics.wal.files import read_frames

__all__ = ["StagedImport"]

_CHUNK_MESSAGES = 1024


class StagedImport:
    """
    Appends what sinks committed below *root*, whose lock the caller holds. Thread-safe.

    Args:
        fs: the file system.
        root: the directory of the topics.
        topic: opens the log of a topic.
        observer: receives counts and events.
    """

    def __init__(self, fs: FileSystem, root: str, *, topic: Callable[[str], TopicEngine], observer: Observer) -> None:
        self._staged = StagedLog(fs, f"{root}/{INCOMING_DIR}", COMMITS)
        self._topic = topic
        self._observer = observer
        self._turn = threading.Lock()
        self._reported: set[str] = set()

    def import_all(self) -> int:
        """
        Append everything that is committed; return how many messages that added. Durable on return.

        Costs one call when nothing was ever staged. A batch that cannot be appended now is reported once, and retried
        by the next call.
        """
        with self._turn:
            count = 0
            try:
                writers = self._staged.writers()
            except OSError as error:
                self._report(error)
                return 0
            for writer in writers:
                try:
                    count += self._staged.import_writer(writer, self._append)
                except (QuiverError, OSError) as error:
                    self._report(error)
            return count

    def _report(self, error: QuiverError | OSError) -> None:
        if str(error) not in self._reported:
            self._reported.add(str(error))
            self._observer.event("danube.sink.waits", level=logging.ERROR, problem=str(error))

    def _append(self, commit: BatchCommit[SinkPart]) -> int:
        fs = self._staged.fs
        directory = self._staged.directory(commit.writer)
        logs = {part.topic: self._topic(part.topic) for part in commit.parts}
        path = f"{directory}/{begun_name(commit.batch)}"
        there: set[str] = set()
        begun = read_checked(fs, path, decode_begun, NOTE_BYTES_MAX)
        if begun is None:
            # A power loss may take back what is not durable. Its offsets are then given out again, to these messages.
            replace_file(fs, path, encode_begun({topic: log.durable_offset() for topic, log in logs.items()}))
        else:
            for topic, log in logs.items():
                there |= _named_since(log, begun.get(topic, 0), f"{commit.writer}:{commit.batch}:")
        count = 0
        for number, part in enumerate(commit.parts):
            for chunk in _chunks(fs, f"{directory}/{part.path}", commit, number, part.messages):
                wanted = [(payload, time_ms, tail) for name, payload, time_ms, tail in chunk if name not in there]
                if wanted:
                    logs[part.topic].wal.append_batch(wanted)
                    count += len(wanted)
        for topic, log in logs.items():
            end = log.wal.next_offset
            log.flush()
            invariant(log.durable_offset() >= end, f"a batch is imported only when its messages in {topic} are durable")
        self._observer.count("danube_sink_messages_total", count)
        return count


def _named_since(log: TopicEngine, offset: int, prefix: str) -> set[str]:
    with log.reader(max(offset, log.start_offset()), follow=False, on_lost="skip") as reader:
        return {message.producer_name for message in reader if message.producer_name.startswith(prefix)}


def _chunks(
    fs: FileSystem, path: str, commit: BatchCommit[SinkPart], number: int, messages: int
) -> Iterator[list[tuple[str, bytes, int, bytes]]]:
    index = 0
    for places, data, position in read_frames(fs, path):
        chunk = []
        for offset, start, end in places:
            found = decode_staged(data[start + FRAME_HEADER_BYTES : end])
            if isinstance(found, Damage) or offset != index:
                reason = found.reason if isinstance(found, Damage) else f"message {offset} instead of {index}"
                raise CorruptionError(path, position + start, reason)
            name = message_name(commit, number, index)
            chunk.append((name, found.payload, found.time_ms, named_tail(found.tail, name)))
            index += 1
        for first in range(0, len(chunk), _CHUNK_MESSAGES):
            yield chunk[first : first + _CHUNK_MESSAGES]
    if index != messages:
        raise CorruptionError(path, 0, f"{index} messages where {messages} were committed")
