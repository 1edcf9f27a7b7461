"""
A forwarder with a retry policy: attempts survive a restart, exhausted bundles become dead letters, and a halt affects
only its own exporter.
"""

import threading
from random import Random

import pytest
from fake_destination import FakeSender, otlp_bundle

from quiver.bundle import Bundle
from quiver.delivery.dead_letters import DeadLetters, read_dead_letters
from quiver.delivery.policy import RetryPolicy
from quiver.delivery.undelivered import Undelivered
from quiver.errors import CapacityError
from quiver.exporters.forward import BundleForwarder
from quiver.exporters.once import send_once
from quiver.exporters.parts import PartSender
from quiver.exporters.reply import Reply
from quiver.exporters.size_limit import SizeLimit
from quiver.observe import InMemoryObserver
from quiver.store.opening import open_store
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
LATER = Reply("retry", "UNAVAILABLE", "down")
NEVER = Reply("refused", "HTTP 400", "no")
OK = Reply("confirmed")


class Rig:
    """A store on a disk that may crash, and one forwarder after another on it."""

    def __init__(self, *bundles, **policy) -> None:
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.policy = RetryPolicy(initial_interval_s=1.0, max_interval_s=8.0, jitter=0.0, **policy)
        self.answers = {}
        self.observer = InMemoryObserver()
        self.forwarder = None
        self.live(*bundles)

    def live(self, *bundles):
        self.store = open_store(ROOT, fs=self.disk, clock=self.clock, background=False)
        source = self.store.register("out", start="earliest")
        for bundle in bundles:
            self.store.ingest(bundle)
        self.store.seal()
        self.sender = FakeSender(lambda _signal, request: self.answers.get(request, OK))
        letters = DeadLetters(ROOT, "out", fs=self.disk, clock=self.clock, background=False)
        undelivered = Undelivered(
            "out",
            self.policy,
            retries=RetrySet.open(self.disk, ROOT, "out", clock=self.clock),
            letters=letters if self.policy.on_exhausted == "dead_letter" else None,
            random=Random(1),
            clock=self.clock,
            observer=self.observer,
        )
        self.forwarder = BundleForwarder(
            source,
            self.sender,
            origin="5c0f",
            undelivered=undelivered,
            random=Random(1),
            clock=self.clock,
            observer=self.observer,
        )
        self.forwarder._attempts.remove_resolved()

    def die(self):
        """Kill the process: unsynced data are lost, locks are released."""
        self.disk = self.disk.clone_after_kill()
        self.live()

    def run(self):
        while self.forwarder.forward_one():
            pass
        self.store.maintain()

    def pending(self):
        return self.store.register("out").lag().pending_bundles

    def attempts(self):
        return [entry.attempts for entry in load_retry_set(self.disk, ROOT, "out")]

    def dead_letters(self):
        return [(letter.reason, letter.bundle) for letter in read_dead_letters(self.disk, ROOT, "out")]


def test_attempts_continue_after_a_kill():
    """The next one is not made before it is due."""
    rig = Rig(otlp_bundle(b"sick"), otlp_bundle(b"good"), max_attempts=4)
    rig.answers[b"sick"] = LATER
    rig.run()
    rig.clock.advance(1.0)
    rig.run()
    assert (rig.attempts(), rig.pending()) == ([2], 1)
    rig.die()
    rig.run()
    assert rig.sender.sent == [], "two seconds have not passed"
    assert rig.forwarder.state().retrying == 1
    rig.clock.advance(2.0)
    rig.run()
    assert (rig.sender.sent, rig.attempts()) == ([("logs", b"sick")], [3])
    rig.die()
    rig.clock.advance(4.0)
    rig.run()
    assert [reason for reason, _ in rig.dead_letters()] == ["4 attempts failed; the last with UNAVAILABLE: down"]
    assert (rig.pending(), rig.forwarder.state().retrying) == (0, 0)
    rig.forwarder.stop(0)
    assert rig.attempts() == []


def test_a_refused_bundle_is_a_dead_letter():
    """The others are delivered, and the buffer is empty."""
    bad = otlp_bundle(b"bad")
    rig = Rig(bad, otlp_bundle(b"good"))
    rig.answers[b"bad"] = NEVER
    rig.run()
    assert rig.dead_letters() == [("HTTP 400: no", bad)]
    assert (rig.pending(), rig.attempts()) == (0, [])


def test_a_dead_letter_has_only_unconfirmed_requests():
    """Not the requests of the same bundle that were confirmed."""
    both = Bundle({**otlp_bundle(b"a", b"bad", b"c").batches, **otlp_bundle(b"bad", signal="traces").batches})
    rig = Rig(both)
    rig.answers[b"bad"] = NEVER
    rig.run()
    ((_, letter),) = rig.dead_letters()
    assert letter == Bundle({**otlp_bundle(b"bad").batches, **otlp_bundle(b"bad", signal="traces").batches})


def test_a_bundle_without_a_request_is_a_dead_letter():
    """It is stored unchanged."""
    other = Bundle({7: otlp_bundle(b"x")[60]})
    rig = Rig(other)
    rig.run()
    ((reason, letter),) = rig.dead_letters()
    assert (reason.partition(":")[0], letter) == ("InvalidBundleError", other)


def test_a_kill_between_dead_letter_and_ack_adds_no_second_one():
    """The bundle is delivered again."""
    rig = Rig(otlp_bundle(b"bad"))
    rig.answers[b"bad"] = NEVER
    while rig.forwarder.forward_one():
        pass
    rig.die()
    assert rig.pending() == 1
    rig.run()
    assert (rig.pending(), len(rig.dead_letters())) == (0, 1)


def test_a_kill_between_ack_and_save_cleans_the_set_at_the_next_start():
    rig = Rig(otlp_bundle(b"sick"), otlp_bundle(b"ill"))
    rig.answers = {b"sick": LATER, b"ill": LATER}
    rig.run()
    rig.answers.clear()
    rig.clock.advance(1.0)
    rig.run()
    assert (rig.pending(), rig.attempts()) == (0, [1]), "the set is not written for each of them"
    rig.die()
    rig.forwarder.stop(0)
    assert rig.attempts() == []


def test_an_idle_forwarder_saves_the_retry_set():
    """Without another failure."""
    rig = Rig(otlp_bundle(b"sick"), otlp_bundle(b"ill"))
    rig.answers = {b"sick": LATER, b"ill": LATER}
    rig.run()
    rig.answers.clear()
    rig.clock.advance(1.0)
    rig.run()
    assert rig.attempts() == [1]
    with rig.forwarder:
        pause = threading.Event()
        for _ in range(1000):
            if not rig.attempts():
                break
            pause.wait(0.01)
    assert rig.attempts() == []


def test_halt_stops_this_exporter_and_loses_nothing():
    """It reports why; after a restart it continues with the same bundle."""
    rig = Rig(otlp_bundle(b"bad"), otlp_bundle(b"good"), on_exhausted="halt")
    rig.answers[b"bad"] = NEVER
    rig.run()
    assert rig.forwarder.state().halted == "HTTP 400: no"
    assert (rig.forwarder.forward_one(), rig.pending(), rig.attempts()) == (False, 2, [1])
    assert rig.forwarder.stop(0) == 2
    rig.answers.clear()
    rig.die()
    rig.run()
    assert (rig.forwarder.state().halted, rig.pending()) == ("", 0)


def test_the_threads_of_a_halted_forwarder_wait():
    """They end on `stop`."""
    rig = Rig(otlp_bundle(b"bad"), on_exhausted="halt")
    rig.answers[b"bad"] = NEVER
    rig.run()
    with rig.forwarder as forwarder:
        assert forwarder.state().halted
    assert rig.sender.closed == 1


def test_the_batch_id_is_the_same_each_time():
    """In this process and the next; every request of a bundle has its own."""
    rig = Rig(otlp_bundle(b"a", b"b"))
    rig.answers[b"b"] = LATER
    rig.run()
    assert rig.sender.batch_ids == ["5c0f/0:0/0", "5c0f/0:0/1"]
    rig.die()
    rig.answers.clear()
    rig.clock.advance(1.0)
    rig.run()
    assert rig.sender.batch_ids == ["5c0f/0:0/0", "5c0f/0:0/1"]


def test_a_cancelled_request_does_not_count_as_an_attempt():
    rig = Rig(otlp_bundle(b"a"), max_attempts=1)
    rig.answers[b"a"] = Reply("retry", "CLOSED", "the sender was closed")
    assert rig.forwarder.forward_one()
    assert (rig.attempts(), rig.dead_letters(), rig.pending()) == ([], [], 1)


@pytest.mark.parametrize(
    ("bundle", "answer", "outcome"),
    [
        (otlp_bundle(b"a"), OK, "Delivered()"),
        (otlp_bundle(b"a"), NEVER, "HTTP 400: no"),
        (otlp_bundle(b"a"), LATER, "UNAVAILABLE: down"),
        (otlp_bundle(b""), OK, "EMPTY: the bundle has no data to send"),
        (Bundle({7: otlp_bundle(b"x")[60]}), OK, "InvalidBundleError: slots 7 have no data that OTLP can represent"),
    ],
)
def test_send_once_does_not_retry(bundle, answer, outcome):
    assert str(send_once(PartSender(FakeSender(lambda *_: answer), SizeLimit(4096)), bundle)) == outcome


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_crash_at_any_step_loses_nothing(how):
    """The dead letters are the poisoned bundles, each once, and the retry set is empty."""
    numbers = [b"%d" % number for number in range(6)]
    rig = Rig(*map(otlp_bundle, numbers), max_attempts=5)
    refused, failing = {b"2": NEVER}, {b"1": LATER, b"4": LATER}
    rig.answers = {**refused, **failing}
    states = []

    def crash(*_step):
        state = rig.disk.clone_after_kill() if how == "kill" else rig.disk.clone_after_crash(rig.disk.steps % 4)
        states.append((state, {request for _, request in rig.sender.sent if request not in rig.answers}))

    rig.disk.on_step = crash
    rig.run()
    rig.clock.advance(1.0)
    rig.run()
    rig.answers = refused
    rig.clock.advance(2.0)
    rig.run()
    rig.forwarder.stop(0)
    rig.disk.on_step = None
    assert len(states) > 60
    for state, has in states[::2]:
        rig.disk = state
        rig.live()
        for _ in range(2):
            rig.run()
            rig.clock.advance(8.0)
        rig.forwarder.stop(0)
        assert (rig.pending(), rig.attempts()) == (0, [])
        assert has | {request for _, request in rig.sender.sent} >= set(numbers) - set(refused)
        assert [bundle for _, bundle in rig.dead_letters()] == [otlp_bundle(b"2")]


def test_a_denied_bundle_is_retried_if_its_dead_letter_cannot_be_written():
    """The credentials may be accepted then; a refusal of the data is remembered."""
    rig = Rig(otlp_bundle(b"denied"), otlp_bundle(b"bad"))
    rig.answers = {b"denied": Reply("refused", "HTTP 401", is_denied=True), b"bad": NEVER}

    def full(*_arguments, **_why):
        raise CapacityError("dead_letters.size_cap")

    rig.forwarder._undelivered._letters.add = full
    rig.run()
    assert rig.pending() == 2
    rig.answers.clear()
    rig.clock.advance(8.0)
    rig.run()
    assert rig.pending() == 1
    assert [request for _, request in rig.sender.sent] == [b"denied", b"bad", b"denied"]
