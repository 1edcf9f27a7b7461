"""
Thousands of crash states: short random workloads on the crash file system, interrupted before every step.

For each step there is the disk that a kill leaves, and several disks that a power loss may leave, with different
outcomes for unsynced bytes, lengths and names. In some of them recovery is interrupted, too. Identical disks are
examined once; their contents are then compared with the promises of each state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from quiver import Bundle, CapacityError, Settings, Store
from quiver import open as open_store
from quiver.observe import InMemoryObserver, Observer, Value
from quiver.primitives.scan import Frame
from quiver.store.format.cores import EVICTED, core_directory
from quiver.store.format.drop_ledger import DROP_LEDGER_BYTES_MAX, decode_drop_ledger
from quiver.store.format.names import DROP_LEDGER
from quiver.store.reading.read import read
from quiver.testing.clock import ManualClock
from quiver.testing.crash_nodes import CrashDirectory
from quiver.testing.crashfs import CrashFileSystem
from store_rig import drain, sealed_numbers

ROOT = "/c"
NAMES = ("one", "two")
SEEDS = 8
"""Seeds of the outcomes of a power loss at each step: nothing, everything, and six that differ between steps."""
AFTERWARDS = 10_000
CAP_BYTES = 14_000
"""Space for three or four segments of these bundles, with their tables, and the log."""

SETTINGS = Settings(
    segment_bytes_max=700, wal_rotate_bytes=900, wal_bytes_max=40_000, wal_files_max=8, delete_grace_s=0.0
)


@dataclass(frozen=True)
class Variant:
    """One way to run a store, or several as one."""

    settings: Settings
    cores: int | None = None

    @property
    def may_lose(self) -> bool:
        return self.settings.size_cap_policy == "drop_oldest" or self.settings.max_age_s is not None

    def open(self, fs: CrashFileSystem, clock: ManualClock, observer: Observer | None = None) -> Any:
        more: dict[str, Any] = {"fs": fs, "clock": clock, "background": False, "observer": observer}
        return open_store(ROOT, self.settings, **more, **({} if self.cores is None else {"cores": self.cores}))

    def stores(self, opened: Any) -> list[Store]:
        return [opened] if self.cores is None else [opened.core(core) for core in range(self.cores)]

    @property
    def directories(self) -> list[str]:
        if self.cores is None:
            return [ROOT]
        return [f"{ROOT}/{core_directory(core)}" for core in range(self.cores)]


def _variants() -> tuple[Variant, ...]:
    change = partial(dataclasses.replace, SETTINGS)
    return (
        Variant(SETTINGS),
        Variant(change(format_profile="otap")),
        Variant(change(wal_rotate_bytes=1, wal_files_max=4)),
        Variant(change(wal_flush_interval_s=0.0, segment_bytes_max=2_500)),
        Variant(change(delete_grace_s=3.0, segment_streams_max=2)),
        Variant(change(size_cap_bytes=CAP_BYTES, size_cap_policy="drop_oldest")),
        Variant(change(max_age_s=5.0)),
        Variant(change(size_cap_bytes=2 * CAP_BYTES), cores=2),
        Variant(change(size_cap_bytes=2 * CAP_BYTES, size_cap_policy="drop_oldest"), cores=2),
    )


VARIANTS = _variants()


def numbered(number: int, stamp_ns: int | None = None) -> Bundle:
    slots = {30: pa.record_batch({"n": pa.array([number], pa.int32())})}
    if number % 4 == 3:
        slots[31] = pa.record_batch({"tag": pa.array([f"t{number}", "same"]).dictionary_encode()})
    return Bundle(slots, ingested_at_ns=1_000 + number if stamp_ns is None else stamp_ns)


def number_of(bundle: Bundle) -> int:
    number = bundle[30]["n"][0].as_py()
    want = numbered(number)
    assert bundle.slots == want.slots
    for slot in want.slots:
        # Bundles of one segment share a dictionary: types and values are unchanged, but not its order.
        assert bundle[slot].schema.equals(want[slot].schema, check_metadata=True)
        assert bundle[slot].to_pylist() == want[slot].to_pylist(), f"bundle {number} came back changed"
    return number


# ── promises to the caller ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Promises:
    """The promises at one moment."""

    attempted: int = 0
    """Numbers below this were attempted."""
    logged: tuple[frozenset[int], ...] = ()
    """By core: these bundles survive the death of the process."""
    durable: tuple[frozenset[int], ...] = ()
    """By core: these bundles survive a power loss."""
    dropped: frozenset[tuple[str, int, int]] = frozenset()
    """Segments that policy dropped: the store, the number, and the number of bundles."""
    asked: tuple[frozenset[int], ...] = (frozenset(),) * len(NAMES)
    """By subscriber: the bundles that it acknowledged, or was about to."""
    kept: tuple[frozenset[int], ...] = (frozenset(),) * len(NAMES)
    """By subscriber: the bundles that it acknowledged before a maintenance pass returned."""


@dataclass(frozen=True)
class State:
    """One disk that a crash may leave, and the promises made by then."""

    label: str
    fs: CrashFileSystem
    promises: Promises
    power_cut: bool


class Workload:
    """A few dozen calls in random order, on a disk that is inspected before each step."""

    def __init__(self, seed: int, share: float = 1.0) -> None:
        self.seed = seed
        self.share = share
        """The share of its states that is examined."""
        self.lots = random.Random(-seed)
        self.chance = random.Random(seed)
        self.variant = VARIANTS[seed % len(VARIANTS)]
        self.clock = ManualClock()
        self.fs = CrashFileSystem()
        nothing = (frozenset[int](),) * len(self.variant.directories)
        self.promises = Promises(logged=nothing, durable=nothing)

    def states(self) -> Iterator[State]:
        """Run, and yield every state of the run, in the order of the steps."""
        found: list[State] = []
        self.fs.on_step = lambda operation, path: found.extend(self._states_here(len(found), operation, path))
        for call in self._calls():
            call()
            yield from found
            found.clear()
        self.fs.on_step = None

    def _states_here(self, index: int, operation: str, path: str) -> Iterator[State]:
        label = f"workload {self.seed}, step {self.fs.steps} ({operation} {path})"
        if self.lots.random() < self.share:
            yield State(f"{label}, kill", self.fs.clone_after_kill(), self.promises, power_cut=False)
        for seed in (0, 1, *(2 + self.seed * SEEDS + number for number in range(SEEDS - 2))):
            if self.lots.random() < self.share:
                after = self.fs.clone_after_crash(seed)
                yield State(f"{label}, power cut {seed}", after, self.promises, power_cut=True)

    def _calls(self) -> Iterator[Callable[[], None]]:
        yield self._open
        calls = [self._ingest, self._drain, self._maintain, self._flush, self._sync, self._reopen]
        # Policy can drop only bundles that are not acknowledged.
        weights = [14, 1, 3, 2, 1, 1] if self.variant.may_lose else [8, 4, 3, 2, 1, 1]
        for _ in range(self.chance.randint(10, 22)):
            yield self.chance.choices(calls, weights)[0]
        yield self._close

    def _say(self, **changes: object) -> None:
        self.promises = dataclasses.replace(self.promises, **changes)

    def dropped(self, store: str, segment: int, bundle_count: int) -> None:
        self._say(dropped=self.promises.dropped | {(store, segment, bundle_count)})

    def _open(self) -> None:
        self.store = self.variant.open(self.fs, self.clock, _Drops(self.dropped))
        self.subscribers = [self.store.register(name, start="earliest") for name in NAMES]

    def _ingest(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            number = self.promises.attempted
            durable = self.chance.random() < 0.3
            self._say(attempted=number + 1)
            by_clock = self.variant.settings.max_age_s is not None
            bundle = numbered(number, self.clock.now_ns() if by_clock else None)
            try:
                receipt = self.store.ingest(bundle, durable=durable)
            except CapacityError:
                continue
            core = getattr(receipt, "core", 0)
            logged = list(self.promises.logged)
            logged[core] |= {number}
            self._say(logged=tuple(logged))
            if durable:
                synced = list(self.promises.durable)
                synced[core] = logged[core]
                self._say(durable=tuple(synced))

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
        with contextlib.suppress(CapacityError):
            self.store.seal()
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


class _Drops(InMemoryObserver):
    """Records the drops that a store reports: the store, the segment, and its bundles."""

    def __init__(self, tell: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._tell = tell

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        if name == "quiver.segment.drop":
            self._tell(str(attributes["path"]), int(attributes["segment"] or 0), int(attributes["bundles"] or 0))


# ── contents of a disk ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Found:
    """The result of recovery."""

    sealed: tuple[tuple[int, ...], ...]
    """By core."""
    pending: tuple[tuple[tuple[int, ...], ...], ...]
    """By core, then by subscriber."""
    dropped: frozenset[tuple[str, int, int]]
    """The entries of the ledgers: the store, the number, and the number of bundles."""


def digest(fs: CrashFileSystem) -> int:
    """A hash of names, lengths, modes and bytes: identical disks have the same one."""

    def of(directory: CrashDirectory) -> tuple[object, ...]:
        return tuple(
            (name, of(node)) if isinstance(node, CrashDirectory) else (name, node.size, node.mode, *node.blocks)
            for name, node in sorted(directory.children.items())
        )

    return hash(of(fs._tree.root))


def examine(fs: CrashFileSystem, variant: Variant) -> Found:
    """Read without a writer, recover, seal, deliver everything, and continue. *fs* is changed."""
    ledgers = frozenset(itertools.chain.from_iterable(_ledger(fs, one) for one in variant.directories))
    seen = [
        [number_of(bundle) for _, bundle in read(one, fs=fs).bundles()] if fs.exists(f"{one}/wal") else []
        for one in variant.directories
    ]
    clock = ManualClock()
    with variant.open(fs, clock) as opened:
        opened.seal()
        sealed, pending = [], []
        for store, seen_here in zip(variant.stores(opened), seen, strict=True):
            here = sealed_numbers(store, number_of)
            assert here == sorted(set(here)), f"out of order, or twice in segments: {here}"
            # A reader may still see segments in the ledger; recovery continues their deletion.
            removed = seen_here[: len(seen_here) - len(here)] if ledgers else []
            assert seen_here == removed + here, f"a reader saw {seen_here}, recovery {here}"
            got = [tuple(drain(store, name, number_of=number_of)) for name in NAMES]
            for name, numbers in zip(NAMES, got, strict=True):
                assert list(numbers) == sorted(set(numbers)), f"{name} got {numbers}"
                assert set(numbers) <= set(here)
            sealed.append(tuple(here))
            pending.append(tuple(got))
        _go_on(opened, variant, clock)
    return Found(tuple(sealed), tuple(pending), ledgers)


def _go_on(opened: Any, variant: Variant, clock: ManualClock) -> None:
    clock.advance(10)
    for _ in range(2):  # segments in their grace period are deleted by the second call
        opened.maintain()
        clock.advance(10)
    for store, directory in zip(variant.stores(opened), variant.directories, strict=True):
        assert not len(store.internals.catalog), "finished segments stay"
        for name in (DROP_LEDGER, EVICTED):
            assert not store._fs.exists(f"{directory}/{name}"), (
                f"{name} stays, although every subscriber has applied it"
            )
        store.ingest(numbered(AFTERWARDS, clock.now_ns()))
        store.seal()
        for name in NAMES:
            assert drain(store, name, number_of=number_of) == [AFTERWARDS], (
                f"bundles ingested after recovery do not reach {name}"
            )


def _ledger(fs: CrashFileSystem, directory: str) -> list[tuple[str, int, int]]:
    entries = []
    for name in (DROP_LEDGER, EVICTED):
        if fs.exists(f"{directory}/{name}"):
            data = fs.read_all(f"{directory}/{name}", size_max=DROP_LEDGER_BYTES_MAX)
            answer = decode_drop_ledger(memoryview(data))
            assert isinstance(answer, Frame), f"{name} is replaced atomically, but its content is {answer}"
            entries += [(directory, entry.seq, entry.bundle_count) for entry in answer.value]
    return entries


def judge(found: Found, promises: Promises, stores: list[str], *, power_cut: bool) -> None:
    dropped: Counter[str] = Counter()
    for store, _, count in found.dropped | promises.dropped:
        dropped[store] += count
    for core, promised in enumerate(promises.durable if power_cut else promises.logged):
        sealed = found.sealed[core]
        assert all(number < promises.attempted for number in sealed), f"invented {sealed}"
        for who, name in enumerate(NAMES):
            got = set(found.pending[core][who])
            missing = promised - promises.asked[who] - got
            newer = {number for number in missing if sealed and number > sealed[0]}
            assert not newer, f"{name} misses {sorted(newer)} of {sorted(promised)}"
            given_up = dropped[stores[core]]
            assert len(missing) <= given_up, f"{name} misses {sorted(missing)}, and policy dropped {given_up} bundles"
            again = promises.kept[who] & got
            assert not again, f"{name} gets {sorted(again)} again"


# ── the enumeration ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Explored:
    """The numbers of examined states."""

    workloads: int = 0
    states: int = 0
    distinct: int = 0
    in_recovery: int = 0
    """The states that a second crash during recovery left."""
    dropped: int = 0
    """Segments that policy dropped in the workloads."""

    def __add__(self, other: Explored) -> Explored:
        return Explored(
            *(sum(pair) for pair in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True))
        )


@dataclass
class _Explorer:
    count: Explored = field(default_factory=Explored)
    known: dict[int, Found] = field(default_factory=dict)

    def look(self, state: State, variant: Variant) -> bool:
        """Check one state; return True if no identical disk was examined before."""
        self.count.states += 1
        key = digest(state.fs)
        new = key not in self.known
        try:
            if new:
                self.known[key] = examine(state.fs.clone_after_kill(), variant)
                self.count.distinct += 1
            judge(self.known[key], state.promises, variant.directories, power_cut=state.power_cut)
        except BaseException as failure:
            failure.add_note(state.label)
            raise
        return new

    def look_into_recovery(self, state: State, variant: Variant, chance: random.Random) -> None:
        """Interrupt the recovery of *state* at one of six steps, and recover from that."""
        fs = state.fs
        cut: list[State] = []
        dropped = set(self.known[digest(fs)].dropped | state.promises.dropped)

        def before(operation: str, path: str) -> None:
            if chance.random() < 1 / 6:
                seed = chance.randrange(2**20)
                label = f"{state.label}; then in recovery, step {fs.steps} ({operation} {path}), seed {seed}"
                promises = dataclasses.replace(state.promises, dropped=frozenset(dropped))
                cut.append(State(label, fs.clone_after_crash(seed), promises, power_cut=True))

        fs.on_step = before
        # A kill leaves unsynced bytes that a power loss may remove now, so the weaker promise counts.
        variant.open(fs, ManualClock(), _Drops(lambda *drop: dropped.add(drop)))
        fs.on_step = None
        for again in cut:
            self.count.in_recovery += 1
            self.look(again, variant)


def explore(first_seed: int, states: int, *, share: float = 1.0) -> Explored:
    """Examine at least *states* states, in workloads from *first_seed* on; a random *share* of each."""
    total = Explored()
    for seed in itertools.count(first_seed):
        explorer = _Explorer()
        workload = Workload(seed, share)
        chance = random.Random(-seed)
        for state in workload.states():
            if explorer.look(state, workload.variant) and chance.random() < 1 / 8:
                explorer.look_into_recovery(state, workload.variant, chance)
        explorer.count.workloads = 1
        explorer.count.dropped = len(workload.promises.dropped)
        total += explorer.count
        if total.states >= states:
            return total
    raise AssertionError
