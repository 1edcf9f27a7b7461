"""
Crash states by the thousand: short workloads of chance on the crash file system, cut off before every step.

For each step the disk is taken as a kill leaves it, and as a power cut leaves it under several choices of what the
unsynced bytes, lengths and names became. Of some of them the recovery is cut off, too. Disks that are alike in every
byte are examined once; what they hold is then held against what each of them had promised.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from quiver import Bundle, Settings, Store
from quiver import open as open_store
from quiver.bundle import BundleRef
from quiver.store.read import read
from quiver.testing.clock import ManualClock
from quiver.testing.crash_nodes import CrashDirectory
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/c"
NAMES = ("one", "two")
SEEDS = 8
"""Choices of what a power cut keeps at each step: nothing, everything, and six that differ from step to step."""
AFTERWARDS = 10_000

SETTINGS = Settings(
    segment_bytes_max=700, wal_rotate_bytes=900, wal_bytes_max=40_000, wal_files_max=8, delete_grace_s=0.0
)
VARIANTS = (
    SETTINGS,
    dataclasses.replace(SETTINGS, format_profile="otap"),
    dataclasses.replace(SETTINGS, wal_rotate_bytes=1, wal_files_max=4),
    dataclasses.replace(SETTINGS, wal_flush_interval_s=0.0, segment_bytes_max=2_500),
    dataclasses.replace(SETTINGS, delete_grace_s=3.0, segment_streams_max=2),
)


def numbered(number: int) -> Bundle:
    slots = {30: pa.record_batch({"n": pa.array([number], pa.int32())})}
    if number % 4 == 3:
        slots[31] = pa.record_batch({"tag": pa.array([f"t{number}", "same"]).dictionary_encode()})
    return Bundle(slots, ingested_at_ns=1_000 + number)


def number_of(bundle: Bundle) -> int:
    number = bundle[30]["n"][0].as_py()
    assert bundle == numbered(number), f"bundle {number} came back changed"
    return number


def opened(files: CrashFileSystem, settings: Settings, clock: ManualClock | None = None) -> Store:
    return open_store(ROOT, settings, files=files, clock=clock or ManualClock(), background=False)


# ── what a caller was told ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Promises:
    """
    What had been promised at one moment.
    """

    attempted: int = 0
    logged: int = 0
    """Bundles below this survive the death of the process."""
    durable: int = 0
    """Bundles below this survive a power cut."""
    asked: tuple[frozenset[int], ...] = (frozenset(),) * len(NAMES)
    """By subscriber: what it acknowledged, or was about to."""
    kept: tuple[frozenset[int], ...] = (frozenset(),) * len(NAMES)
    """By subscriber: what it acknowledged before a maintenance pass returned."""


@dataclass(frozen=True)
class State:
    """
    One disk that a crash may leave, and what had been promised by then.
    """

    label: str
    files: CrashFileSystem
    promises: Promises
    power_cut: bool


class Workload:
    """
    A few dozen calls in an order of chance, on a disk that is looked at before each step.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.settings = VARIANTS[seed % len(VARIANTS)]
        self.clock = ManualClock()
        self.files = CrashFileSystem()
        self.promises = Promises()

    def states(self) -> Iterator[State]:
        """Run, and yield every state of the run; the order is that of the steps."""
        found: list[State] = []
        self.files.on_step = lambda operation, path: found.extend(self._states_here(len(found), operation, path))
        for call in self._calls():
            call()
            yield from found
            found.clear()
        self.files.on_step = None

    def _states_here(self, index: int, operation: str, path: str) -> Iterator[State]:
        label = f"workload {self.seed}, step {self.files.steps} ({operation} {path})"
        yield State(f"{label}, kill", self.files.clone_after_kill(), self.promises, power_cut=False)
        for seed in (0, 1, *(2 + self.seed * SEEDS + number for number in range(SEEDS - 2))):
            after = self.files.clone_after_crash(seed)
            yield State(f"{label}, power cut {seed}", after, self.promises, power_cut=True)

    def _calls(self) -> Iterator[Callable[[], None]]:
        yield self._open
        for _ in range(self.chance.randint(10, 22)):
            yield self.chance.choices(
                [self._ingest, self._drain, self._maintain, self._flush, self._sync, self._reopen], [8, 4, 3, 2, 1, 1]
            )[0]
        yield self._close

    def _say(self, **changes: object) -> None:
        self.promises = dataclasses.replace(self.promises, **changes)

    def _open(self) -> None:
        self.store = opened(self.files, self.settings, self.clock)
        self.subscribers = [self.store.register(name, start="earliest") for name in NAMES]

    def _ingest(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            number = self.promises.attempted
            durable = self.chance.random() < 0.3
            self._say(attempted=number + 1)
            self.store.ingest(numbered(number), durable=durable)
            self._say(logged=number + 1, durable=number + 1 if durable else self.promises.durable)

    def _drain(self) -> None:
        who = self.chance.randrange(len(NAMES))
        for _ in range(self.chance.randint(1, 9)):
            handle = self.subscribers[who].next_bundle(timeout=0)
            if handle is None:
                break
            asked = list(self.promises.asked)
            asked[who] |= {number_of(handle.bundle)}
            self._say(asked=tuple(asked))
            handle.ack()

    def _maintain(self) -> None:
        self.clock.advance(self.chance.choice([0.1, 2.0, 6.0]))
        self.store.maintain()
        self._say(durable=self.promises.logged, kept=self.promises.asked)

    def _flush(self) -> None:
        self.store.flush()
        self._say(durable=self.promises.logged)

    def _sync(self) -> None:
        self.store.sync()
        self._say(durable=self.promises.logged)

    def _close(self) -> None:
        self.store.close()
        self._say(durable=self.promises.logged, kept=self.promises.asked)

    def _reopen(self) -> None:
        self._close()
        self._open()


# ── what a disk holds ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Found:
    """
    What recovery made of a disk.
    """

    sealed: tuple[int, ...]
    pending: tuple[tuple[int, ...], ...]


def digest(files: CrashFileSystem) -> int:
    """A number that two disks share when they are alike in names, lengths, modes and bytes."""

    def of(directory: CrashDirectory) -> tuple[object, ...]:
        return tuple(
            (name, of(node)) if isinstance(node, CrashDirectory) else (name, node.size, node.mode, *node.blocks)
            for name, node in sorted(directory.children.items())
        )

    return hash(of(files._tree.root))


def examine(files: CrashFileSystem, settings: Settings) -> Found:
    """Look without a writer, recover, seal, hand everything out, and go on working. *files* is used up."""
    seen = [number_of(bundle) for _, bundle in read(ROOT, fs=files).bundles()] if files.exists(f"{ROOT}/wal") else []
    clock = ManualClock()
    with opened(files, settings, clock) as store:
        store.flush()
        refs = [BundleRef(info.seq, index) for info in store.catalog.segments() for index in range(info.bundle_count)]
        sealed = [number_of(store.catalog.bundle(ref)) for ref in refs]
        assert sealed == sorted(set(sealed)), f"out of order, or twice in segments: {sealed}"
        assert seen == sealed, f"a reader saw {seen}, recovery {sealed}"
        pending = []
        for name in NAMES:
            got = drained(store, name)
            assert got == sorted(set(got)), f"{name} got {got}"
            assert set(got) <= set(sealed)
            pending.append(tuple(got))
        clock.advance(10)
        for _ in range(2):  # what waits out its grace goes with the second
            store.maintain()
            clock.advance(10)
        assert not len(store.catalog), "finished segments stay"
        store.ingest(numbered(AFTERWARDS))
        store.flush()
        for name in NAMES:
            assert drained(store, name) == [AFTERWARDS], f"what comes after recovery does not reach {name}"
    return Found(tuple(sealed), tuple(pending))


def drained(store: Store, name: str) -> list[int]:
    subscriber = store.register(name, start="earliest")
    got: list[int] = []
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        got.append(number_of(handle.bundle))
        handle.ack()
    return got


def judge(found: Found, promises: Promises, *, power_cut: bool) -> None:
    promised = promises.durable if power_cut else promises.logged
    assert all(number < promises.attempted for number in found.sealed), f"invented {found.sealed}"
    for who, name in enumerate(NAMES):
        got = set(found.pending[who])
        missing = set(range(promised)) - promises.asked[who] - got
        assert not missing, f"{name} misses {sorted(missing)} of {promised}"
        again = promises.kept[who] & got
        assert not again, f"{name} gets {sorted(again)} again"


# ── the enumeration ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Explored:
    """
    How much was looked at.
    """

    workloads: int = 0
    states: int = 0
    distinct: int = 0
    in_recovery: int = 0
    """Of the states, those that a second crash during recovery left."""

    def __add__(self, other: Explored) -> Explored:
        return Explored(
            *(sum(pair) for pair in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))
        )


@dataclass
class _Explorer:
    count: Explored = field(default_factory=Explored)
    known: dict[int, Found] = field(default_factory=dict)

    def look(self, state: State, settings: Settings) -> bool:
        """Check one state; True when such a disk had not been met before."""
        self.count.states += 1
        key = digest(state.files)
        new = key not in self.known
        try:
            if new:
                self.known[key] = examine(state.files.clone_after_kill(), settings)
                self.count.distinct += 1
            judge(self.known[key], state.promises, power_cut=state.power_cut)
        except BaseException as failure:
            failure.add_note(state.label)
            raise
        return new

    def look_into_recovery(self, state: State, settings: Settings, chance: random.Random) -> None:
        """Cut off the recovery of *state* at a step in six, and recover from that."""
        files = state.files
        cut: list[State] = []

        def before(operation: str, path: str) -> None:
            if chance.random() < 1 / 6:
                seed = chance.randrange(2**20)
                label = f"{state.label}; then in recovery, step {files.steps} ({operation} {path}), seed {seed}"
                cut.append(State(label, files.clone_after_crash(seed), state.promises, power_cut=True))

        files.on_step = before
        # A kill leaves unsynced bytes that a power cut may take only now: what counts is the weaker promise.
        opened(files, settings)
        files.on_step = None
        for again in cut:
            self.count.in_recovery += 1
            self.look(again, settings)


def explore(first_seed: int, states: int) -> Explored:
    """Look at no fewer than *states*, in workloads from *first_seed* on."""
    total = Explored()
    for seed in itertools.count(first_seed):
        explorer = _Explorer()
        workload = Workload(seed)
        chance = random.Random(-seed)
        for state in workload.states():
            if explorer.look(state, workload.settings) and chance.random() < 1 / 8:
                explorer.look_into_recovery(state, workload.settings, chance)
        explorer.count.workloads = 1
        total += explorer.count
        if total.states >= states:
            return total
    raise AssertionError
