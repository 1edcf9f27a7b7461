"""
The Arrow Flight server.

It runs on the gRPC server of the receivers, so it has the same limits: on connections, on calls, on the size of every
message before it is read, and on clients that neither read nor send.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from quiver.errors import QuiverError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.scan import Damage
from quiver.receivers.flight.batches import Parts
from quiver.receivers.flight.command import command_of
from quiver.receivers.flight.messages import (
    SERVICE,
    Descriptor,
    decode_bytes,
    decode_descriptor,
    encode_bytes,
    encode_flight_info,
)
from quiver.receivers.flight.reading import messages_of, next_messages
from quiver.receivers.flight.settings import FlightSettings
from quiver.receivers.flight.sources import Offer, ServedStore, ServedStores
from quiver.receivers.flight.status import FlightRefusedError, StatusCode, status_of
from quiver.receivers.grpc_server.call import Call, CallClosedError
from quiver.receivers.grpc_server.server import GrpcServer, Method
from quiver.receivers.inflate import inflate
from quiver.receivers.places import Place, Places, address_of_peer, network_of
from quiver.receivers.port import PortReceiver
from quiver.receivers.security import server_context
from quiver.receivers.zstd_frames import inflate_zstd

__all__ = ["FlightReceiver"]

_T = TypeVar("_T")
_Serve = Callable[[Call, Place], Awaitable[None]]


class FlightReceiver(PortReceiver):
    """
    Serves stores over Arrow Flight. A context manager: started inside, stopped on leaving.

    Args:
        stores: the stores, each under its own name.
        settings: address, sizes, acknowledgement and security.
        observer: counts streams by method and outcome; receives events about an exposed port and rejected clients.

    Raises:
        SettingsError: certificates or credentials cannot be read.
        UsageError: there is no store, or two have the same name.
    """

    def __init__(
        self,
        stores: Sequence[ServedStore],
        settings: FlightSettings | None = None,
        *,
        observer: Observer | None = None,
    ) -> None:
        self.settings = FlightSettings() if settings is None else settings
        self.stores = ServedStores(stores)
        super().__init__("flight", self.settings, observer or InMemoryObserver())
        tls = self.settings.security.tls
        self._context = None if tls is None else server_context(tls, self._observer, protocols=["h2"])
        self._places = Places(self.settings.streams_max)
        self._server: GrpcServer | None = None

    # ── the loop's thread ────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> int:
        methods = {f"/{SERVICE}/{name}": method for name, method in self._methods().items()}
        self._server = server = GrpcServer(methods, self.settings, self._context, self._observer)
        return await server.start()

    async def _close(self, grace_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)

    def _methods(self) -> dict[str, Method]:
        return {
            name: Method(partial(self._guarded, name, serve))
            for name, serve in {
                "ListFlights": self._list_flights,
                "GetFlightInfo": self._get_flight_info,
                "GetSchema": self._get_schema,
                "DoGet": self._do_get,
            }.items()
        }

    async def _guarded(self, name: str, serve: _Serve, call: Call) -> None:
        """Check credentials and limits, serve *call*, and end it with the status of its error."""
        code: StatusCode | None = None
        reason = ""
        with self._places.take(network_of(address_of_peer(call.peer()))) as place:
            try:
                if not self._is_authorized(call):
                    self._observer.count("quiver.receiver.unauthorized_total", protocol="flight")
                    raise FlightRefusedError(
                        StatusCode.UNAUTHENTICATED, "the authorization header is missing or unknown"
                    )
                if place is None or self.is_stopping:
                    raise FlightRefusedError(StatusCode.UNAVAILABLE, "busy or shutting down; call again later")
                await serve(call, place)
            except TimeoutError:
                code, reason = StatusCode.DEADLINE_EXCEEDED, "the client neither reads nor sends"
            except CallClosedError:
                reason = "the client has ended the call"
            except (QuiverError, OSError) as error:
                code, reason = status_of(error), str(error) or type(error).__name__
        outcome = "ok" if not reason else "cancelled" if code is None else code.name.lower()
        self._observer.count("quiver.receiver.calls_total", method=name, outcome=outcome)
        if code is not None:
            call.finish(code, reason)

    def _is_authorized(self, call: Call) -> bool:
        if self._authenticator is None:
            return True
        return self._authenticator.check(value for key, value in call.invocation_metadata() if key == "authorization")

    @asynccontextmanager
    async def _waiting(self, place: Place) -> AsyncIterator[None]:
        """Wait for the client inside: not longer than `stream_idle_s`, and not while others need the place."""
        async with asyncio.timeout(self.settings.stream_idle_s) as timer:
            with place.waiting(timer):
                yield

    async def _read(self, call: Call, place: Place) -> bytes | None:
        """Return the next message of the client, decompressed; None at the end."""
        async with self._waiting(place):
            message = await call.read()
        if message is None or call.message_encoding == "identity":
            return message
        size_max = self.settings.max_request_bytes
        open_message = inflate if call.message_encoding == "gzip" else inflate_zstd
        inflated = await self._run(partial(open_message, message, size_max=size_max))
        if inflated is None:
            raise FlightRefusedError(
                StatusCode.INVALID_ARGUMENT, f"the message is too large: the limit is {size_max} bytes"
            )
        return _valid(inflated)

    async def _request(self, call: Call, place: Place) -> bytes:
        """Return the only message of a call."""
        message = await self._read(call, place)
        if message is None:
            raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, "the call has no request")
        return message

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Return the result of *work*, which runs in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def _send(self, call: Call, place: Place, messages: Sequence[Parts]) -> None:
        for parts in messages:
            async with self._waiting(place):
                await call.write(*parts)

    # ── discovery ────────────────────────────────────────────────────────────────────────────────────

    async def _list_flights(self, call: Call, place: Place) -> None:
        if _valid(decode_bytes(await self._request(call, place))):
            raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, "ListFlights takes no expression here")
        offers = (offer for store in self.stores for offer in store.offers())
        while (offer := await self._run(partial(_next_offer, offers))) is not None:
            await self._send(call, place, [[_info(offer)]])

    async def _get_flight_info(self, call: Call, place: Place) -> None:
        descriptor = _valid(decode_descriptor(await self._request(call, place)))
        offer = await self._run(partial(self._offer, descriptor))
        await self._send(call, place, [[_info(offer)]])

    async def _get_schema(self, call: Call, place: Place) -> None:
        descriptor = _valid(decode_descriptor(await self._request(call, place)))
        offer = await self._run(partial(self._offer, descriptor))
        await self._send(call, place, [[encode_bytes(offer.schema.serialize().to_pybytes())]])

    def _offer(self, descriptor: Descriptor) -> Offer:
        command = command_of(descriptor)
        store = self.stores.named(command)
        return Offer(descriptor, command.ticket(store.name), store.scan(command).schema)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────

    async def _do_get(self, call: Call, place: Place) -> None:
        ticket = _valid(decode_bytes(await self._request(call, place)))
        size = self.settings.message_bytes
        messages = await self._run(partial(self._scan, ticket))
        upcoming = asyncio.ensure_future(self._run(partial(next_messages, messages, size)))
        try:
            while sent := await upcoming:
                # The next messages are prepared while these are sent.
                upcoming = asyncio.ensure_future(self._run(partial(next_messages, messages, size)))
                await self._send(call, place, sent)
        finally:
            upcoming.cancel()

    def _scan(self, ticket: bytes) -> Iterator[Parts]:
        command = command_of(ticket)
        scan = self.stores.named(command).scan(command)
        return messages_of(scan.schema, scan, self.settings.message_bytes)


def _valid(decoded: _T | Damage) -> _T:
    """
    Return *decoded*.

    Raises:
        FlightRefusedError: it is damaged.
    """
    if isinstance(decoded, Damage):
        raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, decoded.reason)
    return decoded


def _next_offer(offers: Iterator[Offer]) -> Offer | None:
    return next(offers, None)


def _info(offer: Offer) -> bytes:
    return encode_flight_info(offer.schema.serialize().to_pybytes(), offer.descriptor, [offer.ticket])
