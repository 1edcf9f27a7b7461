"""A store that a Flight server offers. It opens nothing for writing itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from quiver.bundle import OTAP, QWP_SLOT, Adapter, Bundle
from quiver.errors import UsageError
from quiver.otap.stored import slots_of_view
from quiver.receivers.flight.command import Command, command_of, encode_command
from quiver.receivers.flight.messages import Descriptor
from quiver.receivers.flight.status import FlightRefusedError, StatusCode
from quiver.store.reading.read import read

__all__ = ["Offer", "ReadableStore", "ServedStore", "WritableStore", "served_store", "writable"]

_T = TypeVar("_T")


class ReadableStore(Protocol):
    """The part of a reader that the server needs; `quiver.store.reading.read.StoreReader` implements it."""

    def slots(self) -> list[int]:
        """Return the slots that have data."""

    def tables(self) -> list[str]:
        """Return the names of the tables that were received over QWP."""

    def scan(
        self,
        slot: int | str | None = None,
        columns: Sequence[str] | None = None,
        start: Any = None,
        end: Any = None,
        *,
        by: Any = "ingested",
        table: str | None = None,
        view: str | None = None,
    ) -> Any:
        """Return the rows of one slot or view."""


class WritableStore(Protocol):
    """The part of an open store that the server needs; `quiver.Store` and `MultiCoreStore` implement it."""

    def ingest(self, bundle: Bundle, *, durable: bool = False, timeout: float | None = None) -> Any:
        """Store *bundle*."""

    def sync(self) -> None:
        """Make everything ingested so far durable."""

    def maintain(self) -> Any:
        """Run a maintenance pass."""

    def register(self, subscriber_id: str, start: Any = "latest") -> Any:
        """Register a subscriber."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A stream that can be read: its name, its ticket, and its schema."""

    descriptor: Descriptor
    ticket: bytes
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ServedStore:
    """
    A store that is offered.

    Attributes:
        name: its name for clients.
        reader: reads it, and raises at damage.
        lenient_reader: reads it, and leaves out what is damaged.
        views: the views, each with the slots that it is decoded from.
        store: the open store, or None if clients may only read.
        adapter: the slot table.
    """

    name: str
    reader: ReadableStore
    lenient_reader: ReadableStore
    views: Mapping[str, Sequence[int]]
    store: WritableStore | None = None
    adapter: Adapter = OTAP

    def scan(self, command: Command) -> Any:
        """
        Plan the scan of *command*.

        Raises:
            UsageError: the command is invalid; see `StoreReader.scan`.
            CorruptionError: a file is damaged, and the command does not say that it is to be left out.
        """
        command.only("a scan", "slot", "view", "table", "columns", "start", "end", "by", "strict")
        if isinstance(command.start, str):
            raise UsageError("start of a scan must be a time")
        given = [name for name in ("slot", "view", "table") if getattr(command, name) is not None]
        if len(given) != 1:
            raise UsageError('give one of slot, view and table, as in {"version": 1, "slot": "logs"}')
        reader = self.lenient_reader if command.strict is False else self.reader
        return reader.scan(
            QWP_SLOT if command.table is not None else command.slot,
            command.columns,
            command.start,
            command.end,
            by=command.by or "ingested",
            table=command.table,
            view=command.view,
        )

    def writable(self) -> WritableStore:
        """
        Return the open store.

        Raises:
            FlightRefusedError: clients may only read.
        """
        return writable(self.store, self.name)

    def maintain(self) -> None:
        """
        Make everything durable that was stored, and everything that was answered.

        Raises:
            FlightRefusedError: clients may only read.
            StoreFailedError: the disk failed.
        """
        self.writable().maintain()

    def offers(self) -> Iterator[Offer]:
        """
        Yield a stream for each slot, table and view that has data.

        Raises:
            CorruptionError: a file is damaged.
        """
        slots = self.reader.slots()
        for slot in slots:
            name = self.adapter.slots.get(slot, str(slot))
            yield self._offer(Descriptor(path=(self.name, name)), slot=name)
        for table in self.reader.tables() if QWP_SLOT in slots else ():
            yield self._offer(None, table=table)
        for view, sources in self.views.items():
            if not set(sources).isdisjoint(slots):
                yield self._offer(None, view=view)

    def _offer(self, descriptor: Descriptor | None, **what: str) -> Offer:
        ticket = encode_command({"store": self.name, **what})
        schema = self.scan(command_of(ticket)).schema
        return Offer(descriptor or Descriptor(command=ticket), ticket, schema)


def writable(store: _T | None, name: str) -> _T:
    """
    Return *store*, the open store or topics that clients know as *name*.

    Raises:
        FlightRefusedError: there is none: clients may only read.
    """
    if store is None:
        raise FlightRefusedError(
            StatusCode.FAILED_PRECONDITION, f"{name} is served for reading only; ask its writer to serve it"
        )
    return store


def served_store(
    directory: str | os.PathLike[str],
    store: WritableStore | None = None,
    *,
    name: str | None = None,
    adapter: Adapter = OTAP,
) -> ServedStore:
    """
    Return the store in *directory* for a server.

    Args:
        directory: the directory of the store.
        store: the store, if this process has it open; without it, clients may only read.
        name: its name for clients; by default that of the directory.
        adapter: the slot table.

    Raises:
        UsageError: the directory contains no store.
        OSError: the directory cannot be read.
    """
    return ServedStore(
        Path(directory).resolve().name if name is None else name,
        read(directory, adapter=adapter, strict=True),
        read(directory, adapter=adapter),
        {view: slots_of_view(view) for view in ("logs", "spans", "metrics")},
        store,
        adapter,
    )
