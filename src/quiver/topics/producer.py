"""
A producer that numbers its messages, so that what it sends again is appended once.

The number is in the message: its name and request id are fields of the layout. Nothing else is kept, so nothing else
can disagree with the log after a crash or a move to another process: opening a producer reads the newest messages of
the topic and takes the highest number under its name.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from quiver.errors import UsageError
from quiver.primitives.disk.file_system import Buffer
from quiver.topics.format.message import MessageCodec

if TYPE_CHECKING:
    from quiver.topics.log import TopicLog

__all__ = ["WINDOW_MESSAGES", "Producer"]

WINDOW_MESSAGES = 65_536
"""So far back a producer's last number is looked for."""

SEQUENCE_MAX = (1 << 64) - 1

_U64 = struct.Struct("<Q")


class Producer:
    """
    One producer of one topic. Made by `TopicLog.producer`. Thread-safe.

    Attributes:
        name: written into each of its messages.
        last_sequence: the highest number that is appended; None when the newest messages have none of it.
    """

    def __init__(self, log: TopicLog, name: str, *, last_sequence: int | None) -> None:
        self.name = name
        self.last_sequence = last_sequence
        self._log = log
        self._codec = MessageCodec(log.topic, producer_name=name)
        self._turn = threading.Lock()

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
        Append message number *sequence* and return its offset; None when it, or a later one, was appended before.

        As durable on return as with `TopicLog.append`, also when it was there already. Numbers grow; they may skip.

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
        Append *messages*, numbered from *first_sequence* on, in one write; return the offsets of those that were new.

        Each is a payload, or a payload with its attributes and its key. Those at the beginning that were appended
        before are left out: an empty range when all of them were.

        Raises:
            UsageError, CapacityError, StoreFailedError, StoreClosedError: as `TopicLog.append`; nothing was appended.
        """
        if durable and durable is not True:
            self._log.require_uploads(durable)
        if not isinstance(first_sequence, int) or not 0 <= first_sequence <= SEQUENCE_MAX - len(messages):
            raise UsageError(f"{self._log.topic}: a sequence is a whole number from 0 on, not {first_sequence!r}")
        last = first_sequence + len(messages) - 1
        with self._turn:
            known = -1 if self.last_sequence is None else self.last_sequence
            fresh = messages[max(0, known + 1 - first_sequence) :]
            first = self._log.current_offset()
            if fresh:
                number = last + 1 - len(fresh)
                batch = self._log.laid_out(fresh, self._codec)
                first = self._log.wal.append_batch(batch, encode=self._encode_from(number))
                self.last_sequence = last
        if durable or self._log.syncs_each:
            # Also what was there already: it may be anywhere before the end.
            self._log.make_durable(self._log.current_offset() - 1, durable)
        return range(first, first + len(fresh))

    def note(self, number: int) -> None:
        """Take note that message *number* was appended by other means."""
        with self._turn:
            self.last_sequence = max(number, -1 if self.last_sequence is None else self.last_sequence)

    def _encode_from(self, number: int) -> Callable[[int, bytes, int, bytes], bytes]:
        encode = self._codec.encode
        numbers = itertools.count(number)

        def numbered(offset: int, payload: bytes, publish_time_ms: int, tail: bytes) -> bytes:
            # The request id is the first field of a message.
            return _U64.pack(next(numbers)) + encode(offset, payload, publish_time_ms, tail)[_U64.size :]

        return numbered
