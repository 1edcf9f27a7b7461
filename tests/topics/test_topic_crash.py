"""A crash at every step of a run with rotation, deletion, subscriptions and a seal: kills and power losses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from topic_disks import TOPIC, open_topics

from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")

SEEDS = (0, 1, 5)
WAL = {"rotate_max_bytes": 350, "cache_capacity": 3}


@dataclass
class Promises:
    """Which promises callers had received at some moment."""

    attempted: int = 0
    logged: int = 0
    durable: int = 0
    released: int = 0
    acked: int = 0
    subscribed: bool = False

    def copy(self) -> Promises:
        return Promises(**vars(self))


def live(store: TopicStore, clock: ManualClock, promises: Promises) -> None:
    """Append, deliver, delete, seal, and restart."""
    log = store.topic(TOPIC)
    subscription = store.subscribe(TOPIC, "s", start="earliest")
    promises.subscribed = True
    with subscription.consumer("a") as consumer:
        for turn in range(5):
            promises.attempted += 3
            log.append_batch(
                [b"%d" % number for number in range(promises.logged, promises.logged + 3)], durable=turn % 2 == 0
            )
            promises.logged += 3
            if turn % 2 == 0:
                promises.durable = promises.logged
            for _ in range(2):
                consumer.receive(0).ack()
                promises.acked += 1
            clock.advance(6)
            store.maintain()
            promises.durable = promises.logged
            confirmed = store.confirmed_offset(TOPIC) or 0
            promises.released = max(promises.released, min(confirmed, promises.durable))
            log._engine.wal.release_below(promises.released)
    store.unload(TOPIC)


def check(disk: CrashFileSystem, promises: Promises, promised: int, label: str) -> None:
    with open_topics(disk, **WAL) as store:
        log = store.topic(TOPIC)
        first = log._engine.wal.start_offset
        assert first <= max(promises.released, promised), label
        with log.reader(first, follow=False, on_lost="skip") as reader:
            found = {message.offset: message.payload for message in reader}
        assert set(range(first, promised)) <= set(found), label
        assert all(payload == b"%d" % offset for offset, payload in found.items()), label
        assert log.append(b"next") >= max([promised, *(offset + 1 for offset in found)]), label
        if promises.subscribed:
            saved = store.subscribe(TOPIC, "s", start="latest").next_offset
            assert saved <= promises.acked, f"{label}: {saved} are confirmed, {promises.acked} were"
            assert saved >= promises.released, label


def test_a_crash_at_any_step_keeps_every_promise():
    """Promised messages exist under their offsets, no message is invented, and no offset is used twice."""
    fs, clock, promises = CrashFileSystem(), ManualClock(), Promises()
    moments: list[tuple[str, Promises, CrashFileSystem, list[CrashFileSystem]]] = []

    def crash(operation: str, path: str) -> None:
        label = f"step {len(moments)} ({operation} {path})"
        lost = [fs.clone_after_crash(seed) for seed in SEEDS]
        moments.append((label, promises.copy(), fs.clone_after_kill(), lost))

    store = open_topics(fs, clock=clock, **WAL)
    fs.on_step = crash
    live(store, clock, promises)
    live(store, clock, promises)
    fs.on_step = None
    store.close()
    assert len(moments) > 150
    assert promises.released > 6
    for label, then, killed, lost in moments:
        check(killed, then, then.logged, f"{label}, kill")
        for seed, disk in zip(SEEDS, lost, strict=True):
            check(disk, then, then.durable, f"{label}, power loss {seed}")
