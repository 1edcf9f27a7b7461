"""A subscription of a topic over Flight: the messages that are delivered to one client, and its answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Any

import pyarrow as pa

from quiver.errors import UsageError
from quiver.receivers.flight.answers import Answer
from quiver.receivers.flight.batches import BatchEncoder, Parts
from quiver.receivers.flight.command import Command
from quiver.receivers.flight.served_topics import ServedTopics, size_of, topic_of
from quiver.receivers.flight.subscribing import Delivered
from quiver.topics.reading.message_rows import TOPIC_SCHEMA, rows_of_messages

__all__ = ["TopicSubscription"]

_SCHEMA = TOPIC_SCHEMA.append(pa.field("attempt", pa.int32()))


class TopicSubscription:
    """
    A consumer of a subscription, for one client.

    Args:
        served: the topics.
        command: names topic and subscription.
        consumer: the name of the consumer, which no other consumer of the subscription has.
        bytes_max: how many bytes of messages are delivered at once.
        leaving: runs the end of the consumer.

    Raises:
        UsageError: the command is invalid.
        DirectoryInUseError: the subscription is exclusive and has a consumer, or a query or a pipeline uses it.
        FlightRefusedError: the topics are served for reading only.
    """

    in_flight = 256

    def __init__(
        self, served: ServedTopics, command: Command, consumer: str, bytes_max: int, leaving: Executor
    ) -> None:
        command.only("a subscription of a topic", "topic", "subscription", "kind", "start", "follow", "in_flight")
        if command.subscription is None:
            raise UsageError('the command needs a subscription, as in {"topic": "a/b", "subscription": "billing"}')
        self._topic = topic_of(command)
        self._consumer = served.subscribe(command).consumer(consumer)
        self._bytes_max = bytes_max
        self._leaving = leaving
        self._encoder = BatchEncoder(_SCHEMA)

    def schema(self) -> Parts:
        """Return the first message of the stream."""
        return self._encoder.schema()

    def take(self, count: int, timeout: float) -> list[Delivered]:
        """
        Take up to *count* messages, fewer if they are large; wait up to *timeout* seconds for the first one.

        Raises:
            QuiverError, OSError: see `Consumer.receive`.
        """
        found: list[Any] = []
        size = 0
        while len(found) < count and size < self._bytes_max:
            received = self._consumer.receive(0.0 if found else timeout)
            if received is None:
                break
            found.append(received)
            size += size_of(received.message)
        if not found:
            return []
        rows = rows_of_messages([one.message for one in found], self._topic)
        attempts = pa.array([one.attempt for one in found], pa.int32())
        batch = pa.RecordBatch.from_arrays([*rows.columns, attempts], schema=_SCHEMA)
        return [Delivered({str(one.offset): one for one in found}, self._encoder.batch(batch))]

    def settle(self, answer: Answer, claims: dict[str, Any]) -> None:
        """
        Apply *answer*. It is durable a few seconds later.

        Raises:
            StoreClosedError: the subscription was closed; the messages are delivered again.
        """
        for address in answer.ack:
            claims[address].ack()
        for address in answer.reject:
            claims[address].reject(answer.reason)
        for address in answer.nack:
            claims[address].nack(answer.delay_s)

    def give_back(self, claims: Iterable[Any]) -> None:  # noqa: ARG002 - the consumer has them, and others
        """End the consumer: messages without an answer are delivered to others."""
        # In a thread, because the subscription may be reading from an object store for another consumer. If the server
        # has stopped, the topics are closed next, which ends the consumer, too.
        with contextlib.suppress(RuntimeError):
            self._leaving.submit(self._consumer.close)
