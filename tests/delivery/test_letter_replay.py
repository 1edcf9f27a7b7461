"""Dead letters have a cap and an age of their own, and come back by themselves when their exporter works again."""

from random import Random

import pyarrow as pa
import pytest
from numbered import bundle_of, number_of

from quiver.bundle import Bundle, BundleRef
from quiver.delivery.dead_letters import LETTER_SCHEMA, DeadLetters, count_letters, open_letters, read_letters
from quiver.delivery.letter_policy import LetterPolicy
from quiver.delivery.letter_replay import LetterReplay
from quiver.delivery.policy import Delivered, Permanent, RetryPolicy, Transient
from quiver.delivery.undelivered import Undelivered
from quiver.errors import CapacityError, SettingsError
from quiver.observe import InMemoryObserver
from quiver.store.opening import open_store
from quiver.store.reading.retry_set import RetrySet
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
MIB = 1024 * 1024
DOWN = Transient("UNAVAILABLE", "down")


class Rig:
    """Letters on a disk, a far side that answers as a test says, and what replays them."""

    def __init__(self, policy=None):
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.observer = InMemoryObserver()
        self.policy = policy or LetterPolicy()
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
            files=self.disk,
            clock=self.clock,
            background=False,
            observer=self.observer,
        )

    def replayer(self):
        return LetterReplay(
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
        return [letter.ref.index for letter in read_letters(self.disk, ROOT, "out")]

    def total(self, name, **attributes):
        return sum(
            amount
            for (counted, kept), amount in self.observer.counts.items()
            if counted == f"quiver.exporter.{name}_total" and attributes.items() <= dict(kept).items()
        )


def test_letters_are_delivered_when_the_exporter_works():
    """Oldest first, each once, and their disk is free afterwards."""
    rig = Rig()
    rig.give_up(1, 2, 3)
    assert rig.run() == 3
    assert (rig.sent, rig.left()) == ([1, 2, 3], [])
    rig.clock.advance(30.0)
    assert rig.run() == 0
    assert rig.sent == [1, 2, 3]
    assert rig.total("replayed", outcome="delivered") == 3


def test_nothing_is_replayed_while_the_exporter_fails():
    """And a pass ends when it begins to."""
    rig = Rig()
    rig.give_up(1, 2)
    rig.works = False
    assert rig.run() == 0
    answers = [True, True, False]
    assert rig.replay.run(lambda: answers.pop(0)) == 1
    assert (rig.sent, rig.left()) == ([1], [2])


def test_one_letter_finds_out_that_the_receiver_is_still_down():
    """It knocks after growing pauses; the first success is followed by all."""
    rig = Rig()
    rig.give_up(*range(1, 30))
    rig.default = DOWN
    for _ in range(3600):
        rig.run()
        rig.clock.advance(1.0)
    assert 5 < len(rig.sent) < 20
    rig.default = Delivered()
    rig.replay.works_again()
    assert rig.run() == 29
    assert rig.left() == []


def test_a_letter_that_always_fails_holds_up_no_other():
    """The least often tried goes first."""
    rig = Rig()
    rig.give_up(1, 2, 3)
    rig.answers[1] = DOWN
    rig.run()
    rig.clock.advance(600.0)
    rig.run()
    assert (rig.sent, rig.left()) == ([1, 2, 3, 1], [1])


def test_what_was_refused_for_its_data_waits_for_a_person():
    """Also what is refused when it is replayed, until the process ends."""
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


def test_a_letter_that_is_not_let_in_is_tried_again():
    """A wrong token says nothing of the data."""
    rig = Rig()
    rig.give_up(1)
    rig.answers[1] = Permanent("HTTP 401", is_of_data=False)
    rig.run()
    rig.answers.clear()
    rig.clock.advance(600.0)
    assert rig.run() == 1


def test_the_letter_says_whether_its_data_were_refused():
    """What used its attempts up and what was not let in comes back; a refusal of the data does not."""
    rig = Rig()
    policy = RetryPolicy(max_attempts=1)
    undelivered = Undelivered(
        "out", policy, retries=RetrySet(clock=rig.clock), letters=rig.letters, clock=rig.clock, observer=rig.observer
    )
    for number, outcome in enumerate((DOWN, Permanent("HTTP 401", is_of_data=False), Permanent("HTTP 400"))):
        undelivered.failed(BundleRef(0, number), outcome, content=lambda number=number: bundle_of(number))
    assert [letter.is_refused for letter in read_letters(rig.disk, ROOT, "out")] == [False, False, True]


def test_a_letter_of_an_earlier_version_waits_for_a_person():
    """It does not say why it is there."""
    rig = Rig()
    rig.give_up(1)
    rig.letters.close()
    old = pa.schema(list(LETTER_SCHEMA)[:-1], metadata={"quiver.dead_letter": "1"})
    row = {"segment": 0, "index": 7, "reason": "x", "attempts": 1, "first_failed_at_ns": 1, "given_up_at_ns": 2}
    slots = {**bundle_of(7).batches, 63: pa.RecordBatch.from_pylist([row | {"ingested_at_ns": None}], schema=old)}
    with open_store(rig.letters.path, files=rig.disk, clock=rig.clock, background=False) as store:
        store.ingest(Bundle(slots))
        store.flush()
    assert rig.run() == 1
    assert rig.left() == [7]
    assert read_letters(rig.disk, ROOT, "out")[0].is_refused


def test_a_command_that_drops_letters_meanwhile_is_not_disturbed():
    """The pass is put off."""
    rig = Rig()
    rig.give_up(1)
    with open_letters(rig.disk, ROOT, "out"):
        assert rig.run() == 0
    rig.clock.advance(30.0)
    assert rig.run() == 1


def test_killed_after_a_delivery_it_is_repeated_at_most_once():
    """A letter that was delivered goes durably before the next one is sent."""
    rig = Rig()
    rig.give_up(1, 2, 3)
    states = []
    rig.disk.on_step = lambda *_: states.append((rig.disk.clone_after_kill(), list(rig.sent)))
    rig.run()
    rig.disk.on_step = None
    assert len(states) > 5
    for disk, sent in states:
        left = [letter.ref.index for letter in read_letters(disk, ROOT, "out")]
        assert set(left) | set(sent) == {1, 2, 3}
        assert len(set(left) & set(sent)) <= 1


# ── room and age ─────────────────────────────────────────────────────────────────────────────────────


def large(number):
    return Bundle({60: pa.record_batch({"data": [bytes(100_000 + number)]})})


def fill(rig, count):
    for number in range(count):
        rig.letters.add(BundleRef(0, number), large(number), reason="no")
        rig.letters._store.maintain()


def test_letters_do_not_grow_beyond_their_cap():
    """With `backpressure` the bundle is no letter, so that its exporter keeps it in the buffer."""
    rig = Rig(LetterPolicy(size_cap_bytes=2 * MIB))
    with pytest.raises(CapacityError, match="dead letters in /store/dead-letter/out: dead_letters.size_cap"):
        fill(rig, 100)
    kept = count_letters(rig.disk, ROOT, "out")
    assert 5 <= kept < 20
    assert rig.letters._store.disk_bytes <= 2 * MIB
    undelivered = Undelivered(
        "out", RetryPolicy(), retries=RetrySet(clock=rig.clock), letters=rig.letters, clock=rig.clock
    )
    verdict = undelivered.failed(BundleRef(0, 99), Permanent("HTTP 400"), content=lambda: large(99))
    assert verdict.delay_s > 0
    assert BundleRef(0, 99) in undelivered.retries


def test_the_oldest_letters_make_room_when_the_policy_says_so():
    """They are counted."""
    rig = Rig(LetterPolicy(size_cap_bytes=2 * MIB, size_cap_policy="drop_oldest"))
    fill(rig, 100)
    left = rig.left()
    assert left[-1] == 99
    assert rig.letters._store.disk_bytes <= 2 * MIB
    assert rig.total("dead_letters_dropped", reason="size") == 100 - len(left)


def test_a_letter_that_is_too_old_goes():
    """And is counted."""
    rig = Rig(LetterPolicy(max_age_s=3600.0))
    rig.give_up(1)
    rig.letters._store.flush()
    rig.clock.advance(1800.0)
    rig.give_up(2)
    rig.letters._store.flush()
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
def test_policies_that_cannot_be(given, says):
    with pytest.raises(SettingsError, match=says):
        LetterPolicy(**given)
