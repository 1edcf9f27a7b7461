"""
A full disk: accepted bundles are kept, acknowledgements and shutdown work, and ingest continues
once there is space.
"""

from __future__ import annotations

import contextlib
import logging
import random
from functools import partial

import pyarrow as pa
import pytest
from limits_disk import SmallDisk

from quiver import Bundle, CapacityError, Settings
from quiver import open as open_store
from quiver.observe import InMemoryObserver
from quiver.store.format.names import RESERVE
from quiver.testing.clock import ManualClock
from store_rig import drain, ingest_until_full, numbered, open_small

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/full"
opened = partial(open_small, root=ROOT, segment_bytes_max=32_000, wal_rotate_bytes=32_000, wal_bytes_max=200_000)
bundle_of = partial(numbered, size=500)
fill = partial(ingest_until_full, bundle_of=bundle_of)


def squeeze(disk: SmallDisk) -> None:
    """Let other programs use the rest of the disk, but not the reserve of the store."""
    if disk.exists(f"{ROOT}/{RESERVE}"):
        disk.capacity = min(disk.capacity, disk.used())


def test_acknowledgements_on_a_full_disk_use_the_reserve() -> None:
    """
    Replacing a progress file needs a block, which the reserve provides. Nothing is lost or duplicated, and the
    error names the disk and the slowest subscriber.
    """
    disk = SmallDisk(150_000)
    with opened(disk, segment_bytes_max=16_000, wal_rotate_bytes=8_000) as store:
        store.register("s", start="earliest")
        number, full = fill(store)
        assert "the disk of /full" in full.what
        assert full.held_by == "s"
        squeeze(disk)
        got = drain(store, "s")
        assert store.maintain().progress_written == 1
        assert len(store.internals.catalog) == 0
        disk.capacity = 150_000
        store.ingest(bundle_of(number))
        store.seal()
        assert got + drain(store, "s") == list(range(number + 1))


class Told(InMemoryObserver):
    """Records which segments could not be written."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[object] = []

    def event(self, name: str, *, level: int = logging.INFO, **attributes: object) -> None:
        """Record failed segments."""
        if name == "quiver.segment.flush" and level == logging.ERROR:
            self.failed.append(attributes["segment"])


def test_a_full_disk_is_logged_at_first_and_then_once_a_minute() -> None:
    """The attempt of each second is counted, not logged: the log file may be on that disk."""
    clock, disk, observer = ManualClock(), SmallDisk(150_000), Told()
    settings = Settings(segment_bytes_max=32_000, wal_rotate_bytes=32_000, wal_bytes_max=200_000, delete_grace_s=0.0)
    with open_store(ROOT, settings, fs=disk, clock=clock, background=False, observer=observer) as store:
        for number in range(20):
            store.ingest(bundle_of(number))
        disk.capacity = 0
        with pytest.raises(CapacityError):
            store.seal()
        for _ in range(100):
            clock.advance(1)
            store.maintain()
        assert observer.failed == [0, 0]
        assert observer.total("quiver.segment.flush_failures_total") > 50
        disk.capacity = 150_000
        clock.advance(1)
        assert store.maintain().sealed == 1


def test_the_reserve_is_refilled_before_ingest_continues() -> None:
    """Bundles must not use the block that the next acknowledgement needs."""
    clock = ManualClock()
    disk = SmallDisk(150_000)
    with opened(disk, clock, segment_bytes_max=16_000, wal_rotate_bytes=8_000) as store:
        store.register("s", start="earliest")
        number = 0
        for _ in range(12):
            number, _ = fill(store, number)
            squeeze(disk)
            before = len(store.internals.catalog)
            while len(store.internals.catalog) == before and drain(store, "s", 1):
                store.maintain()
            assert len(store.internals.catalog) < before or not before, "an acknowledgement could not be written"
            disk.capacity = 150_000
            clock.advance(1)
        store.ingest(bundle_of(number))
        assert disk.exists(f"{ROOT}/{RESERVE}")


def test_a_long_progress_file_can_be_replaced_on_a_full_disk() -> None:
    """
    One bundle is slow and many later ones are done: the progress file names each of their segments. The reserve
    grows with it; otherwise the acknowledgement that would free all of them could never be written.
    """
    clock = ManualClock()
    disk = SmallDisk(2_000_000)
    with opened(disk, clock, segment_bytes_max=500, wal_rotate_bytes=8_000) as store:
        subscriber = store.register("s", start="earliest")
        number = 0
        while number < 60:
            store.ingest(bundle_of(number, size=10))
            number += 1
            if number % 20 == 0:
                store.seal()
                clock.advance(2)
                store.maintain()
        first, second = (subscriber.next_bundle(timeout=0) for _ in range(2))
        assert first is not None
        assert second is not None
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handle.ack()
        for _ in range(2):
            clock.advance(2)
            store.maintain()
        progress = disk.stat(f"{ROOT}/quiver.sub.s").size_bytes
        assert progress > 500, "it was not long"
        disk.capacity = disk.used()
        second.ack()
        assert store.maintain().progress_written == 1
        first.ack()
        assert store.maintain().progress_written == 1
        assert len(store.internals.catalog) == 0
        assert disk.stat(f"{ROOT}/quiver.sub.s").size_bytes < progress
        disk.capacity = 2_000_000
        clock.advance(2)
        store.maintain()
        store.ingest(bundle_of(number))


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
def test_a_store_closes_and_opens_on_a_full_disk(durability: str) -> None:
    """The log keeps bundles that could not be sealed; without a log, close raises an error."""
    disk = SmallDisk(150_000)
    store = opened(disk, durability=durability)
    store.register("s", start="earliest")
    number, _ = fill(store)
    disk.capacity = disk.used()
    if durability == "segment_only" and store.stats()["open_bundles"]:
        with pytest.raises(CapacityError):
            store.close()
        return
    store.close()
    with opened(disk) as store:
        with pytest.raises(CapacityError):
            store.ingest(bundle_of(number))
        assert drain(store, "s") or store.stats()["segments"] == 0
        disk.capacity = 400_000
        store.seal()
        got = drain(store, "s")
        assert got[-1] == number - 1


def test_an_append_to_a_full_disk_waits_until_the_deadline() -> None:
    clock = ManualClock()
    disk = SmallDisk(150_000)
    with opened(disk, clock) as store:
        store.register("s", start="earliest")
        number, _ = fill(store)
        started = clock.monotonic()
        with pytest.raises(CapacityError, match="the disk of /full"):
            store.ingest(bundle_of(number), timeout=2.0)
        assert 2.0 <= clock.monotonic() - started < 2.2
        started = clock.monotonic()
        with pytest.raises(CapacityError):
            store.ingest(bundle_of(number))
        assert clock.monotonic() == started
        disk.capacity = 300_000
        clock.advance(1)
        store.ingest(bundle_of(number), timeout=2.0)


def test_drop_oldest_continues_on_a_full_disk() -> None:
    """The oldest segments are dropped, the newest are left without a gap, and the losses are counted exactly."""
    disk = SmallDisk(150_000)
    with opened(disk, size_cap_policy="drop_oldest", segment_bytes_max=16_000, wal_rotate_bytes=8_000) as store:
        store.register("s", start="earliest")
        for number in range(600):
            store.ingest(bundle_of(number))
        disk.capacity = 400_000
        store.seal()
        got = drain(store, "s")
        assert got == list(range(got[0], 600))
        assert len(got) > 50
        observer = store._observer
        assert observer.total("quiver.subscriber.dropped_bundles_total") == got[0]


@pytest.mark.parametrize("seed", [0, 7, 9, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 80))])
def test_any_order_of_calls_on_a_small_disk_loses_nothing_uncounted(seed: int) -> None:
    """
    Random calls on a disk whose size changes: accepted bundles are delivered to both subscribers once and in order,
    or were dropped by policy and counted.
    """
    chance = random.Random(seed)
    clock = ManualClock()
    disk = SmallDisk(200_000)
    policy = chance.choice(["backpressure", "drop_oldest"])
    changes = {
        "size_cap_policy": policy,
        "size_cap_bytes": chance.choice([None, 60_000, 120_000]),
        "delete_grace_s": chance.choice([0.0, 5.0]),
        "steady_state_headroom_bytes": chance.choice([0, 10_000]),
        "segment_bytes_max": chance.choice([16_000, 24_000]),
        "wal_rotate_bytes": chance.choice([1_000, 8_000]),
        "wal_bytes_max": chance.choice([20_000, 60_000]),
        "wal_files_max": chance.choice([2, 6]),
        "segments_max": chance.choice([None, 8]),
    }
    store = opened(disk, clock, **changes)
    names = ("one", "two")
    got: dict[str, list[int]] = {name: [] for name in names}
    lost = dict.fromkeys(names, 0)
    for name in names:
        store.register(name, start="earliest")
    number = 0

    def count_lost() -> None:
        for (name, attributes), amount in store._observer.counts.items():
            if name == "quiver.subscriber.dropped_bundles_total":
                lost[dict(attributes)["subscriber"]] += amount

    for _ in range(200):
        call = chance.choices(
            ["ingest", "take", "maintain", "flush", "disk", "time", "reopen"], [12, 3, 3, 1, 1, 2, 0.5]
        )
        if call == ["ingest"]:
            for _ in range(chance.randrange(1, 12)):
                try:
                    store.ingest(bundle_of(number, size=chance.randrange(600)), durable=chance.random() < 0.3)
                except CapacityError:
                    break
                number += 1
        elif call == ["take"]:
            name = chance.choice(names)
            got[name] += drain(store, name, chance.randrange(60))
        elif call == ["maintain"]:
            store.maintain()
        elif call == ["flush"]:
            with contextlib.suppress(CapacityError):
                store.seal()
        elif call == ["disk"]:
            disk.capacity = max(disk.used() + 2_000, chance.choice([100_000, 200_000, 400_000]))
            if chance.random() < 0.5:
                squeeze(disk)
        elif call == ["time"]:
            clock.advance(chance.random() * 6)
        else:
            disk.capacity += 2_000  # or the last acknowledged bundles are delivered again, which is allowed
            store.close()
            count_lost()
            store = opened(disk, clock, **changes)
            for name in names:
                store.register(name, start="earliest")
    disk.capacity = 10**9
    clock.advance(2)
    store.maintain()
    store.seal()
    for name in names:
        got[name] += drain(store, name)
    count_lost()
    store.close()
    for name in names:
        assert got[name] == sorted(set(got[name])), name
        assert len(got[name]) + lost[name] == number, (name, policy)
        assert policy == "drop_oldest" or lost[name] == 0


@pytest.mark.parametrize("everything", [True, False])
def test_closing_on_a_full_disk_writes_acknowledgements(everything: bool) -> None:
    """The open segment cannot be sealed at first; acknowledgements are still written, and free space for it."""
    disk = SmallDisk(400_000)
    rows = Bundle({30: pa.record_batch({"pad": ["x" * 500]})})
    with opened(disk) as store:
        subscriber = store.register("s", start="earliest")
        for _ in range(90):
            store.ingest(rows)
        store.seal()
        for _ in range(40):
            store.ingest(rows)
        sealed = subscriber.lag().pending_bundles
        assert sealed >= 90
        disk.capacity = disk.used()  # other programs use the rest
        acked = sealed if everything else 5
        for handle in subscriber.next_bundles(acked, timeout=0):
            handle.ack()
    after = [name for name in disk.list_dir(ROOT) if name.endswith(".tmp")]
    assert after == []
    disk.capacity = 10**7
    with opened(disk) as store:
        store.seal()
        assert store.lag("s").pending_bundles == 130 - acked
