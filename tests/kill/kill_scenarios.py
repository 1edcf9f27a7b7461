"""Further work of children before they are killed: drop, expire, rewind, share a cap, migrate, copy."""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kill_cycles import (
    NAMES,
    SETTINGS,
    Child,
    Outcome,
    Scenario,
    Tally,
    check,
    in_segments,
    judge,
    number_of,
    numbered,
    pending,
    run_and_kill,
)

from quiver import Bundle, Settings
from quiver import open as open_store
from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.offline.migrate import migrate
from quiver.store.snapshots.snapshot import restore, snapshot

CORES_MAX = 3
CAP_BYTES = 40_000

Steps = list[tuple[int, Callable[[], None]]]


class Hoarder(Child):
    """Acknowledges less than comes in, so that the policy has something to drop."""

    def steps(self) -> Steps:
        return [(20, self.ingest), (1, self.deliver), (3, self.maintain), (1, self.flush), (1, self.reopen)]


class Aging(Hoarder):
    """Stamps its bundles with the clock, by which they expire."""

    def bundle(self, number: int) -> Bundle:
        return Bundle({30: numbered(number)[30]}, ingested_at_ns=time.time_ns())


class Rewinding(Child):
    """Rewinds to the beginning or to some bundle."""

    def steps(self) -> Steps:
        return [*super().steps(), (2, self.rewind)]

    def rewind(self) -> None:
        name = self.chance.choice(NAMES)
        refs = self.refs()
        to = self.chance.choice(refs) if refs and self.chance.random() < 0.7 else "earliest"
        self.tally.may_come_again(name)
        self.waiting = [one for one in self.waiting if one[0] != name]
        position = self.subscribers[name].rewind(to).position
        # Only what is still there: a pass of the background thread may have deleted something just before.
        for ref in self.refs():
            if ref >= position:
                self.tally.comes_again(name, number_of(self.store.internals.catalog.bundle(ref)))

    def refs(self) -> list[BundleRef]:
        infos = self.store.internals.catalog.segments()
        return [BundleRef(info.seq, index) for info in infos for index in range(info.bundle_count)]


class MultiCore(Child):
    """One to three cores under one cap, another number whenever it opens."""

    def open_store(self) -> Any:
        cores = self.chance.randint(1, CORES_MAX)
        return open_store(self.directory, self.settings, cores=cores, background=self.background)


class MultiCoreHoarder(Hoarder, MultiCore):
    """Cores that drop, of their own and of each other's."""


def check_cores(directory: Path, tally: Tally, settings: Settings, label: str) -> None:
    """As for one store, core by core; a subscriber gets from each core in order."""
    with open_store(directory, settings, cores=CORES_MAX, background=False) as store:
        store.seal()
        sealed = [in_segments(store.core(core)) for core in range(CORES_MAX)]
        waiting = [{name: pending(store.core(core), name) for name in NAMES} for core in range(CORES_MAX)]
    accepted = tally.accepted()
    everything = [number for numbers in sealed for number in numbers]
    assert len(everything) == len(set(everything)), f"{label}: twice in segments: {sealed}"
    for core in range(CORES_MAX):
        assert sealed[core] == sorted(sealed[core]), f"{label}: core {core} out of order: {sealed[core]}"
        here = {number for number in accepted if tally.core_of(number) == core}
        judge(tally, here, set(sealed[core]), waiting[core], f"{label}, core {core}")
        if settings.size_cap_policy == "backpressure":
            for name in NAMES:
                missing = here - tally.asked(name) - set(waiting[core][name])
                assert not missing, f"{label}: {name} never gets {sorted(missing)} of core {core}"


class Migrating(Child):
    """Changes the profile of the closed store now and then, also as the first thing."""

    def open_store(self) -> Any:
        if self.chance.random() < 0.5 and (self.directory / "quiver.id").exists():
            profile = self.chance.choice(["spec", "otap"])
            migrate(REAL_FILES, str(self.directory), profile=profile, adapter=None, clock=SYSTEM_CLOCK)
            self.settings = dataclasses.replace(self.settings, format_profile=profile)
        return super().open_store()


SCENARIOS = {
    "drop_oldest": Scenario(
        dataclasses.replace(SETTINGS, size_cap_bytes=CAP_BYTES, size_cap_policy="drop_oldest"), Hoarder
    ),
    "expiry": Scenario(dataclasses.replace(SETTINGS, max_age_s=0.05), Aging),
    "rewind": Scenario(SETTINGS, Rewinding),
    "cores": Scenario(dataclasses.replace(SETTINGS, size_cap_bytes=4 * CAP_BYTES), MultiCore, check_cores),
    "cores, drop_oldest": Scenario(
        dataclasses.replace(SETTINGS, size_cap_bytes=2 * CAP_BYTES, size_cap_policy="drop_oldest"),
        MultiCoreHoarder,
        check_cores,
    ),
    "migrate": Scenario(SETTINGS, Migrating),
}


# ── copies ──────────────────────────────────────────────────────────────────────────────────────────────


class Copying(Child):
    """Takes a snapshot while working; the promises at that moment are in a separate tally."""

    promised: Tally
    """As of the snapshot that there is, or that is being made."""

    @property
    def copy(self) -> Path:
        return self.directory.with_name("copy")

    def steps(self) -> Steps:
        return [*super().steps(), (2, self.take_copy)]

    def take_copy(self) -> None:
        if not self.copy.exists():
            self.promised.become(self.tally)
            snapshot(REAL_FILES, str(self.directory), str(self.copy), now_ns=time.time_ns())


def restore_cycles(directory: Path, count: int, seed: int, settings: Settings = SETTINGS) -> Outcome:
    """
    *count* children, each killed, half of them at work or copying, half of them restoring the copy.

    The restored store is compared with the promises at the start of the copy, and so is a copy that a kill left.
    """
    chance = random.Random(seed)
    tally, promised = Tally(), Tally()
    outcome = Outcome()
    back = directory.with_name("back")
    for cycle in range(count):
        child = Copying(directory, tally, chance.randrange(2**32), settings)
        child.promised = promised
        run_and_kill(child.work, tally, chance)
        outcome.cycles += 1
        if not child.copy.exists():
            continue
        run_and_kill(lambda child=child: _restore_again_and_again(child.copy, back), None, chance)
        if back.exists():
            check(back, promised, settings, f"seed {seed}, cycle {cycle}, restored")
            shutil.rmtree(back)
            outcome.checks += 1
        restore(REAL_FILES, str(child.copy), str(back), identity=None)
        check(back, promised, settings, f"seed {seed}, cycle {cycle}, restored after a death")
        for path in (back, child.copy):
            shutil.rmtree(path)
        outcome.checks += 1
    check(directory, tally, settings, f"seed {seed}, the end")
    outcome.accepted = len(tally.accepted())
    outcome.acked = sum(len(tally.asked(name)) for name in NAMES)
    return outcome


def _restore_again_and_again(copy: Path, back: Path) -> None:
    aside = back.with_name("aside")
    while True:
        shutil.rmtree(aside, ignore_errors=True)
        if back.exists():
            # At once: a kill during the removal would leave half a store, which need not work.
            back.rename(aside)
        restore(REAL_FILES, str(copy), str(back), identity=None)
