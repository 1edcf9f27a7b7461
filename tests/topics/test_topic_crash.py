"""A crash at every step of a life with rotation, deletion, subscriptions and a seal: kills and power losses."""

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
class Told:
    """What callers had been promised at some moment."""

    attempted: int = 0
    logged: int = 0
    durable: int = 0
    released: int = 0
    acked: int = 0
    subscribed: bool = False

    def copy(self) -> Told:
        return Told(**vars(self))


def live(store: TopicStore, clock: ManualClock, told: Told) -> None:
    """Append, deliver, delete, seal, and start again."""
    log = store.topic(TOPIC)
    subscription = store.subscribe(TOPIC, "s", start="earliest")
    told.subscribed = True
    with subscription.consumer("a") as consumer:
        for turn in range(5):
            told.attempted += 3
            log.append_batch([b"%d" % number for number in range(told.logged, told.logged + 3)], durable=turn % 2 == 0)
            told.logged += 3
            if turn % 2 == 0:
                told.durable = told.logged
            for _ in range(2):
                consumer.receive(0).ack()
                told.acked += 1
            clock.advance(6)
            store.maintain()
            told.durable = told.logged
            confirmed = store.confirmed_offset(TOPIC) or 0
            told.released = max(told.released, min(confirmed, told.durable))
            log._engine.wal.release_below(told.released)
    store.unload(TOPIC)


def check(disk: CrashFileSystem, told: Told, promised: int, label: str) -> None:
    with open_topics(disk, **WAL) as store:
        log = store.topic(TOPIC)
        first = log._engine.wal.start_offset
        assert first <= max(told.released, promised), label
        with log.reader(first, follow=False, on_lost="skip") as reader:
            found = {message.offset: message.payload for message in reader}
        assert set(range(first, promised)) <= set(found), label
        assert all(payload == b"%d" % offset for offset, payload in found.items()), label
        assert log.append(b"next") >= max([promised, *(offset + 1 for offset in found)]), label
        if told.subscribed:
            saved = store.subscribe(TOPIC, "s", start="latest").next_offset
            assert saved <= told.acked, f"{label}: {saved} are confirmed, {told.acked} were"
            assert saved >= told.released, label


def test_a_crash_at_any_step():
    """Promised messages exist under their offsets; none is invented, and no offset is given out twice."""
    fs, clock, told = CrashFileSystem(), ManualClock(), Told()
    moments: list[tuple[str, Told, CrashFileSystem, list[CrashFileSystem]]] = []

    def crash(operation: str, path: str) -> None:
        label = f"step {len(moments)} ({operation} {path})"
        lost = [fs.clone_after_crash(seed) for seed in SEEDS]
        moments.append((label, told.copy(), fs.clone_after_kill(), lost))

    store = open_topics(fs, clock=clock, **WAL)
    fs.on_step = crash
    live(store, clock, told)
    live(store, clock, told)
    fs.on_step = None
    store.close()
    assert len(moments) > 150
    assert told.released > 6
    for label, then, killed, lost in moments:
        check(killed, then, then.logged, f"{label}, kill")
        for seed, disk in zip(SEEDS, lost, strict=True):
            check(disk, then, then.durable, f"{label}, power loss {seed}")
