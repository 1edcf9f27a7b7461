"""
A producer that numbers its messages, so that a message that it sends again is appended once.

The number is in the message: the producer's name and the request id are fields of the layout. Nothing else is stored,
so nothing else can disagree with the log after a crash or a move to another process: opening a producer reads the
newest messages of the topic and takes the highest number under its name.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from weakref import WeakValueDictionary

from quiver.errors import UsageError
from quiver.invariant import invariant
from quiver.primitives.disk.file_system import Buffer
from quiver.topics.engine import TopicEngine
from quiver.topics.format.message import MessageCodec
from quiver.topics.format.names import check_producer

__all__ = ["WINDOW_MESSAGES", "Producer", "Producers"]

WINDOW_MESSAGES = 65_536
"""How many of the newest messages are searched for a producer's last number."""

SEQUENCE_MAX = (1 << 64) - 1

_U64 = struct.Struct("<Q")


class Producer:
    """
    One producer of one topic. Created by `TopicLog.producer`. Thread-safe.

    Attributes:
        name: written into each of its messages.
        last_sequence: the highest number that was appended; None when the newest messages have none of this producer.
    """

    def __init__(self, engine: TopicEngine, name: str, *, last_sequence: int | None) -> None:
        self.name = name
        self.last_sequence = last_sequence
        self._engine = engine
        self._codec = MessageCodec(engine.topic, producer_name=name)
        self._guard = threading.Lock()

    def append(
        self,
        payload: Buffer,
        *,
        sequence: int,
        attributes: Mapping[str, str] | None = None,
        key: str | None = None,
        durable: bool | Literal["object"] = False,
    ) -> int | None:
        """
        Append message number *sequence* and return its offset; None if it, or a later one, was appended before.

        It is as durable on return as with `TopicLog.append`, even if it was appended before. Numbers increase; there
        may be gaps.

        Raises:
            UsageError, CapacityError, StoreFailedError, StoreClosedError: as `TopicLog.append`; nothing was appended.
        """
        found = self.append_batch([(payload, attributes, key)], first_sequence=sequence, durable=durable)
        return found[0] if found else None

    def append_batch(
        self,
        messages: Sequence[Buffer | tuple[Buffer, Mapping[str, str] | None, str | None]],
        *,
        first_sequence: int,
        durable: bool | Literal["object"] = False,
    ) -> range:
        """
        Append *messages*, numbered from *first_sequence* on, in one write; return the offsets of the new ones.

        Each is a payload, or a tuple of payload, attributes and key. Messages at the beginning that were appended
        before are skipped: the range is empty if all of them were.

        Raises:
            UsageError, CapacityError, StoreFailedError, StoreClosedError: as `TopicLog.append`; nothing was appended.
        """
        if durable and durable is not True:
            self._engine.require_uploads(durable)
        if not isinstance(first_sequence, int) or not 0 <= first_sequence <= SEQUENCE_MAX - len(messages):
            raise UsageError(f"{self._engine.topic}: a sequence is an integer, at least 0, not {first_sequence!r}")
        last = first_sequence + len(messages) - 1
        with self._guard:
            known = -1 if self.last_sequence is None else self.last_sequence
            fresh = messages[max(0, known + 1 - first_sequence) :]
            first = self._engine.current_offset()
            if fresh:
                number = last + 1 - len(fresh)
                batch = self._engine.encode_batch(fresh, self._codec)
                invariant(number > known and len(batch) == len(fresh), "each number is appended once, with its message")
                first = self._engine.wal.append_batch(batch, encode=self._encode_from(number))
                self.last_sequence = last
        if durable or self._engine.syncs_each:
            # Messages that were appended before may be anywhere before the end.
            self._engine.make_durable(self._engine.current_offset() - 1, durable)
        return range(first, first + len(fresh))

    def record_sequence(self, number: int) -> None:
        """Record that message *number* was appended in another way."""
        with self._guard:
            self.last_sequence = max(number, -1 if self.last_sequence is None else self.last_sequence)

    def _encode_from(self, number: int) -> Callable[[int, bytes, int, bytes], bytes]:
        encode = self._codec.encode
        numbers = itertools.count(number)

        def numbered(offset: int, payload: bytes, publish_time_ms: int, tail: bytes) -> bytes:
            # The request id is the first field of a message.
            return _U64.pack(next(numbers)) + encode(offset, payload, publish_time_ms, tail)[_U64.size :]

        return numbered


class Producers:
    """The producers of one topic that this process has. Thread-safe."""

    def __init__(self, engine: TopicEngine) -> None:
        self._engine = engine
        self._producers: WeakValueDictionary[str, Producer] = WeakValueDictionary()
        self._guard = threading.Lock()

    def get(self, name: str, window_messages: int = WINDOW_MESSAGES) -> Producer:
        """
        Return the producer *name*; see `TopicLog.producer`.

        Raises:
            UsageError, DataLossError, StoreFailedError, TransientError: as `TopicLog.producer`.
        """
        check_producer(name)
        with self._guard:
            found = self._producers.get(name)
            if found is None:
                start = max(self._engine.start_offset(), self._engine.wal.next_offset - window_messages)
                with self._engine.reader(start, follow=False) as reader:
                    numbers = [one.request_id for one in reader if one.producer_name == name]
                found = Producer(self._engine, name, last_sequence=max(numbers, default=None))
                self._producers[name] = found
            return found

    def record_sequence(self, name: str, number: int) -> None:
        """Record in the producer *name*, if this process has it, that its message *number* was appended."""
        with self._guard:
            found = self._producers.get(name)
        if found is not None:
            found.record_sequence(number)
