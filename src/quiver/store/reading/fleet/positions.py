"""
The positions of a fleet subscriber in all nodes, one object for each shard.

Nodes delete their segments because of these objects. Only the owner of the subscriber replaces them, each only its last
version (`If-Match`), so that a reader that was replaced cannot write an old position over a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quiver.errors import (
    CorruptionError,
    FencedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectsUnavailableError,
)
from quiver.objects.port import ObjectInfo, ObjectTier
from quiver.primitives.scan import Frame, as_damage
from quiver.store.format.fleet.acks import ACKS_BYTES_MAX, AckedNode, Acks, decode_acks, encode_acks
from quiver.store.format.fleet.names import ACKS_FOLDER, SHARDS, acks_key
from quiver.store.format.names import check_subscriber_id
from quiver.store.reading.fleet.listing import in_parallel

__all__ = ["Positions", "PositionsWriter", "read_positions"]

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Positions:
    """
    The positions of a subscriber.

    Attributes:
        epoch: the highest one in the objects; 0 without objects.
        nodes: by identity. Everything below a position is committed.
        etags: of the objects, by shard.
        problems: why objects cannot be read, by shard. Their nodes keep their data, and are read again.
    """

    epoch: int
    nodes: Mapping[str, AckedNode]
    etags: Mapping[str, str | None] = field(default_factory=dict)
    problems: Mapping[str, CorruptionError] = field(default_factory=dict)


def read_positions(tier: ObjectTier, subscriber: str) -> Positions:
    """
    Return the positions of *subscriber*; none if it has not acknowledged anything.

    Raises:
        UsageError: *subscriber* is not a valid id.
        ObjectsUnavailableError: the object store does not answer.
        AccessDeniedError: the credentials do not allow it.
    """
    check_subscriber_id(subscriber)
    epoch = 0
    nodes: dict[str, AckedNode] = {}
    etags: dict[str, str | None] = {}
    problems: dict[str, CorruptionError] = {}
    infos = [info for info in tier.list_below(f"{ACKS_FOLDER}/{subscriber}") if info.key.rpartition("/")[2] in SHARDS]
    for info, acks in zip(infos, in_parallel(lambda info: _read(tier, info), infos), strict=True):
        shard = info.key.rpartition("/")[2]
        if isinstance(acks, CorruptionError):
            problems[shard] = acks
        elif acks is not None:
            epoch = max(epoch, acks.epoch)
            nodes.update((node.identity, node) for node in acks.nodes)
        etags[shard] = info.etag
    return Positions(epoch, nodes, etags, problems)


def _read(tier: ObjectTier, info: ObjectInfo) -> Acks | CorruptionError | None:
    if info.size_bytes > ACKS_BYTES_MAX:
        return CorruptionError(info.key, 0, f"it has {info.size_bytes} bytes, more than {ACKS_BYTES_MAX}")
    try:
        data = tier.get(info.key, size_max=ACKS_BYTES_MAX)
    except ObjectNotFoundError:
        return None
    answer = decode_acks(memoryview(data))
    if isinstance(answer, Frame):
        if answer.value.shard == info.key.rpartition("/")[2]:
            return answer.value
        return CorruptionError(info.key, 14, f"it has the positions of shard {answer.value.shard}")
    damage = as_damage(answer, len(data))
    return CorruptionError(info.key, damage.offset, damage.reason)


class PositionsWriter:
    """
    Replaces the positions of a subscriber, as its owner. Not thread-safe.

    Args:
        tier: the objects of the fleet.
        subscriber: its name.
        epoch: of the owner.
        found: the positions when the owner started. All of them are written again, with its epoch.
    """

    def __init__(self, tier: ObjectTier, subscriber: str, epoch: int, found: Positions) -> None:
        self._tier = tier
        self._subscriber = subscriber
        self._epoch = epoch
        self._etags = dict(found.etags)
        self._written: dict[str, tuple[AckedNode, ...]] = {}

    def write(self, nodes: Iterable[AckedNode]) -> int:
        """
        Write the positions of the shards in which one has changed; return how many objects were written.

        On return, all of them are durable. After an error some may be; the next call writes the others.

        Raises:
            FencedError: an owner with a higher epoch wrote one of them.
            ObjectsUnavailableError: the object store does not answer.
        """
        shards: dict[str, list[AckedNode]] = {}
        for node in nodes:
            shards.setdefault(node.identity[:2], []).append(node)
        changed = {shard: tuple(of) for shard, of in shards.items() if self._written.get(shard) != tuple(of)}
        for shard, etag in in_parallel(lambda item: (item[0], self._put(*item)), changed.items()):
            self._etags[shard] = etag
            self._written[shard] = changed[shard]
        return len(changed)

    def _put(self, shard: str, nodes: tuple[AckedNode, ...]) -> str | None:
        key = acks_key(self._subscriber, shard)
        data = encode_acks(shard, self._epoch, nodes)
        etag = self._etags.get(shard)
        for _ in range(_TRIES):
            try:
                if etag is None:
                    return self._tier.put(key, data, if_absent=True).etag
                return self._tier.put(key, data, if_match=etag).etag
            except (ObjectExistsError, ObjectChangedError):
                etag = self._other(key)
        raise ObjectsUnavailableError("put", key, "another process keeps replacing it")

    def _other(self, key: str) -> str | None:
        """Return the etag of the object that another owner wrote; refuse to replace it if that is the newer one."""
        try:
            info = self._tier.head(key)
        except ObjectNotFoundError:
            return None
        found = _read(self._tier, info)
        if isinstance(found, Acks) and found.epoch > self._epoch:
            raise FencedError(
                key,
                epoch=self._epoch,
                owner=f"another query of {self._subscriber}",
                owner_epoch=found.epoch,
            )
        return info.etag
