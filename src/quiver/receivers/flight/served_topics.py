"""The topics of a directory that a Flight server offers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.receivers.flight.command import Command, command_of, encode_command, time_of
from quiver.receivers.flight.messages import Descriptor
from quiver.receivers.flight.sources import Offer, writable
from quiver.receivers.flight.status import FlightRefusedError, StatusCode
from quiver.topics.format.message import Message
from quiver.topics.format.names import ACTIVE_FILE, check_topic
from quiver.topics.reading.listing import topics_below
from quiver.topics.reading.message_rows import TOPIC_SCHEMA, rows_of_messages
from quiver.topics.reading.read import TopicFiles

if TYPE_CHECKING:
    from quiver.topics.dispatch.subscription import Subscription
    from quiver.topics.store import TopicStore
    from quiver.topics.wal.files import OnLost

__all__ = ["ServedTopics", "TopicScan", "served_topics", "size_of", "topic_of"]

_ROWS_MAX = 8192
_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class TopicScan:
    """
    The messages of a part of a topic, as rows.

    Attributes:
        topic: ``namespace/topic``.
        messages: the messages, once.
        schema: the columns.
    """

    topic: str
    messages: Iterator[Message]
    schema: pa.Schema = TOPIC_SCHEMA

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows in batches of at most 8,192.

        Raises:
            DataLossError: messages are lost.
            OSError: the disk cannot be read.
        """
        found: list[Message] = []
        size = 0
        for message in self.messages:
            found.append(message)
            size += size_of(message)
            if len(found) >= _ROWS_MAX or size >= _BYTES_MAX:
                yield rows_of_messages(found, self.topic)
                found, size = [], 0
        if found:
            yield rows_of_messages(found, self.topic)


@dataclass(frozen=True, slots=True)
class ServedTopics:
    """
    The topics of one directory, which are offered.

    Attributes:
        name: its name for clients.
        directory: the directory.
        store: the open topics, or None if clients may only read.
    """

    name: str
    directory: str
    store: TopicStore | None = None

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        if self.store is not None:
            return self.store.topics()
        return topics_below(REAL_FILES, self.directory, file_name=ACTIVE_FILE)

    def scan(self, command: Command) -> TopicScan:
        """
        Plan the reading of the messages that are in the topic now.

        Raises:
            UsageError: the command is invalid.
            FlightRefusedError: there is no such topic.
        """
        command.only("a scan of a topic", "topic", "start", "offset", "limit", "strict")
        if command.start == "latest":
            raise UsageError('start of a scan must be "earliest" or a time; to wait for new messages, subscribe')
        if command.start is not None and command.offset is not None:
            raise UsageError("give start, or offset, or neither")
        topic = topic_of(command)
        if topic not in self.topics():
            raise FlightRefusedError(StatusCode.NOT_FOUND, f"no topic {topic} in {self.name}")
        on_lost: OnLost = "skip" if command.strict is False else "raise"
        messages = self._messages(topic, command, on_lost)
        return TopicScan(topic, messages if command.limit is None else itertools.islice(messages, command.limit))

    def _messages(self, topic: str, command: Command, on_lost: OnLost) -> Iterator[Message]:
        start = command.start
        if self.store is None:
            files = TopicFiles(self.directory, topic)
            found = files.read(command.offset or files.start_offset(), on_lost=on_lost)
            return found if not isinstance(start, int) else _published_since(found, start)
        begin = time_of(start) if isinstance(start, int) else command.offset or "earliest"
        return self._read(topic, begin, on_lost)

    def _read(self, topic: str, begin: int | str | datetime, on_lost: OnLost) -> Iterator[Message]:
        with self.writable().topic(topic).reader(begin, follow=False, on_lost=on_lost) as reader:  # type: ignore[arg-type] # checked
            yield from reader

    def subscribe(self, command: Command) -> Subscription:
        """
        Return the subscription of *command*; a new one is durable on return.

        Raises:
            UsageError: the command is invalid, or the subscription is open as another kind.
            DirectoryInUseError: a streaming query or a pipeline uses it.
            FlightRefusedError: the topics are served for reading only.
        """
        start = command.start
        return self.writable().subscribe(
            topic_of(command),
            command.subscription or "",
            kind=command.kind or "shared",  # type: ignore[arg-type] # checked by the callee
            start=time_of(start) if isinstance(start, int) else start or "latest",  # type: ignore[arg-type] # checked
        )

    def writable(self) -> TopicStore:
        """
        Return the open topics.

        Raises:
            FlightRefusedError: clients may only read.
        """
        return writable(self.store, self.name)

    def maintain(self) -> None:
        """
        Make everything durable that was appended, and everything that was answered.

        Raises:
            FlightRefusedError: clients may only read.
            StoreFailedError: the disk failed.
            OSError: the progress of a subscription cannot be saved.
        """
        store = self.writable()
        store.flush()
        store.save_progress()

    def offers(self) -> Iterator[Offer]:
        """Yield a stream for each topic."""
        for topic in self.topics():
            ticket = encode_command({"store": self.name, "topic": topic})
            yield Offer(Descriptor(command=ticket), ticket, self.scan(command_of(ticket)).schema)


def served_topics(
    directory: str | os.PathLike[str], store: TopicStore | None = None, *, name: str | None = None
) -> ServedTopics:
    """
    Return the topics in *directory* for a server.

    Args:
        directory: the directory of the topics.
        store: the topics, if this process has them open; without it, clients may only read.
        name: its name for clients; by default that of the directory.

    Raises:
        UsageError: there is no such directory.
    """
    if store is None and not Path(directory).is_dir():
        raise UsageError(f"{os.fspath(directory)} is not a directory of topics")
    return ServedTopics(Path(directory).resolve().name if name is None else name, os.fspath(directory), store)


def size_of(message: Message) -> int:
    """Return about how many bytes *message* takes in a batch."""
    texts = sum(len(name) + len(text) for name, text in message.attributes.items()) if message.attributes else 0
    return len(message.payload) + texts


def topic_of(command: Command) -> str:
    """
    Return the topic of *command*.

    Raises:
        UsageError: it names none, or the name is invalid.
    """
    if command.topic is None:
        raise UsageError('the command needs a topic, as in {"version": 1, "topic": "default/orders"}')
    return check_topic(command.topic)


def _published_since(messages: Iterator[Message], time_ns: int) -> Iterator[Message]:
    return itertools.dropwhile(lambda message: message.publish_time_ns < time_ns, messages)
