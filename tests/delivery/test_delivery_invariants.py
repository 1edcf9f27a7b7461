"""A bug that would lose a failed bundle stops its exporter before the bundle is passed or acknowledged."""

import pytest
from numbered import bundle_of

from quiver.bundle import BundleRef
from quiver.delivery.batches import BatchDelivery
from quiver.delivery.dead_letters import DeadLetters
from quiver.delivery.policy import Delivered, Done, Permanent, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.errors import InvariantError
from quiver.store.opening import open_store
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
DOWN = Transient("UNAVAILABLE", "down")
FIRST = BundleRef(0, 0)


@pytest.fixture
def fs():
    disk = CrashFileSystem()
    with open_store(ROOT, fs=disk, clock=ManualClock(), background=False) as store:
        store.register("out", start="earliest")
        store.ingest(bundle_of(0))
        store.seal()
        yield disk


def undelivered_on(fs, policy):
    clock = ManualClock()
    return Undelivered(
        "out",
        policy,
        retries=RetrySet.open(fs, ROOT, "out", clock=clock),
        letters=DeadLetters(ROOT, "out", fs=fs, clock=clock, background=False),
        clock=clock,
    )


def test_a_batch_is_not_committed_before_the_retry_set_is_saved(fs, monkeypatch):
    undelivered = undelivered_on(fs, RetryPolicy())
    batches = BatchDelivery(fs, ROOT, undelivered, lambda *_: Delivered())
    with monkeypatch.context() as patched:
        patched.setattr(undelivered, "save", lambda: None)
        with pytest.raises(
            InvariantError, match="a position passes a failed bundle only after the retry set was saved"
        ):
            batches.settle([(FIRST, DOWN)])
    batches.settle([(FIRST, DOWN)])
    assert [entry.attempts for entry in load_retry_set(fs, ROOT, "out")] == [2]


def test_a_batch_is_not_committed_after_the_retry_set_was_closed(fs):
    """The set is not written any more, so a failed bundle would be lost."""
    undelivered = undelivered_on(fs, RetryPolicy())
    batches = BatchDelivery(fs, ROOT, undelivered, lambda *_: Delivered())
    batches.close()
    with pytest.raises(InvariantError, match="only after the retry set was saved"):
        batches.settle([(FIRST, DOWN)])


def test_a_set_in_memory_counts_as_saved(fs):
    batches = BatchDelivery(fs, ROOT, Undelivered("out", RetryPolicy(on_exhausted="drop")), lambda *_: Delivered())
    batches.settle([(FIRST, DOWN)])
    assert batches.is_waiting_for_retry(FIRST)


def test_a_bundle_is_not_acknowledged_without_its_dead_letter(fs):
    undelivered = undelivered_on(fs, RetryPolicy(on_exhausted="dead_letter"))
    undelivered._letters = None
    with pytest.raises(InvariantError, match="is acknowledged only after its dead letter is durable"):
        undelivered.failed(FIRST, Permanent("HTTP 400", "no"), content=lambda: None)


def test_a_policy_does_not_treat_a_failed_bundle_as_delivered(fs):
    class Broken(RetryPolicy):
        def decide(self, outcome, **_):
            return Done()

    with pytest.raises(InvariantError, match=r"the policy treats no failed bundle as delivered \(0:0\)"):
        undelivered_on(fs, Broken()).failed(FIRST, DOWN, content=lambda: None)
