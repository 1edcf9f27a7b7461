"""
The batches of a fleet subscriber: generations 0, 1, 2, … Each is one object, which is created once and never replaced.

A batch that Spark replays therefore has the same objects, whichever process replays it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.errors import CorruptionError, ObjectExistsError, ObjectNotFoundError
from quiver.objects.port import ObjectTier
from quiver.primitives.scan import Frame, as_damage
from quiver.store.format.fleet.acks import AckedNode
from quiver.store.format.fleet.names import offsets_folder, offsets_key, parse_offsets_key
from quiver.store.format.fleet.offsets import (
    OFFSETS_BYTES_MAX,
    BatchNode,
    FleetOffsets,
    decode_offsets,
    encode_offsets,
)

__all__ = ["BATCHES_KEPT", "Batches", "StoredBatch"]

BATCHES_KEPT = 128
"""Spark keeps the offsets of 100 batches, which it may be rolled back to."""

_CACHED = 4
_REMOVED_EVERY = 16


@dataclass(frozen=True)
class StoredBatch:
    """
    One batch, as it is in the bucket.

    Attributes:
        offsets: its objects, and the positions after it.
        checksum: of the object: a checkpoint has it, too, so one of another fleet is recognized.
    """

    offsets: FleetOffsets
    checksum: int

    @property
    def generation(self) -> int:
        """Its number."""
        return self.offsets.generation

    @property
    def positions(self) -> dict[str, AckedNode]:
        """The positions after it, by identity."""
        return {node.after.identity: node.after for node in self.offsets.nodes}

    @property
    def moved(self) -> list[BatchNode]:
        """The nodes of which it has objects."""
        return [node for node in self.offsets.nodes if node.objects]


class Batches:
    """
    The batches of *subscriber* in *tier*. Not thread-safe.

    Raises:
        UsageError: *subscriber* is not a valid id.
        ObjectsUnavailableError: the object store does not answer.
    """

    def __init__(self, tier: ObjectTier, subscriber: str) -> None:
        self._tier = tier
        self._subscriber = subscriber
        self._cache: OrderedDict[int, StoredBatch] = OrderedDict()
        found = (parse_offsets_key(info.key) for info in tier.list_below(offsets_folder(subscriber)))
        self._numbers = {number for number in found if number is not None}

    @property
    def first(self) -> int | None:
        """The lowest generation that exists; None without any."""
        return min(self._numbers, default=None)

    @property
    def last(self) -> int | None:
        """The highest generation that is known to exist; None without any."""
        return max(self._numbers, default=None)

    def find(self, generation: int) -> StoredBatch | None:
        """
        Return a batch, or None if it does not exist.

        Raises:
            CorruptionError: the object is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        cached = self._cache.get(generation)
        if cached is not None:
            self._cache.move_to_end(generation)
            return cached
        key = offsets_key(self._subscriber, generation)
        try:
            data = self._tier.get(key, size_max=OFFSETS_BYTES_MAX)
        except ObjectNotFoundError:
            self._numbers.discard(generation)
            return None
        return self._known(key, generation, data)

    def _known(self, key: str, generation: int, data: bytes) -> StoredBatch:
        answer = decode_offsets(memoryview(data))
        if not isinstance(answer, Frame):
            damage = as_damage(answer, len(data))
            raise CorruptionError(key, damage.offset, damage.reason)
        if answer.value.generation != generation:
            raise CorruptionError(key, 24, f"it is generation {answer.value.generation}")
        batch = StoredBatch(answer.value, int.from_bytes(data[answer.end - 4 : answer.end], "little"))
        self._numbers.add(generation)
        self._cache[generation] = batch
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return batch

    def create(self, epoch: int, generation: int, nodes: Iterable[BatchNode]) -> StoredBatch:
        """
        Create a batch, durably on return; return the existing one if there is one already.

        Raises:
            UsageError: it could not be read again.
            CorruptionError: the existing one is damaged.
            ObjectsUnavailableError: the object store does not answer.
        """
        key = offsets_key(self._subscriber, generation)
        data = encode_offsets(epoch, generation, nodes)
        try:
            self._tier.put(key, data, if_absent=True)
        except ObjectExistsError:
            data = self._tier.get(key, size_max=OFFSETS_BYTES_MAX)
        return self._known(key, generation, data)

    def remove_old(self, committed: int) -> None:
        """
        Remove batches that no checkpoint can refer to any more, now and then.

        Raises:
            ObjectsUnavailableError: the object store does not answer.
        """
        old = sorted(number for number in self._numbers if number < committed - BATCHES_KEPT)
        if len(old) >= _REMOVED_EVERY:
            self._tier.delete([offsets_key(self._subscriber, number) for number in old])
            self._numbers.difference_update(old)
