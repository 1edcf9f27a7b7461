"""What becomes of a bundle that was not delivered: it waits, it is kept aside, it is dropped, or all stops."""

from random import Random

import pytest
from numbered import bundle_of, number_of

from quiver.bundle import BundleRef
from quiver.delivery.batches import BatchDelivery, read_stored
from quiver.delivery.dead_letters import DeadLetters, read_letters
from quiver.delivery.policy import Again, Delivered, GiveUp, Permanent, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.errors import BundleUnavailableError, CapacityError, DeliveryHaltedError, UsageError
from quiver.observe import InMemoryObserver
from quiver.store.opening import open_store
from quiver.store.reading.retry_set import RetrySet, load_retry_set
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

ROOT = "/store"
DOWN = Transient("UNAVAILABLE", "down")
REFUSED = Permanent("HTTP 400", "no")
A, B = BundleRef(0, 0), BundleRef(0, 1)


class Rig:
    """A store with one sealed segment of five bundles, and what stands between it and a far side."""

    def __init__(self, *, entries_max=100, **policy) -> None:
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.files = FaultFileSystem(self.disk, path_part="dead-letter")
        self.observer = InMemoryObserver()
        self.store = open_store(ROOT, files=self.disk, clock=self.clock, background=False)
        for number in range(5):
            self.store.ingest(bundle_of(number))
        self.store.flush()
        self.answers = {}
        self.sent = []
        self.undelivered = Undelivered(
            "out",
            RetryPolicy(initial_interval_s=1.0, jitter=0.0, **policy),
            retries=RetrySet.open(self.disk, ROOT, "out", clock=self.clock, entries_max=entries_max),
            letters=DeadLetters(ROOT, "out", files=self.files, clock=self.clock, background=False),
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

    def waiting(self):
        return {entry.ref.index: entry.attempts for entry in load_retry_set(self.disk, ROOT, "out")}

    def letters(self):
        return [(letter.ref.index, letter.reason, letter.attempts) for letter in read_letters(self.disk, ROOT, "out")]

    def given_up(self):
        counts = self.observer.counts.items()
        return {
            dict(kept)["how"]: amount for (name, kept), amount in counts if name == "quiver.exporter.given_up_total"
        }


@pytest.fixture
def rig():
    return Rig(max_attempts=3)


def test_what_fails_waits_durably(rig):
    """The attempts are counted on the disk before the answer."""
    assert [rig.fail(A, DOWN), rig.fail(A, DOWN)] == [Again(1.0), Again(2.0)]
    assert rig.waiting() == {0: 2}
    rig.undelivered.resolved(A)
    rig.undelivered.save()
    assert rig.waiting() == {}


def test_what_is_used_up_is_a_letter_before_it_is_given_up(rig):
    """With its attempts, and when they began; it stays in the set until it is acknowledged."""
    began = rig.clock.now_ns()
    for _ in range(2):
        rig.fail(A, DOWN)
        rig.clock.advance(5.0)
    verdict = rig.fail(A, DOWN, bundle_of(0))
    assert isinstance(verdict, GiveUp)
    (letter,) = read_letters(rig.disk.clone_after_crash(0), ROOT, "out")
    assert (letter.attempts, letter.first_failed_at_ns, letter.bundle) == (3, began, bundle_of(0))
    assert rig.waiting() == {0: 2}
    assert rig.given_up() == {"dead_letter": 1}


def test_refused_for_good_needs_no_attempts(rig):
    """It is told with the reason that the far side gave."""
    assert rig.fail(A, REFUSED, bundle_of(0)) == GiveUp("dead_letter", "HTTP 400: no")
    assert rig.letters() == [(0, "HTTP 400: no", 1)]


def test_nothing_is_given_up_without_its_letter(rig):
    """A disk that refuses the letter makes the bundle wait; then it is tried again, and kept."""
    rig.files.fail_on("create")
    assert rig.fail(A, REFUSED, bundle_of(0)) == Again(1.0)
    assert (rig.letters(), rig.given_up(), rig.waiting()) == ([], {}, {0: 1})
    rig.files.heal()
    assert isinstance(rig.fail(A, REFUSED, bundle_of(0)), GiveUp)
    assert rig.letters() == [(0, "HTTP 400: no", 2)]


def test_dropping_is_counted():
    """And leaves no letter."""
    rig = Rig(on_exhausted="drop")
    assert rig.fail(A, REFUSED) == GiveUp("drop", "HTTP 400: no")
    assert (rig.given_up(), rig.letters()) == ({"drop": 1}, [])


def test_dead_letters_need_a_place():
    """Otherwise the policy could not be kept."""
    with pytest.raises(UsageError, match="dead letters"):
        Undelivered("out", RetryPolicy())


# ── batches of a reader in order ─────────────────────────────────────────────────────────────────────


def try_batch(rig, *indexes):
    refs = [BundleRef(0, index) for index in indexes]
    rig.batches.settle((ref, rig.batches.try_one(ref)) for ref in refs if not rig.batches.is_held(ref))


def test_one_sick_bundle_holds_up_nothing(rig):
    """It waits in the set, the others are delivered; it is drained when its time has come, and not before."""
    rig.answers[1] = DOWN
    try_batch(rig, 0, 1, 2)
    assert (rig.sent, rig.waiting()) == ([0, 1, 2], {1: 1})
    assert rig.batches.drain() == 0
    try_batch(rig, 0, 1, 2)
    assert rig.sent == [0, 1, 2, 0, 2], "a batch that is run again leaves to the set what is in it"
    rig.clock.advance(1.0)
    del rig.answers[1]
    assert (rig.batches.drain(), rig.waiting(), rig.sent[-1]) == (1, {}, 1)


def test_an_exception_is_an_answer(rig):
    """Of whatever kind: it may pass, and is used up in the end."""
    rig.answers[0] = RuntimeError("a client's own")
    try_batch(rig, 0, 1)
    for _ in range(3):
        rig.clock.advance(60.0)
        rig.batches.drain()
    assert rig.letters() == [(0, "3 attempts failed; the last with RuntimeError: a client's own", 3)]
    assert rig.waiting() == {}


def test_a_far_side_that_is_down_is_asked_once_a_round():
    """The others would only be told the same; when it is up again, all go."""
    rig = Rig()
    rig.answers = dict.fromkeys(range(5), DOWN)
    try_batch(rig, 0, 1, 2, 3, 4)
    rig.clock.advance(1.0)
    assert (rig.batches.drain(), rig.sent[5:]) == (0, [0])
    rig.answers.clear()
    rig.clock.advance(2.0)
    assert (rig.batches.drain(), rig.waiting()) == (5, {})


def test_a_full_set_stops_the_batch():
    """It may not be committed; what is in the set is on the disk."""
    rig = Rig(entries_max=2)
    rig.answers = dict.fromkeys(range(5), DOWN)
    with pytest.raises(CapacityError):
        try_batch(rig, 0, 1, 2, 3, 4)
    assert rig.waiting() == {0: 1, 1: 1}


def test_halt_stops_the_batch():
    """The reason goes with it; the bundle is neither delivered nor given up."""
    rig = Rig(on_exhausted="halt")
    rig.answers[1] = REFUSED
    with pytest.raises(DeliveryHaltedError, match=r"out stopped at bundle 0:1: HTTP 400: no"):
        try_batch(rig, 0, 1, 2)
    assert (rig.waiting(), rig.letters(), rig.given_up()) == ({1: 1}, [], {"halt": 1})
    assert [entry.is_halted for entry in load_retry_set(rig.disk, ROOT, "out")] == [True], "for whoever looks"


def test_halt_needs_no_room_in_the_set():
    """All stops, noted or not."""
    rig = Rig(entries_max=1, on_exhausted="halt")
    rig.fail(A, DOWN)
    assert rig.fail(B, REFUSED) == GiveUp("halt", "HTTP 400: no")


def test_what_policy_dropped_leaves_the_set(rig):
    """There is nothing left to deliver; that it went is counted where it was dropped."""
    rig.answers[1] = DOWN
    try_batch(rig, 0, 1)
    for name in rig.disk.list_dir(f"{ROOT}/segments"):
        rig.disk.remove(f"{ROOT}/segments/{name}")
    with pytest.raises(BundleUnavailableError):
        read_stored(rig.disk, ROOT, A)
    rig.clock.advance(1.0)
    assert (rig.batches.drain(), rig.waiting(), rig.letters()) == (1, {}, [])
