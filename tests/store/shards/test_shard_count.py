"""
Another number of cores than last time: what is kept of those that go, and who is waited for in those that come.
"""

from __future__ import annotations

import pytest
from shard_rig import ROOT, Rig, drain, fill, numbered

from quiver import BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_letters


@pytest.mark.parametrize("what", ["dead-letter/out", "incoming/sink"])
def test_what_is_nobody_elses_keeps_a_removed_core(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """What an exporter gave up, and what a sink has staged, is in no other place: the directory stays, whole."""
    rig = Rig()
    with rig.open(cores=2) as store:
        fill(store, 1, 3)
        drain(store)
    rig.files.make_dirs(f"{ROOT}/core_1/{what}")
    if what == "dead-letter/out":
        with DeadLetters(f"{ROOT}/core_1", "out", files=rig.files, clock=rig.clock, background=False) as letters:
            letters.add(BundleRef(0, 1), numbered(1), reason="no such table")
    with rig.open(cores=1) as store:
        drain(store)
        for _ in range(4):
            rig.clock.advance(61.0)
            rig.tick(store)
        assert rig.segments(1) == []
    assert "quiver.core.tick" not in caplog.text
    assert rig.files.exists(f"{ROOT}/core_1/quiver.sub.one")
    if what == "dead-letter/out":
        assert [found.reason for found in read_letters(rig.files, f"{ROOT}/core_1", "out")] == ["no such table"]
