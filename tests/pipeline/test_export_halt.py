"""
A query that failed is started again; one that halted is not.
"""

from types import SimpleNamespace

import pytest

from quiver.errors import DeliveryHalted
from quiver.pipeline import export


class Query:
    def __init__(self, error):
        self.isActive = error is None
        self._error = error

    def exception(self):
        return self._error


@pytest.mark.parametrize(
    ("error", "starts"),
    [(RuntimeError("disk"), 2), (RuntimeError(f"quiver.errors.{DeliveryHalted('out', '0:1', 'HTTP 400')!r}"), 1)],
)
def test_a_halt_is_no_failure_to_recover_from(monkeypatch, error, starts):
    """Another start would only meet the same bundle."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(export, "SYSTEM_CLOCK", SimpleNamespace(monotonic=lambda: clock.now))
    started = []

    def start_query(_spark, plan):
        started.append(plan)
        return Query(error)

    monkeypatch.setattr(export, "start_query", start_query)
    destination = SimpleNamespace(destination="lake/")
    plan = SimpleNamespace(name="out", store_path="buffer", route=SimpleNamespace(config=destination))
    one = export._Export(None, plan)
    for _ in range(3):
        one.look()
        clock.now += 1.5
    assert len(started) == starts
