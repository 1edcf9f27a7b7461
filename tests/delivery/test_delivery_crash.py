"""
A crash at every step of an exporter that reads in order from a store, with a destination that fails intermittently.

Nothing is lost, the poisoned bundles become dead letters, and the disk is freed. The test takes the part of Spark: the
real source, a checkpoint on the same disk, batches of three bundles.
"""

import json
from random import Random

import pytest
from numbered import bundle_of, number_of

from quiver.bundle import BundleRef
from quiver.delivery.batches import BatchDelivery
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import Delivered, Permanent, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.primitives.disk.atomic import replace_file
from quiver.settings import Settings
from quiver.store.format.names import parse_segment_name
from quiver.store.opening import open_store
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/store"
CHECKPOINT = "/checkpoint"
BUNDLES = 12
POISONED = {4, 9}
SETTINGS = Settings(delete_grace_s=0.0)


class Destination:
    """A destination that fails the chosen calls, and always refuses poisoned bundles."""

    def __init__(self, failing=()) -> None:
        self.failing = dict.fromkeys(failing, 2)
        self.has: list[int] = []

    def take(self, _ref, bundle):
        number = number_of(bundle)
        if number in POISONED:
            return Permanent("HTTP 400", "poison")
        if self.failing.get(number, 0):
            self.failing[number] -= 1
            return Transient("UNAVAILABLE")
        self.has.append(number)
        return Delivered()


class Life:
    """One run of writer, query and exporter on one disk."""

    def __init__(self, disk, clock, far) -> None:
        self.disk, self.clock = disk, clock
        self.store = open_store(ROOT, SETTINGS, fs=disk, clock=clock, background=False)
        options = parse_options({"path": ROOT, "mode": "bundles", "subscriber": "out", "maxBundlesPerTrigger": "3"})
        segments = SegmentList(disk, ROOT, slots=None, fail_on_data_loss=True)
        self.query = StreamSubscriber(disk, options, segments, parallelism=1, clock=clock)
        self.undelivered = Undelivered(
            "out",
            RetryPolicy(initial_interval_s=1.0, max_interval_s=2.0),
            retries=RetrySet.open(disk, ROOT, "out", clock=clock),
            letters=DeadLetters(ROOT, "out", fs=disk, clock=clock, background=False),
            random=Random(1),
            clock=clock,
        )
        self.batches = BatchDelivery(disk, ROOT, self.undelivered, far.take)

    def checkpoint(self, name):
        path = f"{CHECKPOINT}/{name}"
        return json.loads(self.disk.read_all(path, size_max=1000)) if self.disk.exists(path) else None

    def note(self, name, value):
        replace_file(self.disk, f"{CHECKPOINT}/{name}", json.dumps(value).encode())

    def batch(self):
        """Run the batch that was planned and not committed, or the next one; return False if there is none."""
        committed = self.checkpoint("commits") or self.query.initial()
        planned = self.checkpoint("offsets")
        if planned is None or planned[0] != committed:
            end = self.query.latest(committed, unlimited=False)
            if end == committed:
                return False
            planned = [committed, end]
            self.note("offsets", planned)
        spans = self.query.plan(*planned)
        refs = [BundleRef(one.segment, at) for part in spans for one in part for at in range(one.start, one.stop)]
        fresh = [ref for ref in refs if not self.batches.is_waiting_for_retry(ref)]
        self.batches.settle((ref, self.batches.try_one(ref)) for ref in fresh)
        self.note("commits", planned[1])
        return True

    def run(self, *, rounds):
        for _ in range(rounds):
            more = self.batch()
            self.clock.advance(2.0)
            drained = self.batches.drain()
            self.store.maintain()
            if not more and not drained and not len(self.undelivered.retries):
                break

    def end(self):
        self.batches.close()
        self.query.release()
        self.store.close()


def filled(clock):
    disk = CrashFileSystem(clock=clock)
    disk.make_dirs(CHECKPOINT)
    with open_store(ROOT, SETTINGS, fs=disk, clock=clock, background=False) as store:
        store.register("out", start="earliest")
        for number in range(BUNDLES):
            store.ingest(bundle_of(number))
            if number % 5 == 4:
                store.seal()
        store.seal()
    return disk


def finish(disk, clock, has):
    """Complete the work in another life and check the guarantees."""
    far = Destination()
    life = Life(disk, clock, far)
    life.run(rounds=20)
    assert load_retry_set(disk, ROOT, "out") == ()
    life.store.seal()
    # The last ack comes with the next question, as in Spark.
    life.batch()
    life.store.maintain()
    names = disk.list_dir(f"{ROOT}/segments")
    assert [name for name in names if parse_segment_name(name) is not None] == [], "the disk is freed"
    life.end()
    assert {*has, *far.has} == set(range(BUNDLES)) - POISONED, "everything arrived"
    dead_letters = read_dead_letters(disk, ROOT, "out")
    assert sorted(number_of(letter.bundle) for letter in dead_letters) == sorted(POISONED)
    return far.has


def test_without_a_crash_everything_arrives_once():
    """Regardless of how often the destination failed."""
    clock = ManualClock()
    disk = filled(clock)
    far = Destination(failing=(0, 3, 7, 11))
    life = Life(disk, clock, far)
    life.run(rounds=20)
    life.end()
    assert sorted(far.has) == sorted(set(range(BUNDLES)) - POISONED)
    finish(disk, clock, far.has)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_crash_at_any_step_loses_nothing(how):
    """Delivery is at least once: only the batch that was running is delivered again."""
    clock = ManualClock()
    disk = filled(clock)
    far = Destination(failing=(0, 3, 7, 11))
    moments = []

    def crash(*_step):
        state = disk.clone_after_kill() if how == "kill" else disk.clone_after_crash(disk.steps % 4)
        moments.append((state, list(far.has)))

    disk.on_step = crash
    life = Life(disk, clock, far)
    life.run(rounds=20)
    life.end()
    disk.on_step = None
    assert len(moments) > 150
    for state, has in moments[:: 2 if how == "kill" else 3]:
        again = finish(state, ManualClock(now_ns=clock.now_ns()), has)
        assert len(set(again) & set(has)) <= 3 + 4, "one batch, and the bundles in the retry set"


def test_a_lost_checkpoint_repeats_at_most_one_batch():
    """The query resumes at its acknowledged position; bundles in the retry set are not read again."""
    clock = ManualClock()
    disk = filled(clock)
    far = Destination()
    far.failing = {0: 100}
    life = Life(disk, clock, far)
    for _ in range(3):
        life.batch()
    life.end()
    for name in ("offsets", "commits"):
        disk.remove(f"{CHECKPOINT}/{name}")
    assert [entry.ref.index for entry in load_retry_set(disk, ROOT, "out")] == [0]
    again = finish(disk, clock, far.has)
    assert len(set(again) & set(far.has)) <= 3
    assert again.count(0) == 1
