"""An exporter that cannot start is retried; the Spark process and its other exporters continue."""

from functools import partial
from types import SimpleNamespace

import pytest

from quiver.delivery.dead_letter_policy import DeadLetterPolicy
from quiver.delivery.policy import RetryPolicy
from quiver.errors import UsageError
from quiver.pipeline import export
from quiver.pipeline.queries import RunningQuery

LETTERS = partial(DeadLetterPolicy, replay="manual")
POLICY = RetryPolicy(initial_interval_s=1.0, max_interval_s=30.0, multiplier=2.0, jitter=0.5)


@pytest.mark.parametrize(
    "problem",
    [
        UsageError("the processor acme:gone cannot be created"),
        OSError(28, "no space left"),
        ValueError("a processor of another package does not like its keys"),
        RuntimeError("an exception of Spark's, whose class nobody knows here"),
    ],
)
def test_an_exporter_that_cannot_start_is_retried(problem, monkeypatch, caplog):
    """After the growing delays of its `retry`, with the reason each time; the process continues for the others."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(export, "SYSTEM_CLOCK", SimpleNamespace(monotonic=lambda: clock.now))
    tried = []

    def start_query(_spark, _plan, _observer, *, stats):
        tried.append(clock.now)
        if len(tried) < 4:
            raise problem
        return RunningQuery(SimpleNamespace(isActive=True), SimpleNamespace(halted=None, failed=None))

    monkeypatch.setattr(export, "start_query", start_query)
    route = SimpleNamespace(
        config=SimpleNamespace(destination="lake/", policy=lambda: POLICY, dead_letter_policy=LETTERS)
    )
    one = export._Export(None, SimpleNamespace(name="out", store_path="buffer", stores=(), route=route))
    while clock.now < 40:
        one.look()
        clock.now += 0.25

    assert len(tried) == 4
    assert 0.25 <= tried[1] - tried[0] <= 1.25 < tried[3] - tried[2] <= 4.25
    assert [record.levelname for record in caplog.records].count("ERROR") == 3
    assert str(problem) in caplog.text


class _Starting:
    """A query whose Python process is still starting."""

    isActive = True  # noqa: N815 - Spark's name

    def __init__(self):
        self.status = {"message": "Initializing sources"}


def _many(monkeypatch, count):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(export, "SYSTEM_CLOCK", SimpleNamespace(monotonic=lambda: clock.now))
    started = {}

    def start_query(_spark, plan, _observer, *, stats):
        started[plan.name] = _Starting()
        return RunningQuery(started[plan.name], SimpleNamespace(halted=None, failed=None, close=lambda: None))

    monkeypatch.setattr(export, "start_query", start_query)
    route = SimpleNamespace(
        config=SimpleNamespace(destination="lake/", policy=lambda: POLICY, dead_letter_policy=LETTERS)
    )
    plans = [
        SimpleNamespace(name=f"out{number}", store_path="buffer", stores=(), route=route) for number in range(count)
    ]
    return [export._Export(None, plan) for plan in plans], started, clock


def test_only_a_few_queries_start_at_the_same_time(monkeypatch):
    """Otherwise, their Python processes would exceed Spark's timeout together, at every attempt."""
    exports, started, clock = _many(monkeypatch, 5)
    export.look_at_all(exports)
    export.look_at_all(exports)
    assert list(started) == ["out0", "out1"]

    started["out1"].status = {"message": "Waiting for next trigger"}
    export.look_at_all(exports)
    assert list(started) == ["out0", "out1", "out2"]

    started["out0"].isActive = False
    started["out0"].exception = lambda: RuntimeError("Python worker failed to connect back.")
    export.look_at_all(exports)
    export.look_at_all(exports)
    assert list(started) == ["out0", "out1", "out2", "out3"]

    clock.now = export.STARTING_S
    export.look_at_all(exports)
    assert list(started)[-1] == "out4", "a query that hangs does not block others"
