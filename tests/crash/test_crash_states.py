"""
A million crash states, and a few hundred of them in every run: whatever a crash leaves, what was
promised is there.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

import pytest
from crash_states import Explored, explore

pytestmark = pytest.mark.usefixtures("quiet")

STATES_OF_MANY_WORKLOADS = 50_000
"""Below that there are so few workloads that none may drop anything, or be cut off twice."""


def one_workload(seed: int) -> Explored:
    logging.disable(logging.CRITICAL)
    return explore(seed, 1)


def explored_in_turn(first_seed: int, workers: int) -> Iterator[Explored]:
    """Yield what became of one workload after the other, as they end; that one fails is known at once."""
    seeds = itertools.count(first_seed)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(one_workload, seed) for seed in itertools.islice(seeds, workers)}
        while True:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(one_workload, next(seeds)) for _ in ended}
            yield from (future.result() for future in ended)


def test_some_crash_states() -> None:
    """Another workload in every run; a failure names its seed, the step, and what the disk kept."""
    explored = explore(random.randrange(10**6), 100, share=0.05)
    assert explored.distinct > 20


@pytest.mark.crash_states
@pytest.mark.timeout(4 * 3600)
def test_a_million_crash_states(request: pytest.FixtureRequest) -> None:
    """
    Every step of some hundred workloads, each as a kill and as power cuts leave it, and recoveries cut off as well.

    Nothing promised is lost, nothing is invented, changed, out of order or twice in segments, a reader beside no
    writer sees what recovery finds, what was acknowledged durably does not come again, and work goes on.
    """
    option = request.config.getoption
    states, explored = option("--crash-states"), Explored()
    print()
    with contextlib.closing(explored_in_turn(option("--crash-seed"), option("--workers"))) as turns:
        for one in turns:
            explored += one
            print(explored, flush=True)
            if explored.states >= states:
                break
    assert explored.states >= states
    assert explored.distinct > explored.states // 10
    if states >= STATES_OF_MANY_WORKLOADS:
        assert explored.in_recovery > explored.states // 100
        assert explored.dropped
