"""`order: newest`: after an outage the newest data is sent first, and the backlog follows. Nothing is lost."""

from random import Random

import pytest
from fake_destination import FakeSender, otlp_bundle

from quiver.delivery.policy import RetryPolicy
from quiver.delivery.undelivered import Undelivered
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.reply import Reply
from quiver.exporters.settings import RequestSizes
from quiver.observe import InMemoryObserver
from quiver.settings import Settings
from quiver.store.format.names import parse_segment_name
from quiver.store.opening import open_store
from quiver.store.subscribers.retry_set import RetrySet
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
DOWN = Reply("retry", "UNAVAILABLE", "down")
BUNDLES = 12
SETTINGS = Settings(segment_bundles_max=4, delete_grace_s=0.0, deliver_unsealed=True)


class Life:
    """One run of a store and its exporter on one disk; the destination is down for the first *outage* requests."""

    def __init__(self, disk, clock, *, outage=0, order="newest", settings=SETTINGS, sizes=None):
        self.clock, self.outage = clock, outage
        self.has = []
        self.observer = InMemoryObserver()
        self.store = open_store(ROOT, settings, fs=disk, clock=clock, background=False, observer=self.observer)
        self.forwarder = BundleForwarder(
            self.store.register("out", start="earliest", order=order),
            FakeSender(self.answer),
            sizes=sizes,
            undelivered=Undelivered(
                "out",
                RetryPolicy(initial_interval_s=1.0, max_interval_s=2.0, on_exhausted="drop"),
                retries=RetrySet.open(disk, ROOT, "out", clock=clock),
                random=Random(1),
                clock=clock,
            ),
            random=Random(1),
            clock=clock,
        )

    def answer(self, _signal, data):
        if self.outage:
            self.outage -= 1
            return DOWN
        self.has += data  # each request is one byte, so this also takes combined ones apart
        return Reply("confirmed")

    def ingest(self, *numbers):
        for number in numbers:
            self.store.ingest(otlp_bundle(bytes([number])))
            self.store.maintain()

    def run(self):
        """Send until nothing is pending, and wait for what is due later."""
        for _ in range(40):
            while self.forwarder.forward_one():
                self.store.maintain()
            self.clock.advance(2.0)
            self.store.maintain()
            if not self.store.lag("out").pending_bundles:
                break

    def end(self):
        self.forwarder.stop(0)
        self.store.close()


def filled(clock):
    disk = CrashFileSystem(clock=clock)
    life = Life(disk, clock)
    life.ingest(*range(BUNDLES))
    life.end()
    return disk


def test_the_backlog_follows_the_newest_data():
    """Every fourth bundle is the oldest one, and data that arrives meanwhile comes before the backlog."""
    clock = ManualClock()
    life = Life(filled(clock), clock)
    for _ in range(5):
        life.forwarder.forward_one()
    assert life.has == [11, 10, 9, 0, 8]
    life.ingest(12, 13)
    life.run()
    assert life.has[5:] == [13, 12, 1, 7, 6, 5, 2, 4, 3]
    life.end()


def test_an_outage_changes_nothing_about_the_order():
    """Bundles that were tried during the outage are due later, and are not lost."""
    clock = ManualClock()
    life = Life(filled(clock), clock, outage=3)
    life.run()
    assert sorted(life.has) == list(range(BUNDLES))
    assert life.has.index(8) < life.has.index(2)
    life.end()


def test_combined_requests_start_with_the_newest_bundles():
    """The bundles of one request are in the order of arrival."""
    clock = ManualClock()
    life = Life(filled(clock), clock, sizes=RequestSizes(batch_bytes_min=5))
    assert life.forwarder.forward_one()
    assert set(life.has) == {11, 10, 9, 8, 7}
    life.run()
    assert sorted(life.has) == list(range(BUNDLES))
    life.end()


def test_the_order_may_change_with_a_restart():
    """The progress of both is the same file."""
    clock = ManualClock()
    disk = filled(clock)
    has = []
    for order in ("newest", "oldest", "newest"):
        life = Life(disk, clock, order=order)
        for _ in range(3):
            life.forwarder.forward_one()
        life.end()
        has += life.has
    assert has == [11, 10, 9, 0, 1, 2, 8, 7, 6]


def test_the_oldest_data_is_dropped_and_counted_once():
    """With `drop_oldest`: each bundle is either sent or counted, and finished newer segments are deleted first."""
    clock = ManualClock()
    settings = Settings(
        segment_bundles_max=4,
        segment_bytes_max=2_000,
        wal_rotate_bytes=2_000,
        size_cap_bytes=40_000,
        size_cap_policy="drop_oldest",
        delete_grace_s=0.0,
    )
    life = Life(CrashFileSystem(clock=clock), clock, outage=2, settings=settings)
    for number in range(200):
        life.ingest(number)
        if number % 3 == 0:
            life.forwarder.forward_one()
    life.run()
    dropped = life.observer.total("quiver.subscriber.dropped_bundles_total")
    assert dropped > 0
    assert len(set(life.has)) == len(life.has)
    assert len(life.has) + dropped == 200
    assert life.has[-1] > dropped // 2
    life.end()


def finish(disk, clock, has, order):
    """Send the rest in another life; everything arrived, and the disk is freed."""
    life = Life(disk, clock, order=order)
    life.run()
    life.store.seal()
    life.store.maintain()
    names = disk.list_dir(f"{ROOT}/segments")
    assert [name for name in names if parse_segment_name(name) is not None] == []
    life.end()
    assert {*has, *life.has} == set(range(BUNDLES))
    return life.has


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_crash_at_any_step_loses_nothing(how, order):
    """The next life may have another order. Data that was acknowledged before a maintenance pass is not sent again."""
    clock = ManualClock()
    disk = filled(clock)
    life = Life(disk, clock, outage=2)
    moments = []

    def crash(*_step):
        state = disk.clone_after_kill() if how == "kill" else disk.clone_after_crash(disk.steps % 4)
        moments.append((state, list(life.has)))

    disk.on_step = crash
    life.run()
    life.end()
    disk.on_step = None
    assert sorted(life.has) == list(range(BUNDLES))
    assert len(moments) > 50
    for state, has in moments[:: 1 if how == "kill" else 2]:
        again = finish(state, ManualClock(now_ns=clock.now_ns()), has, order)
        assert len(set(again) & set(has)) <= 2
