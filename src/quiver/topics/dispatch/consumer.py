"""A consumer of a subscription, and the messages that it has to acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from quiver.errors import UsageError
from quiver.lazy_names import warn_renamed
from quiver.topics.format.message import Message

__all__ = ["Consumer", "MessageDecision", "MessageSource", "ReceivedMessage"]


@dataclass(frozen=True, slots=True)
class MessageDecision:
    """
    The decision of a consumer about a message.

    Attributes:
        kind: "ack", "nack" or "reject".
        delay: of a "nack", seconds until the redelivery; None for the delay of the settings.
        reason: of a "reject".
    """

    kind: Literal["ack", "nack", "reject"]
    delay: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """
    A delivered message. MessageDecision it with `ack`, `nack` or `reject`.

    Attributes:
        message: what was published.
        attempt: 1 for the first delivery.
        generation: of the subscription's position; a seek begins another, and answers to older deliveries are ignored.
    """

    message: Message
    attempt: int
    generation: int
    answer: Callable[[ReceivedMessage, MessageDecision], None]

    @property
    def offset(self) -> int:
        """The message's offset."""
        return self.message.offset

    def ack(self) -> None:
        """
        Confirm that the message is processed. It may be called again, and after a redelivery to another consumer.

        Raises:
            StoreClosedError: the subscription was closed.
        """
        self.answer(self, MessageDecision("ack"))

    def nack(self, delay: float | None = None, *, delay_s: float | None = None) -> None:
        """
        Refuse the message: it is delivered again after *delay* seconds, or the delay of the settings.

        It has no effect once `ack_timeout_seconds` has passed and the message was delivered to another consumer.

        Args:
            delay: seconds until the redelivery.
            delay_s: the former name of *delay*.

        Raises:
            StoreClosedError: the subscription was closed.
        """
        if delay_s is not None:
            warn_renamed("ReceivedMessage.nack", "delay_s", "delay")
            delay = delay_s
        self.answer(self, MessageDecision("nack", delay))

    def reject(self, reason: str = "") -> None:
        """
        Store the message as a dead letter and confirm it, because it can never be processed.

        The dead letter is durable on return, in the topic `<topic>-dead-letter`, with *reason* in its attributes. If it
        cannot be stored, the message is delivered again after the delay of the settings. `reject` has no effect once
        `ack_timeout_seconds` has passed and the message was delivered to another consumer.

        Raises:
            UsageError: *reason* is not a string; nothing was decided.
            StoreClosedError: the subscription was closed.
        """
        if not isinstance(reason, str):
            raise UsageError(f"reject({reason!r}): the reason must be a string, for example str(error)")
        self.answer(self, MessageDecision("reject", reason=reason))


class MessageSource(Protocol):
    """Where a consumer gets its messages from: its subscription."""

    def receive(self, consumer: Consumer, timeout: float | None) -> ReceivedMessage | None:
        """Return the next message for *consumer*; None when there is none within *timeout* seconds."""

    def is_active(self, consumer: Consumer) -> bool:
        """Return whether *consumer* gets messages now."""

    def leave(self, consumer: Consumer) -> None:
        """Remove *consumer*; its unacknowledged messages are delivered to others immediately. Idempotent."""


class Consumer:
    """
    One consumer of a subscription. Created by `Subscription.consumer`.

    Closing it returns its unacknowledged messages to the subscription.
    """

    def __init__(self, subscription: MessageSource, name: str) -> None:
        self._subscription = subscription
        self.name = name

    def receive(self, timeout: float | None = None, *, timeout_s: float | None = None) -> ReceivedMessage | None:
        """
        Return the next message for this consumer; None when there is none within *timeout* seconds.

        A standby of a failover subscription gets none until it is promoted.

        Args:
            timeout: seconds; None waits without limit.
            timeout_s: the former name of *timeout*.

        Raises:
            StoreClosedError: the consumer, the subscription or the topic was closed.
            StoreFailedError: the topic's disk failed.
            TransientError: the object store cannot be reached.
        """
        if timeout_s is not None:
            warn_renamed("Consumer.receive", "timeout_s", "timeout")
            timeout = timeout_s
        return self._subscription.receive(self, timeout)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        delivery = self.receive()
        if delivery is None:
            raise StopIteration
        return delivery

    @property
    def active(self) -> bool:
        """Whether this consumer gets messages now: always, except for the standbys of a failover subscription."""
        return self._subscription.is_active(self)

    def close(self) -> None:
        """Leave the subscription. Unacknowledged messages are delivered to others immediately. Idempotent."""
        self._subscription.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
