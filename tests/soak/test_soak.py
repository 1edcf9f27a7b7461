"""
Everything together, for minutes: producers, a store, and three subscribers of different speed in separate processes,
each killed every few seconds, with a size cap that is reached. Then the results are checked.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from soak_processes import (
    INSIDE,
    PRODUCERS,
    SUBSCRIBERS,
    Board,
    Place,
    forked,
    name_of,
    pause,
    produce,
    read_lines,
    serve,
    subscribe,
    until_there,
)

from clean_process import in_a_clean_process
from quiver import Settings
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Frame
from quiver.store.format.cores import EVICTED
from quiver.store.format.drop_ledger import decode_drop_ledger
from quiver.store.format.names import DROP_LEDGER, parse_segment_name
from quiver.store.segment.reader import SegmentReader

SEGMENT_BYTES = 32 * 1024
CAP_BYTES = 1_200 * 1024
OVERSHOOT_BYTES = SEGMENT_BYTES
"""How far each core may exceed the cap for a moment: by a segment whose bundles are still in the log."""

SETTINGS = {
    "segment_bytes_max": SEGMENT_BYTES,
    "wal_rotate_bytes": 64 * 1024,
    "wal_bytes_max": 512 * 1024,
    "size_cap_bytes": CAP_BYTES,
    "segment_open_s_max": 0.3,
    "delete_grace_s": 0.5,
    "maintain_interval_s": 0.02,
}
STALLED_S_MAX = 120.0
"""A process that should end and records nothing for this time makes no progress."""


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    chosen = Path(tempfile.mkdtemp(prefix="quiver-soak-", dir=memory)) if memory.is_dir() else tmp_path
    yield chosen
    shutil.rmtree(chosen, ignore_errors=True)


@dataclass
class Conductor:
    """Starts the processes, kills and restarts them at random, and checks the disk meanwhile."""

    place: Place
    chance: random.Random
    kill_every_s: float
    """Each process is killed so often, on average."""
    may_lose: bool
    running: dict[str, int] = field(default_factory=dict)
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    bytes_most: int = 0
    seen: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """The bundles of each segment, by core and number, read while it existed."""
    dropped: dict[tuple[int, int], int] = field(default_factory=dict)
    """Segments that any ledger listed as dropped, by core and number, with their bundles."""

    def work_of(self, who: str) -> Callable[[], None]:
        kind, _, which = who.partition("-")
        number = int(which)
        if kind == "server":
            return partial(serve, self.place, number)
        if kind == "producer":
            return partial(produce, self.place, number)
        work = partial(subscribe, self.place, kind, number, may_lose=self.may_lose)
        return partial(until_there, self.place.directories[number], work)

    @property
    def servers(self) -> list[str]:
        return [f"server-{core}" for core in range(len(self.place.directories))]

    @property
    def producers(self) -> list[str]:
        return [f"producer-{number}" for number in range(PRODUCERS)]

    @property
    def subscribers(self) -> list[str]:
        return [f"{name}-{core}" for core in range(len(self.place.directories)) for name in SUBSCRIBERS]

    def start(self, who: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.running[who] = forked(self.work_of(who), self.place.base / "said")

    def start_all(self) -> None:
        for who in (*self.servers, *self.producers, *self.subscribers):
            self.start(who)

    def kill(self, who: str) -> None:
        os.kill(self.running[who], signal.SIGKILL)
        os.waitpid(self.running[who], 0)
        self.kills[who] += 1
        self.read_ledgers()

    def check_alive(self) -> None:
        for who, child in list(self.running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                del self.running[who]
                reported = self.place.base / "said"
                pytest.fail(
                    f"{who} ended with {status}: {reported.read_text() if reported.exists() else 'nothing reported'}"
                )

    def watch(self) -> None:
        """Check the disk: its usage, the contents of new segments, and the ledgers."""
        total = 0
        cores = {directory: core for core, directory in enumerate(self.place.directories)}
        for path in self.place.store.rglob("*"):
            try:
                if path.is_file():
                    total += path.stat().st_size
                number = parse_segment_name(path.name)
                if number is None or path.parent.name != "segments":
                    continue
                key = cores[path.parent.parent], number
                if key not in self.seen:
                    reader = SegmentReader.open(REAL_FILES, str(path))
                    self.seen[key] = [name_of(reader.bundle(index)[30]) for index in range(reader.bundle_count)]
            except FileNotFoundError:
                continue
        self.bytes_most = max(self.bytes_most, total)
        self.read_ledgers()

    def read_ledgers(self) -> None:
        """A drop is recorded before it happens, so that a process that dies during it has recorded it."""
        for core, directory in enumerate(self.place.directories):
            for name in (DROP_LEDGER, EVICTED):
                try:
                    data = (directory / name).read_bytes()
                except FileNotFoundError:
                    continue
                answer = decode_drop_ledger(memoryview(data))
                assert isinstance(answer, Frame), f"{name} is replaced whole, and reads {answer}"
                self.dropped |= {(core, entry.seq): entry.bundle_count for entry in answer.value}

    def disturb(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        between_s = self.kill_every_s / len(self.running)
        next_kill = time.monotonic() + between_s
        while time.monotonic() < end:
            self.check_alive()
            self.watch()
            if time.monotonic() >= next_kill:
                who = self.chance.choice(list(self.running))
                self.kill(who)
                self.start(who)
                next_kill = time.monotonic() + self.chance.uniform(0.2, 1.8) * between_s
            pause(0.01)

    def finish(self) -> None:
        """Stop killing: producers end, the store is sealed and closed, subscribers read to the end."""
        board = self.place.board
        for stop, group in (
            (board.stop_producers, self.producers),
            (board.stop_server, self.servers),
            (board.stop_subscribers, self.subscribers),
        ):
            stop()
            for who in group:
                self.wait_for(who)

    def wait_for(self, who: str) -> None:
        written = -1
        deadline = 0.0
        child = self.running.pop(who)
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                reported = self.place.base / "said"
                assert status == 0, f"{who} ended with {status}: {reported.read_text() if reported.exists() else ''}"
                return
            self.watch()
            before, written = written, self.written_bytes
            if written != before:
                deadline = time.monotonic() + STALLED_S_MAX
            if time.monotonic() > deadline:
                self.running[who] = child
                pytest.fail(f"{who} did not come to an end")
            pause(0.01)

    @property
    def written_bytes(self) -> int:
        """From all journals: each process that delivers writes one."""
        return sum(path.stat().st_size for path in self.place.base.glob("*.journal"))

    def kill_the_rest(self) -> None:
        for child in self.running.values():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def soak(
    base: Path,
    seconds: float,
    *,
    kill_every_s: float,
    seed: int,
    pace: float = 1.0,
    cores: int | None = None,
    **changes: object,
) -> Conductor:
    settings = Settings(**{**SETTINGS, **changes})
    place = Place(base, settings, Board(), pace, cores)
    may_lose = settings.size_cap_policy == "drop_oldest" or settings.max_age_s is not None
    conductor = Conductor(place, random.Random(seed), kill_every_s, may_lose)
    try:
        conductor.start_all()
        conductor.disturb(seconds)
        conductor.finish()
    finally:
        conductor.kill_the_rest()
    return conductor


def account(conductor: Conductor) -> str:
    """Compare the accepted bundles with those that each subscriber got and those that policy dropped."""
    place = conductor.place
    accepted = [name for number in range(PRODUCERS) for name in read_lines(place.journal(f"producer-{number}"))]
    sure = set(accepted)
    assert len(accepted) == len(sure)
    everything = {(number, used) for number in range(PRODUCERS) for used in range(place.board.used(number))}
    for core in range(len(place.directories)):
        lines = read_lines(place.journal(f"dropped-{core}"))
        assert len(lines) == len(set(lines)), "a segment was counted twice as dropped"
        conductor.dropped |= {(core, seq): count for seq, count in lines}
    given_up = {name for key in conductor.dropped for name in conductor.seen.get(key, ())}
    unseen = {key: count for key, count in conductor.dropped.items() if key not in conductor.seen}
    reported = [f"{len(accepted)} accepted, {sum(conductor.kills.values())} kills {dict(conductor.kills)}"]
    for name in (*SUBSCRIBERS, *INSIDE):
        got = [line for journal in place.journals(name) for line in read_lines(journal)]
        assert set(got) <= everything, f"{name} got what nobody sent"
        missing = sure - set(got) - given_up
        assert len(missing) <= sum(unseen.values()), f"{name} misses {sorted(missing)[:20]}, {len(missing)} in all"
        lost = len(sure - set(got))
        reported.append(
            f"{name}: {len(set(got))} delivered, {len(got) - len(set(got))} again, {lost} dropped by policy"
        )
    in_segments = [name for key in sorted(conductor.seen) for name in conductor.seen[key]]
    assert len(in_segments) == len(set(in_segments)), "a bundle is in two segments"
    check_order(conductor, sure)
    most = conductor.bytes_most
    reported.append(f"at most {most} bytes on disk, {most - CAP_BYTES} above the cap; {len(conductor.dropped)} dropped")
    reported.append(f"{len(conductor.seen)} segments looked into, {len(unseen)} dropped before that")
    assert most <= CAP_BYTES + OVERSHOOT_BYTES * len(place.directories), reported[-2]
    return "\n".join(reported)


def check_order(conductor: Conductor, sure: set[tuple[int, int]]) -> None:
    for core in range(len(conductor.place.directories)):
        in_core = [name for key in sorted(conductor.seen) if key[0] == core for name in conductor.seen[key]]
        for number in range(PRODUCERS):
            # A bundle whose result was unknown when its producer died may still wait for space, and be stored after
            # the next one.
            order = [used for producer, used in in_core if producer == number and (producer, used) in sure]
            assert order == sorted(order), f"producer {number} came out of order"


def check_the_end(conductor: Conductor) -> None:
    """Opened again, the store has nothing left for any subscriber, and deletes everything."""
    place = conductor.place
    with place.open(background=False) as store:
        for name in (*SUBSCRIBERS, *INSIDE):
            assert store.register(name).next_bundle(timeout=0) is None, name
        store.maintain()
        pause(0.6)  # the grace period
        store.maintain()
        assert not store.stats()["segments"]
    for directory in place.directories:
        assert not (directory / DROP_LEDGER).exists(), "the ledger keeps what everybody has taken note of"
        assert not (directory / EVICTED).exists(), "the record of evictions keeps what its owner has taken note of"


VARIANTS: dict[str, dict[str, Any]] = {
    "backpressure": {},
    "drop_oldest": {"size_cap_policy": "drop_oldest"},
    "age": {"max_age_s": 2.0},
    "cores, backpressure": {"cores": 2},
    "cores, drop_oldest": {"cores": 2, "size_cap_policy": "drop_oldest"},
}


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("variant", VARIANTS)
def test_soak(base: Path, variant: str, request: pytest.FixtureRequest) -> None:
    """Every accepted bundle was acknowledged by each subscriber or is counted as dropped; the cap is kept."""
    seconds = request.config.getoption("--soak-seconds")
    seed = random.randrange(2**32)
    conductor = soak(base, seconds, kill_every_s=4.0, seed=seed, **VARIANTS[variant])
    print(f"\n{variant}, seed {seed}: {account(conductor)}")
    check_the_end(conductor)
    assert conductor.kills
    if not conductor.may_lose:
        assert not conductor.dropped
        assert conductor.bytes_most > CAP_BYTES // 2, "the cap never bit"


@in_a_clean_process
def test_a_moment_of_soak(base: Path) -> None:
    """The same for a second, with subscribers that keep up, in every run of the tests."""
    conductor = soak(base, 1.0, kill_every_s=1.5, seed=random.randrange(2**32), pace=0.1)
    account(conductor)
    check_the_end(conductor)
