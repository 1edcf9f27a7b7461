"""Messages → Arrow batches of the declared schema, in a task. Everything here can be pickled."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from quiver.primitives.scan import Damage
from quiver.topics.format.message import Message, MessageCodec
from quiver.topics.reading.file_reader import LostRange, MessageRun, TopicFileReader
from quiver.topics.reading.message_rows import rows_of_messages
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.ranges import Stretch

__all__ = ["TopicRows"]

_ROWS_MAX = 8192
_BYTES_MAX = 8 * 1024 * 1024

_log = logging.getLogger("quiver")


@dataclass(frozen=True)
class TopicRows:
    """
    Reads stretches of topics.

    Attributes:
        place: where the topics are.
        target: the exact schema of every batch.
        fail_on_data_loss: False skips missing or damaged messages, with a warning.
    """

    place: TopicPlace
    target: pa.Schema
    fail_on_data_loss: bool

    def read(self, stretches: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
        """
        Yield the messages of *stretches*, in order.

        Raises:
            DataLossError: messages are missing or damaged.
            OSError, ObjectsUnavailableError, MetadataUnavailableError: passed on; the task may be retried.
        """
        for one in stretches:
            messages: list[Message] = []
            size = 0
            for message in self._messages(one):
                messages.append(message)
                size += len(message.payload)
                if len(messages) >= _ROWS_MAX or size >= _BYTES_MAX:
                    yield rows_of_messages(messages, one.topic, self.target)
                    messages, size = [], 0
            if messages:
                yield rows_of_messages(messages, one.topic, self.target)

    def _messages(self, one: Stretch) -> Iterator[Message]:
        decode = MessageCodec(one.topic).decode
        reader = TopicFileReader(self.place, one.topic)
        for found in reader.read(one.start, one.stop, one.mark):
            if not isinstance(found, MessageRun):
                self._lost(found)
                continue
            for at, body in enumerate(found.bodies, found.first):
                message = decode(body)
                if isinstance(message, Damage):
                    self._lost(LostRange(at, at + 1, reader.directory or one.topic, message.reason))
                else:
                    yield message

    def _lost(self, lost: LostRange) -> None:
        if self.fail_on_data_loss:
            raise lost.error()
        _log.warning("quiver.spark.messages_skipped reason=%s", lost.error())
