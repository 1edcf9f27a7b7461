"""A topic with its object tier, on disks and stores that crash, fail and become unavailable on request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from quiver.metadata.memory import MemoryMetadata
from quiver.objects.memory import MemoryObjects
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultmetadata import FaultMetadata
from quiver.testing.faultobjects import FaultObjects
from quiver.topics.cold.catalog import ObjectCatalog
from quiver.topics.cold.tier import ObjectColdTier
from quiver.topics.format.names import objects_prefix
from quiver.topics.format.watch import WATCH_FILE
from quiver.topics.log import TopicLog
from quiver.topics.settings import DeleterSettings, ObjectRetention, TopicSettings, UploaderSettings, WalSettings
from quiver.topics.store import TopicStore

TOPIC = "default/orders"
PREFIX = objects_prefix(TOPIC)
DESCRIPTORS = f"/danube/storage/topics/{TOPIC}/objects/"


def settings(
    *,
    rotate: int | None = 400,
    batch: int | None = None,
    compression: Any = "none",
    keep_minutes: int | None = 0,
    keep_mb: int | None = None,
    wait: bool = False,
    retention: ObjectRetention | None = None,
    cache: int = 2,
) -> TopicSettings:
    """Small files, almost no memory, and local files that are deleted as soon as possible."""
    return TopicSettings(
        wal=WalSettings(rotate_max_bytes=rotate, cache_capacity=cache),
        uploader=UploaderSettings(compression=compression, max_batch_bytes=batch),
        deleter=DeleterSettings(
            retention_time_minutes=keep_minutes, retention_size_mb=keep_mb, wait_for_subscriptions=wait
        ),
        objects=retention or ObjectRetention(),
    )


def payload(number: int) -> bytes:
    """The payload of message *number*."""
    return b"message %d " % number + b"." * (number % 7)


@dataclass
class Rig:
    """One process: its disk, and the two stores that it shares with others."""

    disk: FileSystem = field(default_factory=CrashFileSystem)
    memory: Any = field(default_factory=MemoryObjects)
    facts: MemoryMetadata = field(default_factory=MemoryMetadata)
    clock: ManualClock = field(default_factory=ManualClock)
    chosen: TopicSettings = field(default_factory=settings)
    owner: str = "one"
    patience_s: float = 0.0
    takeover_wait: float = 0.0

    def __post_init__(self) -> None:
        self.observer = InMemoryObserver()
        self.objects = FaultObjects(self.memory, clock=self.clock)
        self.metadata = FaultMetadata(self.facts)
        self.store: TopicStore | None = None

    def open(self) -> TopicLog:
        """The opened topic."""
        return self.open_store().topic(TOPIC)

    def open_store(self) -> TopicStore:
        """Its store, before the topic is opened."""
        self.tier = ObjectColdTier(
            self.objects, self.metadata, settings=self.chosen, owner=self.owner, fs=self.disk, clock=self.clock,
            observer=self.observer, background=False, patience_s=self.patience_s,
            watch_path=f"/topics/{WATCH_FILE}",
        )  # fmt: skip
        self.store = TopicStore.open(
            "/topics", settings=self.chosen, cold=self.tier, fs=self.disk, clock=self.clock, observer=self.observer,
            background=False, takeover_wait=self.takeover_wait,
        )  # fmt: skip
        return self.store

    def close(self) -> None:
        """Close it."""
        if self.store is not None:
            self.store.close()

    @contextmanager
    def opened(self, *, hand_over: bool = True) -> Iterator[TopicLog]:
        """Open the topic for the block; closed without *hand_over* it keeps its owner and unuploaded messages."""
        log = self.open()
        try:
            yield log
        finally:
            if self.store is not None:
                self.store.close(timeout=None if hand_over else 0)

    def keys(self) -> list[str]:
        """The names of all objects of the topic."""
        return [info.key.removeprefix(PREFIX) for info in self.memory.list_below(PREFIX)]

    def named(self) -> list[str]:
        """The names in the catalog, in order."""
        return [one.object_id for one in self.tier.catalog(TOPIC).descriptors()]


def append(log: TopicLog, count: int) -> None:
    """The next *count* messages, each with its own number as payload."""
    for _ in range(count):
        number = log._engine.wal.next_offset
        if log.append(payload(number)) != number:
            raise AssertionError("an offset out of order")


def read(log: TopicLog, start: int = 0) -> list[bytes]:
    """Read all messages from *start*; the offsets must be in order."""
    with log.reader(start=start, follow=False) as reader:
        messages = list(reader)
    if [one.offset for one in messages] != list(range(start, start + len(messages))):
        raise AssertionError(f"offsets {[one.offset for one in messages]}")
    return [one.payload for one in messages]


def expected(count: int, start: int = 0) -> list[bytes]:
    """Return what `read` must return."""
    return [payload(number) for number in range(start, count)]


def holes(catalogue: ObjectCatalog, behind: int) -> list[tuple[int, int]]:
    """Return the ranges below an offset that no object contains."""
    edges = [(0, 0), *((one.start_offset, one.end_offset + 1) for one in catalogue.descriptors()), (behind, behind)]
    return [(before[1], after[0]) for before, after in itertools.pairwise(edges) if before[1] < after[0]]


def check_tidy(rig: Rig) -> None:
    """Check the catalog after a complete cycle: names and objects match one to one, without overlaps or gaps."""
    catalogue = rig.tier.catalog(TOPIC)
    catalogue.refresh()
    found = catalogue.descriptors()
    if sorted(rig.keys()) != sorted(one.object_id for one in found):
        raise AssertionError(f"objects {rig.keys()}, names {[one.object_id for one in found]}")
    for before, after in itertools.pairwise(found):
        if after.start_offset != before.end_offset + 1:
            raise AssertionError(f"{before.object_id} and then {after.object_id}")
    for one in found:
        if rig.memory.head(PREFIX + one.object_id).size_bytes != one.size:
            raise AssertionError(f"{one.object_id} differs from its descriptor")


@dataclass
class Moment:
    """The contents of all disks and stores after one step, as a crash there would leave them."""

    label: str
    promised: int
    disks: list[CrashFileSystem]
    memory: MemoryObjects
    facts: MemoryMetadata


def moments(rig: Rig, work: Callable[[TopicLog, Callable[[int], None]], None], *, kinds: int = 2) -> list[Moment]:
    """Yield every step of *work*, which reports through its second argument how many messages are promised."""
    found: list[Moment] = []
    promised = [0]
    disk = rig.disk
    assert isinstance(disk, CrashFileSystem)

    def snap(label: str) -> None:
        disks = [disk.clone_after_kill(), *(disk.clone_after_crash(seed=len(found) * 7 + n) for n in range(kinds - 1))]
        found.append(Moment(f"{len(found)}: {label}", promised[0], disks, rig.memory.clone(), rig.facts.clone()))

    def promise(count: int) -> None:
        promised[0] = count

    log = rig.open()
    disk.on_step = lambda op, path: snap(f"{op} {path}")
    rig.objects.on_call = lambda op, key: snap(f"{op} {key}")
    rig.metadata.on_call = snap
    try:
        work(log, promise)
    finally:
        disk.on_step = lambda _op, _path: None
        rig.objects.on_call = lambda _op, _key: None
        rig.metadata.on_call = lambda _op: None
    return found
