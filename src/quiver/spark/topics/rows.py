"""Messages → Arrow batches of the declared schema, in a task. Everything here can be pickled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from quiver.primitives.scan import Damage
from quiver.topics.format.message import Message, MessageCodec
from quiver.topics.reading.file_reader import LostRange, MessageRun, TopicFileReader
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.ranges import Stretch

__all__ = ["PRODUCER_SCHEMA", "TOPIC_SCHEMA", "TopicRows"]

_NUMBER = pa.decimal128(20, 0)
_TIMESTAMP = pa.timestamp("us", tz="UTC")

TOPIC_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("topic", pa.string()),
    ]
)
"""One row per message. A time after the year 9999 is null."""

PRODUCER_SCHEMA = pa.schema(
    [("_producer", pa.string()), ("_producer_id", _NUMBER), ("_request_id", _NUMBER), ("_broker", pa.string())]
)
"""The columns of `includeMetadata`: the producer of a message, and its broker."""

_ROWS_MAX = 8192
_BYTES_MAX = 8 * 1024 * 1024
_NS_PER_US = 1000
_TIME_US_MAX = 253_402_300_799_999_999

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
                    yield self._batch(messages, one.topic)
                    messages, size = [], 0
            if messages:
                yield self._batch(messages, one.topic)

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

    def _batch(self, messages: list[Message], topic: str) -> pa.RecordBatch:
        make: dict[str, Callable[[], pa.Array]] = {
            "offset": lambda: pa.array([one.offset for one in messages], pa.int64()),
            "timestamp": lambda: pa.array([_time_us(one.publish_time_ns) for one in messages], _TIMESTAMP),
            "key": lambda: pa.array([one.key for one in messages], pa.string()),
            "payload": lambda: pa.array([one.payload for one in messages], pa.binary()),
            "attributes": lambda: _attributes(messages),
            "topic": lambda: pa.repeat(pa.scalar(topic), len(messages)),
            "_producer": lambda: pa.array([one.producer_name for one in messages], pa.string()),
            "_producer_id": lambda: pa.array([Decimal(one.producer_id) for one in messages], _NUMBER),
            "_request_id": lambda: pa.array([Decimal(one.request_id) for one in messages], _NUMBER),
            "_broker": lambda: pa.array([one.broker_address for one in messages], pa.string()),
        }
        arrays = [make[field.name]().cast(field.type) for field in self.target]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)


def _time_us(publish_time_ns: int) -> int | None:
    time_us = publish_time_ns // _NS_PER_US
    return time_us if time_us <= _TIME_US_MAX else None


def _attributes(messages: Sequence[Message]) -> pa.Array:
    ends = [0]
    keys: list[str] = []
    values: list[str] = []
    for one in messages:
        if one.attributes:
            keys += one.attributes.keys()
            values += one.attributes.values()
        ends.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )
