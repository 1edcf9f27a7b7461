"""A store is reopened with other settings again and again while drops are pending: each loss is counted once."""

from __future__ import annotations

import contextlib
import random

import limits_rig as rig
import pytest

from quiver import CapacityError, Settings, Store
from quiver.observe import InMemoryObserver
from quiver.store.format.names import DROP_LEDGER
from quiver.store.subscribers.progress_store import SubscriberFile
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from store_rig import small_settings

pytestmark = pytest.mark.usefixtures("quiet")


def some_settings(chance: random.Random) -> Settings:
    chosen = {
        "segment_bytes_max": chance.choice([500, 2_000, 4_000]),
        "segment_bundles_max": chance.choice([65_536, 3]),
        "wal_rotate_bytes": chance.choice([1_000, 2_000]),
        "wal_bytes_max": chance.choice([10_000, 40_000]),
        "wal_flush_interval_s": 0.0,
        "size_cap_bytes": chance.choice([None, 12_000, 20_000, 60_000]),
        "size_cap_policy": chance.choice(["backpressure", "drop_oldest", "drop_oldest"]),
        "segments_max": chance.choice([None, None, 5]),
        "max_age_s": chance.choice([None, None, 50.0]),
        "durability": chance.choice(["wal", "wal", "segment_only"]),
        "delete_grace_s": chance.choice([0.0, 60.0]),
        "steady_state_headroom_bytes": chance.choice([0, 3_000]),
        "format_profile": chance.choice(["spec", "otap"]),
    }
    return small_settings(**chosen)


class Lives:
    """One directory, two subscribers of the store and one of another process, and their received and lost bundles."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.fs = CrashFileSystem()
        self.fs.make_dirs(rig.ROOT)
        self.query = rig.Query(self.fs)
        self.got: dict[str, list[int]] = {name: [] for name in rig.NAMES}
        self.lost = dict.fromkeys(rig.NAMES, 0)
        self.accepted = 0
        self.never_logged: set[int] = set()

    def live(self, settings: Settings, steps: int, *, is_killed: bool) -> None:
        observer = InMemoryObserver()
        store = rig.opened(self.fs, settings=settings, clock=self.clock, observer=observer)
        for name in ("reads", "sleeps"):
            store.register(name, start="earliest")
        for _ in range(steps):
            self.step(store)
        if is_killed:
            if settings.durability == "segment_only":
                pending = store._sealing.pending
                in_memory = store._sealing.open.bundle_count + (pending.sealed.bundle_count if pending else 0)
                self.never_logged.update(range(self.accepted - in_memory, self.accepted))
            self.count(observer)
            self.fs = self.fs.clone_after_crash(self.chance.randrange(1_000))
            self.take_over()
        else:
            with contextlib.suppress(CapacityError):
                store.close()
            self.count(observer)

    def step(self, store: Store) -> None:
        chance = self.chance
        match chance.choice(["ingest"] * 5 + ["read", "read", "maintain", "flush", "look", "wait", "clock"]):
            case "ingest":
                for _ in range(chance.randrange(1, 15)):
                    if rig.refused(store, self.accepted):
                        break
                    self.accepted += 1
            case "read":
                name = chance.choice(["reads", "reads", "reads", "sleeps"])
                self.got[name] += rig.drain(store, name, chance.randrange(20))
                store._subscribers.save()
            case "maintain":
                store.maintain()
            case "flush":
                with contextlib.suppress(CapacityError):
                    store.seal()
            case "look":
                self.got["query"] += self.query.look(store)
            case "wait":
                self.clock.advance(chance.choice([1, 20, 70]))
            case _:
                self.clock.set_wall_ns(self.clock.now_ns() + chance.choice([-3_600, 3_600]) * 10**9)

    def count(self, observer: InMemoryObserver) -> None:
        for name in rig.NAMES:
            self.lost[name] += rig.counted(observer, name)

    def take_over(self) -> None:
        """The process of the query died with the machine; another one continues."""
        self.lost["query"] += self.query.lost
        self.query = rig.Query.__new__(rig.Query)
        self.query._fs, self.query.lost = self.fs, 0
        self.query._file = SubscriberFile(self.fs, rig.ROOT, "query")
        self.query._file.acquire()

    def end(self) -> None:
        """Every subscriber reads the rest; the store deletes everything."""
        observer = InMemoryObserver()
        store = rig.opened(self.fs, settings=Settings(delete_grace_s=0.0), clock=self.clock, observer=observer)
        store.seal()
        for name in ("reads", "sleeps"):
            self.got[name] += rig.drain(store, name)
        for _ in range(3):
            self.got["query"] += self.query.look(store)
            store.maintain()
        self.count(observer)
        self.lost["query"] += self.query.lost
        assert not store.internals.catalog.segments()
        assert not self.fs.exists(f"{rig.ROOT}/{DROP_LEDGER}")
        store.close()


@pytest.mark.parametrize("seed", [200, 208, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(260, 320))])
def test_settings_change_while_drops_are_pending(seed: int) -> None:
    """
    Cap, policy, age, durability, profile and sizes change after a stop or a power loss, while a query is inactive.
    Each subscriber gets every bundle once, or the bundle is counted as dropped for it, once.
    """
    lives = Lives(seed)
    for _ in range(6):
        steps = lives.chance.randrange(3, 25)
        lives.live(some_settings(lives.chance), steps, is_killed=lives.chance.random() < 0.7)
    lives.end()
    assert sum(lives.lost.values()) > 10, "policy never dropped anything"
    for name, got in lives.got.items():
        assert len(got) == len(set(got)), name
        missing = set(range(lives.accepted)).difference(got, lives.never_logged)
        assert len(missing) == lives.lost[name], name
