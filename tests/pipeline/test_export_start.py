"""
An exporter that cannot start is tried again; the Spark process, and with it the others, goes on.
"""

from types import SimpleNamespace

import pytest

from quiver.errors import WrongUse
from quiver.pipeline import export


@pytest.mark.parametrize("problem", [WrongUse("the processor acme:gone cannot be made"), OSError(28, "no space left")])
def test_one_that_cannot_start_is_tried_again(problem, monkeypatch, caplog):
    """With a pause that grows, and the reason each time."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(export, "SYSTEM_CLOCK", SimpleNamespace(monotonic=lambda: clock.now))
    tried = []

    def start_query(_spark, _plan):
        tried.append(clock.now)
        if len(tried) < 4:
            raise problem
        return SimpleNamespace(isActive=True)

    monkeypatch.setattr(export, "start_query", start_query)
    route = SimpleNamespace(config=SimpleNamespace(destination="lake/"))
    one = export._Export(None, SimpleNamespace(name="out", store_path="buffer", route=route))
    while clock.now < 40:
        one.look()
        clock.now += 0.25

    assert len(tried) == 4
    assert 0.25 <= tried[1] - tried[0] <= 1.25 < tried[3] - tried[2] <= 4.25
    assert [record.levelname for record in caplog.records].count("ERROR") == 3
    assert str(problem) in caplog.text
