"""
A store at its limits with three subscribers: one that reads, one that never reads, and one that belongs to another
process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quiver import CapacityError, Settings, Store
from quiver.bundle import BundleRef
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.scan import Frame
from quiver.store.format.drop_ledger import DROP_LEDGER_BYTES_MAX, decode_drop_ledger
from quiver.store.format.names import DROP_LEDGER
from quiver.store.subscribers.progress_store import SubscriberFile, create_if_missing
from quiver.store.subscribers.state import SegmentRef, Segments
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from store_rig import drain, number_of, numbered, open_manual

ROOT = "/limits"
LOST = "quiver.subscriber.dropped_bundles_total"
NAMES = ("reads", "sleeps", "query")
SETTINGS = Settings(
    segment_bytes_max=2_000,
    wal_rotate_bytes=2_000,
    wal_bytes_max=40_000,
    wal_flush_interval_s=0.0,
    size_cap_bytes=32_000,
    size_cap_policy="drop_oldest",
    delete_grace_s=0.0,
)
opened = partial(open_manual, root=ROOT)
bundle_of = partial(numbered, size=100)


def counted(observer: InMemoryObserver, subscriber: str) -> int:
    """Bundles that were counted as dropped for one subscriber."""
    return sum(
        amount
        for (name, attributes), amount in observer.counts.items()
        if name == LOST and dict(attributes)["subscriber"] == subscriber
    )


class Query:
    """A subscriber of another process: it reads files, and has its own progress file and lock."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        create_if_missing(fs, ROOT, "query", start="earliest", segments=Segments(), profile="spec")
        self._file = SubscriberFile(fs, ROOT, "query")
        self._file.acquire()
        self.lost = 0

    def look(self, store: Store) -> list[int]:
        """Apply the drops, then read and confirm everything else; durable on return."""
        path = f"{ROOT}/{DROP_LEDGER}"
        segments = [SegmentRef.of(info) for info in store.internals.catalog.segments()]
        if self._fs.exists(path):
            answer = decode_drop_ledger(memoryview(self._fs.read_all(path, size_max=DROP_LEDGER_BYTES_MAX)))
            assert isinstance(answer, Frame)
            lost = self._file.fold_drops(answer.value)
            self._file.know(segments)
            self._file.save()
            self.lost += sum(lost.values())
        self._file.know(segments)
        got = []
        for segment in segments:
            bits = self._file.state.unresolved(segment)
            refs = [BundleRef(segment.seq, index) for index in range(segment.bundle_count) if bits >> index & 1]
            got += [number_of(store.internals.catalog.bundle(ref)) for ref in refs]
        if segments:
            self._file.ack_through(segments[-1].seq + 1, 0)
        self._file.save()
        return got


@dataclass
class State:
    """A disk that a crash leaves during a drop, with the promises and counts by then."""

    label: str
    fs: CrashFileSystem
    accepted: int
    got: dict[str, list[int]]
    counted: dict[str, int]
    in_ledger: int
    """Bundles of the segments that were being dropped."""
    now_ns: int


@dataclass
class Run:
    """A run that drops; `states` are the disks that each step of the drops could leave."""

    settings: Settings
    seeds: tuple[int, ...]
    fs: CrashFileSystem = field(default_factory=CrashFileSystem)
    faults: FaultFileSystem | None = None
    """The file system of the store, if it is not `fs` itself."""
    clock: ManualClock = field(default_factory=ManualClock)
    observer: InMemoryObserver = field(default_factory=InMemoryObserver)
    accepted: int = 0
    got: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    states: list[State] = field(default_factory=list)

    def open(self) -> Store:
        self.fs.make_dirs(ROOT)
        self.query = Query(self.fs)
        self.store = opened(self.faults or self.fs, settings=self.settings, clock=self.clock, observer=self.observer)
        for name in ("reads", "sleeps"):
            self.store.register(name, start="earliest")
        return self.store

    def ingest(self, count: int) -> None:
        for _ in range(count):
            self.store.ingest(bundle_of(self.accepted))
            self.accepted += 1

    def read(self, most: int) -> None:
        self.got["reads"] += drain(self.store, "reads", most)
        self.store.maintain()
        self.got["query"] += self.query.look(self.store)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep a copy of the disk before each step of the calls that drop."""
        cleanup: Any = self.store._cleanup
        for name in ("_drop", "continue_drops", "drop_pending"):
            setattr(cleanup, name, self._watching(name, getattr(cleanup, name)))
        yield
        for name in ("_drop", "continue_drops", "drop_pending"):
            delattr(cleanup, name)

    def _watching(self, name: str, work: Any) -> Any:
        def watched(*arguments: Any) -> Any:
            if self.fs.on_step is not None:
                return work(*arguments)
            self.fs.on_step = lambda operation, path: self._keep(f"{name}: before {operation} {path}")
            try:
                return work(*arguments)
            finally:
                self.fs.on_step = None
                self._keep(f"after {name}")

        return watched

    def _keep(self, label: str) -> None:
        disks = [("kill", self.fs.clone_after_kill())]
        disks += [(f"power loss {seed}", self.fs.clone_after_crash(seed)) for seed in self.seeds]
        counts = Counter({name: counted(self.observer, name) for name in NAMES})
        counts["query"] += self.query.lost
        ledger: Any = self.store._cleanup._ledger
        in_ledger = sum(entry.bundle_count for entry in ledger.entries)
        for how, disk in disks:
            got = {name: list(numbers) for name, numbers in self.got.items()}
            self.states.append(
                State(f"{how}, {label}", disk, self.accepted, got, dict(counts), in_ledger, self.clock.now_ns())
            )


def check(state: State, settings: Settings, *, query_lives: bool) -> dict[str, int]:
    """
    Recover, deliver everything, and compare it with the accepted bundles. Return by subscriber how many bundles were
    lost without being counted by either process: those whose drop was durable when the first process ended.
    """
    observer = InMemoryObserver()
    store = opened(state.fs, settings=settings, clock=ManualClock(now_ns=state.now_ns), observer=observer)
    query = Query(state.fs) if query_lives else None
    store.maintain()
    store.seal()
    got = {name: state.got[name] + drain(store, name) for name in ("reads", "sleeps")}
    got["query"] = state.got["query"] + (drain(store, "query") if query is None else query.look(store))
    for _ in range(2):
        store.maintain()
    assert len(store.internals.catalog) == 0, f"{state.label}: {store.internals.catalog.segments()} {store.stats()}"
    assert not state.fs.exists(f"{ROOT}/{DROP_LEDGER}"), state.label
    uncounted = {}
    for name in NAMES:
        reported = state.counted[name] + counted(observer, name) + (query.lost if query and name == "query" else 0)
        lost = set(range(state.accepted)).difference(got[name])
        uncounted[name] = len(lost) - reported
        assert sorted(set(got[name])) == got[name], f"{state.label}: {name} {got[name]}"
    store.ingest(bundle_of(state.accepted))
    store.seal()
    for name in ("reads", "sleeps"):
        assert drain(store, name) == [state.accepted], f"{state.label}: {name}"
    assert (drain(store, "query") if query is None else query.look(store)) == [state.accepted], state.label
    store.close()
    return uncounted


def refused(store: Store, number: int) -> CapacityError | None:
    try:
        store.ingest(bundle_of(number))
    except CapacityError as full:
        return full
    return None
