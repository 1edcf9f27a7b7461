"""A subscription over Flight: what is delivered to one client, and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from quiver.errors import BundleUnavailableError, QuiverError, UsageError
from quiver.receivers.flight.answers import Answer, encode_metadata
from quiver.receivers.flight.batches import BatchEncoder, Parts
from quiver.receivers.flight.bundles import BUNDLE_SCHEMA, rows_of_bundle
from quiver.receivers.flight.command import Command, time_of
from quiver.receivers.flight.sources import ServedStore

__all__ = ["Delivered", "StoreSubscription", "Subscription"]

_EMPTY = pa.RecordBatch.from_pylist([], BUNDLE_SCHEMA)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Claims by their addresses for the client, and the messages that deliver them."""

    claims: Mapping[str, Any]
    messages: list[Parts]


class Subscription(Protocol):
    """
    The source of deliveries to one client. Its methods block, and are called in threads, except `give_back`.

    Attributes:
        in_flight: the maximum number of unanswered deliveries, unless the client chooses another one.
    """

    in_flight: int

    def schema(self) -> Parts:
        """Return the first message of the stream."""

    def take(self, count: int, timeout: float) -> list[Delivered]:
        """Claim up to *count* deliveries; wait up to *timeout* seconds for the first one."""

    def settle(self, answer: Answer, claims: dict[str, Any]) -> None:
        """Apply *answer* to *claims*, which has a claim for each of its addresses."""

    def give_back(self, claims: Iterable[Any]) -> None:
        """Return *claims* without an answer: they are delivered again."""


class StoreSubscription:
    """
    A subscriber of a store, for one client. Several clients may share a subscriber: each bundle is delivered to one.

    Args:
        served: the store.
        command: names the subscriber.
        bytes_max: how many bytes of bundles are read at once.

    Raises:
        UsageError: the command is invalid.
        FlightRefusedError: the store is served for reading only.
    """

    in_flight = 16

    def __init__(self, served: ServedStore, command: Command, bytes_max: int) -> None:
        command.only("a subscription", "subscriber", "start", "follow", "in_flight")
        if command.subscriber is None:
            raise UsageError('a subscription needs a name, as in {"subscriber": "exporter"}')
        start = command.start
        start_at: Any = time_of(start) if isinstance(start, int) else start or "latest"
        self._subscriber = served.writable().register(command.subscriber, start_at)
        self._adapter = served.adapter
        self._bytes_max = bytes_max
        self._encoder = BatchEncoder(BUNDLE_SCHEMA)

    def schema(self) -> Parts:
        """Return the first message of the stream."""
        return self._encoder.schema()

    def take(self, count: int, timeout: float) -> list[Delivered]:
        """
        Claim up to *count* bundles, fewer if they are large; wait up to *timeout* seconds for the first one.

        A bundle that cannot be read is delivered without rows, and with the reason: the client decides about it.

        Raises:
            QuiverError, OSError: see `Subscriber.next_bundle`.
        """
        found: list[Delivered] = []
        size = 0
        while len(found) < count and size < self._bytes_max:
            handle = self._subscriber.next_bundle(0.0 if found else timeout)
            if handle is None:
                break
            try:
                bundle = handle.bundle
            except (QuiverError, OSError) as unreadable:
                found += self._unreadable(handle, str(unreadable))
                continue
            size += bundle.nbytes
            rows = rows_of_bundle(bundle, self._adapter)
            found.append(self._delivered(handle, rows, ingested_at=bundle.ingested_at_ns))
        return found

    def _unreadable(self, handle: Any, reason: str) -> list[Delivered]:
        if handle.outcome is not None:
            try:
                # The failed read ended the claim. It is held again, so that it is not delivered in a loop.
                core = getattr(handle, "core", None)
                among = {} if core is None else {"core": core}
                handle = self._subscriber.claim(handle.ref, **among)
            except BundleUnavailableError:
                return []
        return [self._delivered(handle, _EMPTY, error=reason)]

    def _delivered(self, handle: Any, rows: pa.RecordBatch, **metadata: Any) -> Delivered:
        core = getattr(handle, "core", None)  # each core numbers its own segments
        address = str(handle.ref) if core is None else f"{core}/{handle.ref}"
        return Delivered({address: handle}, self._encoder.batch(rows, encode_metadata(address=address, **metadata)))

    def settle(self, answer: Answer, claims: dict[str, Any]) -> None:
        """
        Apply *answer*. The next maintenance pass makes it durable.

        Raises:
            StoreClosedError: the store is closed; the bundles will be delivered again.
        """
        self._subscriber.ack_all([claims[address] for address in answer.ack])
        for address in answer.reject:
            claims[address].reject(answer.reason)
        for address in answer.nack:
            claims[address].nack(answer.delay_s)

    def give_back(self, claims: Iterable[Any]) -> None:
        """Return *claims* without an answer: they are delivered again."""
        for claim in claims:
            with claim:
                pass
