"""Losses and broken promises of other logs with this design, each with a regression test."""

from __future__ import annotations

import threading
import tracemalloc

import pytest
from topic_disks import DIRECTORY, ROOT, TOPIC, offsets, open_topics, payloads

from disk_files import overwrite, read_file
from quiver.errors import DirectoryInUseError, StoreClosedError, UsageError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem
from quiver.topics.format.checkpoint import decode_wal_checkpoint
from quiver.topics.format.frame import take_frames
from quiver.topics.settings import SubscriptionSettings
from quiver.topics.store import TopicStore

pytestmark = pytest.mark.usefixtures("quiet")

WAL = f"{DIRECTORY}/wal.log"


# ── promises that other logs broke ───────────────────────────────────────────────────────────────────────


def test_a_durable_append_survives_a_power_loss():
    """Another log only flushed to the kernel. The sync by interval survives a power loss, too."""
    fs, clock = CrashFileSystem(), ManualClock()
    store = open_topics(fs, clock=clock)
    log = store.topic(TOPIC)
    log.append(b"0", durable=True)
    log.append(b"1")
    for expected, seconds in ((1, 0), (2, 6)):
        clock.advance(seconds)
        store.maintain()
        with open_topics(fs.clone_after_crash(0)) as other:
            assert other.topic(TOPIC).current_offset() == expected
    store.close()


def test_the_state_is_restored_from_the_checkpoint():
    """Another log started at offset 0, file 0 and an empty list of files: all three continue."""
    fs = CrashFileSystem()
    with open_topics(fs, rotate_max_bytes=250) as store:
        store.topic(TOPIC).append_batch([b"x"] * 2)
        for _ in range(6):
            store.topic(TOPIC).append(b"x")
        before = [(file.seq, file.first_offset, file.next_offset) for file in store.topic(TOPIC)._engine.wal.files()]
    with open_topics(fs, rotate_max_bytes=250) as store:
        log = store.topic(TOPIC)
        assert [(file.seq, file.first_offset, file.next_offset) for file in log._engine.wal.files()] == before
        assert log.append(b"x") == 8


def test_a_torn_frame_is_truncated_before_the_next_append():
    """It hid everything appended after it."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"0", b"1"])
        end = len(read_file(fs, WAL))
        store.topic(TOPIC).append(b"torn" * 100)  # longer than the later messages, which cannot hide it
    file = fs.open_write(WAL)
    file.truncate(end + 300)
    file.close()
    fs.remove(f"{DIRECTORY}/wal.ckpt")  # its checkpoint would claim that all of it was synced
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        assert log.append(b"2") == 2
        assert payloads(log) == [b"0", b"1", b"2"]
    assert take_frames(read_file(fs, WAL))[1] == len(read_file(fs, WAL))


def test_the_start_offset_survives_the_next_flush():
    """The writer's next checkpoint reset it to 0, and readers silently skipped the deleted range."""
    fs, clock = CrashFileSystem(), ManualClock()
    store = open_topics(fs, clock=clock, rotate_max_bytes=100, cache_capacity=1)
    log = store.topic(TOPIC)
    for _ in range(6):
        log.append(b"x")
    log._engine.wal.release_below(3)
    log.append(b"x")
    clock.advance(10)
    store.maintain()
    assert decode_wal_checkpoint(read_file(fs, f"{DIRECTORY}/wal.ckpt")).value.start_offset == 3
    with log.reader(0, follow=False, on_lost="skip") as reader:
        assert [message.offset for message in reader] == [3, 4, 5, 6]
        assert reader.lost == [(0, 3)]
    store.close()


def test_concurrent_appends_are_written_in_order():
    """Another log updated offset, memory and disk in turn without a common lock: frames were out of order."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        log = store.topic(TOPIC)
        given: list[list[int]] = [[] for _ in range(4)]

        def work(mine: list[int]) -> None:
            for _ in range(50):
                mine.append(log.append(b"x"))
                mine.extend(log.append_batch([b"y", b"z"]))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(offset for mine in given for offset in mine) == list(range(600))
        assert [place[0] for place in take_frames(read_file(fs, WAL))[0]] == list(range(600))


def test_a_failed_disk_raises_an_error_at_once():
    """In another log a full queue blocked, and a failed disk was not noticed. This log has no queue."""
    disk = CrashFileSystem()
    store = open_topics(FaultFileSystem(disk, {"create": 1}))
    with pytest.raises(OSError, match="Input/output"):
        store.topic(TOPIC)
    assert store.topic(TOPIC).append(b"1") == 0
    store.close()
    assert len(take_frames(read_file(disk, WAL))[0]) == 1


# ── lost messages ────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_process_loses_no_acknowledged_message():
    """Another log kept them only in memory, for five seconds or ten megabytes."""
    fs = CrashFileSystem()
    store = open_topics(fs)
    for number in range(100):
        store.topic(TOPIC).append(b"%d" % number)
        with open_topics(fs.clone_after_kill()) as other:
            assert other.topic(TOPIC).current_offset() == number + 1
    store.close()


def test_a_clean_stop_loses_no_message():
    """Closing did not flush."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append(b"1")
    with open_topics(fs.clone_after_crash(0)) as store:
        assert payloads(store.topic(TOPIC)) == [b"1"]


def test_a_restart_does_not_reset_offsets():
    """They began at 0, far below a consumer's cursor. It continues at its position and gets the new messages."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"old"] * 50)
        with store.subscribe(TOPIC, "s", start="earliest").consumer("a") as consumer:
            for _ in range(50):
                consumer.receive(0).ack()
    with open_topics(fs.clone_after_kill()) as store:
        store.topic(TOPIC).append(b"new")
        with store.subscribe(TOPIC, "s").consumer("a") as consumer:
            assert consumer.receive(0).message.payload == b"new"


def test_unflushed_messages_are_not_evicted():
    """With 2,000 small messages within the flush interval, a reader from 0 began at 976."""
    with open_topics(CrashFileSystem()) as store:
        log = store.topic(TOPIC)
        for _ in range(2000):
            log.append(b"x")
        assert offsets(log, 0) == list(range(2000))


def test_messages_for_an_absent_consumer_are_stored():
    """A new subscription was only a channel of 256 messages; messages without a listener were discarded."""
    with open_topics(CrashFileSystem(), cache_capacity=10) as store:
        log = store.topic(TOPIC)
        subscription = store.subscribe(TOPIC, "s", start="latest")
        log.append_batch([b"x"] * 900)
        with subscription.consumer("a") as consumer:
            found = []
            while (delivery := consumer.receive(0)) is not None:
                found.append(delivery.offset)
                delivery.ack()
            assert found == list(range(900))


def test_messages_beyond_the_unacked_limit_are_kept():
    """Fetched messages beyond the limit were discarded: they wait until there is space, in order."""
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append_batch([b"x"] * 20)
        chosen = SubscriptionSettings(max_unacked_messages=2)
        subscription = store.subscribe(TOPIC, "s", start="earliest", settings=chosen)
        found = []
        with subscription.consumer("a") as first, subscription.consumer("b") as second:
            while (one := first.receive(0)) is not None:
                other = second.receive(0)
                assert first.receive(0) is None, "the window is full"
                found += [delivery.offset for delivery in (one, other) if delivery is not None]
                for delivery in (one, other):
                    if delivery is not None:
                        delivery.ack()
        assert found == list(range(20))


def test_an_unreadable_subscription_does_not_start_at_latest():
    """A file that could not be read meant "latest": it is an error, and the next attempt finds the position."""
    disk = CrashFileSystem()
    with open_topics(disk) as store:
        store.subscribe(TOPIC, "s", start="earliest")
        store.topic(TOPIC).append_batch([b"x"] * 3)
    fs = FaultFileSystem(disk, path_part="s.sub")
    with open_topics(fs) as store:
        store.topic(TOPIC)
        fs.fail_on("read_all")
        with pytest.raises(OSError, match="Input/output"):
            store.subscribe(TOPIC, "s")
        assert store.subscribe(TOPIC, "s").next_offset == 0


def test_messages_after_a_corrupt_frame_are_read():
    """The rest of the file was skipped, and then deleted: it is read, and so are all later files."""
    fs = CrashFileSystem()
    with open_topics(fs, rotate_max_bytes=600) as store:
        for _ in range(30):
            store.topic(TOPIC).append(b"x" * 20)
    overwrite(fs, WAL, 150, b"\xff\xff")
    with open_topics(fs, rotate_max_bytes=600) as store:
        assert offsets(store.topic(TOPIC)) == [0, *range(2, 30)]


def test_seal_syncs_unflushed_messages():
    """A seal recorded the tip while the tail was in a buffer: everything is synced, and later appends are refused."""
    fs = CrashFileSystem()
    store = open_topics(fs)
    log = store.topic(TOPIC)
    log.append_batch([b"x"] * 5)
    assert store.unload(TOPIC) == 5
    with pytest.raises(StoreClosedError):
        log.append(b"late")
    with open_topics(fs.clone_after_crash(0)) as other:
        assert other.topic(TOPIC).current_offset() == 5
    assert store.topic(TOPIC).append(b"again") == 5
    store.close()


def test_an_offset_beyond_the_tip_drops_no_message():
    """Messages were dropped until the tip reached it, which never happened once offsets restarted."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"x"] * 5)
        reader = store.topic(TOPIC).reader(5)
        store.topic(TOPIC).append(b"5")
        assert [message.payload for message in reader.poll()] == [b"5"]
        reader.close()


# ── repeated messages, stalls, leaks ─────────────────────────────────────────────────────────────────────


def test_a_clean_stop_repeats_no_message():
    """Up to ten seconds of acknowledgements were not saved on close."""
    fs = CrashFileSystem()
    with open_topics(fs) as store:
        store.topic(TOPIC).append_batch([b"x"] * 3)
        with store.subscribe(TOPIC, "s", start="earliest").consumer("a") as consumer:
            consumer.receive(0).ack()
    with open_topics(fs) as store, store.subscribe(TOPIC, "s").consumer("a") as consumer:
        assert consumer.receive(0).offset == 1


def test_late_and_wrong_acknowledgements_do_not_move_the_cursor():
    """The cursor was set to each acknowledged offset: it moves only over confirmed offsets without a gap."""
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append_batch([b"x"] * 5)
        subscription = store.subscribe(TOPIC, "s", start="earliest")
        with subscription.consumer("a") as consumer:
            held = [consumer.receive(0) for _ in range(4)]
            held[3].ack()
            assert subscription.next_offset == 0
            for delivery in held:
                delivery.ack()
            assert subscription.next_offset == 4
            held[0].ack()
            assert subscription.next_offset == 4


def test_a_reader_continues_after_an_error():
    """A dispatcher kept its failed stream: a reader continues after damage, also after an error."""
    disk = CrashFileSystem()
    with open_topics(disk) as store:
        store.topic(TOPIC).append_batch([b"x"] * 9)
    fs = FaultFileSystem(disk, path_part="wal.log")
    with open_topics(fs) as store:
        reader = store.topic(TOPIC).reader(0, follow=False)
        fs.fail_on("pread")
        with pytest.raises(OSError, match="Input/output"):
            next(reader)
        assert [message.offset for message in reader] == list(range(9))


def test_a_standby_consumer_is_promoted():
    """A standby was never promoted, and a consumer with another name never took over."""
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append(b"x")
        subscription = store.subscribe(TOPIC, "s", kind="failover", start="earliest")
        first, second = subscription.consumer("a"), subscription.consumer("b")
        assert first.receive(0).offset == 0
        first.close()
        assert second.receive(0).offset == 0
        second.close()


def test_unsubscribe_removes_the_cursor():
    """It stayed, and a new subscription of the same name continued from it."""
    with open_topics(CrashFileSystem()) as store:
        store.topic(TOPIC).append_batch([b"x"] * 3)
        store.subscribe(TOPIC, "s", start=2)
        store.unsubscribe(TOPIC, "s")
        assert store.subscribe(TOPIC, "s", start="earliest").next_offset == 0


def test_memory_mode_keeps_no_frames():
    """Every frame stayed in a buffer that was never written."""
    with TopicStore.open(settings={"wal": {"cache_capacity": 10}}, clock=ManualClock(), background=False) as store:
        log = store.topic(TOPIC)
        log.append_batch([b"x" * 1000] * 100)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(2000):
                log.append(b"x" * 1000)
            assert tracemalloc.get_traced_memory()[0] - before < 200_000
        finally:
            tracemalloc.stop()


def test_many_topics_share_one_thread_and_little_memory():
    """Another log used ten to fifty megabytes of buffers per topic: here two hundred topics share one thread."""
    fs = CrashFileSystem()
    threads = threading.active_count()
    tracemalloc.start()
    try:
        store = TopicStore.open(ROOT, fs=fs)
        before = tracemalloc.get_traced_memory()[0]
        logs = [store.topic(f"default/t{number}") for number in range(200)]
        for log in logs:
            log.append(b"x")
        assert threading.active_count() == threads + 1
        assert (tracemalloc.get_traced_memory()[0] - before) / 200 < 50_000
    finally:
        tracemalloc.stop()
    assert len(store.topics()) == 200
    store.close()
    assert threading.active_count() == threads


# ── exclusive access ─────────────────────────────────────────────────────────────────────────────────────


def test_a_second_writer_of_a_directory_is_refused():
    """One writer was assumed and not enforced."""
    fs = CrashFileSystem()
    with open_topics(fs), pytest.raises(DirectoryInUseError, match="topics"):
        open_topics(fs)
    open_topics(fs).close()


def test_two_concurrent_callers_get_the_same_log():
    """Two logs on one file were possible."""
    with open_topics(CrashFileSystem()) as store:
        found = []
        threads = [threading.Thread(target=lambda: found.append(store.topic(TOPIC))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len({id(log) for log in found}) == 1


def test_a_name_of_three_parts_is_refused():
    """The third part was dropped, and two topics shared a log."""
    with open_topics(CrashFileSystem()) as store, pytest.raises(UsageError, match="namespace/topic"):
        store.topic("/ns/a/b")


def test_the_background_thread_does_what_maintain_does():
    """It syncs in time and by size, and saves progress, without further calls."""
    settings = {
        "wal": {"fsync_interval_ms": 1000, "fsync_max_batch_bytes": 5_000},
        "subscriptions": {"progress_flush_interval_seconds": 2},
    }
    clock = ManualClock(waits="hold")
    with TopicStore.open(ROOT, settings=settings, fs=CrashFileSystem(), clock=clock) as store:
        log = store.topic(TOPIC)
        log.append(b"x")
        clock.wait_for_waiters()
        for _ in range(4):
            clock.advance(0.25)
            clock.wait_for_waiters()
        assert log.durable_offset() == 1
        log.append_batch([b"x" * 1000] * 10)
        clock.advance(0)
        clock.wait_for_waiters()
        assert log.durable_offset() == 11
        with store.subscribe(TOPIC, "s", start="earliest").consumer("a") as consumer:
            consumer.receive(0).ack()
        for _ in range(8):
            clock.advance(0.25)
            clock.wait_for_waiters()
        assert store.confirmed_offset(TOPIC) == 1
