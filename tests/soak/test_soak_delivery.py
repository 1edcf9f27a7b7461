"""
Three exporters for minutes while ingest and Spark are killed at random. One destination is down for two fifths of the
time, and one exporter follows a processor that fails on some records. At the end all have everything: files exactly
once, the destination at least once. Dead letters are exactly the refused and failed records, and the disk is free.
"""

import threading
from collections import Counter
from random import Random

import pytest
from soak_far_side import FarSide, Producer
from soak_pipeline import Pipeline, check, settle

from quiver.clock import SYSTEM_CLOCK

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1800)]

PRODUCERS = 2
KILL_EVERY_S = (6.0, 18.0)
SETTLE_S = 240.0


def torment(pipeline: Pipeline, far: FarSide, seconds: float, random: Random) -> Counter[str]:
    """Kill children at random for that time; the destination is down for two fifths of it, from the first third on."""
    began = SYSTEM_CLOCK.monotonic()
    killed: Counter[str] = Counter()
    pause = threading.Event()
    kill_at = began + random.uniform(*KILL_EVERY_S)
    while (passed := SYSTEM_CLOCK.monotonic() - began) < seconds:
        wants_up = not 0.3 * seconds <= passed < 0.7 * seconds
        if wants_up != far.is_up:
            far.up() if wants_up else far.down()
        if SYSTEM_CLOCK.monotonic() >= kill_at:
            name = random.choice(["ingest", "ingest", "spark"])
            killed[name] += pipeline.kill_child(name)
            kill_at = SYSTEM_CLOCK.monotonic() + random.uniform(*KILL_EVERY_S)
        assert pipeline.process.poll() is None, pipeline.tail()
        pause.wait(0.2)
    return killed


def test_all_exporters_end_with_everything(tmp_path, request):
    """Regardless of how often a process was killed."""
    seconds = request.config.getoption("--delivery-seconds")
    far = FarSide()
    with Pipeline(tmp_path, far.port) as pipeline:
        producers = [Producer(pipeline.port, first, PRODUCERS, 0.01) for first in range(PRODUCERS)]
        for one in producers:
            one.start()
        killed = torment(pipeline, far, seconds, Random(20))
        for one in producers:
            one.stopping.set()
            one.join()
        if not far.is_up:
            far.up()
        sent = set().union(*(one.confirmed for one in producers))
        unknown = set().union(*(one.unknown for one in producers))
        settle(pipeline, SETTLE_S)
        pipeline.stop()
    far.down()

    assert len(sent) > 5 * seconds
    assert killed.total() >= seconds // 30
    check(tmp_path, far, sent, unknown)
