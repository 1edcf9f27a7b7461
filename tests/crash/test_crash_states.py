"""A million crash states, and a few hundred of them in every run: after any crash every promise is kept."""

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
"""With fewer states there may be no workload with drops or with a second crash."""


def one_workload(seed: int) -> Explored:
    logging.disable(logging.CRITICAL)
    return explore(seed, 1)


def explored_in_turn(first_seed: int, workers: int) -> Iterator[Explored]:
    """Yield the results of the workloads as they end, so that a failure is raised at once."""
    seeds = itertools.count(first_seed)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(one_workload, seed) for seed in itertools.islice(seeds, workers)}
        while True:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(one_workload, next(seeds)) for _ in ended}
            yield from (future.result() for future in ended)


def test_some_crash_states() -> None:
    """Other workloads in every run; a failure names the seed, the step, and the outcome on the disk."""
    explored = explore(random.randrange(10**6), 100, share=0.05)
    assert explored.distinct > 20


@pytest.mark.crash_states
@pytest.mark.timeout(4 * 3600)
def test_a_million_crash_states(request: pytest.FixtureRequest) -> None:
    """
    Every step of some hundred workloads, each after a kill and after power losses, and with interrupted recoveries.

    Nothing promised is lost; nothing is invented, changed, out of order or twice in segments; a reader without a
    writer sees the same as recovery; durably acknowledged bundles are not delivered again; and work continues.
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
