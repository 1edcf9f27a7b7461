"""A changed number of cores: what is kept of removed ones, and which subscribers new ones wait for."""

from __future__ import annotations

import logging

import pytest
from core_rig import ROOT, Rig, fill, numbered

from quiver import BundleRef
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from store_rig import drain


@pytest.mark.parametrize("what", ["dead-letter/out", "incoming/sink"])
def test_dead_letters_and_staged_batches_keep_a_removed_core(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """They exist only there, so the directory is kept completely."""
    rig = Rig()
    with rig.open(cores=2) as store:
        fill(store, 1, 3)
        drain(store, "one")
    rig.fs.make_dirs(f"{ROOT}/core_1/{what}")
    if what == "dead-letter/out":
        with DeadLetters(f"{ROOT}/core_1", "out", fs=rig.fs, clock=rig.clock, background=False) as dead_letters:
            dead_letters.add(BundleRef(0, 1), numbered(1), reason="no such table")
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


def test_a_removed_core_that_must_stay_is_checked_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """
    About twenty times in an hour instead of seven hundred; it is deleted some minutes after the
    reason is removed.
    """
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


def test_a_new_core_keeps_bundles_for_known_subscribers() -> None:
    """Also for one that registers later, or that starts at `latest`."""
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


def test_a_new_core_does_not_wait_for_unregistered_subscribers() -> None:
    """Only subscribers with progress in the directory count."""
    rig = Rig()
    with rig.open(cores=2) as store:
        store.register("one")
        store.register("two")
        store.unregister("two")
    with rig.open(cores=3) as store:
        fill(store, 2, 1)
        assert [one.id for one in store.subscribers()] == ["one"]


def test_a_process_for_each_core_waits_for_its_own_subscribers() -> None:
    """A subscriber of another core's process reads nothing here, so nothing is kept for it."""
    rig = Rig()
    with rig.open(cores=2, core=0) as first:
        first.register("of-the-first")
        with rig.open(cores=2, core=1) as second:
            assert second.subscribers() == []


def test_a_crash_while_a_core_is_created_forgets_no_subscriber() -> None:
    """After a crash at any step, the new core waits for all known subscribers."""
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
