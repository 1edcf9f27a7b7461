"""
The Arrow Flight server.

It runs on the gRPC server of the receivers, so it has the same limits: on connections, on calls, on the size of every
message before it is read, and on clients that neither read nor send.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from quiver.errors import QuiverError, UsageError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.budget import ByteBudget
from quiver.receivers.flight.answers import encode_metadata
from quiver.receivers.flight.batches import BatchLimits, Parts
from quiver.receivers.flight.command import Command, command_of
from quiver.receivers.flight.consuming import TopicSubscription
from quiver.receivers.flight.conversation import Conversation, valid
from quiver.receivers.flight.messages import (
    SERVICE,
    Descriptor,
    decode_action,
    decode_bytes,
    decode_descriptor,
    encode_action_type,
    encode_bytes,
    encode_flight_info,
)
from quiver.receivers.flight.producing import TopicPut, producer_of
from quiver.receivers.flight.putting import BatchPut, StorePut
from quiver.receivers.flight.reading import messages_of, next_messages
from quiver.receivers.flight.served_topics import ServedTopics
from quiver.receivers.flight.serving import Served, ServedByName
from quiver.receivers.flight.settings import FlightSettings
from quiver.receivers.flight.sources import Offer, ServedStore
from quiver.receivers.flight.status import FlightRefusedError, StatusCode, status_of
from quiver.receivers.flight.streams import acknowledge_puts, deliver
from quiver.receivers.flight.subscribing import StoreSubscription, Subscription
from quiver.receivers.group_sync import GroupSync
from quiver.receivers.grpc_server.call import Call, CallClosedError
from quiver.receivers.grpc_server.server import GrpcServer, Method
from quiver.receivers.places import Places, address_of_peer, network_of
from quiver.receivers.port import PortReceiver
from quiver.receivers.security import server_context

__all__ = ["FlightReceiver"]

_Serve = Callable[[Conversation], Awaitable[None]]
_GROUP_MESSAGES = 4
"""How many messages of a scan a thread prepares at once: to change threads costs as much as to prepare one."""
_GROUPS_AHEAD = 2
"""How many groups are prepared before the client reads them."""


class FlightReceiver(PortReceiver):
    """
    Serves stores and topics over Arrow Flight. A context manager: started inside, stopped on leaving.

    Args:
        stores: the stores and the directories of topics, each under its own name.
        settings: address, sizes, acknowledgement and security.
        observer: counts streams by method and outcome; receives events about an exposed port and rejected clients.

    Raises:
        SettingsError: certificates or credentials cannot be read.
        UsageError: there is no store, or two have the same name.
    """

    def __init__(
        self,
        stores: Sequence[Served],
        settings: FlightSettings | None = None,
        *,
        observer: Observer | None = None,
    ) -> None:
        self.settings = FlightSettings() if settings is None else settings
        self.stores = ServedByName(stores)
        super().__init__("flight", self.settings, observer or InMemoryObserver())
        tls = self.settings.security.tls
        self._context = None if tls is None else server_context(tls, self._observer, protocols=["h2"])
        limits = self.settings
        self._places = Places(limits.streams_max)
        self._limits = BatchLimits(limits.inflated_bytes_max, limits.dictionaries_bytes_max)
        self._budget = ByteBudget("Flight batches being stored", limits.storing_bytes_max)
        # Threads that wait for a full store, or for new data, must not keep others from reading.
        self._storing = ThreadPoolExecutor(limits.workers, thread_name_prefix="quiver-flight-storing")
        self._waiting = ThreadPoolExecutor(limits.streams_max, thread_name_prefix="quiver-flight-waiting")
        self._syncs: dict[str, GroupSync] = {}
        self._consumers = itertools.count()
        self._server: GrpcServer | None = None

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls immediately, and give current ones *grace_s* seconds. Idempotent."""
        super().stop(grace_s)
        self._storing.shutdown(wait=True)
        self._waiting.shutdown(wait=True)

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
        handlers: dict[str, _Serve] = {
            "ListFlights": self._list_flights,
            "GetFlightInfo": self._get_flight_info,
            "GetSchema": self._get_schema,
            "DoGet": self._do_get,
            "DoPut": self._do_put,
            "DoExchange": self._do_exchange,
            "DoAction": self._do_action,
            "ListActions": self._list_actions,
        }
        return {
            name: Method(partial(self._guarded, name, serve), is_watch=name == "DoExchange")
            for name, serve in handlers.items()
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
                await serve(Conversation(call, place, self.settings, self.pool))
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

    # ── discovery ────────────────────────────────────────────────────────────────────────────────────

    async def _list_flights(self, talk: Conversation) -> None:
        if valid(decode_bytes(await talk.request())):
            raise FlightRefusedError(StatusCode.INVALID_ARGUMENT, "ListFlights takes no expression here")
        offers = (offer for store in self.stores for offer in store.offers())
        while (offer := await talk.run(partial(_next_offer, offers))) is not None:
            await talk.send([[_info(offer)]])

    async def _get_flight_info(self, talk: Conversation) -> None:
        descriptor = valid(decode_descriptor(await talk.request()))
        offer = await talk.run(partial(self._offer, descriptor))
        await talk.send([[_info(offer)]])

    async def _get_schema(self, talk: Conversation) -> None:
        descriptor = valid(decode_descriptor(await talk.request()))
        offer = await talk.run(partial(self._offer, descriptor))
        await talk.send([[encode_bytes(offer.schema.serialize().to_pybytes())]])

    def _offer(self, descriptor: Descriptor) -> Offer:
        command = command_of(descriptor)
        store = self.stores.named(command)
        return Offer(descriptor, command.ticket(store.name), store.scan(command).schema)

    async def _list_actions(self, talk: Conversation) -> None:
        await talk.request()
        await talk.send([[encode_action_type(name, purpose)] for name, (purpose, _) in self._actions().items()])

    async def _do_action(self, talk: Conversation) -> None:
        kind, body = valid(decode_action(await talk.request()))
        actions = self._actions()
        if kind not in actions:
            raise FlightRefusedError(
                StatusCode.UNIMPLEMENTED, f"no action {kind[:64]!r} here; there are {', '.join(actions)}"
            )
        _, run = actions[kind]
        found = await talk.run(partial(run, command_of(body or b"{}")))
        await talk.send([[encode_bytes(encode_metadata(**found))]])

    def _actions(self) -> dict[str, tuple[str, Callable[[Command], dict[str, Any]]]]:
        return {
            "maintain": (
                "make durable what was answered, and delete what all subscribers have finished",
                self._maintain,
            ),
            "last_sequence": ("return the number of the last message of a producer", self._last_sequence),
        }

    def _maintain(self, command: Command) -> dict[str, Any]:
        command.only("maintain")
        for one in self.stores if command.store is None else [self.stores.named(command)]:
            one.maintain()
        return {}

    def _last_sequence(self, command: Command) -> dict[str, Any]:
        return {"last_sequence": producer_of(self._topics(command), command).last_sequence}

    def _topics(self, command: Command) -> ServedTopics:
        served = self.stores.named(command)
        if not isinstance(served, ServedTopics):
            raise UsageError(f"{served.name} is a store and has no topics; serve topics with --topics")
        return served

    # ── streams ──────────────────────────────────────────────────────────────────────────────────────

    async def _do_get(self, talk: Conversation) -> None:
        ticket = valid(decode_bytes(await talk.request()))
        messages = await talk.run(partial(self._scan, ticket))
        # The next messages are prepared while these are sent. A view is decoded in groups of many messages.
        ahead: asyncio.Queue[list[Parts] | Exception] = asyncio.Queue(_GROUPS_AHEAD)
        group_bytes = _GROUP_MESSAGES * self.settings.message_bytes
        reading = asyncio.create_task(_read_ahead(talk, messages, group_bytes, ahead))
        try:
            while found := await ahead.get():
                if isinstance(found, Exception):
                    raise found
                await talk.send(found)
        finally:
            reading.cancel()

    def _scan(self, ticket: bytes) -> Iterator[Parts]:
        command = command_of(ticket)
        scan = self.stores.named(command).scan(command)
        return messages_of(scan.schema, scan, self.settings.message_bytes)

    async def _do_put(self, talk: Conversation) -> None:
        first = await talk.first()
        command = command_of(first.descriptor or Descriptor())
        put, key, sync = await talk.run(partial(self._put, command))
        syncs = self._syncs.setdefault(key, GroupSync(sync, self.pool))
        durable = syncs.wait if self.settings.ack == "synced" else None
        await acknowledge_puts(talk, put, first, durable, self._storing)

    def _put(self, command: Command) -> tuple[BatchPut, str, Callable[[], None]]:
        """Return where a stream is stored, and what makes it durable, with a name for that."""
        shared = (self._limits, self._budget, self.settings.capacity_wait_s)
        served = self.stores.named(command)
        if isinstance(served, ServedStore):
            return StorePut(served, command, *shared), served.name, served.writable().sync
        put = TopicPut(served, command, *shared)
        return put, f"{served.name}/{put.topic}", put.flush

    async def _do_exchange(self, talk: Conversation) -> None:
        first = await talk.first()
        command = command_of(first.descriptor or Descriptor())
        subscription = await talk.run(partial(self._subscription, command, talk.call.peer()))
        follow = command.follow is not False
        await deliver(talk, subscription, self._waiting, in_flight=command.in_flight, follow=follow)

    def _subscription(self, command: Command, peer: str) -> Subscription:
        size = self.settings.message_bytes
        served = self.stores.named(command)
        if isinstance(served, ServedStore):
            return StoreSubscription(served, command, size)
        # A client may have several streams, and each is a consumer.
        return TopicSubscription(served, command, f"{peer} {next(self._consumers)}", size, self._waiting)


async def _read_ahead(
    talk: Conversation, messages: Iterator[Parts], size: int, ahead: asyncio.Queue[list[Parts] | Exception]
) -> None:
    """Put *messages* into *ahead*, in lists of about *size* bytes; an empty list or an error is the last item."""
    found: list[Parts] | Exception = [[]]
    while found and not isinstance(found, Exception):
        try:
            found = await talk.run(partial(next_messages, messages, size))
        except Exception as error:  # noqa: BLE001 - raised in the task of the call
            found = error
        await ahead.put(found)


def _next_offer(offers: Iterator[Offer]) -> Offer | None:
    return next(offers, None)


def _info(offer: Offer) -> bytes:
    return encode_flight_info(offer.schema.serialize().to_pybytes(), offer.descriptor, [offer.ticket])
