"""The stores and directories of topics that a Flight server offers, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quiver.errors import UsageError
from quiver.receivers.flight.command import Command
from quiver.receivers.flight.served_topics import ServedTopics
from quiver.receivers.flight.sources import ServedStore
from quiver.receivers.flight.status import FlightRefusedError, StatusCode

__all__ = ["Served", "ServedByName"]

Served = ServedStore | ServedTopics


class ServedByName:
    """
    The stores and topics of a server by name.

    Raises:
        UsageError: there are none, or two have the same name.
    """

    def __init__(self, served: Sequence[Served]) -> None:
        self._served = {one.name: one for one in served}
        if not served or len(self._served) < len(served):
            raise UsageError("serve at least one store, each under a name of its own, as in NAME=DIR")

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def named(self, command: Command) -> Served:
        """
        Return what *command* names, or the only one that it can mean.

        Raises:
            FlightRefusedError: there is nothing of this name.
            UsageError: the command names none, and there are several.
        """
        if command.store is not None:
            found = self._served.get(command.store)
            if found is None:
                raise FlightRefusedError(
                    StatusCode.NOT_FOUND, f"no store {command.store[:64]!r} here; there are {', '.join(self._served)}"
                )
            return found
        kind = ServedStore if command.topic is None else ServedTopics
        meant = [one for one in self if isinstance(one, kind)]
        if not meant and command.topic is not None:
            raise UsageError("this server has no topics: start it with --topics DIR")
        meant = meant or list(self)
        if len(meant) > 1:
            raise UsageError(f"the command needs a store: one of {', '.join(one.name for one in meant)}")
        return meant[0]
