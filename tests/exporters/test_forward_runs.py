"""A forwarder that combines requests takes bundles in runs. It acknowledges no bundle that was not confirmed."""

import logging
from collections import Counter
from random import Random

import pyarrow as pa
import pytest
from fake_destination import FakeSender, FakeSource, otlp_bundle
from hypothesis import given, settings
from hypothesis import strategies as st
from test_request_sizes import bodies, logs

from quiver.bundle import Bundle, BundleRef
from quiver.delivery.policy import RetryPolicy
from quiver.delivery.undelivered import Undelivered
from quiver.errors import InvariantError
from quiver.exporters.attempts import Attempts, AttemptTable
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.reply import Reply
from quiver.exporters.settings import RequestSizes
from quiver.exporters.taken import BundleTaker, TakenBundle, acknowledge
from quiver.observe import InMemoryObserver
from quiver.primitives.backoff import Backoff
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.subscribers.claims import Claims
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
BACKOFF = Backoff(first_s=1.0, cap_s=4.0, jitter=0.0)
SIZES = RequestSizes(batch_bytes_min=2_000)
UNAVAILABLE = Reply("retry", "UNAVAILABLE", "no")
REFUSED = Reply("refused", "INVALID_ARGUMENT", "no")


def small(number: int, size: int = 60) -> Bundle:
    return otlp_bundle(logs(f"{number:05}".ljust(size, ".")))


def numbers(*requests: bytes) -> list[int]:
    return [int(body[:5]) for body in bodies(*requests)]


class Store:
    """A store with sealed bundles, and a forwarder that sends them when it is called."""

    def __init__(self, answer=None, disk=None, sizes=SIZES) -> None:
        self.clock = ManualClock()
        self.disk = disk or CrashFileSystem()
        self.store = open_store(ROOT, Settings(), fs=self.disk, clock=self.clock, background=False)
        self.source = self.store.register("out", start="earliest")
        self.sender = FakeSender(answer)
        self.observer = InMemoryObserver()
        undelivered = Undelivered(
            "out", RetryPolicy.of_backoff(BACKOFF, on_exhausted="drop"), random=Random(1), clock=self.clock
        )
        self.forwarder = BundleForwarder(
            self.source, self.sender, origin="me", sizes=sizes, undelivered=undelivered, random=Random(1),
            clock=self.clock, observer=self.observer,
        )  # fmt: skip

    def seal(self, *bundles: Bundle) -> None:
        for bundle in bundles:
            self.store.ingest(bundle)
        self.store.seal()

    def run(self) -> None:
        while self.forwarder.forward_one():
            pass

    def run_to_the_end(self) -> None:
        for _ in range(200):
            self.run()
            if self.source.lag().is_drained:
                return
            self.clock.advance(5.0)
        raise AssertionError(self.source.lag())

    def sent(self) -> list[list[int]]:
        return [numbers(request) for _, request in self.sender.sent]


@pytest.fixture
def rig():
    rigs = []

    def make(*bundles, **options):
        rigs.append(Store(**options))
        rigs[-1].seal(*bundles)
        return rigs[-1]

    yield make
    for one in rigs:
        one.store.close()


def test_bundles_are_claimed_and_acknowledged_in_runs(rig, monkeypatch):
    """One claim for the first bundle of a request, which shows the size; one or two for all others."""
    taken = Counter()
    settled = Counter()
    take_run, settle_run = Claims.take_run, Claims.settle_run

    def take(claims, record, count, timeout_s):
        run = take_run(claims, record, count, timeout_s)
        taken.update([0 if run is None else run.count])
        return run

    def settle(claims, record, run, bits, *outcome):
        settled.update([bits.bit_count()])
        return settle_run(claims, record, run, bits, *outcome)

    monkeypatch.setattr(Claims, "take_run", take)
    monkeypatch.setattr(Claims, "settle_run", settle)
    store = rig(*map(small, range(200)))
    store.run()
    assert [number for request in store.sent() for number in request] == list(range(200))
    assert store.source.lag().is_drained
    assert sum(taken.values()) <= 2 * len(store.sent()) < 30
    assert sum(settled.values()) == sum(taken.values()) - taken[0]
    assert store.observer.total("quiver.exporter.rows_total") == 200


def test_a_large_bundle_ends_the_run_and_the_rest_is_free_for_other_threads(rig):
    claimed = []

    def answer(_signal, request):
        claimed.append((len(numbers(request)), store.source.lag().claimed_bundles))
        return Reply("confirmed")

    store = rig(small(0), small(1, 5_000), *map(small, range(2, 30)), answer=answer)
    store.run()
    assert claimed[0] == (2, 2)
    assert [number for request in store.sent() for number in request] == list(range(30))
    assert store.source.lag().is_drained


def test_of_a_refused_request_only_the_refused_bundle_is_rejected(rig):
    store = rig(*map(small, range(12)), answer=lambda _, request: REFUSED if 5 in numbers(request) else CONFIRMED)
    store.run()
    assert store.sent()[1:] == [[number] for number in range(12)]
    assert store.source.lag().is_drained
    assert store.observer.total("quiver.exporter.rows_total") == 11


CONFIRMED = Reply("confirmed")


def test_after_a_request_that_must_be_retried_each_bundle_is_deferred(rig):
    answers = [UNAVAILABLE]
    store = rig(*map(small, range(12)), answer=lambda *_: answers.pop() if answers else CONFIRMED)
    store.run()
    assert store.sent() == [list(range(12))]
    assert (store.source.lag().pending_bundles, store.source.lag().deferred_bundles) == (12, 12)
    store.seal(*map(small, range(12, 20)))
    store.run()
    assert store.sent()[1:] == [list(range(12, 20))]
    store.run_to_the_end()
    assert sorted(store.sent()[2:]) == [[number] for number in range(12)]


def test_failed_bundles_in_the_middle_of_a_run_are_sent_individually_when_they_are_due(rig):
    """Their neighbours are new: they are combined around the failed ones."""
    answers = [UNAVAILABLE]
    store = rig(small(0), small(1), answer=lambda *_: answers.pop() if answers else CONFIRMED)
    handles = [store.source.next_bundle(timeout=0) for _ in range(2)]
    store.seal(*map(small, range(2, 5)))
    for handle in handles[1:]:
        handle.nack()
    store.run()  # 1 to 4 fail together
    handles[0].nack()
    store.seal(*map(small, range(5, 9)))
    store.clock.advance(10.0)
    store.run()
    assert store.sent()[0] == [1, 2, 3, 4]
    assert sorted(number for request in store.sent()[1:] for number in request) == list(range(9))
    assert {(number,) for number in (1, 2, 3, 4)} <= {tuple(request) for request in store.sent()[1:]}
    assert store.source.lag().is_drained


def test_a_failed_bundle_that_is_due_is_left_to_be_sent_individually():
    clock = ManualClock()
    source = FakeSource(clock, *map(small, range(3)))
    undelivered = Undelivered("out", RetryPolicy.of_backoff(BACKOFF, on_exhausted="drop"), clock=clock)
    attempts = AttemptTable(source, undelivered, print)
    taker = BundleTaker(source, attempts)
    attempts.add(BundleRef(0, 0), Attempts())
    assert taker.take_run(1, 0.0, bytes_max=1_000) is None
    taken = taker.take_run(3, 0.0, bytes_max=1_000)
    assert [bundle.ref.index for bundle in taken] == [1, 2]
    acknowledge(taken, [])
    assert source.outcomes == {1: "acked", 2: "acked"}
    assert taker.take(0.0).ref == BundleRef(0, 0)
    assert taker.take_run(3, 0.0, bytes_max=1_000) == []


def test_a_bundle_that_cannot_be_read_is_retried_and_its_neighbours_are_sent(rig, monkeypatch):
    store = rig(*map(small, range(12)))
    load_run = store.source._claims.load_run
    load = store.source._claims.load
    broken = {5}

    def load_each(segment, first, end):
        for position, bundle in zip(range(first, end), load_run(segment, first, end), strict=True):
            if position in broken:
                raise OSError("the disk does not answer")
            yield bundle

    def load_one(ref):
        if ref.index in broken:
            raise OSError("the disk does not answer")
        return load(ref)

    monkeypatch.setattr(store.source._claims, "load_run", load_each)
    monkeypatch.setattr(store.source._claims, "load", load_one)
    store.run()
    assert sorted(number for request in store.sent() for number in request) == [*range(5), *range(6, 12)]
    assert (store.source.lag().pending_bundles, store.source.lag().claimed_bundles) == (1, 0)
    broken.clear()
    store.run_to_the_end()
    assert store.sent()[-1] == [5]


def test_a_subscriber_that_is_released_meanwhile_keeps_all_bundles_pending(rig):
    def answer(*_):
        store.source.release()
        return CONFIRMED

    store = rig(*map(small, range(12)), answer=answer)
    store.forwarder.forward_one()
    assert len(store.sent()) == 1
    assert store.source.lag().pending_bundles == 12


def test_several_threads_take_runs_in_turn(rig):
    """Each record is sent once, whichever thread takes it."""
    store = rig(*map(small, range(1_500)))
    with BundleForwarder(store.source, store.sender, sizes=SIZES, in_flight_max=4) as forwarder:
        assert forwarder.drained(60)
    assert sorted(number for request in store.sent() for number in request) == list(range(1_500))
    assert len(store.sent()) < 300


def test_a_bundle_that_cannot_be_combined_leaves_the_run_before_it_is_acknowledged(rig):
    """The only request with spans, in the middle of a run: it is not confirmed with its neighbours."""
    store = rig(
        *map(small, range(5)), otlp_bundle(logs("00005"), signal="traces"), *map(small, range(6, 9)),
        answer=lambda signal, _: UNAVAILABLE if signal == "traces" else CONFIRMED,
    )  # fmt: skip
    store.run()
    assert store.sent() == [[0, 1, 2, 3, 4, 6, 7, 8], [5]]
    assert (store.source.lag().pending_bundles, store.source.lag().deferred_bundles) == (1, 1)
    store.sender.answer = None
    store.run_to_the_end()
    assert store.sent()[2:] == [[5]]


KINDS = st.sampled_from(["small"] * 6 + ["large", "two requests", "empty", "no request", "traces"])
SMALL_REQUESTS = RequestSizes(batch_bytes_min=2_000, request_bytes_max=2_000)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.lists(KINDS, min_size=1, max_size=25), min_size=1, max_size=4),
    answers=st.lists(st.sampled_from(["confirm"] * 5 + ["retry", "refuse"]), max_size=60),
    refused=st.sets(st.integers(0, 60), max_size=3),
    sizes=st.sampled_from([SIZES, SMALL_REQUESTS]),
    crash_at=st.integers(0, 30),
    is_power_cut=st.booleans(),
)
def test_what_is_acknowledged_was_confirmed_or_refused(kinds, answers, refused, sizes, crash_at, is_power_cut):
    """With any replies, and a crash in between: all of it reaches the destination, but for what it refuses."""
    logging.disable(logging.CRITICAL)
    confirmed: Counter[int] = Counter()
    bad: set[int] = set()
    numbered = iter(range(10_000))
    expected: set[int] = set()
    steps = iter(answers)
    disks = []
    settled: set[int] = set()
    sends = 0

    def bundle_of(kind: str) -> Bundle:
        if kind == "no request":
            return Bundle({1: pa.record_batch({"other": [1]})})
        count = {"empty": 0, "two requests": 2}.get(kind, 1)
        made = [next(numbered) for _ in range(count)]
        expected.update(made)
        size = 1_500 if kind == "large" else 60
        return otlp_bundle(
            *(logs(f"{number:05}".ljust(size, ".")) for number in made), signal="traces" if kind == "traces" else "logs"
        )

    def answer(_signal, request):
        nonlocal sends
        if sends == crash_at:
            disks.append(store.disk.clone_after_crash(1) if is_power_cut else store.disk.clone_after_kill())
            settled.update(confirmed, bad)
        sends += 1
        found = numbers(request)
        how = next(steps, "confirm")
        if how == "retry":
            return UNAVAILABLE
        if refused & set(found) or (how == "refuse" and len(found) > 1):
            if len(found) == 1:
                bad.update(found)
            return REFUSED
        confirmed.update(found)
        return CONFIRMED

    store = Store(answer, sizes=sizes)
    try:
        for segment in kinds:
            store.seal(*map(bundle_of, segment))
        store.run_to_the_end()
        assert set(confirmed) | bad == expected
        assert bad <= refused
        if not disks:
            return
        # The process died before one of the sends. Everything that was not settled by then must be sent.
        store.store.close()
        confirmed.clear()
        bad.clear()
        store = Store(answer, disk=disks[0], sizes=sizes)
        store.run_to_the_end()
        assert set(confirmed) | bad | settled == expected
    finally:
        store.store.close()
        logging.disable(logging.NOTSET)


def test_a_bundle_without_a_claim_is_not_answered() -> None:
    taken = TakenBundle(BundleRef(1, 2), Attempts())
    with pytest.raises(InvariantError, match="was taken without a claim"):
        taken.handle.ack()
