"""A crash at every step of a run with all operations of a store: nothing accepted is lost, nothing is invented."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pytest

import store_rig
from quiver.bundle import Bundle
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.store.store import Store
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import sealed_numbers

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/buffer"
SEEDS = (0, 1, 2, 3)
SETTINGS = Settings(
    segment_bytes_max=2_000,
    wal_rotate_bytes=2_500,
    wal_bytes_max=40_000,
    wal_files_max=8,
    delete_grace_s=0.0,
)


def bundle_of(number: int) -> Bundle:
    """Each bundle carries its number; some have a second slot, some a dictionary column."""
    slots = {30: pa.record_batch({"n": pa.array([number, number]), "text": pa.array(["x" * 20, f"row {number}"])})}
    if number % 3 == 0:
        slots[31] = pa.record_batch({"tag": pa.array([f"t{number}", "same"]).dictionary_encode()})
    return Bundle(slots, ingested_at_ns=1_000_000 + number)


def number_of(bundle: Bundle) -> int:
    number = bundle[30]["n"][0].as_py()
    assert bundle == bundle_of(number), "a bundle came back changed"
    assert bundle.ingested_at_ns == 1_000_000 + number
    return number


drain = partial(store_rig.drain, number_of=number_of)


class Run:
    """One run on a file system, with the promises to the caller at each moment."""

    def __init__(self, fs: CrashFileSystem) -> None:
        self.fs = fs
        self.logged = 0
        """Bundles 0 … logged - 1 were accepted: they survive the death of the process."""
        self.durable = 0
        """Bundles 0 … durable - 1 survive a power loss."""
        self.attempted = 0
        self.acked: dict[str, set[int]] = {"one": set(), "two": set()}

    def open(self) -> Store:
        return open_again(self.fs)

    def ingest(self, store: Store, count: int, *, durable_every: int) -> None:
        for _ in range(count):
            number = self.attempted
            self.attempted += 1
            durable = number % durable_every == 0
            store.ingest(bundle_of(number), durable=durable)
            self.logged = number + 1
            if durable:
                self.durable = number + 1

    def drain(self, store: Store, name: str, most: int) -> None:
        subscriber = store.register(name, start="earliest")
        for _ in range(most):
            handle = subscriber.next_bundle(timeout=0)
            if handle is None:
                break
            number = number_of(handle.bundle)
            handle.ack()
            self.acked[name].add(number)
        store.maintain()
        self.durable = self.logged

    def run(self) -> None:
        store = self.open()
        store.register("one", start="earliest")
        store.register("two", start="earliest")
        self.ingest(store, 14, durable_every=3)
        self.drain(store, "one", 9)
        self.ingest(store, 8, durable_every=4)
        store.maintain()
        self.durable = self.logged
        self.drain(store, "two", 12)
        store.seal()
        self.durable = self.logged
        store.close()
        store = self.open()
        self.ingest(store, 12, durable_every=5)
        self.drain(store, "one", 100)
        self.drain(store, "two", 100)
        self.ingest(store, 6, durable_every=2)
        store.sync()
        self.durable = self.logged
        store.close()


@dataclass(frozen=True)
class CrashState:
    """The disk right before one step, and the promises made by then."""

    label: str
    after_power_loss: dict[int, CrashFileSystem]
    after_kill: CrashFileSystem
    logged: int
    durable: int
    attempted: int
    acked: dict[str, set[int]]


def crash_states() -> list[CrashState]:
    """Every step of the run."""
    states: list[CrashState] = []
    fs = CrashFileSystem()
    run = Run(fs)

    def before(operation: str, path: str) -> None:
        states.append(
            CrashState(
                f"step {len(states)} ({operation} {path})",
                {seed: fs.clone_after_crash(seed) for seed in SEEDS},
                fs.clone_after_kill(),
                run.logged,
                run.durable,
                run.attempted,
                {name: set(acked) for name, acked in run.acked.items()},
            )
        )

    fs.on_step = before
    run.run()
    fs.on_step = None
    return states


def check(state: CrashState, label: str, fs: CrashFileSystem, promised: int) -> None:
    """Check the guarantees after the crash, for a reader without a writer and for a store that recovers."""
    survivors = read_numbers(fs)
    assert survivors == sorted(set(survivors)), f"{label}: a reader sees {survivors}"
    assert all(number < state.attempted for number in survivors), f"{label}: invented {survivors}"
    with open_again(fs) as store:
        store.seal()
        in_segments = sealed_numbers(store, number_of)
        assert in_segments == sorted(set(in_segments)), f"{label}: segments hold {in_segments}"
        assert set(survivors) == set(in_segments), f"{label}: a reader saw {survivors}, recovery {in_segments}"
        for name in ("one", "two"):
            got = drain(store, name)
            assert got == sorted(set(got)), f"{label}: {name} got {got}"
            missing = set(range(promised)) - set(got) - state.acked[name]
            assert not missing, f"{label}: {name} misses {sorted(missing)} of {promised}"
        store.maintain()
        assert len(store.internals.catalog) == 0, f"{label}: finished segments stay"
        store.ingest(bundle_of(1000))
        store.seal()
        for name in ("one", "two"):
            assert drain(store, name) == [1000], f"{label}: what comes after recovery does not reach {name}"


def open_again(fs: CrashFileSystem) -> Store:
    return open_store(ROOT, SETTINGS, fs=fs, clock=ManualClock(), background=False)


def read_numbers(fs: CrashFileSystem) -> list[int]:
    if not fs.exists(f"{ROOT}/wal"):
        return []
    return [number_of(bundle) for _, bundle in read(ROOT, fs=fs).bundles()]


@pytest.mark.parametrize("choices", [1, pytest.param(len(SEEDS) + 1, marks=pytest.mark.slow)])
def test_a_crash_at_every_step_keeps_every_promise(choices: int) -> None:
    """Kill -9 or a power loss at each step, with one of several outcomes on the disk, or with all of them."""
    states = crash_states()
    assert len(states) > 200
    first = random.randrange(len(SEEDS) + 1)
    for number, state in enumerate(states, first):
        crashes = [("kill -9", state.after_kill, state.logged)]
        crashes += [(f"power loss {seed}", fs, state.durable) for seed, fs in state.after_power_loss.items()]
        for crash, fs, promised in (crashes + crashes)[number % len(crashes) :][:choices]:
            check(state, f"{state.label}, {crash}", fs, promised)


def test_recovering_twice_equals_recovering_once() -> None:
    """A second recovery after the first, interrupted one has the same bundles in order."""
    for state in crash_states()[::5]:
        fs = state.after_power_loss[2]
        contents = []
        for _ in range(2):
            open_again(fs)
            contents.append(read_numbers(fs))
            fs = fs.clone_after_crash(0)
        assert contents[0] == contents[1], state.label


def test_a_crash_during_recovery_is_recovered_from() -> None:
    """At every step of the recovery itself, a second crash loses nothing either."""
    for state in crash_states()[::23]:
        fs = state.after_power_loss[3]
        expected = read_numbers(fs)
        clones: list[CrashFileSystem] = []
        fs.on_step = lambda _operation, _path, fs=fs: clones.append(fs.clone_after_crash(2))
        open_again(fs)
        fs.on_step = None
        for clone in clones:
            open_again(clone)
            assert read_numbers(clone) == expected, state.label
