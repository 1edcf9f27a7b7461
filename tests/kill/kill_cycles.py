"""
Fork, let a child work on a real directory, kill it at any moment, and compare the directory with its promises.

The promises to the child are recorded in memory that it shares with its parent and that outlives it: nothing is lost
between a promise and its record, and recording needs no system call.
"""

from __future__ import annotations

import gc
import logging
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
from typing import Any, BinaryIO

import pyarrow as pa

from quiver import Bundle, BundleUnavailableError, CapacityError, Settings, Store
from quiver import open as open_store
from quiver.observe import InMemoryObserver, Value
from quiver.primitives.scan import Frame
from quiver.store.format.drop_ledger import decode_drop_ledger
from quiver.store.format.names import DROP_LEDGER
from quiver.testing.crashfs import CrashFileSystem
from store_rig import sealed_numbers

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
STAMPED_BY_CLOCK_NS = 10**18

_ASKED = 1
"""The child is about to acknowledge: the bundle may come again or not."""
_KEPT = 2
"""It acknowledged, and a maintenance pass has returned since: the bundle never comes again."""


class Tally:
    """The attempts of a child and the promises to it, in memory that survives its death."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 64 + (len(NAMES) + 2) * NUMBERS_MAX)

    def copy(self) -> Tally:
        """The same promises in memory of their own."""
        copy = Tally()
        copy.become(self)
        return copy

    def become(self, other: Tally) -> None:
        self._memory[:] = other._memory[:]

    def _word(self, index: int) -> int:
        return int.from_bytes(self._memory[8 * index : 8 * index + 8], "little")

    def _set_word(self, index: int, value: int) -> None:
        self._memory[8 * index : 8 * index + 8] = value.to_bytes(8, "little")

    @property
    def attempted(self) -> int:
        """Numbers below this were attempted."""
        return self._word(0)

    def try_next(self) -> int:
        number = self.attempted
        self._set_word(0, number + 1)
        return number

    def accept(self, number: int, core: int = 0) -> None:
        self._memory[64 + number] = core + 1

    def accepted(self) -> set[int]:
        return self._where(64, 1)

    def core_of(self, number: int) -> int:
        """Return the core of an accepted bundle."""
        return self._memory[64 + number] - 1

    def _base(self, name: str) -> int:
        return 64 + NUMBERS_MAX * (1 + NAMES.index(name))

    def ask(self, name: str, number: int) -> None:
        self._memory[self._base(name) + number] = max(_ASKED, self._memory[self._base(name) + number])

    def keep(self, name: str, number: int) -> None:
        self._memory[self._base(name) + number] = _KEPT

    def may_come_again(self, name: str) -> None:
        """A rewind begins: nothing that was acknowledged is sure to stay away."""
        for number in self.kept(name):
            self._memory[self._base(name) + number] = _ASKED

    def comes_again(self, name: str, number: int) -> None:
        """A rewind has returned."""
        self._memory[self._base(name) + number] = 0

    def drop(self, segment: int, bundle_count: int) -> None:
        """Policy dropped a segment; a repeated report changes nothing."""
        self._memory[self._drops + segment] = bundle_count

    @property
    def _drops(self) -> int:
        return 64 + NUMBERS_MAX * (1 + len(NAMES))

    @property
    def dropped_bundles(self) -> int:
        return sum(self._memory[self._drops : self._drops + NUMBERS_MAX])

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
    assert bundle.ingested_at_ns == 10**9 + number or bundle.ingested_at_ns > STAMPED_BY_CLOCK_NS
    return number


class Listener(InMemoryObserver):
    """Records the segments that the store reports as dropped."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:
        if name == "quiver.segment.drop":
            self._tally.drop(int(attributes["segment"] or 0), int(attributes["bundles"] or 0))


class Child:
    """Ingests, delivers, acknowledges, seals, deletes, closes and reopens, in random order, until killed."""

    def __init__(self, directory: Path, tally: Tally, seed: int, settings: Settings) -> None:
        self.directory = directory
        self.tally = tally
        self.chance = random.Random(seed)
        self.settings = settings
        self.background = self.chance.random() < 0.3
        self.waiting: list[tuple[str, int]] = []
        """Acknowledged since the last maintenance pass."""

    def open(self) -> None:
        self.store = self.open_store()
        self.subscribers = {name: self.store.register(name, start="earliest") for name in NAMES}

    def open_store(self) -> Any:
        listener = Listener(self.tally)
        return open_store(self.directory, self.settings, background=self.background, observer=listener)

    def steps(self) -> list[tuple[int, Callable[[], None]]]:
        """The steps, with their weights."""
        return [(10, self.ingest), (5, self.deliver), (3, self.maintain), (1, self.flush), (1, self.reopen)]

    def bundle(self, number: int) -> Bundle:
        return numbered(number)

    def work(self) -> None:
        self.open()
        steps = self.steps()
        weights = [weight for weight, _ in steps]
        while self.tally.attempted < NUMBERS_MAX - 1:
            self.chance.choices([step for _, step in steps], weights)[0]()

    def ingest(self) -> None:
        number = self.tally.try_next()
        try:
            receipt = self.store.ingest(self.bundle(number), durable=self.chance.random() < 0.2)
        except CapacityError:
            self.maintain()
            return
        self.tally.accept(number, getattr(receipt, "core", 0))

    def deliver(self) -> None:
        name = self.chance.choice(NAMES)
        for _ in range(self.chance.randint(1, 12)):
            handle = self.subscribers[name].next_bundle(timeout=0)
            if handle is None:
                return
            try:
                number = number_of(handle.bundle)
            except BundleUnavailableError:  # dropped while it was held
                continue
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
        self.store.seal()

    def reopen(self) -> None:
        self.store.close()
        self.settle()
        self.open()


def run_and_kill(work: Callable[[], None], tally: Tally | None, chance: random.Random) -> None:
    """
    Fork, let the child *work*, and kill it while it opens or a moment later. A child that ends by itself failed.

    One without a *tally* takes no bundles: it dies after a time.
    """
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


def wait_for_the_moment(pipe: BinaryIO, tally: Tally | None, chance: random.Random) -> bool:
    """Return when the child is to die: after some milliseconds, or some bundles and a moment. True when it ended."""

    def ended_within(seconds: float) -> bool:
        return bool(select.select([pipe], [], [], seconds)[0])

    if tally is None or chance.random() < 0.3:
        return ended_within(chance.uniform(0.0, OPENING_S_MAX))
    target = tally.attempted + chance.randint(1, STEPS_MAX)
    for _ in range(PATIENCE_MS):
        if ended_within(0.001):
            return True
        if tally.attempted >= target:
            break
    return ended_within(chance.uniform(0.0, 0.001))


def warm_up(settings: Settings) -> None:
    """Load and start everything that the first bundle needs, once, here: a child lives only for milliseconds."""
    with open_store("/warm", settings, fs=CrashFileSystem(), background=False) as store:
        subscriber = store.register(NAMES[0], start="earliest")
        store.ingest(numbered(0), durable=True)
        store.seal()
        with subscriber.next_bundle(timeout=0) as handle:
            number_of(handle.bundle)
            handle.ack()


def in_segments(store: Store) -> list[int]:
    return sealed_numbers(store, number_of)


def pending(store: Store, name: str) -> list[int]:
    """Return the bundles that are pending for *name*, without claiming them."""
    subscriber = store.register(name, start="earliest")
    handles = []
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        handles.append(handle)
    return [number_of(handle.bundle) for handle in handles]


def check(directory: Path, tally: Tally, settings: Settings, label: str) -> None:
    """Reopen, and compare the contents with the promises."""
    read_ledger(directory, tally)
    with open_store(directory, settings, background=False, observer=Listener(tally)) as store:
        store.seal()
        sealed = in_segments(store)
        waiting = {name: pending(store, name) for name in NAMES}
    assert sealed == sorted(set(sealed)), f"{label}: out of order or twice in segments: {sealed}"
    for name, numbers in waiting.items():
        assert numbers == sorted(numbers), f"{label}: {name} would get {numbers}"
    judge(tally, tally.accepted(), set(sealed), waiting, label)
    for name in NAMES:
        lost = tally.accepted() - tally.asked(name) - set(waiting[name])
        assert len(lost) <= tally.dropped_bundles, f"{label}: {name} never gets {sorted(lost)}"


def judge(tally: Tally, accepted: set[int], sealed: set[int], waiting: dict[str, list[int]], label: str) -> None:
    """Missing bundles were acknowledged or are older than all others; no bundle is there that should not be."""
    assert sealed <= set(range(tally.attempted)), f"{label}: invented {sealed}"
    oldest = min(sealed, default=tally.attempted)
    for name, numbers in waiting.items():
        assert len(numbers) == len(set(numbers)), f"{label}: {name} would get {numbers}"
        missing = {number for number in accepted - tally.asked(name) - set(numbers) if number > oldest}
        assert not missing, f"{label}: {name} never gets {sorted(missing)}"
        again = tally.kept(name) & set(numbers)
        assert not again, f"{label}: {name} would get {sorted(again)} again"


def read_ledger(directory: Path, tally: Tally) -> None:
    """Who died between writing down what it drops and saying so wrote it down."""
    try:
        answer = decode_drop_ledger(memoryview((directory / DROP_LEDGER).read_bytes()))
    except FileNotFoundError:
        return
    assert isinstance(answer, Frame), f"the ledger is replaced atomically, but its content is {answer}"
    for entry in answer.value:
        tally.drop(entry.seq, entry.bundle_count)


@dataclass(frozen=True)
class Scenario:
    """The work of the children of a series, and the check of their promises."""

    settings: Settings = SETTINGS
    child: type[Child] = Child
    check: Callable[[Path, Tally, Settings, str], None] = check


@dataclass
class Outcome:
    """The figures of a series of cycles, so that a test can check that it was not idle."""

    cycles: int = 0
    checks: int = 0
    accepted: int = 0
    acked: int = 0
    dropped: int = 0


def kill_cycles(directory: Path, count: int, seed: int, scenario: Scenario | None = None) -> Outcome:
    """*count* children, each killed; what is there is checked after every third on average, and at the end."""
    scenario = scenario or Scenario()
    warm_up(scenario.settings)
    gc.collect()
    gc.freeze()  # or each child would copy what its collector looks at
    try:
        return _kill_cycles(directory, count, seed, scenario)
    finally:
        gc.unfreeze()


def _kill_cycles(directory: Path, count: int, seed: int, scenario: Scenario) -> Outcome:
    chance = random.Random(seed)
    tally = Tally()
    outcome = Outcome()
    for cycle in range(count):
        child = scenario.child(directory, tally, chance.randrange(2**32), scenario.settings)
        run_and_kill(child.work, tally, chance)
        read_ledger(directory, tally)
        outcome.cycles += 1
        # Between two checks a child recovers from what another's death left, and may die while it does.
        if chance.random() < 0.34 or cycle == count - 1:
            scenario.check(directory, tally, scenario.settings, f"seed {seed}, cycle {cycle}")
            outcome.checks += 1
    outcome.accepted = len(tally.accepted())
    outcome.acked = sum(len(tally.asked(name)) for name in NAMES)
    outcome.dropped = tally.dropped_bundles
    return outcome
