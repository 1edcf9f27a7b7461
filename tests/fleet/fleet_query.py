"""A query over a fleet in the order of Spark's calls, with a checkpoint and a sink that outlive its process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fleet_rig import LAKE, numbers_in

from quiver.errors import CorruptionError, DataLossError
from quiver.objects.location import ObjectLocation
from quiver.objects.port import ObjectTier
from quiver.observe import InMemoryObserver
from quiver.store.format.fleet.names import InboxObject, key_of
from quiver.store.reading.fleet.options import FleetOptions
from quiver.store.reading.fleet.rejected import reject
from quiver.store.reading.fleet.segments import open_segment
from quiver.store.reading.fleet.subscriber import FleetSegment, FleetSubscriber
from quiver.testing.clock import ManualClock


@dataclass
class Checkpoint:
    """The durable state of Spark and of the sink."""

    offsets: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0
    sink: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """The rows of each batch: node, and number of a bundle. A batch that is written again replaces itself."""

    def rows(self, identity: str | None = None) -> list[int]:
        """The numbers in the sink, in order; of all nodes or one."""
        return [number for _, rows in sorted(self.sink.items()) for node, number in rows if identity in {None, node}]


class FleetQuery:
    """One process of a query: it ends when an error is raised."""

    def __init__(
        self,
        tier: ObjectTier,
        checkpoint: Checkpoint | None = None,
        *,
        subscriber: str = LAKE,
        clock: ManualClock | None = None,
        **options: object,
    ) -> None:
        self.tier = tier
        self.checkpoint = checkpoint or Checkpoint()
        self.observer = InMemoryObserver()
        self.clock = clock or ManualClock()
        self.subscriber = FleetSubscriber(
            tier,
            FleetOptions(ObjectLocation.from_url("/fleet"), subscriber=subscriber, **options),  # type: ignore[arg-type]
            parallelism=2,
            name="test",
            clock=self.clock,
            observer=self.observer,
        )
        self.is_running = False

    def run(self, batches: int = 1000) -> Checkpoint:
        """Process at most this many batches, until there are no more data."""
        kept, subscriber = self.checkpoint, self.subscriber
        if not self.is_running:
            self.is_running = True
            if not kept.offsets:
                self.first = subscriber.initial()
            elif len(kept.offsets) > kept.committed:
                self._process(kept.committed)  # replayed before anything else is asked
        for _ in range(batches):
            self.clock.advance(60)
            start = kept.offsets[-1] if kept.offsets else self.start_of(0)
            end = subscriber.latest(start, unlimited=False)
            if end == start:
                return kept
            kept.offsets.append(end)
            if len(kept.offsets) > 1:
                subscriber.commit(kept.offsets[-2])
            self._process(len(kept.offsets) - 1)
        return kept

    def start_of(self, number: int) -> dict[str, Any]:
        """The offset at which a batch starts."""
        return self.checkpoint.offsets[number - 1] if number else self.subscriber.initial()

    def _process(self, number: int) -> None:
        tasks = self.subscriber.plan(self.start_of(number), self.checkpoint.offsets[number])
        self.checkpoint.sink[number] = [row for task in tasks for row in self._read(task)]
        self.checkpoint.committed = number + 1

    def _read(self, task: Iterable[FleetSegment]) -> list[tuple[str, int]]:
        rows = []
        for one in task:
            try:
                open_segment(self.tier, one.identity, one.found)
                data = self.tier.get(key_of(one.identity, one.found), size_max=1 << 20)
                rows += [(one.identity, number) for number in numbers_in(data, one.found.last)]
            except DataLossError as error:
                reject(self.tier, LAKE, one.generation, one.identity, one.found, "missing", str(error))
            except CorruptionError as error:
                reject(self.tier, LAKE, one.generation, one.identity, one.found, "damaged", str(error))
        return rows

    @property
    def stops(self) -> dict[str, str]:
        """Why nodes were stopped."""
        return {stop.identity: stop.reason for stop in self.subscriber._stops.values()}


def damage(tier: ObjectTier, identity: str, found: InboxObject) -> None:
    """Flip a bit of an object."""
    key = key_of(identity, found)
    data = bytearray(tier.get(key, size_max=1 << 20))
    data[len(data) // 2] ^= 1
    tier.put(key, bytes(data))
