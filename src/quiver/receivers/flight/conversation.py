"""A call together with its limits: read, send, and run work in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from quiver.primitives.scan import Damage
from quiver.receivers.flight.batches import Parts
from quiver.receivers.flight.messages import FlightData, decode_flight_data
from quiver.receivers.flight.settings import FlightSettings
from quiver.receivers.flight.status import FlightRefusedError, StatusCode
from quiver.receivers.grpc_server.call import Call
from quiver.receivers.inflate import inflate
from quiver.receivers.places import Place
from quiver.receivers.zstd_frames import inflate_zstd

__all__ = ["Conversation", "valid"]

_T = TypeVar("_T")


class Conversation:
    """
    One call.

    Args:
        call: the call.
        place: its place among all clients.
        settings: sizes and times.
        pool: the threads for work.
    """

    def __init__(self, call: Call, place: Place, settings: FlightSettings, pool: Executor) -> None:
        self.call = call
        self.settings = settings
        self._place = place
        self._pool = pool
        self._refused: FlightRefusedError | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return the result of *work*, which runs in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    @asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        """Wait for the client inside: not longer than `stream_idle_s`, and not while others need the place."""
        async with asyncio.timeout(self.settings.stream_idle_s) as timer:
            with self._place.waiting(timer):
                yield

    async def read(self) -> bytes | None:
        """
        Return the next message of the client, decompressed; None at the end.

        Raises:
            TimeoutError: there is none in time.
            FlightRefusedError: the message cannot be decompressed within the limit.
        """
        async with self._waiting():
            return await self.read_without_limit()

    async def read_without_limit(self) -> bytes | None:
        """Return the next message like `read`, but wait for it as long as the connection lasts."""
        message = await self.call.read()
        if message is None or self.call.message_encoding == "identity":
            return message
        size_max = self.settings.max_request_bytes
        open_message = inflate if self.call.message_encoding == "gzip" else inflate_zstd
        inflated = await self.run(partial(open_message, message, size_max=size_max))
        if inflated is None:
            raise FlightRefusedError(
                StatusCode.INVALID_ARGUMENT, f"the message is too large: the limit is {size_max} bytes"
            )
        return valid(inflated)

    async def read_some(self, count_max: int, bytes_max: int) -> list[bytes]:
        """
        Return the next message, and small ones that have arrived after it. Empty at the end.

        Args:
            count_max: the maximum number of messages.
            bytes_max: nothing is added to messages of this size.

        Raises:
            TimeoutError, FlightRefusedError: as `read`, for the first message; for another one, from the next call.
        """
        if self._refused is not None:
            raise self._refused
        found: list[bytes] = []
        size = 0
        while not found or (len(found) < count_max and size < bytes_max and self.call.has_message):
            try:
                message = await self.read()
            except FlightRefusedError as refused:
                if not found:
                    raise
                self._refused = refused
                break
            if message is None:
                break
            found.append(message)
            size += len(message)
        return found

    async def request(self) -> bytes:
        """
        Return the only message of a call, or the first one of a stream.

        Raises:
            FlightRefusedError: there is none.
        """
        message = await self.read()
        if message is None:
            raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, "the call has no request")
        return message

    async def first(self) -> FlightData:
        """
        Return the first message of a stream of `FlightData`, which has its descriptor.

        Raises:
            FlightRefusedError: there is none, or it has no descriptor.
        """
        data = valid(decode_flight_data(await self.request()))
        if data.descriptor is None:
            raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, "the first message of the stream has no descriptor")
        return data

    async def send(self, messages: Iterable[Parts]) -> None:
        """
        Send *messages*.

        Raises:
            TimeoutError: the client does not read.
            CallClosedError: the client has ended the call.
        """
        for parts in messages:
            async with self._waiting():
                await self.call.write(*parts)


def valid(decoded: _T | Damage) -> _T:
    """
    Return *decoded*.

    Raises:
        FlightRefusedError: it is damaged.
    """
    if isinstance(decoded, Damage):
        raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, decoded.reason)
    return decoded
