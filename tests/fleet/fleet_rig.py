"""Nodes on one disk with one bucket, and a reader that works from listings, objects and positions alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import store_rig
from quiver.objects.directory import DirectoryObjects
from quiver.objects.location import ObjectLocation
from quiver.objects.port import ObjectTier
from quiver.observe import InMemoryObserver
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.settings import Settings
from quiver.store.format.fleet.acks import AckedNode, decode_acks, encode_acks
from quiver.store.format.fleet.chain import Chain, Fork, Hole, check_chain
from quiver.store.format.fleet.gone import GoneSegments, decode_gone
from quiver.store.format.fleet.names import InboxObject, acks_key, key_of, node_key, parse_inbox_key, shard_of
from quiver.store.format.fleet.node_record import NodeRecord, decode_node_record
from quiver.store.format.fleet.offsets import advanced
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultobjects import OBJECT_OPERATIONS, FaultObjects

BUCKET = "/fleet"
LAKE = "lake"
SETTINGS = Settings(
    segment_bytes_max=2_000,
    wal_rotate_bytes=2_500,
    wal_bytes_max=40_000,
    wal_files_max=8,
    delete_grace_s=0.0,
    cold_objects=ObjectLocation.from_url(BUCKET),
    fleet_name="edge-17",
    fleet_subscribers=(LAKE,),
    fleet_labels=(("site", "Graz"),),
)


class NodeRig:
    """One disk and one clock; the node can be opened on them repeatedly. Its bucket can be that of another rig."""

    def __init__(
        self, fs: FileSystem | None = None, *, root: str = "/node", bucket: ObjectTier | None = None, **settings: object
    ) -> None:
        self.fs = fs or CrashFileSystem()
        self.root = root
        self.clock = ManualClock()
        self.observer = InMemoryObserver()
        self.tier = FaultObjects(bucket or DirectoryObjects(self.fs, BUCKET, clock=self.clock), clock=self.clock)
        self.settings = replace(SETTINGS, **settings)  # type: ignore[arg-type]
        self.taken = 0

    def open(self, **settings: object) -> Store:
        """Open the node, without threads."""
        return open_store(
            self.root,
            replace(self.settings, **settings),  # type: ignore[arg-type]
            fs=self.fs,
            clock=self.clock,
            observer=self.observer,
            background=False,
            objects=self.tier,
        )

    def fill(self, store: Store, segments: int, *, each: int = 2) -> None:
        """Seal this many segments with this many bundles each, numbered consecutively."""
        for _ in range(segments):
            for _ in range(each):
                store.ingest(store_rig.numbered(self.taken), durable=True)
                self.taken += 1
            store.seal()

    def turn(self, store: Store) -> None:
        """Run maintenance after all intervals have passed, and again for what it made possible."""
        self.clock.advance(700)
        store.maintain()
        store.maintain()

    def go_away(self) -> None:
        """Let the object store answer no more, until `tier.heal()`."""
        for operation in OBJECT_OPERATIONS:
            self.tier.fail_on(operation, self.tier.calls[operation] + 1, times=1_000_000)

    @property
    def identity(self) -> str:
        """The identity of the node."""
        return self.fs.read_all(f"{self.root}/quiver.id", size_max=100).decode().strip()

    def record(self) -> NodeRecord:
        """The record of the node in the bucket."""
        answer = decode_node_record(memoryview(self.tier.get(node_key(self.identity), size_max=1 << 20)))
        assert isinstance(answer, Frame)
        return answer.value


class Fleet:
    """Several nodes with one bucket. The numbers of each node begin at another multiple of *spacing*."""

    def __init__(self, count: int = 3, *, spacing: int = 100, **settings: object) -> None:
        first = NodeRig(**settings)
        self.nodes = [first]
        for place in range(1, count):
            bucket = DirectoryObjects(first.fs, BUCKET, clock=first.clock)
            node = NodeRig(CrashFileSystem(), bucket=bucket, **{"fleet_name": f"edge-{place}"} | settings)
            node.taken = place * spacing
            self.nodes.append(node)
        self.spacing = spacing
        self.tier = FaultObjects(DirectoryObjects(first.fs, BUCKET, clock=first.clock))
        """The bucket, as a reader accesses it."""

    def fill(self, segments: int, *nodes: NodeRig) -> None:
        """Seal and upload this many segments of two bundles each; on all nodes or some."""
        for node in nodes or self.nodes:
            with node.open() as store:
                node.fill(store, segments)
                node.turn(store)

    def free(self) -> int:
        """Let the nodes delete what is acknowledged; return how many segments they have left."""
        left = 0
        for node in self.nodes:
            with node.open() as store:
                for _ in range(3):
                    node.turn(store)
                left += store.stats()["segments"]
        return left

    @property
    def expected(self) -> dict[str, list[int]]:
        """All numbers that were ingested, by node."""
        return {node.identity: list(range(place * self.spacing, node.taken)) for place, node in enumerate(self.nodes)}


class DiedError(Exception):
    """The process of a reader ended."""


@dataclass
class Life:
    """One process of a reader."""

    requests: int = 0
    """Its requests to the bucket, without the listings of the inbox: those are 256, and change nothing."""
    has_died: bool = False


@contextmanager
def dying_at(tier: FaultObjects, request: int) -> Iterator[Life]:
    """Let a reader die before its request with this number, counted from 1. If it has fewer requests, it survives."""
    life = Life()

    def count(operation: str, key: str) -> None:
        life.requests += not (operation == "list" and key.startswith("inbox"))
        if life.requests == request:
            raise DiedError

    tier.on_call = count
    try:
        yield life
    except DiedError:
        life.has_died = True
    finally:
        tier.on_call = lambda _operation, _key: None


@dataclass
class FleetReader:
    """A fleet subscriber: it reads all nodes in a bucket and acknowledges."""

    tier: ObjectTier
    name: str = LAKE
    epoch: int = 1
    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The numbers of the bundles that were read, by node."""
    gone: dict[str, list[GoneSegments]] = field(default_factory=lambda: defaultdict(list))
    problems: dict[str, Fork | Hole] = field(default_factory=dict)
    at: dict[str, AckedNode] = field(default_factory=dict)

    def listed(self) -> dict[str, list[InboxObject]]:
        """The objects of each node."""
        found: dict[str, list[InboxObject]] = defaultdict(list)
        for info in self.tier.list_below("inbox"):
            parsed = parse_inbox_key(info.key, info.size_bytes)
            if parsed is not None:
                found[parsed[0]].append(parsed[1])
        return found

    def chain(self, identity: str) -> Chain:
        """The chain of one node from the position of this reader."""
        position = self.at.get(identity, AckedNode(identity, 0)).position
        return check_chain(self.listed()[identity], position)

    def read(self) -> None:
        """Read everything that can be read."""
        for identity, objects in self.listed().items():
            before = self.at.get(identity, AckedNode(identity, 0))
            chain = check_chain(objects, before.position)
            for one in chain.objects:
                data = self.tier.get(key_of(identity, one), size_max=1 << 20)
                assert len(data) == one.size_bytes
                if one.is_gone:
                    answer = decode_gone(memoryview(data))
                    assert isinstance(answer, Frame)
                    self.gone[identity].append(answer.value)
                else:
                    assert crc32(memoryview(data)[:-4]) == one.crc32
                    self.numbers[identity].extend(numbers_in(data, one.last))
            self.at[identity] = advanced(before, chain.objects).after
            self.problems.pop(identity, None)
            if chain.problem is not None:
                self.problems[identity] = chain.problem

    def acknowledge(self) -> None:
        """Write the positions."""
        for shard in {shard_of(identity) for identity in self.at}:
            nodes = [node for node in self.at.values() if shard_of(node.identity) == shard]
            self.tier.put(acks_key(self.name, shard), encode_acks(shard, self.epoch, nodes))

    def resume(self) -> None:
        """Continue at the positions in the bucket, as another process does."""
        for info in self.tier.list_below(f"acks/{self.name}"):
            answer = decode_acks(memoryview(self.tier.get(info.key, size_max=1 << 20)))
            assert isinstance(answer, Frame)
            self.at.update((node.identity, node) for node in answer.value.nodes)


def numbers_in(data: bytes, number: int) -> list[int]:
    """The numbers of the bundles in a segment."""
    fs = CrashFileSystem()
    fs.make_dirs("/one/segments")
    fs.make_dirs("/one/wal")
    file = fs.create(f"/one/segments/{number:016d}.qseg")
    file.pwrite(data, 0)
    file.sync()
    file.close()
    return store_rig.numbers_of(read("/one", fs=fs).bundles())
