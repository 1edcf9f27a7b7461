"""Undelivered bundles: retried, stored as dead letters, dropped, or the exporter halts."""

from random import Random

import pytest
from numbered import bundle_of, number_of

from quiver.bundle import BundleRef
from quiver.delivery.batches import BatchDelivery, read_stored
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import Delivered, Exhausted, Permanent, Retry, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.errors import BundleUnavailableError, CapacityError, DeliveryHaltedError, UsageError
from quiver.observe import InMemoryObserver
from quiver.store.opening import open_store
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ROOT = "/store"
DOWN = Transient("UNAVAILABLE", "down")
REFUSED = Permanent("HTTP 400", "no")
A, B = BundleRef(0, 0), BundleRef(0, 1)


class Rig:
    """A store with one sealed segment of five bundles, and its undelivered bundles."""

    def __init__(self, *, entries_max=100, **policy) -> None:
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.fs = FaultFileSystem(self.disk, path_part="dead-letter")
        self.observer = InMemoryObserver()
        self.store = open_store(ROOT, fs=self.disk, clock=self.clock, background=False)
        for number in range(5):
            self.store.ingest(bundle_of(number))
        self.store.seal()
        self.answers = {}
        self.sent = []
        self.undelivered = Undelivered(
            "out",
            RetryPolicy(initial_interval_s=1.0, jitter=0.0, **policy),
            retries=RetrySet.open(self.disk, ROOT, "out", clock=self.clock, entries_max=entries_max),
            letters=DeadLetters(ROOT, "out", fs=self.fs, clock=self.clock, background=False),
            random=Random(1),
            clock=self.clock,
            observer=self.observer,
        )
        self.batches = BatchDelivery(self.disk, ROOT, self.undelivered, self.deliver)

    def deliver(self, ref, bundle):
        assert number_of(bundle) == ref.index
        self.sent.append(ref.index)
        answer = self.answers.get(ref.index, Delivered())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fail(self, ref, outcome, content=None):
        return self.undelivered.failed(ref, outcome, content=lambda: content)

    def retrying(self):
        return {entry.ref.index: entry.attempts for entry in load_retry_set(self.disk, ROOT, "out")}

    def dead_letters(self):
        return [
            (letter.ref.index, letter.reason, letter.attempts) for letter in read_dead_letters(self.disk, ROOT, "out")
        ]

    def undelivered_counts(self):
        counts = self.observer.counts.items()
        return {
            dict(kept)["how"]: amount for (name, kept), amount in counts if name == "quiver.exporter.given_up_total"
        }


@pytest.fixture
def rig():
    return Rig(max_attempts=3)


def test_failed_bundles_are_saved_before_the_verdict(rig):
    assert [rig.fail(A, DOWN), rig.fail(A, DOWN)] == [Retry(1.0), Retry(2.0)]
    assert rig.retrying() == {0: 2}
    rig.undelivered.resolved(A)
    rig.undelivered.save()
    assert rig.retrying() == {}


def test_an_exhausted_bundle_is_a_dead_letter_before_the_verdict(rig):
    """With its attempts and the first failure; it stays in the retry set until it is acknowledged."""
    began = rig.clock.now_ns()
    for _ in range(2):
        rig.fail(A, DOWN)
        rig.clock.advance(5.0)
    verdict = rig.fail(A, DOWN, bundle_of(0))
    assert isinstance(verdict, Exhausted)
    (letter,) = read_dead_letters(rig.disk.clone_after_crash(0), ROOT, "out")
    assert (letter.attempts, letter.first_failed_at_ns, letter.bundle) == (3, began, bundle_of(0))
    assert rig.retrying() == {0: 2}
    assert rig.undelivered_counts() == {"dead_letter": 1}


def test_a_permanent_refusal_is_a_dead_letter_immediately(rig):
    """With the reason of the destination."""
    assert rig.fail(A, REFUSED, bundle_of(0)) == Exhausted("dead_letter", "HTTP 400: no")
    assert rig.dead_letters() == [(0, "HTTP 400: no", 1)]


def test_a_bundle_is_retried_if_its_dead_letter_cannot_be_written(rig):
    rig.fs.fail_on("create")
    assert rig.fail(A, REFUSED, bundle_of(0)) == Retry(1.0)
    assert (rig.dead_letters(), rig.undelivered_counts(), rig.retrying()) == ([], {}, {0: 1})
    rig.fs.heal()
    assert isinstance(rig.fail(A, REFUSED, bundle_of(0)), Exhausted)
    assert rig.dead_letters() == [(0, "HTTP 400: no", 2)]


def test_drop_counts_and_stores_no_dead_letter():
    rig = Rig(on_exhausted="drop")
    assert rig.fail(A, REFUSED) == Exhausted("drop", "HTTP 400: no")
    assert (rig.undelivered_counts(), rig.dead_letters()) == ({"drop": 1}, [])


def test_the_dead_letter_policy_needs_dead_letters():
    with pytest.raises(UsageError, match="DeadLetters"):
        Undelivered("out", RetryPolicy())


# ── batches of a reader in order ─────────────────────────────────────────────────────────────────────


def try_batch(rig, *indexes):
    refs = [BundleRef(0, index) for index in indexes]
    rig.batches.settle((ref, rig.batches.try_one(ref)) for ref in refs if not rig.batches.is_waiting_for_retry(ref))


def test_one_failing_bundle_does_not_block_others(rig):
    """It is in the retry set and is drained when it is due, not before; the others are delivered."""
    rig.answers[1] = DOWN
    try_batch(rig, 0, 1, 2)
    assert (rig.sent, rig.retrying()) == ([0, 1, 2], {1: 1})
    assert rig.batches.drain() == 0
    try_batch(rig, 0, 1, 2)
    assert rig.sent == [0, 1, 2, 0, 2], "a repeated batch skips bundles in the retry set"
    rig.clock.advance(1.0)
    del rig.answers[1]
    assert (rig.batches.drain(), rig.retrying(), rig.sent[-1]) == (1, {}, 1)


def test_an_exception_is_a_transient_failure(rig):
    """It is retried until retries are used up."""
    rig.answers[0] = RuntimeError("a client's own")
    try_batch(rig, 0, 1)
    for _ in range(3):
        rig.clock.advance(60.0)
        rig.batches.drain()
    assert rig.dead_letters() == [(0, "3 attempts failed; the last with RuntimeError: a client's own", 3)]
    assert rig.retrying() == {}


def test_a_destination_that_is_down_is_tried_once_a_round():
    """When it is up again, all bundles are delivered."""
    rig = Rig()
    rig.answers = dict.fromkeys(range(5), DOWN)
    try_batch(rig, 0, 1, 2, 3, 4)
    rig.clock.advance(1.0)
    assert (rig.batches.drain(), rig.sent[5:]) == (0, [0])
    rig.answers.clear()
    rig.clock.advance(2.0)
    assert (rig.batches.drain(), rig.retrying()) == (5, {})


def test_a_full_set_stops_the_batch():
    """It must not be committed; the set is on disk."""
    rig = Rig(entries_max=2)
    rig.answers = dict.fromkeys(range(5), DOWN)
    with pytest.raises(CapacityError):
        try_batch(rig, 0, 1, 2, 3, 4)
    assert rig.retrying() == {0: 1, 1: 1}


def test_halt_stops_the_batch():
    """The error has the reason; the bundle is neither delivered nor dropped."""
    rig = Rig(on_exhausted="halt")
    rig.answers[1] = REFUSED
    with pytest.raises(DeliveryHaltedError, match=r"out halted at bundle 0:1: HTTP 400: no"):
        try_batch(rig, 0, 1, 2)
    assert (rig.retrying(), rig.dead_letters(), rig.undelivered_counts()) == ({1: 1}, [], {"halt": 1})
    assert [entry.is_halted for entry in load_retry_set(rig.disk, ROOT, "out")] == [True], "the halt is on disk"


def test_halt_works_with_a_full_set():
    rig = Rig(entries_max=1, on_exhausted="halt")
    rig.fail(A, DOWN)
    assert rig.fail(B, REFUSED) == Exhausted("halt", "HTTP 400: no")


def test_removed_bundles_leave_the_set(rig):
    """Nothing is left to deliver; the removal was counted where it happened."""
    rig.answers[1] = DOWN
    try_batch(rig, 0, 1)
    for name in rig.disk.list_dir(f"{ROOT}/segments"):
        rig.disk.remove(f"{ROOT}/segments/{name}")
    with pytest.raises(BundleUnavailableError):
        read_stored(rig.disk, ROOT, A)
    rig.clock.advance(1.0)
    assert (rig.batches.drain(), rig.retrying(), rig.dead_letters()) == (1, {}, [])
