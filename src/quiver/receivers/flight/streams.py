"""The two streams in both directions: batches that are stored and acknowledged, and deliveries that are answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

from quiver.errors import QuiverError
from quiver.primitives.scan import Damage
from quiver.receivers.flight.answers import Answer, answer_of, encode_metadata
from quiver.receivers.flight.conversation import Conversation, valid
from quiver.receivers.flight.messages import FlightData, decode_flight_data, encode_bytes
from quiver.receivers.flight.status import FlightRefusedError, StatusCode, status_of
from quiver.receivers.flight.subscribing import Delivered, Subscription

__all__ = ["Put", "acknowledge_puts", "deliver"]

_WAIT_S = 1.0


class Put(Protocol):
    """Stores the batches of one stream. Called in threads, by one at a time."""

    def take(self, message: FlightData) -> dict[str, Any] | None:
        """Store the batch in *message*, without a sync. Return what its acknowledgement contains; None without one."""


async def acknowledge_puts(
    talk: Conversation,
    put: Put,
    first: FlightData,
    make_durable: Callable[[], Awaitable[str]] | None,
    storing: Executor,
) -> None:
    """
    Store the batches of a stream in threads of *storing*. Acknowledge each, in order, once *make_durable* has returned.

    Reading pauses while `batches_in_flight_max` batches are not acknowledged. At an error, the batches before it are
    acknowledged first.
    """
    loop = asyncio.get_running_loop()
    stored: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(talk.settings.batches_in_flight_max)
    acknowledging = asyncio.create_task(_acknowledge(talk, stored, make_durable))
    try:
        failed: Exception | None = None
        try:
            messages: list[FlightData | Damage] = [first]
            while messages and failed is None:
                # All that have arrived, because a change of threads takes as long as storing a small batch.
                receipts, failed = await loop.run_in_executor(storing, partial(_take_all, put, messages))
                for receipt in receipts:
                    await stored.put(receipt)
                if failed is None:
                    arrived = await talk.read_some(stored.maxsize, talk.settings.message_bytes)
                    messages = [decode_flight_data(data) for data in arrived]
        except (QuiverError, OSError) as error:
            failed = error
        await stored.put(None)
        await acknowledging
        if failed is not None:
            raise failed
    finally:
        acknowledging.cancel()


def _take_all(put: Put, messages: Sequence[FlightData | Damage]) -> tuple[list[dict[str, Any]], Exception | None]:
    """Store *messages*. Return the acknowledgements, and the error that ended it."""
    receipts: list[dict[str, Any]] = []
    for message in messages:
        try:
            receipt = put.take(valid(message))
        except (QuiverError, OSError) as error:
            return receipts, error
        if receipt is not None:
            receipts.append(receipt)
    return receipts, None


async def _acknowledge(
    talk: Conversation,
    stored: asyncio.Queue[dict[str, Any] | None],
    make_durable: Callable[[], Awaitable[str]] | None,
) -> None:
    """Acknowledge what is in *stored*, until None. A failure ends the call, and its handler."""
    try:
        receipt = await stored.get()
        while receipt is not None:
            receipts: list[dict[str, Any] | None] = [receipt]
            while not stored.empty():
                receipts.append(stored.get_nowait())
            if make_durable is not None and (failure := await make_durable()):
                talk.call.refuse(StatusCode.UNAVAILABLE, f"not confirmed, send it again: {failure}")
                return
            await talk.send([encode_bytes(encode_metadata(**one))] for one in receipts if one is not None)
            receipt = None if receipts[-1] is None else await stored.get()
    except (QuiverError, OSError) as error:  # the client is gone, or does not read
        talk.call.refuse(status_of(error), str(error) or "the acknowledgements are not read")


async def deliver(
    talk: Conversation, subscription: Subscription, waiting: Executor, *, in_flight: int | None, follow: bool
) -> None:
    """
    Deliver to one client, until it ends the call. What it has not answered then is returned.

    Args:
        talk: the call.
        subscription: the source of deliveries.
        waiting: the threads that wait for new deliveries, one for each client.
        in_flight: the maximum number of unanswered deliveries; None for that of *subscription*.
        follow: whether to wait for new deliveries; otherwise the stream ends when there are none, and all are answered.
    """
    stream = _Deliveries(talk, subscription, waiting, in_flight or subscription.in_flight, follow=follow)
    sending = asyncio.create_task(stream.send())
    receiving = asyncio.create_task(stream.receive())
    try:
        done, _ = await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        # Not in a thread: a server that stops does not wait for one, and unanswered claims would last until it exits.
        stream.give_back()
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)


class _Deliveries:
    """The deliveries of one client that are not answered."""

    def __init__(
        self, talk: Conversation, subscription: Subscription, waiting: Executor, in_flight: int, *, follow: bool
    ) -> None:
        self._talk = talk
        self._subscription = subscription
        self._waiting = waiting
        self._max = in_flight
        self._follow = follow
        self._claims: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._answered = asyncio.Event()

    async def send(self) -> None:
        """Send the schema, then deliveries, while fewer than the maximum are not answered."""
        loop = asyncio.get_running_loop()
        await self._talk.send([self._subscription.schema()])
        while True:
            self._answered.clear()
            room = self._max - len(self._claims)
            if room <= 0:
                await self._answered.wait()
                continue
            found = await loop.run_in_executor(self._waiting, partial(self._take, room))
            for delivered in found:
                await self._talk.send(delivered.messages)
            if found or self._follow:
                continue
            if not self._claims:
                return
            await self._answered.wait()

    def _take(self, room: int) -> list[Delivered]:
        """Claim deliveries, in a thread."""
        found = self._subscription.take(room, _WAIT_S if self._follow else 0.0)
        with self._lock:
            if not self._is_closed:
                for delivered in found:
                    self._claims.update(delivered.claims)
                return found
        self._subscription.give_back([claim for delivered in found for claim in delivered.claims.values()])
        return []

    async def receive(self) -> None:
        """Apply the answers of the client, until it sends no more."""
        while (data := await self._talk.read_without_limit()) is not None:
            message = valid(decode_flight_data(data))
            if message.metadata:
                answer = answer_of(message.metadata)
                claims = self._pop(answer)
                await self._talk.run(partial(self._subscription.settle, answer, claims))
                self._answered.set()

    def _pop(self, answer: Answer) -> dict[str, Any]:
        addresses = [*answer.ack, *answer.reject, *answer.nack]
        with self._lock:
            unknown = [address for address in addresses if address not in self._claims]
            if not unknown and len(set(addresses)) == len(addresses):
                return {address: self._claims.pop(address) for address in addresses}
        raise FlightRefusedError(
            StatusCode.INVALID_ARGUMENT,
            f"an answer to {(unknown or addresses)[0][:64]!r}, which this stream did not deliver, or a second one",
        )

    def give_back(self) -> None:
        """Return everything that is not answered, also what is being claimed."""
        with self._lock:
            self._is_closed = True
            claims, self._claims = self._claims, {}
        self._subscription.give_back(claims.values())
