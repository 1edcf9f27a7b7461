"""Another number of cores than last time: what is kept of those that go, and who is waited for in those that come."""

from __future__ import annotations

import logging

import pytest
from core_rig import ROOT, Rig, fill, numbered

from quiver import BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from store_rig import drain


@pytest.mark.parametrize("what", ["dead-letter/out", "incoming/sink"])
def test_what_is_nobody_elses_keeps_a_removed_core(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """What an exporter gave up, and what a sink has staged, is in no other place: the directory stays, whole."""
    rig = Rig()
    with rig.open(cores=2) as store:
        fill(store, 1, 3)
        drain(store, "one")
    rig.fs.make_dirs(f"{ROOT}/core_1/{what}")
    if what == "dead-letter/out":
        with DeadLetters(f"{ROOT}/core_1", "out", fs=rig.fs, clock=rig.clock, background=False) as letters:
            letters.add(BundleRef(0, 1), numbered(1), reason="no such table")
    with rig.open(cores=1) as store:
        drain(store, "one")
        for _ in range(4):
            rig.clock.advance(61.0)
            rig.tick(store)
        assert rig.segments(1) == []
    assert "quiver.core.tick" not in caplog.text
    assert rig.fs.exists(f"{ROOT}/core_1/quiver.sub.one")
    if what == "dead-letter/out":
        assert [found.reason for found in read_dead_letters(rig.fs, f"{ROOT}/core_1", "out")] == ["no such table"]


def test_a_removed_core_that_must_stay_is_looked_at_more_and_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """An hour of it is some twenty looks, not seven hundred; and it goes some minutes after it was cleared up."""
    rig = Rig()
    caplog.set_level(logging.INFO, "quiver")
    kept = f"{ROOT}/core_1/quarantine/something.damaged"
    rig.open(cores=2).close()
    rig.fs.make_dirs(kept.rpartition("/")[0])
    rig.fs.create(kept).close()
    with rig.open(cores=1) as store:
        drain(store, "one")
        for _ in range(3600):
            rig.clock.advance(1.0)
            store.maintain()
        assert 5 < caplog.text.count("quiver.core.drained") < 25
        rig.fs.remove(kept)
        for _ in range(301):
            rig.clock.advance(1.0)
            store.maintain()
        assert not rig.fs.exists(f"{ROOT}/core_1")


def test_who_is_known_is_waited_for_in_a_new_core() -> None:
    """A subscriber whose program comes back late, or asks for what is new, gets all that new cores took meanwhile."""
    rig = Rig()
    with rig.open(cores=2) as store:
        fill(store, 0, 2)
        drain(store, "one")
        store.register("late")
    with rig.open(cores=3) as store:
        numbers = fill(store, 2, 3, first=100)
        assert drain(store, "one", start="latest") == numbers
        for _ in range(3):
            rig.clock.advance(rig.settings.delete_grace_s)
            rig.tick(store)
        assert [(one.id, one.pending_bundles) for one in store.orphans()] == [("late", 3)]
        assert drain(store, "late", start="latest") == numbers


def test_who_was_unregistered_is_not_waited_for_in_a_new_core() -> None:
    """Only those whose progress is in the directory count."""
    rig = Rig()
    with rig.open(cores=2) as store:
        store.register("one")
        store.register("two")
        store.unregister("two")
    with rig.open(cores=3) as store:
        fill(store, 2, 1)
        assert [one.id for one in store.subscribers()] == ["one"]


def test_a_process_for_each_core_waits_for_its_own_subscribers() -> None:
    """Who reads another core's process reads nothing here: nothing is held for it."""
    rig = Rig()
    with rig.open(cores=2, core=0) as first:
        first.register("of-the-first")
        with rig.open(cores=2, core=1) as second:
            assert second.subscribers() == []


def test_a_crash_while_a_core_is_new() -> None:
    """Whenever the process dies while the number grows, who is known is waited for afterwards."""
    rig = Rig()
    with rig.open(cores=1) as store:
        store.register("late")
    clones = []
    rig.fs.on_step = lambda _op, _path: clones.extend(rig.fs.clone_after_crash(seed) for seed in (0, 1))
    rig.open(cores=2).close()
    rig.fs.on_step = None
    assert len(clones) > 20
    for clone in clones:
        with Rig(clone, rig.clock).open(cores=2) as store:
            numbers = fill(store, 1, 1)
            assert drain(store, "late", start="latest") == numbers
