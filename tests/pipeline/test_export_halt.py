"""A failed query is started again; a halted one is not."""

from functools import partial
from types import SimpleNamespace

import pytest

from quiver.delivery.dead_letter_policy import DeadLetterPolicy
from quiver.delivery.policy import RetryPolicy
from quiver.errors import DeliveryHaltedError
from quiver.pipeline import export
from quiver.pipeline.queries import RunningQuery

LETTERS = partial(DeadLetterPolicy, replay="manual")


class Query:
    def __init__(self, error):
        self.isActive = error is None
        self._error = error
        self.status = {"isTriggerActive": False}

    def exception(self):
        return self._error

    def stop(self):
        self.isActive = False


class Sieve:
    def __init__(self, halted=None):
        self.halted = halted
        self.failed = None
        self.closed = 0

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    ("error", "starts"),
    [(RuntimeError("disk"), 2), (RuntimeError(f"quiver.errors.{DeliveryHaltedError('out', '0:1', 'HTTP 400')!r}"), 1)],
)
def test_a_halted_query_is_not_restarted(monkeypatch, error, starts):
    """Another start would fail on the same bundle."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(export, "SYSTEM_CLOCK", SimpleNamespace(monotonic=lambda: clock.now))
    started = []

    def start_query(_spark, _plan, _observer, *, stats):
        started.append(RunningQuery(Query(error), Sieve()))
        return started[-1]

    monkeypatch.setattr(export, "start_query", start_query)
    config = SimpleNamespace(destination="lake/", policy=RetryPolicy, dead_letter_policy=LETTERS)
    plan = SimpleNamespace(name="out", store_path="buffer", stores=(), route=SimpleNamespace(config=config))
    one = export._Export(None, plan)
    for _ in range(3):
        one.look()
        clock.now += 1.5
    assert len(started) == starts
    assert [one.bundle_filter.closed for one in started][:1] == [1], "the next start needs the locks of this one"


def test_the_delay_of_a_failed_query_follows_its_retry_settings(monkeypatch):
    """All delays can be changed in the file."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(export, "SYSTEM_CLOCK", SimpleNamespace(monotonic=lambda: clock.now))
    started = []

    def start_query(_spark, _plan, _observer, *, stats):
        started.append(clock.now)
        return RunningQuery(Query(RuntimeError("disk")), Sieve())

    monkeypatch.setattr(export, "start_query", start_query)
    policy = RetryPolicy(initial_interval_s=7.0, max_interval_s=14.0, jitter=0.0)
    config = SimpleNamespace(destination="lake/", policy=lambda: policy, dead_letter_policy=LETTERS)
    one = export._Export(
        None, SimpleNamespace(name="out", store_path="b", stores=(), route=SimpleNamespace(config=config))
    )
    while clock.now < 60:
        one.look()
        clock.now += 0.25

    assert started == [0.0, 7.25, 21.5, 35.75, 50.0]


def test_a_halt_between_batches_stops_the_query(monkeypatch, caplog):
    """A bundle was retried individually, and its policy is `halt`."""
    bundle_filter = Sieve(DeliveryHaltedError("out", "0:1", "5 attempts failed"))
    running = RunningQuery(Query(None), bundle_filter)
    monkeypatch.setattr(export, "start_query", lambda _spark, _plan, _observer, *, stats: running)
    config = SimpleNamespace(destination="lake/", policy=RetryPolicy, dead_letter_policy=LETTERS)
    one = export._Export(
        None, SimpleNamespace(name="out", store_path="b", stores=(), route=SimpleNamespace(config=config))
    )
    for _ in range(3):
        one.look()

    assert (running.query.isActive, bundle_filter.closed) == (False, 1)
    assert caplog.text.count("out halted until the pipeline is restarted") == 1
