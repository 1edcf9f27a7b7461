"""The messages of a stream that a client writes into a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.errors import UsageError
from quiver.primitives.budget import ByteBudget
from quiver.receivers.flight.batches import BatchLimits
from quiver.receivers.flight.command import Command
from quiver.receivers.flight.putting import BatchPut
from quiver.receivers.flight.served_topics import ServedTopics, topic_of
from quiver.topics.format.message import ATTRIBUTES_MAX

if TYPE_CHECKING:
    from quiver.topics.producer import Producer

__all__ = ["TopicPut", "producer_of"]

_COLUMNS = ("payload", "key", "attributes")
_MESSAGES_MAX = 1 << 16
"""Each message becomes a few objects: a compressed batch could have millions of empty ones."""

_Appended = tuple[bytes, dict[str, str] | None, str | None]


class TopicPut(BatchPut):
    """
    One stream into a topic: each row is a message, and each batch is appended completely or not at all.

    With a producer, the sequence of a batch is the number of its first message, and messages that were appended before
    are skipped.

    Args:
        served: the topics.
        command: names the topic, and perhaps a producer.
        limits: the limits of batches.
        budget: the memory for batches that are being stored, shared by all streams.
        capacity_wait_s: how long a batch waits for memory.

    Raises:
        UsageError: the command is invalid.
        FlightRefusedError: the topics are served for reading only.
        DataLossError, StoreFailedError, TransientError: the topic cannot be opened, or the producer's last message
            cannot be found.

    Attributes:
        topic: the topic.
    """

    def __init__(
        self, served: ServedTopics, command: Command, limits: BatchLimits, budget: ByteBudget, capacity_wait_s: float
    ) -> None:
        command.only("a put into a topic", "topic", "producer")
        super().__init__(limits, budget, capacity_wait_s)
        self.topic = topic_of(command)
        self._served = served
        self._log = served.writable().topic(self.topic)
        self._producer = None if command.producer is None else self._log.producer(command.producer)

    def flush(self) -> None:
        """
        Make everything durable that was appended to the topic.

        Raises:
            StoreFailedError: the disk failed.
        """
        self._served.writable().topic(self.topic).flush()

    def _keep(self, batch: pa.RecordBatch, sequence: int, *, is_numbered: bool) -> dict[str, Any]:
        messages = _messages_of(batch)
        if self._producer is None:
            offsets = self._log.append_batch(messages)
        elif is_numbered:
            offsets = self._producer.append_batch(messages, first_sequence=sequence)
        else:
            raise UsageError('a producer numbers its messages: give the number of the first one, as {"sequence": 0}')
        return {"sequence": sequence, "offset": offsets.start, "count": len(offsets)}


def producer_of(served: ServedTopics, command: Command) -> Producer:
    """
    Return the producer that *command* names.

    Raises:
        UsageError: the command is invalid.
        FlightRefusedError: the topics are served for reading only.
        DataLossError, StoreFailedError, TransientError: its last message cannot be found.
    """
    command.only("this action", "topic", "producer")
    if command.producer is None:
        raise UsageError('the action needs a producer, as in {"topic": "default/orders", "producer": "edge-1"}')
    return served.writable().topic(topic_of(command)).producer(command.producer)


def _messages_of(batch: pa.RecordBatch) -> list[_Appended]:
    """
    Return the messages in the rows of *batch*.

    Raises:
        UsageError: the columns are others, a value is missing, or there are too many.
    """
    names = batch.schema.names
    if "payload" not in names or not set(names) <= set(_COLUMNS) or len(set(names)) < len(names):
        raise UsageError(
            f"messages have the column payload, and may have key and attributes; not {', '.join(names)[:200] or 'none'}"
        )
    if batch.num_rows > _MESSAGES_MAX:
        raise UsageError(f"{batch.num_rows} messages; a batch has at most {_MESSAGES_MAX}")
    payloads = _texts(batch, "payload", pa.binary())
    if None in payloads:
        raise UsageError(f"the payload of row {payloads.index(None)} is null")
    keys = _texts(batch, "key", pa.string())
    return list(zip(payloads, _attributes(batch), keys, strict=True))


def _texts(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> list[Any]:
    at = batch.schema.get_field_index(name)
    if at < 0:
        return [None] * batch.num_rows
    found = batch.schema.field(at).type
    # A dictionary could repeat one large value a million times.
    if not _is_text(found) and not (
        kind == pa.binary() and (pa.types.is_binary(found) or pa.types.is_large_binary(found))
    ):
        raise UsageError(
            f"the column {name} is {found}; it must be {'' if kind == pa.string() else 'binary or '}string"
        )
    return list(batch.column(at).cast(kind).to_pylist())


def _attributes(batch: pa.RecordBatch) -> list[dict[str, str] | None]:
    at = batch.schema.get_field_index("attributes")
    if at < 0:
        return [None] * batch.num_rows
    found = batch.schema.field(at).type
    if not pa.types.is_map(found) or not _is_text(found.key_type) or not _is_text(found.item_type):
        raise UsageError(f"the column attributes is {found}; it must be map<string, string>")
    column = batch.column(at)
    count = column.offsets[-1].as_py() - column.offsets[0].as_py()
    if count > ATTRIBUTES_MAX:
        raise UsageError(f"{count} attributes; the messages of a batch have at most {ATTRIBUTES_MAX}")
    maps = [dict(pairs or ()) for pairs in column.to_pylist()]
    if any(None in one.values() for one in maps):
        raise UsageError("an attribute is null; leave it out")
    return [one or None for one in maps]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
