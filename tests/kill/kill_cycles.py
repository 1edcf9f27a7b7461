"""
Fork, let a child work on a real directory, kill it at any moment, and hold what is there against what it was told.

What the child was told stands in memory that it shares with its parent and that outlives it: nothing is lost between
a promise and its record, and recording costs no system call.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from quiver import AtCapacity, Bundle, Settings, Store
from quiver import open as open_store
from quiver.bundle import BundleRef
from quiver.testing.crashfs import CrashFileSystem

NAMES = ("one", "two")
NUMBERS_MAX = 60_000
SETTINGS = Settings(
    segment_bytes_max=1_200,
    wal_rotate_bytes=1_500,
    wal_bytes_max=60_000,
    wal_files_max=6,
    delete_grace_s=0.0,
    segment_open_s_max=0.004,
    wal_flush_interval_s=0.001,
    maintain_interval_s=0.002,
)
OPENING_S_MAX = 0.02
"""A death this early meets the recovery of the one before."""
STEPS_MAX = 12
PATIENCE_MS = 20_000

_ASKED = 1
"""The child is about to acknowledge: the bundle may come again or not."""
_KEPT = 2
"""It acknowledged, and a maintenance pass has returned since: the bundle never comes again."""


class Tally:
    """
    What a child tried and what it was told, in memory that survives its death.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 64 + len(NAMES) * NUMBERS_MAX + NUMBERS_MAX)

    def copy(self) -> Tally:
        """The same promises in memory of their own."""
        copy = Tally()
        copy._memory[:] = self._memory[:]
        return copy

    def _word(self, index: int) -> int:
        return int.from_bytes(self._memory[8 * index : 8 * index + 8], "little")

    def _set_word(self, index: int, value: int) -> None:
        self._memory[8 * index : 8 * index + 8] = value.to_bytes(8, "little")

    @property
    def attempted(self) -> int:
        """Numbers below this were tried."""
        return self._word(0)

    def try_next(self) -> int:
        number = self.attempted
        self._set_word(0, number + 1)
        return number

    def accept(self, number: int) -> None:
        self._memory[64 + number] = 1

    def accepted(self) -> set[int]:
        return self._where(64, 1)

    def _base(self, name: str) -> int:
        return 64 + NUMBERS_MAX * (1 + NAMES.index(name))

    def ask(self, name: str, number: int) -> None:
        self._memory[self._base(name) + number] = max(_ASKED, self._memory[self._base(name) + number])

    def keep(self, name: str, number: int) -> None:
        self._memory[self._base(name) + number] = _KEPT

    def asked(self, name: str) -> set[int]:
        """Acknowledged, or about to be when the end came."""
        return self._where(self._base(name), _ASKED)

    def kept(self, name: str) -> set[int]:
        return self._where(self._base(name), _KEPT)

    def _where(self, base: int, at_least: int) -> set[int]:
        column = self._memory[base : base + self.attempted]
        return {number for number, value in enumerate(column) if value >= at_least}


def numbered(number: int) -> Bundle:
    """A bundle that carries its number; every eighth is larger than a log file may grow."""
    pad = "x" * (1_700 if number % 8 == 7 else number % 97)
    return Bundle(
        {30: pa.record_batch({"n": pa.array([number]), "pad": pa.array([pad])})}, ingested_at_ns=10**9 + number
    )


def number_of(bundle: Bundle) -> int:
    number = bundle[30]["n"][0].as_py()
    assert bundle == numbered(number), f"bundle {number} came back changed"
    assert bundle.ingested_at_ns == 10**9 + number
    return number


class Child:
    """
    Ingests, delivers, acknowledges, seals, deletes, closes and opens again, in an order of chance, until killed.
    """

    def __init__(self, directory: Path, tally: Tally, seed: int, settings: Settings) -> None:
        self.directory = directory
        self.tally = tally
        self.chance = random.Random(seed)
        self.settings = settings
        self.background = self.chance.random() < 0.3
        self.waiting: list[tuple[str, int]] = []
        """Acknowledged since the last maintenance pass."""

    def open(self) -> None:
        self.store = open_store(self.directory, self.settings, background=self.background)
        self.subscribers = {name: self.store.register(name, start="earliest") for name in NAMES}

    def work(self) -> None:
        self.open()
        steps: list[tuple[int, Callable[[], None]]] = [
            (10, self.ingest), (5, self.deliver), (3, self.maintain), (1, self.flush), (1, self.reopen)
        ]  # fmt: skip
        weights = [weight for weight, _ in steps]
        while self.tally.attempted < NUMBERS_MAX - 1:
            self.chance.choices([step for _, step in steps], weights)[0]()

    def ingest(self) -> None:
        number = self.tally.try_next()
        try:
            self.store.ingest(numbered(number), durable=self.chance.random() < 0.2)
        except AtCapacity:
            self.maintain()
            return
        self.tally.accept(number)

    def deliver(self) -> None:
        name = self.chance.choice(NAMES)
        for _ in range(self.chance.randint(1, 12)):
            handle = self.subscribers[name].next_bundle(timeout=0)
            if handle is None:
                return
            number = number_of(handle.bundle)
            self.tally.ask(name, number)
            handle.ack()
            self.waiting.append((name, number))

    def maintain(self) -> None:
        self.store.maintain()
        self.settle()

    def settle(self) -> None:
        for name, number in self.waiting:
            self.tally.keep(name, number)
        self.waiting.clear()

    def flush(self) -> None:
        self.store.flush()

    def reopen(self) -> None:
        self.store.close()
        self.settle()
        self.open()


def run_and_kill(work: Callable[[], None], tally: Tally, chance: random.Random) -> None:
    """Fork, let the child *work*, and kill it while it opens or a moment later. A child that ends by itself failed."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of Arrow's pool are not needed over there
        child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            work()
        except BaseException:
            os.write(write_end, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        ended = wait_for_the_moment(pipe, tally, chance)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not ended, pipe.read().decode()


def wait_for_the_moment(pipe: BinaryIO, tally: Tally, chance: random.Random) -> bool:
    """Return when the child is to die: after some milliseconds, or some bundles and a moment. True when it ended."""

    def ended_within(seconds: float) -> bool:
        return bool(select.select([pipe], [], [], seconds)[0])

    if chance.random() < 0.3:
        return ended_within(chance.uniform(0.0, OPENING_S_MAX))
    target = tally.attempted + chance.randint(1, STEPS_MAX)
    for _ in range(PATIENCE_MS):
        if ended_within(0.001):
            return True
        if tally.attempted >= target:
            break
    return ended_within(chance.uniform(0.0, 0.001))


def warm_up(settings: Settings) -> None:
    """Load and start whatever the first bundle needs, once and here: a child has only milliseconds to live."""
    with open_store("/warm", settings, files=CrashFileSystem(), background=False) as store:
        subscriber = store.register(NAMES[0], start="earliest")
        store.ingest(numbered(0), durable=True)
        store.flush()
        with subscriber.next_bundle(timeout=0) as handle:
            number_of(handle.bundle)
            handle.ack()


def in_segments(store: Store) -> list[int]:
    refs = [BundleRef(info.seq, index) for info in store.catalog.segments() for index in range(info.bundle_count)]
    return [number_of(store.catalog.bundle(ref)) for ref in refs]


def pending(store: Store, name: str) -> list[int]:
    """What *name* would still be given, without taking it."""
    subscriber = store.register(name, start="earliest")
    handles = []
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        handles.append(handle)
    return [number_of(handle.bundle) for handle in handles]


def check(directory: Path, tally: Tally, settings: Settings, label: str) -> None:
    """Open again, and hold what is there against what was promised."""
    accepted = tally.accepted()
    with open_store(directory, settings, background=False) as store:
        store.flush()
        sealed = in_segments(store)
        assert sealed == sorted(set(sealed)), f"{label}: out of order or twice in segments: {sealed}"
        assert set(sealed) <= set(range(tally.attempted)), f"{label}: invented {sealed}"
        for name in NAMES:
            waiting = pending(store, name)
            assert waiting == sorted(set(waiting)), f"{label}: {name} would get {waiting}"
            missing = accepted - tally.asked(name) - set(waiting)
            assert not missing, f"{label}: {name} never gets {sorted(missing)}"
            again = tally.kept(name) & set(waiting)
            assert not again, f"{label}: {name} would get {sorted(again)} again"


@dataclass
class Outcome:
    """
    What a series of cycles did, so that a test can say that it was not idle.
    """

    cycles: int = 0
    checks: int = 0
    accepted: int = 0
    acked: int = 0


def kill_cycles(directory: Path, count: int, seed: int, settings: Settings = SETTINGS) -> Outcome:
    """*count* children, each killed; what is there is checked after every third on average, and at the end."""
    warm_up(settings)
    gc.collect()
    gc.freeze()  # or each child would copy what its collector looks at
    try:
        return _kill_cycles(directory, count, seed, settings)
    finally:
        gc.unfreeze()


def _kill_cycles(directory: Path, count: int, seed: int, settings: Settings) -> Outcome:
    chance = random.Random(seed)
    tally = Tally()
    outcome = Outcome()
    for cycle in range(count):
        child = Child(directory, tally, chance.randrange(2**32), settings)
        run_and_kill(child.work, tally, chance)
        outcome.cycles += 1
        # Between two checks a child recovers from what another's death left, and may die while it does.
        if chance.random() < 0.34 or cycle == count - 1:
            check(directory, tally, settings, f"seed {seed}, cycle {cycle}")
            outcome.checks += 1
    outcome.accepted = len(tally.accepted())
    outcome.acked = sum(len(tally.asked(name)) for name in NAMES)
    return outcome
