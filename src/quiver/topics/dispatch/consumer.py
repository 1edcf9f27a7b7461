"""What a consumer holds: its place at the subscription, and messages to answer for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from quiver.topics.format.message import Message

__all__ = ["Consumer", "Delivery", "MessageSource"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    A message that was handed out. Answer it with `ack` or `nack`, on this or on the consumer.

    Attributes:
        message: what was published.
        attempt: 1 for the first delivery.
        generation: which life of the subscription it belongs to; a seek begins another.
    """

    message: Message
    attempt: int
    generation: int
    answer: Callable[[Delivery, float | None, bool], None]

    @property
    def offset(self) -> int:
        """The message's offset."""
        return self.message.offset

    def ack(self) -> None:
        """
        Say that it is done. Again, or after it was delivered to another, is fine.

        Raises:
            StoreClosedError: the subscription was closed.
        """
        self.answer(self, None, True)

    def nack(self, delay_s: float | None = None) -> None:
        """
        Give it back: it is delivered again after *delay_s*, or the setting's delay. Nothing happens once its
        `ack_timeout_seconds` are over and it is delivered to another consumer.

        Raises:
            StoreClosedError: the subscription was closed.
        """
        self.answer(self, delay_s, False)


class MessageSource(Protocol):
    """Where a consumer gets its messages from: its subscription."""

    def receive(self, consumer: Consumer, timeout: float | None) -> Delivery | None:
        """Return the next message for *consumer*; None when there is none within *timeout* seconds."""

    def is_active(self, consumer: Consumer) -> bool:
        """Return whether *consumer* gets messages now."""

    def leave(self, consumer: Consumer) -> None:
        """Remove *consumer*; its unanswered messages are delivered to others immediately. Idempotent."""


class Consumer:
    """One consumer of a subscription. Made by `Subscription.consumer`; closing gives back what was not answered."""

    def __init__(self, subscription: MessageSource, name: str) -> None:
        self._subscription = subscription
        self.name = name

    def receive(self, timeout_s: float | None = None) -> Delivery | None:
        """
        Return the next message for this consumer; None when none came within *timeout_s* (None waits for ever).

        A standby of a failover subscription gets none until it is promoted.

        Raises:
            StoreClosedError: consumer, subscription or topic were closed.
            StoreFailedError: the topic's disk failed.
            TransientError: the object store cannot be reached.
        """
        return self._subscription.receive(self, timeout_s)

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        delivery = self.receive()
        if delivery is None:
            raise StopIteration
        return delivery

    @property
    def active(self) -> bool:
        """Say whether it is this consumer's turn: always, but for standbys of a failover subscription."""
        return self._subscription.is_active(self)

    def close(self) -> None:
        """Leave. What was delivered and not answered goes to others at once. Idempotent."""
        self._subscription.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
