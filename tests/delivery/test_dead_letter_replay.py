"""Dead letters have a size cap and a maximum age, and are replayed when their exporter has recovered."""

from random import Random

import pyarrow as pa
import pytest
from numbered import bundle_of, number_of

from quiver.bundle import Bundle, BundleRef
from quiver.delivery.dead_letter_policy import DeadLetterPolicy
from quiver.delivery.dead_letter_replay import DeadLetterReplay
from quiver.delivery.dead_letters import (
    DEAD_LETTER_SCHEMA,
    DeadLetters,
    count_dead_letters,
    open_dead_letters,
    read_dead_letters,
)
from quiver.delivery.policy import Delivered, Permanent, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.errors import CapacityError, SettingsError
from quiver.observe import InMemoryObserver
from quiver.store.opening import open_store
from quiver.store.subscribers.retry_set import RetrySet
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
MIB = 1024 * 1024
DOWN = Transient("UNAVAILABLE", "down")


class Rig:
    """Dead letters on a disk, a destination with scripted answers, and the replay under test."""

    def __init__(self, policy=None):
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.observer = InMemoryObserver()
        self.policy = policy or DeadLetterPolicy()
        self.letters = self.opened()
        self.answers = {}
        self.default = Delivered()
        self.sent = []
        self.works = True
        self.replay = self.replayer()

    def opened(self):
        return DeadLetters(
            ROOT,
            "out",
            settings=self.policy.settings(),
            fs=self.disk,
            clock=self.clock,
            background=False,
            observer=self.observer,
        )

    def replayer(self):
        return DeadLetterReplay(
            "out", self.letters, self.deliver, random=Random(1), clock=self.clock, observer=self.observer
        )

    def deliver(self, letter):
        number = number_of(letter.bundle)
        self.sent.append(number)
        return self.answers.get(number, self.default)

    def give_up(self, *numbers, **why):
        for number in numbers:
            why = {"reason": "3 attempts failed", "is_refused": False} | why
            self.letters.add(BundleRef(0, number), bundle_of(number), **why)

    def run(self):
        return self.replay.run(lambda: self.works)

    def left(self):
        return [letter.ref.index for letter in read_dead_letters(self.disk, ROOT, "out")]

    def total(self, name, **attributes):
        return sum(
            amount
            for (counted, kept), amount in self.observer.counts.items()
            if counted == f"quiver.exporter.{name}_total" and attributes.items() <= dict(kept).items()
        )


def test_dead_letters_are_delivered_when_the_exporter_works():
    """Oldest first, each once; their disk space is freed."""
    rig = Rig()
    rig.give_up(1, 2, 3)
    assert rig.run() == 3
    assert (rig.sent, rig.left()) == ([1, 2, 3], [])
    rig.clock.advance(30.0)
    assert rig.run() == 0
    assert rig.sent == [1, 2, 3]
    assert rig.total("replayed", outcome="delivered") == 3


def test_nothing_is_replayed_while_the_exporter_fails():
    """A pass ends when the exporter starts to fail."""
    rig = Rig()
    rig.give_up(1, 2)
    rig.works = False
    assert rig.run() == 0
    answers = [True, True, False]
    assert rig.replay.run(lambda: answers.pop(0)) == 1
    assert (rig.sent, rig.left()) == ([1], [2])


def test_one_dead_letter_probes_a_destination_that_is_down():
    """With growing pauses; the first success is followed by all others."""
    rig = Rig()
    rig.give_up(*range(1, 30))
    rig.default = DOWN
    for _ in range(3600):
        rig.run()
        rig.clock.advance(1.0)
    assert 5 < len(rig.sent) < 20
    rig.default = Delivered()
    rig.replay.exporter_recovered()
    assert rig.run() == 29
    assert rig.left() == []


def test_a_dead_letter_that_always_fails_does_not_block_others():
    """Those with the fewest attempts are tried first."""
    rig = Rig()
    rig.give_up(1, 2, 3)
    rig.answers[1] = DOWN
    rig.run()
    rig.clock.advance(600.0)
    rig.run()
    assert (rig.sent, rig.left()) == ([1, 2, 3, 1], [1])


def test_dead_letters_with_refused_data_are_not_replayed():
    """Neither those refused before nor those refused by a replay, until the process ends."""
    rig = Rig()
    rig.give_up(1, reason="HTTP 400", is_refused=True)
    rig.give_up(2)
    rig.answers[2] = Permanent("HTTP 400", "bad")
    rig.run()
    rig.clock.advance(600.0)
    rig.run()
    assert (rig.sent, rig.left()) == ([2], [1, 2])
    rig.answers.clear()
    rig.replay = rig.replayer()
    assert rig.run() == 1
    assert rig.left() == [1]


def test_a_dead_letter_with_refused_credentials_is_retried():
    """A wrong token is unrelated to the data."""
    rig = Rig()
    rig.give_up(1)
    rig.answers[1] = Permanent("HTTP 401", is_data_refused=False)
    rig.run()
    rig.answers.clear()
    rig.clock.advance(600.0)
    assert rig.run() == 1


def test_is_refused_is_stored_with_the_dead_letter():
    """True for refused data; false for used-up retries and refused credentials."""
    rig = Rig()
    policy = RetryPolicy(max_attempts=1)
    undelivered = Undelivered(
        "out", policy, retries=RetrySet(clock=rig.clock), letters=rig.letters, clock=rig.clock, observer=rig.observer
    )
    for number, outcome in enumerate((DOWN, Permanent("HTTP 401", is_data_refused=False), Permanent("HTTP 400"))):
        undelivered.failed(BundleRef(0, number), outcome, content=lambda number=number: bundle_of(number))
    assert [letter.is_refused for letter in read_dead_letters(rig.disk, ROOT, "out")] == [False, False, True]


def test_a_dead_letter_of_version_1_is_not_replayed():
    """Version 1 does not record whether the data were refused."""
    rig = Rig()
    rig.give_up(1)
    rig.letters.close()
    old = pa.schema(list(DEAD_LETTER_SCHEMA)[:-1], metadata={"quiver.dead_letter": "1"})
    row = {"segment": 0, "index": 7, "reason": "x", "attempts": 1, "first_failed_at_ns": 1, "given_up_at_ns": 2}
    slots = {**bundle_of(7).batches, 63: pa.RecordBatch.from_pylist([row | {"ingested_at_ns": None}], schema=old)}
    with open_store(rig.letters.path, fs=rig.disk, clock=rig.clock, background=False) as store:
        store.ingest(Bundle(slots))
        store.seal()
    assert rig.run() == 1
    assert rig.left() == [7]
    assert read_dead_letters(rig.disk, ROOT, "out")[0].is_refused


def test_replay_is_postponed_while_a_command_drops_dead_letters():
    rig = Rig()
    rig.give_up(1)
    with open_dead_letters(rig.disk, ROOT, "out"):
        assert rig.run() == 0
    rig.clock.advance(30.0)
    assert rig.run() == 1


def test_a_crash_repeats_at_most_one_delivery():
    """A delivered dead letter is durably dropped before the next one is sent."""
    rig = Rig()
    rig.give_up(1, 2, 3)
    states = []
    rig.disk.on_step = lambda *_: states.append((rig.disk.clone_after_kill(), list(rig.sent)))
    rig.run()
    rig.disk.on_step = None
    assert len(states) > 5
    for disk, sent in states:
        left = [letter.ref.index for letter in read_dead_letters(disk, ROOT, "out")]
        assert set(left) | set(sent) == {1, 2, 3}
        assert len(set(left) & set(sent)) <= 1


# ── size and age ─────────────────────────────────────────────────────────────────────────────────────


def large(number):
    return Bundle({60: pa.record_batch({"data": [bytes(100_000 + number)]})})


def fill(rig, count):
    for number in range(count):
        rig.letters.add(BundleRef(0, number), large(number), reason="no")
        rig.letters._store.maintain()


def test_dead_letters_do_not_exceed_their_cap():
    """With `backpressure`, the bundle is not added and its exporter keeps it in the buffer."""
    rig = Rig(DeadLetterPolicy(size_cap_bytes=2 * MIB))
    with pytest.raises(CapacityError, match="dead letters in /store/dead-letter/out: dead_letters.size_cap"):
        fill(rig, 100)
    kept = count_dead_letters(rig.disk, ROOT, "out")
    assert 5 <= kept < 20
    assert rig.letters._store.disk_bytes <= 2 * MIB
    undelivered = Undelivered(
        "out", RetryPolicy(), retries=RetrySet(clock=rig.clock), letters=rig.letters, clock=rig.clock
    )
    verdict = undelivered.failed(BundleRef(0, 99), Permanent("HTTP 400"), content=lambda: large(99))
    assert verdict.delay_s > 0
    assert BundleRef(0, 99) in undelivered.retries


def test_drop_oldest_frees_space_and_counts_the_dropped():
    rig = Rig(DeadLetterPolicy(size_cap_bytes=2 * MIB, size_cap_policy="drop_oldest"))
    fill(rig, 100)
    left = rig.left()
    assert left[-1] == 99
    assert rig.letters._store.disk_bytes <= 2 * MIB
    assert rig.total("dead_letters_dropped", reason="size") == 100 - len(left)


def test_a_dead_letter_expires_after_max_age():
    """The dropped dead letter is counted."""
    rig = Rig(DeadLetterPolicy(max_age_s=3600.0))
    rig.give_up(1)
    rig.letters._store.seal()
    rig.clock.advance(1800.0)
    rig.give_up(2)
    rig.letters._store.seal()
    rig.clock.advance(2000.0)
    rig.letters._store.maintain()
    assert rig.left() == [2]
    assert rig.total("dead_letters_dropped", reason="age") == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"size_cap_bytes": 1000}, "size_cap must be at least 1MiB"),
        ({"replay": "never"}, "not auto or manual"),
        ({"max_age_s": 0.0}, "max_age must be positive"),
        ({"size_cap_policy": "explode"}, "size_cap_policy"),
    ],
)
def test_invalid_policies_are_refused(given, says):
    with pytest.raises(SettingsError, match=says):
        DeadLetterPolicy(**given)
