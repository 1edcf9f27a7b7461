"""There is one owner at a time: a former owner is fenced and gets an error."""

from __future__ import annotations

import json

import pytest

from quiver.errors import (
    CorruptionError,
    DirectoryInUseError,
    FencedError,
    InvariantError,
    MetadataUnavailableError,
    SettingsError,
)
from quiver.metadata import Watch, acquire
from quiver.metadata.memory import MemoryMetadata
from quiver.testing.clock import ManualClock
from quiver.testing.faultmetadata import FaultMetadata

KEY = "/danube/storage/topics/ns/t/owner"


def owner_of(store, name, clock, **options):
    return acquire(store, KEY, owner=name, ttl_s=30.0, clock=clock, **options)


def test_the_first_owner_has_epoch_one():
    """The record names it, in JSON."""
    store, clock = MemoryMetadata(), ManualClock()

    mine = owner_of(store, "one", clock)

    assert mine.epoch == 1
    assert json.loads(store.get(KEY).value) == {"owner": "one", "epoch": 1, "ttl_s": 30.0, "released": False}
    mine.check()
    mine.renew()


def test_a_second_owner_is_refused_while_the_first_renews():
    """Even if it waits for a long time."""
    store, clock = MemoryMetadata(), ManualClock()
    first = owner_of(store, "one", clock)

    class Renewing(ManualClock):
        def wait(self, condition, timeout):
            first.renew()
            return super().wait(condition, timeout)

    with pytest.raises(DirectoryInUseError, match="one"):
        owner_of(store, "two", clock)
    with pytest.raises(DirectoryInUseError, match="one"):
        owner_of(store, "two", Renewing(), patience_s=100.0)
    first.check()


def test_a_dead_owner_is_replaced_after_its_time_to_live():
    """By a process that has watched for that long; the wall clock does not count."""
    store = MemoryMetadata()
    first = owner_of(store, "one", ManualClock())
    other_clock = ManualClock(now_ns=0)  # decades earlier

    with pytest.raises(DirectoryInUseError):
        owner_of(store, "two", other_clock, patience_s=29.0)
    second = owner_of(store, "two", other_clock, patience_s=31.0)

    assert second.epoch == 2
    with pytest.raises(FencedError) as raised:
        first.renew()
    assert (raised.value.owner, raised.value.owner_epoch, raised.value.epoch) == ("two", 2, 1)
    with pytest.raises(FencedError):
        first.check()


def test_repeated_calls_count_as_one_watch():
    """A supervisor that only repeats the call takes over after the time to live."""
    store, clock, watch = MemoryMetadata(), ManualClock(), Watch()
    first = owner_of(store, "one", ManualClock())
    for _ in range(3):
        with pytest.raises(DirectoryInUseError):
            owner_of(store, "two", clock, watch=watch)
        clock.advance(9.0)
    first.renew()
    for _ in range(4):
        with pytest.raises(DirectoryInUseError, match="silent for another") as refused:
            owner_of(store, "two", clock, watch=watch)
        clock.advance(9.0)

    assert refused.value.retry_after_s == pytest.approx(3.0)
    assert owner_of(store, "two", clock, watch=watch).epoch == 2


def test_the_former_owner_commits_nothing():
    """None of its changes is committed."""
    store = MemoryMetadata()
    first = owner_of(store, "one", ManualClock())
    assert first.commit({"k": b"1"})
    owner_of(store, "two", ManualClock(), patience_s=31.0)

    with pytest.raises(FencedError):
        first.commit({"k": b"2"})

    assert store.get("k").value == b"1"


def test_an_owner_stops_before_another_may_take_over():
    """Without an answer of the metadata store it continues for its time to live, less a margin, and then refuses."""
    clock = ManualClock()
    store = FaultMetadata(MemoryMetadata())
    mine = owner_of(store, "one", clock)
    store.is_away = True

    clock.advance(26.9)
    mine.check()  # a short outage is not noticed
    with pytest.raises(MetadataUnavailableError):
        mine.renew()
    clock.advance(0.2)
    with pytest.raises(MetadataUnavailableError, match="could not be renewed"):
        mine.check()

    store.is_away = False
    mine.renew()  # no other owner took it
    mine.check()


def test_the_same_name_takes_over_at_once():
    """A name identifies a directory that one process at a time can lock: the process was restarted."""
    store, clock = MemoryMetadata(), ManualClock()
    before = owner_of(store, "one", clock)

    after = owner_of(store, "one", clock)

    assert after.epoch == 2
    assert clock.monotonic() == 0.0
    with pytest.raises(FencedError):
        before.commit({"k": b"x"})


def test_a_released_ownership_is_taken_at_once():
    """The former owner writes nothing more."""
    store, clock = MemoryMetadata(), ManualClock()
    first = owner_of(store, "one", clock)
    first.release()

    second = owner_of(store, "two", clock)

    assert second.epoch == 2
    for call in (first.check, first.renew, lambda: first.commit({"k": b"x"})):
        with pytest.raises(FencedError):
            call()


def test_a_lost_answer_does_not_cost_the_ownership():
    """The renewal succeeded: the record is ours, with a revision that we did not receive."""
    clock = ManualClock()
    store = FaultMetadata(MemoryMetadata())
    mine = owner_of(store, "one", clock)
    store.lose_answer()

    with pytest.raises(MetadataUnavailableError):
        mine.renew()

    assert mine.commit({"k": b"v"}) is not None
    mine.renew()
    mine.check()


def test_a_condition_that_fails_is_not_a_fence():
    """The current owner learns that another condition was not met."""
    store, clock = MemoryMetadata(), ManualClock()
    mine = owner_of(store, "one", clock)
    store.commit({"k": b"v"})

    assert mine.commit({"k": b"w"}, expect={"k": 0}) is None
    mine.check()


def test_of_two_that_take_over_at_once_one_wins():
    """The other one sees a new record, and starts to watch again."""
    store, clock = MemoryMetadata(), ManualClock()
    winner = []

    class Racing(FaultMetadata):
        def commit(self, changes, *, expect=None):
            if not winner:
                winner.append(owner_of(store, "fast", clock))
            return super().commit(changes, expect=expect)

    with pytest.raises(DirectoryInUseError, match="fast"):
        owner_of(Racing(store), "slow", clock)
    assert winner[0].epoch == 1


@pytest.mark.parametrize(
    "value",
    [
        b"[1]",
        b'{"owner": "x", "epoch": 1, "ttl_s": NaN, "released": false}',
        b'{"owner": "x", "epoch": 1, "ttl_s": Infinity, "released": false}',
        b'{"owner": "x", "epoch": 1, "ttl_s": 1e12, "released": false}',
        b'{"owner": "x", "epoch": 1, "ttl_s": -1, "released": false}',
        b'{"owner": "x", "epoch": 1e400, "ttl_s": 30, "released": false}',
        b'{"owner": "x", "epoch": -1, "ttl_s": 30, "released": false}',
    ],
)
def test_an_invalid_record_is_not_overwritten(value):
    """The error has the remedy; a lease that never ends would block every owner forever."""
    store = MemoryMetadata()
    store.commit({KEY: value})
    with pytest.raises(CorruptionError, match="remove this key") as raised:
        owner_of(store, "one", ManualClock())
    assert raised.value.path == KEY
    assert store.get(KEY).value == value


def test_a_time_to_live_under_a_second_is_refused():
    """Nothing is written."""
    store = MemoryMetadata()
    with pytest.raises(SettingsError):
        acquire(store, KEY, owner="one", ttl_s=0.1, clock=ManualClock())
    assert store.get(KEY) is None


def test_renewals_fit_into_the_time_to_live():
    """Three of them, so that two may fail."""
    mine = owner_of(MemoryMetadata(), "one", ManualClock())

    assert mine.renew_every_s * 3 == 30.0
    assert repr(mine) == f"Ownership('{KEY}', epoch=1)"


def test_a_commit_has_a_later_revision():
    """A store that counts backwards would let a former owner commit."""
    store, clock = MemoryMetadata(), ManualClock()
    mine = owner_of(store, "one", clock)
    store.commit = lambda *_, **__: 0
    with pytest.raises(InvariantError, match="a commit has a later revision than the owner's record"):
        mine.commit({"/danube/x": b"1"})
