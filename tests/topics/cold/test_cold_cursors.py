"""Subscriptions move with their topic."""

from __future__ import annotations

import json

import pytest
from cold_rig import TOPIC, Rig, append, settings
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import CorruptionError, QuiverError
from quiver.metadata.memory import MemoryMetadata
from quiver.primitives.scan import Damage, Frame
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.cold.cursor_mirror import CursorMirror
from quiver.topics.dispatch.saved import SubscriptionFiles
from quiver.topics.format.cursor import (
    PROGRESS_BYTES_MAX,
    decode_cursor,
    decode_progress,
    encode_progress,
    encode_subscription_keys,
    parse_progress_key,
)
from quiver.topics.format.subscription import SavedSubscription

PREFIX = f"/topics/{TOPIC}/subscriptions/"


def take(rig, name, count):
    """Acknowledge the next *count* messages and return their offsets."""
    subscription = rig.store.subscribe(TOPIC, name, start="earliest")
    consumer = subscription.consumer("c")
    offsets = []
    for _ in range(count):
        delivery = consumer.receive(timeout=0)
        if delivery is None:
            break
        offsets.append(delivery.message.offset)
        delivery.ack()
    subscription.close()
    return offsets


def other(rig, owner, **changed):
    options = {"disk": CrashFileSystem(), "clock": ManualClock(), **changed}
    return Rig(memory=rig.memory, facts=rig.facts, chosen=rig.chosen, owner=owner, **options)


def test_a_moved_subscription_continues_at_its_position():
    """No message is delivered twice or skipped, also after moving back."""
    one = Rig()
    log = one.open()
    append(log, 20)
    assert take(one, "billing", 7) == list(range(7))
    one.store.unload(TOPIC)
    one.close()

    two = other(one, "two")
    two.open()
    assert take(two, "billing", 6) == list(range(7, 13))
    two.store.unload(TOPIC)
    two.close()

    back = other(one, "one", disk=one.disk)
    back.open()
    assert take(back, "billing", 99) == list(range(13, 20))
    back.close()


def test_subscription_keys_have_the_documented_form():
    """The subscription is stored as JSON, and the cursor as a plain number."""
    one = Rig()
    log = one.open()
    append(log, 5)
    take(one, "billing", 3)
    take(one, "new", 0)
    one.store.maintain()

    assert json.loads(one.facts.get(f"{PREFIX}billing").value) == {
        "subscription_name": "billing", "subscription_type": 1, "consumer_id": None, "consumer_name": "",
    }  # fmt: skip
    assert one.facts.get(f"{PREFIX}billing/cursor").value == b"2"
    assert one.facts.get(f"{PREFIX}new/cursor") is None
    one.close()


def test_a_dead_owner_causes_repeats_but_no_loss():
    """The next owner starts at the last mirrored position; a confirmed offset is never assigned to a new message."""
    one = Rig(chosen=settings(keep_minutes=None))
    log = one.open()
    append(log, 10)
    take(one, "billing", 4)
    one.store.maintain()
    append(log, 5)
    log.flush()
    assert take(one, "billing", 99) == list(range(4, 15))  # on a disk that is lost below
    one.tier._find(TOPIC).cursors.update(one.tier._find(TOPIC).kept)

    two = other(one, "two", patience_s=301.0)
    log = two.open()
    assert log._engine.wal.next_offset == 15
    append(log, 2)
    assert take(two, "billing", 99) == [15, 16]
    two.close()


def test_a_restart_prefers_its_own_files():
    """They are newer than the mirrored records."""
    one = Rig()
    log = one.open()
    append(log, 10)
    take(one, "billing", 2)
    one.store.maintain()
    take(one, "billing", 3)
    one.close()

    again = other(one, "one", disk=one.disk)
    again.open()
    assert take(again, "billing", 99) == list(range(5, 10))
    again.close()


def test_a_subscription_removed_elsewhere_stays_removed():
    """A subscription that was removed on the other machine is not restored from an old file."""
    one = Rig()
    log = one.open()
    append(log, 5)
    take(one, "old", 2)
    take(one, "kept", 2)
    one.store.unload(TOPIC)
    one.close()
    two = other(one, "two")
    two.open()
    two.store.unsubscribe(TOPIC, "old")
    two.store.unload(TOPIC)
    two.close()
    assert [entry.key for entry in one.facts.range(PREFIX)] == [
        f"{PREFIX}kept", f"{PREFIX}kept/cursor", f"{PREFIX}kept/progress",
    ]  # fmt: skip

    back = other(one, "one", disk=one.disk)
    back.open()
    assert back.tier._find(TOPIC).kept.names() == ["kept"]
    back.close()


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_failed_commit_is_repeated(nth):
    """The record is written the next time, and the topic is not released before that."""
    one = Rig()
    log = one.open()
    append(log, 5)
    take(one, "billing", 2)
    one.metadata.fail_on("commit", nth)
    try:
        one.store.unload(TOPIC)
    except QuiverError:
        one.metadata.heal()
        one.store.unload(TOPIC)
    one.close()
    two = other(one, "two")
    two.open()
    assert take(two, "billing", 99) == [2, 3, 4]
    two.close()


def test_an_unreadable_position_is_an_error():
    """Neither a cursor, nor progress, nor a file is replaced by a guess."""
    facts, disk = MemoryMetadata(), CrashFileSystem()
    kept = SubscriptionFiles(disk, "/t")
    disk.make_dirs("/t")
    mirror = CursorMirror(facts, facts, namespace="", topic=TOPIC, owner="one")
    kept.save(SavedSubscription("a", "shared", 5))
    kept.save(SavedSubscription("b", "shared", 6))
    file = disk.create_or_truncate("/t/subscriptions/a.sub")
    file.pwrite(b"x", 0)
    file.close()

    with pytest.raises(CorruptionError):
        mirror.update(kept)
    assert facts.get(f"{PREFIX}b/cursor").value == b"5"

    facts.commit({f"{PREFIX}b/cursor": b"-1"})
    with pytest.raises(CorruptionError, match="a cursor must be a number"):
        mirror.next_offset_min()
    facts.commit({f"{PREFIX}b/cursor": b"5", f"{PREFIX}b/progress": b"{}"})
    with pytest.raises(CorruptionError, match="not a progress"):
        mirror.restore(kept)


def test_a_topic_with_unreadable_subscriptions_is_not_opened():
    """The error contains the key; the log is closed again, and opens after the repair."""
    one = Rig()
    append(one.open(), 5)
    take(one, "billing", 2)
    one.store.unload(TOPIC)
    one.close()
    good = one.facts.get(f"{PREFIX}billing/progress").value
    one.facts.commit({f"{PREFIX}billing/progress": b"?"})
    two = other(one, "two")
    for _ in range(2):
        with pytest.raises(CorruptionError, match="billing/progress"):
            two.open()
        two.close()

    one.facts.commit({f"{PREFIX}billing/progress": good})
    two.open()
    assert take(two, "billing", 99) == [2, 3, 4]
    two.close()


@given(st.binary(max_size=40))
def test_the_cursor_decoder_never_raises(data):
    """Any bytes decode to a cursor or to damage."""
    assert isinstance(decode_progress(data), (Damage, Frame))
    assert isinstance(decode_cursor(data), (Damage, Frame))


def test_progress_has_golden_bytes():
    """Truncated anywhere it is damage; if it is too large, it omits offsets that may be delivered again."""
    saved = SavedSubscription("billing", "key_shared", 7, ((9, 11),), {8: 2})
    data = encode_progress(saved, "one")
    assert decode_progress(data).value == ("one", saved)
    assert all(isinstance(decode_progress(data[:cut]), Damage) for cut in range(len(data)))

    large = SavedSubscription("b", "shared", 1, tuple((n, n + 1) for n in range(3, 300_000, 2)), {})
    reported = encode_progress(large, "one")
    assert len(reported) <= PROGRESS_BYTES_MAX
    assert decode_progress(reported).value == ("one", SavedSubscription("b", "shared", 1))

    keys = encode_subscription_keys(PREFIX, saved, "one")
    assert keys[f"{PREFIX}billing/cursor"] == b"6"
    assert keys[f"{PREFIX}billing"] == (
        b'{"subscription_name":"billing","subscription_type":3,"consumer_id":null,"consumer_name":""}'
    )
    assert [parse_progress_key(PREFIX, key) for key in keys] == [None, None, "billing"]
    assert parse_progress_key(PREFIX, f"{PREFIX}a/b/progress") is None


def test_a_crash_during_takeover_keeps_the_position():
    """The new owner dies while it takes over the topic: the next one starts at the same message."""
    one = Rig()
    log = one.open()
    append(log, 8)
    take(one, "billing", 3)
    take(one, "other", 5)
    one.store.unload(TOPIC)
    one.close()
    two = other(one, "two")
    found = []

    def snap(*_):
        found.append((two.disk.clone_after_crash(seed=len(found)), one.facts.clone()))

    two.disk.on_step = two.metadata.on_call = snap
    two.open()
    two.disk.on_step = two.metadata.on_call = lambda *_: None
    two.close()

    assert len(found) > 10
    for disk, facts in found:
        for owner, begins in (("two", disk), ("three", CrashFileSystem())):
            after = Rig(
                disk=begins,
                memory=one.memory.clone(),
                facts=facts.clone(),
                chosen=one.chosen,
                owner=owner,
                patience_s=301.0,
            )
            after.open()
            assert take(after, "billing", 99) == [3, 4, 5, 6, 7]
            assert take(after, "other", 99) == [5, 6, 7]
            after.close()
