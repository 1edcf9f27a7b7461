"""
A million crash states, and a few hundred of them in every run: whatever a crash leaves, what was promised is there.
"""

from __future__ import annotations

import logging
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor

import pytest
from crash_states import Explored, explore

pytestmark = pytest.mark.usefixtures("quiet")

WORKLOADS_APART = 1_000_000
"""Each process takes workloads from a range of its own."""

STATES_OF_MANY_WORKLOADS = 50_000
"""Below that there are so few workloads that none may drop anything, or be cut off twice."""


def explore_quietly(first_seed: int, states: int) -> Explored:
    logging.disable(logging.CRITICAL)
    return explore(first_seed, states)


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
    states, workers = request.config.getoption("--crash-states"), request.config.getoption("--workers")
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        firsts = [number * WORKLOADS_APART for number in range(workers)]
        explored = sum(pool.map(explore_quietly, firsts, [-(-states // workers)] * workers), Explored())
    print(f"\n{explored}")
    assert explored.states >= states
    assert explored.distinct > explored.states // 10
    if states >= STATES_OF_MANY_WORKLOADS:
        assert explored.in_recovery > explored.states // 100
        assert explored.dropped
