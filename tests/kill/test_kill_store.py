"""Real processes, real files, real kill -9: promises made to a process hold after its death."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kill_cycles
import pytest
from kill_cycles import SETTINGS, Scenario
from kill_scenarios import SCENARIOS, restore_cycles

from clean_process import in_a_clean_process

pytestmark = pytest.mark.usefixtures("quiet")

RESTORE = "snapshot and restore"
VARIANTS = {
    "plain": Scenario(),
    "otap profile": Scenario(dataclasses.replace(SETTINGS, format_profile="otap")),
    "one file an entry": Scenario(dataclasses.replace(SETTINGS, wal_rotate_bytes=1, wal_files_max=3)),
    "every sync waited for": Scenario(dataclasses.replace(SETTINGS, wal_flush_interval_s=0.0)),
    **SCENARIOS,
}
AVERAGED_CYCLES = 100
"""Fewer cycles have no meaningful averages."""
SERIES = [(name, turn) for turn in range(2) for name in [*VARIANTS, RESTORE]]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if possible: the result of a kill does not depend on the disk, and syncs are fast."""
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="quiver-kill-", dir=memory)) if memory.is_dir() else tmp_path
    yield base / "store"
    shutil.rmtree(base, ignore_errors=True)


@in_a_clean_process
def test_kill_9_loses_nothing_confirmed(directory: Path) -> None:
    """A few random cycles in every run of the tests."""
    outcome = kill_cycles.kill_cycles(directory, 25, random.randrange(10**6))
    assert outcome.accepted > 25
    assert outcome.acked > 25


@pytest.mark.parametrize("name", [*SCENARIOS, RESTORE])
@in_a_clean_process
def test_kill_9_in_every_scenario(directory: Path, name: str) -> None:
    """A few cycles of each in every run of the tests."""
    outcome = run(directory, name, 10, random.randrange(10**6))
    assert outcome.accepted > 3


@pytest.mark.kill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "turn"), SERIES)
def test_kill_9_ten_thousand_times(directory: Path, name: str, turn: int, request: pytest.FixtureRequest) -> None:
    """
    Ten thousand cycles, in series of one directory each; every scenario has two of them.

    Only the oldest bundles, dropped by policy, are missing; nothing is invented, changed, out of order or twice in
    segments, and bundles acknowledged before a maintenance pass are not delivered again.
    """
    count = max(1, -(-request.config.getoption("--kill-cycles") // len(SERIES)))
    outcome = run(directory, name, count, turn)
    print(f"\n{name}: {outcome}")
    assert outcome.accepted > 0
    if count < AVERAGED_CYCLES:
        return
    # The children made progress, and each scenario happened.
    assert outcome.accepted > count
    assert outcome.acked > count // 4
    assert outcome.checks > count // 6
    if name in {"drop_oldest", "expiry"}:
        assert outcome.dropped > count


def run(directory: Path, name: str, count: int, seed: int) -> kill_cycles.Outcome:
    if name == RESTORE:
        return restore_cycles(directory, count, seed)
    return kill_cycles.kill_cycles(directory, count, seed, VARIANTS[name])


@pytest.mark.kill
@pytest.mark.timeout(1200)
def test_kill_9_on_the_disk(tmp_path: Path) -> None:
    """The same with slow syncs: a kill interrupts a sync more often."""
    outcome = kill_cycles.kill_cycles(tmp_path / "store", 100, 77)
    assert outcome.accepted > 50
