"""
A streaming query as a subscriber of a fleet: the part that runs in the query's source process.

When Spark calls each method, and what is durable then:

1. `initial`    this query owns the subscriber, and a batch 0 exists, which has no objects
2. `latest`     *start* is the end of a batch whose `commits/` file is written: its positions are acknowledged. Then the
                next batch is created, unless it exists already: a query that died had planned it
3. `plan`       changes nothing: a replayed batch has the same objects
4. `commit`     the end of a committed batch, one batch late and not at all for the last: acknowledged as well

At most one batch exists that is not acknowledged. An offset is the number of a batch and the checksum of its object::

    {"v": 3, "fleet": "lake", "g": 12, "crc32": "a1b2c3d4"}

Tasks record the segments that they reject (`rejected.py`) instead of failing. If a loss stops its node, the position of
that node is acknowledged only up to the rejected segment, so that the node keeps it.

A node that was retired has neither a record nor objects. It leaves the batches, but its acknowledged position stays: if
it comes back, it continues there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import DataLossError, UsageError
from quiver.objects.port import ObjectTier
from quiver.observe import InMemoryObserver, Observer
from quiver.store.format.fleet.acks import AckedNode
from quiver.store.format.fleet.names import NODES_FOLDER, InboxObject, key_of, offsets_key, parse_node_key
from quiver.store.format.fleet.offsets import BatchNode, advanced
from quiver.store.format.fleet.rejected import RejectedSegment
from quiver.store.reading.fleet.batches import Batches, StoredBatch
from quiver.store.reading.fleet.chains import ChainReader, Loss, NodeChain, Stop
from quiver.store.reading.fleet.inbox import NODE_OBJECTS_MAX, Inbox, list_inbox
from quiver.store.reading.fleet.options import FleetOptions
from quiver.store.reading.fleet.owner import FleetOwner, read_owner
from quiver.store.reading.fleet.planning import share
from quiver.store.reading.fleet.positions import Positions, PositionsWriter, read_positions
from quiver.store.reading.fleet.rejected import list_rejected
from quiver.store.reading.partitions import BundleRange, pack

__all__ = ["FLEET_OFFSET_VERSION", "FleetSegment", "FleetSubscriber", "pack_segments"]

FLEET_OFFSET_VERSION = 3

_SMALL_OBJECTS = 4_000
"""Up to this many objects, one listing of everything costs less than one for each shard."""

_RETIRED_EVERY = 100
"""Retired nodes are looked for when a query starts, and after this many batches."""

_LISTED_OBJECTS_MAX = 2_000_000
_NODE_OBJECTS_MIN = 100


@dataclass(frozen=True, slots=True)
class FleetSegment:
    """
    One segment that a task reads.

    Attributes:
        generation: of the batch; 0 in a batch read.
        identity: of the node.
        found: the object.
    """

    generation: int
    identity: str
    found: InboxObject


def pack_segments(
    segments: Sequence[FleetSegment], options: FleetOptions, *, parallelism: int
) -> list[tuple[FleetSegment, ...]]:
    """Return the segments of each task, about equally by bytes and in order."""
    by_key = {key_of(one.identity, one.found): one for one in segments}
    ranges = [BundleRange(one.found.last, key, 0, 1, one.found.size_bytes) for key, one in by_key.items()]
    packed = pack(
        ranges,
        parallelism=parallelism,
        partitions_min=options.partitions_min,
        partition_bytes_min=options.partition_bytes_min,
    )
    return [tuple(by_key[one.path] for one in task) for task in packed]


def _stop_at(rejected: RejectedSegment) -> Stop:
    return Stop(rejected.identity, rejected.segment, f"segment {rejected.segment} was rejected: {rejected.reason}")


@dataclass(slots=True)
class _Owned:
    """
    The state of a query that has become the owner of its subscriber.

    `positions` are those of all nodes in its batches, now or earlier, by identity. Everything before is committed.
    """

    owner: FleetOwner
    batches: Batches
    writer: PositionsWriter
    committed: StoredBatch
    positions: dict[str, AckedNode]


class FleetSubscriber:
    """
    The position of one query in one fleet. Not thread-safe: Spark never makes concurrent calls.

    Args:
        tier: the objects of the fleet.
        options: of the load; `subscriber` must be set.
        parallelism: the number of tasks that run at the same time.
        name: of this query, for people who find it in the owner's record.
        clock: limits how often the bucket is listed.
        observer: gets the counts and events of losses.

    Raises:
        UsageError: the name of the subscriber is missing.
    """

    def __init__(
        self,
        tier: ObjectTier,
        options: FleetOptions,
        *,
        parallelism: int,
        name: str,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        if options.subscriber is None:
            raise UsageError(
                "a streaming query is a subscriber of the fleet: give the name that the nodes have in "
                'cold.fleet.subscribers: .option("subscriber", "lake")'
            )
        self._tier = tier
        self._options = options
        self._subscriber = options.subscriber
        self._parallelism = parallelism
        self._name = name
        self._clock = clock
        self._observer = observer if observer is not None else InMemoryObserver()
        self._chains = ChainReader(tier, stops_at_loss=options.fail_on_data_loss, tolerated=options.tolerated)
        self._owned: _Owned | None = None
        self._inbox: Inbox | None = None
        self._listed_s = 0.0
        self._is_frozen = False
        self._planned_to_end: int | None = None
        self._held: dict[str, AckedNode] = {}
        self._stops: dict[str, Stop] = {}
        self._waiting = (0, 0)
        self._retired_due = 0

    # ── what Spark calls ─────────────────────────────────────────────────────────────────────────────

    def initial(self) -> dict[str, Any]:
        """
        Return the position at which a query without a checkpoint starts; batch 0 exists durably on return.

        `startingOffsets` applies only to a new subscriber. An existing one continues at its position, even with a new
        checkpoint.

        Raises:
            FencedError: another query of this subscriber has started since.
            CorruptionError: the record of the owner, or a batch, is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        return self._offset(self._own().committed)

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Acknowledge everything before *start* and return the end of the next batch, or *start* without new data.

        Raises:
            DataLossError: the checkpoint is older than the acknowledged positions, or belongs to another fleet.
            FencedError: another query of this subscriber has started since.
            ObjectsUnavailableError: the object store does not answer.
        """
        base = self._confirmed(start)
        following = self._existing(base) or self._create_next(base, unlimited=unlimited)
        return dict(start) if following is None else self._offset(following)

    def commit(self, end: Mapping[str, Any]) -> None:
        """
        Acknowledge everything before *end*, durably.

        Raises:
            DataLossError, FencedError, ObjectsUnavailableError: as `latest`.
        """
        self._confirmed(end)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[FleetSegment, ...]]:
        """
        Return the segments of each task of one batch. The same offsets always give the same segments.

        Raises:
            DataLossError: the batch does not exist any more, or belongs to another fleet.
            FencedError: another query of this subscriber has started since.
        """
        owned = self._own()
        owned.owner.check()
        first, last = self._parse(start)[0], self._find(end).generation
        segments = []
        for generation in range(max(first, owned.committed.generation) + 1, last + 1):
            batch = owned.batches.find(generation)
            if batch is None:
                raise self._missing(generation)
            segments += [
                FleetSegment(generation, node.after.identity, one)
                for node in batch.moved
                for one in node.objects
                if not one.is_gone
            ]
        return pack_segments(segments, self._options, parallelism=self._parallelism)

    def epoch_of(self, end: Mapping[str, Any]) -> int:
        """Return the epoch of the query that created the batch which ends at *end*; later batches have no lower one."""
        return self._find(end).offsets.epoch

    def available_now(self) -> None:
        """From now on, return no segments that are not yet in the bucket."""
        owned = self._own()
        self._list(owned.committed)
        self._is_frozen = True

    def tail(self) -> dict[str, Any] | None:
        """Return what waits in the bucket, for progress reports; None before the first other call."""
        if self._owned is None:
            return None
        objects, size_bytes = self._waiting
        return {
            "g": self._owned.batches.last,
            "waiting_segments": objects,
            "waiting_bytes": size_bytes,
            "stopped_nodes": len(self._stops),
        }

    def release(self) -> None:
        """Close the connection to the bucket."""
        self._tier.close()

    # ── ownership, and where to continue ─────────────────────────────────────────────────────────────

    def _own(self) -> _Owned:
        """Become the owner, once, and write all positions again with the new epoch."""
        if self._owned is not None:
            return self._owned
        tier, subscriber = self._tier, self._subscriber
        above = 0
        if read_owner(tier, subscriber)[1] is None:
            # A lost record must not start again with an epoch that nodes have seen already.
            last = self._last(Batches(tier, subscriber))
            above = max(read_positions(tier, subscriber).epoch, 0 if last is None else last.offsets.epoch)
        owner = FleetOwner.take(tier, subscriber, name=self._name, above=above)
        # Read after that: an earlier query may have written until now.
        found, batches = read_positions(tier, subscriber), Batches(tier, subscriber)
        for problem in found.problems.values():
            self._observer.event(
                "quiver.fleet.positions_damaged", level=logging.WARNING, subscriber=subscriber, problem=str(problem)
            )
        last = self._last(batches)
        if last is None:
            committed = batches.create(owner.epoch, 0, self._first_nodes(found))
        else:
            committed = self._find_committed(batches, last, found)
        writer = PositionsWriter(tier, subscriber, owner.epoch, found)
        self._hold_rejected(found, committed)
        owned = _Owned(owner, batches, writer, committed, dict(found.nodes))
        self._acknowledge(owned, committed)
        self._observer.event(
            "quiver.fleet.owner", subscriber=subscriber, epoch=owner.epoch, generation=committed.generation
        )
        self._owned = owned
        return owned

    @staticmethod
    def _last(batches: Batches) -> StoredBatch | None:
        return None if batches.last is None else batches.find(batches.last)

    def _first_nodes(self, found: Positions) -> list[BatchNode]:
        """Return the nodes of batch 0: where nothing is acknowledged, it begins as `startingOffsets` demands."""
        if found.nodes or self._options.starting == "earliest":
            return [BatchNode(node) for node in found.nodes.values()]
        nodes = []
        for identity, objects in list_inbox(self._tier).items():
            start = self._chains.start(identity, objects)
            chain = self._chains.read(identity, objects, start)
            after = advanced(AckedNode(identity, start), chain.objects).after
            nodes.append(BatchNode(after))
        return nodes

    @staticmethod
    def _find_committed(batches: Batches, last: StoredBatch, found: Positions) -> StoredBatch:
        """Return the last batch of which anything was acknowledged: at most one batch is later."""
        before = None if last.generation == batches.first else batches.find(last.generation - 1)
        if before is None:
            return last
        positions = before.positions
        for node in last.moved:
            acked, start = found.nodes.get(node.after.identity), positions.get(node.after.identity)
            # A node that was retired and came back has a position before it is in a batch again.
            first = node.objects[0].last if start is None else start.position
            if acked is not None and acked.position > first:
                return last
        return before

    def _hold_rejected(self, found: Positions, committed: StoredBatch) -> None:
        """Stop the nodes again that rejected segments have stopped before."""
        if not self._options.fail_on_data_loss:
            return
        for generation, one in list_rejected(self._tier, self._subscriber):
            acked = found.nodes.get(one.identity)
            if acked is None or acked.position > one.segment or generation > committed.generation:
                continue
            if self._chains.is_strict(one.identity):
                self._held.setdefault(one.identity, acked)
                self._stop(_stop_at(one))

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────

    def _offset(self, batch: StoredBatch) -> dict[str, Any]:
        # Spark compares the text, so the order of the keys is part of the format.
        return {
            "v": FLEET_OFFSET_VERSION,
            "fleet": self._subscriber,
            "g": batch.generation,
            "crc32": f"{batch.checksum:08x}",
        }

    def _parse(self, offset: Mapping[str, Any]) -> tuple[int, str]:
        generation, checksum = offset.get("g"), offset.get("crc32")
        if offset.get("v") != FLEET_OFFSET_VERSION or not isinstance(generation, int) or not isinstance(checksum, str):
            raise UsageError(f"{str(dict(offset))[:120]} is not an offset of quiver-fleet; is this its checkpoint?")
        if offset.get("fleet") != self._subscriber:
            raise UsageError(
                f"the checkpoint belongs to subscriber {offset.get('fleet')}, not to {self._subscriber}; use another"
            )
        return generation, checksum

    def _find(self, offset: Mapping[str, Any]) -> StoredBatch:
        generation, checksum = self._parse(offset)
        batch = self._own().batches.find(generation)
        if batch is None:
            raise self._missing(generation)
        if f"{batch.checksum:08x}" != checksum:
            raise DataLossError(
                offsets_key(self._subscriber, generation),
                0,
                "the checkpoint was made for another batch with this number, in another fleet or before the batches "
                "were removed: start with a new checkpoint",
            )
        return batch

    def _missing(self, generation: int) -> DataLossError:
        return DataLossError(
            offsets_key(self._subscriber, generation),
            0,
            "the batch does not exist: it is too old, or the checkpoint belongs to another fleet; start with a new "
            "checkpoint",
        )

    def _confirmed(self, offset: Mapping[str, Any]) -> StoredBatch:
        """Acknowledge the batch that ends at *offset*, durably, and return it."""
        owned = self._own()
        if self._parse(offset)[0] < owned.committed.generation:
            reason = (
                f"the checkpoint is older than the positions: it is at batch {offset['g']}, but {self._subscriber} has "
                f"confirmed batch {owned.committed.generation}, and nodes may have deleted its data; start with a new "
                "checkpoint, or set failOnDataLoss=false to continue from there"
            )
            if self._options.fail_on_data_loss:
                raise DataLossError(offsets_key(self._subscriber, offset["g"]), 0, reason)
            self._observer.event("quiver.fleet.checkpoint_behind", level=logging.WARNING, problem=reason)
            return owned.committed
        batch = self._find(offset)
        if batch.generation > owned.committed.generation:
            owned.owner.check()
            self._account(owned, batch)
            self._acknowledge(owned, batch)
            owned.committed = batch
            owned.batches.remove_old(batch.generation)
        return batch

    # ── acknowledgement ──────────────────────────────────────────────────────────────────────────────

    def _acknowledge(self, owned: _Owned, batch: StoredBatch) -> None:
        positions = owned.positions | batch.positions
        owned.writer.write(self._held.get(identity, node) for identity, node in positions.items())
        owned.positions = positions

    def _account(self, owned: _Owned, batch: StoredBatch) -> None:
        """Count what was lost in a committed batch, and stop the nodes whose segments its tasks rejected."""
        before = owned.positions
        for node in batch.moved:
            start = before.get(node.after.identity)
            position = node.objects[0].first if start is None else start.position
            for one in node.objects:
                loss = self._chains.loss(node.after.identity, one, position)
                position = one.last + 1
                if loss is not None:
                    self._count_loss(loss)
        nodes = {node.after.identity: node for node in batch.moved}
        for _, rejected in list_rejected(self._tier, self._subscriber, batch.generation):
            self._report_rejected(rejected)
            of = nodes.get(rejected.identity)
            if of is None or rejected.identity in self._held or not self._chains.is_strict(rejected.identity):
                continue
            intact = [found for found in of.objects if found.last < rejected.segment]
            begin = before.get(rejected.identity) or AckedNode(rejected.identity, of.objects[0].first)
            self._held[rejected.identity] = advanced(begin, intact).after
            self._stop(_stop_at(rejected))

    def _report_rejected(self, rejected: RejectedSegment) -> None:
        self._observer.count("quiver.fleet.rejected_segments_total", subscriber=self._subscriber, cause=rejected.cause)
        self._observer.event(
            "quiver.fleet.rejected",
            level=logging.ERROR,
            node=rejected.identity,
            segment=rejected.segment,
            cause=rejected.cause,
            problem=rejected.reason,
        )

    def _count_loss(self, loss: Loss) -> None:
        segments, name = loss.last - loss.first + 1, self._subscriber
        self._observer.count("quiver.fleet.lost_segments_total", segments, subscriber=name)
        self._observer.count("quiver.fleet.lost_bundles_total", loss.bundles or 0, subscriber=name)
        self._observer.event("quiver.fleet.lost", level=logging.WARNING, node=loss.identity, problem=str(loss))

    def _stop(self, stop: Stop) -> None:
        if self._stops.get(stop.identity) == stop:
            return
        self._stops[stop.identity] = stop
        self._observer.count("quiver.fleet.stopped_nodes_total", subscriber=self._subscriber)
        self._observer.event(
            "quiver.fleet.node_stopped",
            level=logging.ERROR,
            node=stop.identity,
            segment=stop.number,
            problem=stop.reason,
        )

    # ── the next batch ───────────────────────────────────────────────────────────────────────────────

    def _existing(self, base: StoredBatch) -> StoredBatch | None:
        """Return the batch after *base* if it was created already, by this query or by an earlier one."""
        owned = self._own()
        if owned.batches.last is None or owned.batches.last <= base.generation:
            return None
        batch = owned.batches.find(base.generation + 1)
        if batch is None:
            raise self._missing(base.generation + 1)
        if batch.offsets.epoch > owned.owner.epoch:
            owned.owner.check()
        return batch

    def _create_next(self, base: StoredBatch, *, unlimited: bool) -> StoredBatch | None:
        owned = self._own()
        inbox = self._current_inbox(base)
        if self._planned_to_end == base.generation:
            return None
        before = base.positions
        self._leave_out_retired(base, before, inbox)
        chains = {}
        waiting_bytes = 0
        for identity, objects in inbox.items():
            if identity in self._held:
                continue
            node = before.get(identity)
            if node is None:
                found = owned.positions.get(identity)
                node = before[identity] = found or AckedNode(identity, self._chains.start(identity, objects))
            chain = self._read_chain(identity, objects, node.position)
            if chain.objects:
                chains[identity] = chain.objects
                waiting_bytes += sum(one.size_bytes for one in chain.objects)
        self._waiting = (sum(map(len, chains.values())), waiting_bytes)
        bytes_max = None if unlimited else self._options.batch_bytes_max
        shared = share(chains, bytes_max=bytes_max, turn=base.generation)
        if not shared:
            self._planned_to_end = base.generation
            return None
        owned.owner.check()
        nodes = [advanced(node, shared.get(identity, ())) for identity, node in before.items()]
        batch = owned.batches.create(owned.owner.epoch, base.generation + 1, nodes)
        if batch.offsets.epoch != owned.owner.epoch:
            owned.owner.check()  # another query created it: this one has lost its subscriber
        return batch

    def _leave_out_retired(self, base: StoredBatch, positions: dict[str, AckedNode], inbox: Inbox) -> None:
        """Remove the nodes from *positions* that have no objects and no record, if it is time to look for them."""
        if base.generation < self._retired_due:
            return
        without = [one for one in positions if one not in inbox and one not in self._held]
        if without:
            self._retired_due = base.generation + _RETIRED_EVERY
            recorded = {parse_node_key(info.key) for info in self._tier.list_below(NODES_FOLDER)}
            for identity in without:
                if identity not in recorded:
                    del positions[identity]

    def _read_chain(self, identity: str, objects: Sequence[InboxObject], position: int) -> NodeChain:
        if all(one.last < position for one in objects):
            return NodeChain(())
        chain = self._chains.read(identity, objects, position)
        if chain.stop is not None:
            self._stop(chain.stop)
        else:
            self._stops.pop(identity, None)
        return chain

    def _current_inbox(self, base: StoredBatch) -> Inbox:
        is_due = self._clock.monotonic() - self._listed_s >= self._options.list_interval_s
        if self._inbox is not None and (self._is_frozen or not is_due):
            return self._inbox
        self._own().owner.check()
        return self._list(base)

    def _list(self, base: StoredBatch) -> Inbox:
        self._listed_s = self._clock.monotonic()
        positions = {node.identity: node.position for node in (self._own().positions | base.positions).values()}
        share_of_node = _LISTED_OBJECTS_MAX // max(len(positions), 1)
        self._inbox = list_inbox(
            self._tier,
            positions=positions,
            objects_max=min(max(share_of_node, _NODE_OBJECTS_MIN), NODE_OBJECTS_MAX),
            is_small=self._inbox is not None and sum(map(len, self._inbox.values())) <= _SMALL_OBJECTS,
        )
        self._planned_to_end = None
        return self._inbox
