"""An append writes a record and returns its id, or writes nothing. Also backpressure and reservations."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from itertools import pairwise

import pytest
from aof_as_log import open_manager, payloads, tiny

from quiver.aof import AofManager, FlushConfig
from quiver.errors import InvalidRecordError, NotDurableError, StoreClosedError, UnknownRecordError, WouldBlockError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

CAPACITY = 16 * 1024 - 64 - 96
"""How many bytes fit into one segment of these tests, including heads."""


@pytest.fixture
def manager():
    with open_manager(CrashFileSystem()) as opened:
        yield opened


def test_an_id_is_the_segment_and_the_offset(manager):
    """The id exists before the record is durable, and the record can be read by it immediately."""
    log = manager.log("orders")
    first = log.append_record(b"one", ext_id=7)
    second = log.append_record(bytearray(b"three"))
    assert (first, second) == (64, 64 + 27)
    assert log.read_record(first)[1:] == (log.read_record(first).timestamp, 7, b"one")
    assert log.read_record(second).payload == b"three"
    assert not log.is_durable(first)
    log.flush_until(second)
    assert log.is_durable(first)


def test_a_batch_is_written_in_one_write(manager):
    """Its ids are in order, its bytes equal those of single appends, and it has one timestamp."""
    log = manager.log("orders")
    records = [b"a", b"bb", b"ccc" * 100, memoryview(b"dd")]
    ids = log.append_records(records, ext_id=9)
    assert [bytes(log.read_record(one).payload) for one in ids] == [bytes(record) for record in records]
    assert {(one.timestamp, one.ext_id) for one in log.open_reader()} == {(log.read_record(ids[0]).timestamp, 9)}
    assert log.append_records([]) == []
    one_by_one = manager.log("other")
    for record in records:
        one_by_one.append_record(record, ext_id=9)
    log.flush()
    one_by_one.flush()
    assert [one[3] for one in log.open_reader()] == [one[3] for one in one_by_one.open_reader()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, CAPACITY - 24 - 1, CAPACITY - 24])
def test_records_from_one_byte_to_a_complete_segment_are_accepted(manager, size):
    """Individually, in a batch and reserved, live and after reopening."""
    log = manager.log("orders")
    record = bytes(index & 0xFF for index in range(size))
    log.append_record_with_timeout(record, 5)
    log.append_records_with_timeout([record], 5)
    log.wait_for_writable_segment(5)
    manager.maintain()
    with log.append_reserve(size) if size < 9 else _reserved(log, size) as room:
        room.payload[:] = record
        room.commit()
    assert payloads(log) == [record] * 3
    log.close()
    assert payloads(manager.log("orders")) == [record] * 3


def _reserved(log, size):
    for _ in range(5):
        try:
            return log.append_reserve(size)
        except WouldBlockError:
            log._context.run_maintenance()
    raise AssertionError("no room")


@pytest.mark.parametrize("payload", [b"", b"x" * (CAPACITY - 23)])
def test_records_that_fit_no_segment_are_refused_without_effect(manager, payload):
    """Empty or too large, alone, in a batch or reserved: the log is unchanged."""
    log = manager.log("orders")
    log.append_record(b"one")
    before = log.snapshot()
    for attempt in (
        lambda: log.append_record(payload),
        lambda: log.append_records([b"fits", payload]),
        lambda: log.append_reserve(len(payload)),
        lambda: log.append_record_with_timeout(payload, 5),
    ):
        with pytest.raises(InvalidRecordError):
            attempt()
    assert log.snapshot() == before
    assert payloads(log) == [b"one"]


def test_a_batch_that_does_not_fit_is_not_written_at_all(manager):
    """Not even the part that would fit into the rest of the segment is written."""
    log = manager.log("orders")
    log.append_record(b"x" * 10_000)
    with pytest.raises(InvalidRecordError):
        log.append_records([b"y" * 5_000] * 4)
    ids = log.append_records_with_timeout([b"y" * 5_000] * 3, 5)
    assert {one >> 32 for one in ids} == {1}


def test_at_most_two_segments_are_unfinalized(manager):
    """With a third one, appends could outrun the disk: they are blocked until one is sealed."""
    log = manager.log("orders")
    config = tiny(preallocate_segments=4)
    log.close()
    log = manager.log("orders", config)
    manager.maintain()
    written = 0
    with pytest.raises(WouldBlockError) as blocked:
        for _ in range(10):
            log.append_record(b"x" * (CAPACITY - 24))
            written += 1
    assert (blocked.value.kind, written) == ("admission", 2)
    assert [one.state for one in log.segment_snapshot()] == ["pending", "pending"]
    manager.maintain()
    log.append_record(b"y")
    assert [one.state for one in log.segment_snapshot()] == ["sealed", "sealed", "active"]


def test_a_blocked_append_ends_with_its_timeout(manager):
    """No segment can be created: the error names the cause, and nothing was written."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=28, forever=True)
    clock = ManualClock()
    with AofManager.open("/full", tiny(preallocate_segments=0), fs=fs, clock=clock, background=False) as full:
        log = full.log("orders")
        log.append_record(b"x" * (CAPACITY - 24))
        fs.fail_on("reserve", 1)
        started = clock.monotonic()
        with pytest.raises(WouldBlockError) as blocked:
            log.append_record_with_timeout(b"late", 3)
        assert blocked.value.kind == "admission"
        assert clock.monotonic() - started == pytest.approx(3)
        with pytest.raises(WouldBlockError):
            log.wait_for_writable_segment(0)
        fs.heal()
        log.append_record_with_timeout(b"in time", 3)
        assert payloads(log)[1:] == [b"in time"]


def test_a_reservation_is_filled_in_place(manager):
    """Other appends are blocked meanwhile. The record may be shorter. A crash before the commit leaves nothing."""
    log = manager.log("orders")
    log.append_record(b"before")
    room = log.append_reserve(100)
    room.payload[:5] = b"hello"
    with pytest.raises(WouldBlockError) as blocked:
        log.append_record(b"x")
    assert blocked.value.kind == "tail"
    assert payloads(log) == [b"before"]
    record_id = room.commit(5, ext_id=3)
    assert log.read_record(record_id).payload == b"hello"
    assert room.record_id == record_id
    with pytest.raises(InvalidRecordError):
        room.commit()
    log.append_record(b"after")
    assert payloads(log) == [b"before", b"hello", b"after"]


def test_a_cancelled_reservation_leaves_no_trace(manager):
    """Even a complete record in it is zeroed: the next record takes its place, also after a crash."""
    log = manager.log("orders")
    fs = manager._fs
    inner = log.append_record(b"z" * 30)
    (path,) = [one.path for one in log.segment_snapshot()]
    log.flush()
    path = log.segment_snapshot()[0].path
    image = fs.read_all(path, size_max=1 << 20)[inner : inner + 54]
    with pytest.raises(ZeroDivisionError), log.append_reserve(500) as room:
        room.payload[: 54 * 9] = image * 9
        raise ZeroDivisionError
    room.cancel()
    assert payloads(log) == [b"z" * 30]
    log.append_record(b"y" * 30)
    log.flush()
    with open_manager(fs.clone_after_crash(1)) as again:
        assert payloads(again.log("orders")) == [b"z" * 30, b"y" * 30]


def test_leaving_a_reservation_without_a_commit_cancels_it(manager):
    """It is unknown whether the reservation was filled; only a commit completes it."""
    log = manager.log("orders")
    with log.append_reserve(10) as room:
        room.payload[:4] = b"half"
    assert room.record_id is None
    with log.append_reserve(10) as room:
        room.payload[:4] = b"done"
        room.commit(4)
    assert payloads(log) == [b"done"]


def test_the_next_append_cancels_a_garbage_collected_reservation(manager):
    """Its bytes and its payload view are released, and neither appends nor rollovers are blocked."""
    log = manager.log("orders")
    room = log.append_reserve(50)
    payload = room.payload
    payload[:] = b"\xff" * 50
    with pytest.raises(WouldBlockError, match="commit or cancel"):
        log.append_record(b"early")
    del room
    with pytest.raises(ValueError, match="released"):
        payload[0] = 1
    log.append_record(b"after")
    log.append_reserve(20)
    log.append_records([b"batch"])
    log.append_reserve(20)
    log.append_reserve(3).commit()
    log.append_reserve(20)
    log.force_rollover()
    with open_manager(manager._fs.clone_after_kill()) as again:
        assert payloads(again.log("orders")) == [b"after", b"batch", bytes(3)]


def test_a_reservation_is_finished_only_once(manager):
    """A committed or cancelled reservation never finishes a later one."""
    log = manager.log("orders")
    for finish in (lambda room: room.commit(), lambda room: room.cancel()):
        room = log.append_reserve(4)
        finish(room)
        other = log.append_reserve(9)
        with pytest.raises(InvalidRecordError, match="before"):
            room.commit()
        room.cancel()
        other.payload[:] = b"unharmed!"
        other.commit()
    assert payloads(log) == [bytes(4), b"unharmed!", b"unharmed!"]


def test_an_exported_payload_buffer_does_not_prevent_commit_or_cancel(manager):
    """A ctypes array exports the buffer; the record is written or cancelled nevertheless."""
    log = manager.log("orders")
    room = log.append_reserve(4)
    held = (ctypes.c_char * 4).from_buffer(room.payload)
    held.raw = b"held"
    room.commit()
    cancelled = log.append_reserve(4)
    also_held = (ctypes.c_char * 4).from_buffer(cancelled.payload)
    cancelled.cancel()
    log.append_record(b"next")
    assert payloads(log) == [b"held", b"next"]
    del also_held


def test_an_unfinished_reservation_loses_no_records(manager):
    """It is open during a crash or a close: all records exist."""
    log = manager.log("orders")
    log.append_record(b"before")
    room = log.append_reserve(50)
    room.payload[:] = b"\xff" * 50
    with open_manager(manager._fs.clone_after_kill()) as again:
        assert payloads(again.log("orders")) == [b"before"]
    log.close()
    assert payloads(manager.log("orders")) == [b"before"]


def test_a_flush_timeout_differs_from_an_append_timeout():
    """The error of the flush is another one, because the record was written."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, forever=True)
    with open_manager(fs) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"written")
        fs.fail_on("sync", 1)
        with pytest.raises(NotDurableError) as error:
            log.flush_until(record_id)
        assert error.value.record_id == record_id
        assert payloads(log) == [b"written"]
        fs.heal()
        log.flush_until(record_id)
        assert log.is_durable(record_id)


def test_flushing_an_id_without_a_record_is_refused(manager):
    """The call does not wait."""
    log = manager.log("orders")
    record_id = log.append_record(b"one")
    for other in (0, record_id + 1000, 5 << 32):
        with pytest.raises(UnknownRecordError):
            log.flush_until(other)
    for other in (0, record_id + 1000, 5 << 32):
        with pytest.raises(UnknownRecordError):
            log.read_record(other)


def test_a_rollover_is_requested_and_completed(manager):
    """All calls are blocked until it is complete. Then the id is returned once, and appends continue."""
    log = manager.log("orders")
    assert log.seal_current_segment() is None
    log.append_record(b"one")
    for attempt in (log.seal_current_segment, log.seal_current_segment, lambda: log.append_record(b"two")):
        with pytest.raises(WouldBlockError) as blocked:
            attempt()
        assert blocked.value.kind == "rollover"
    manager.maintain()
    assert log.append_record(b"two") >> 32 == 1
    assert log.seal_current_segment() == 0
    assert log.force_rollover(timeout=5) == 1
    assert payloads(log) == [b"one", b"two"]


def test_an_async_append_waits_and_can_be_cancelled():
    """Admission, rollover and reservations are waited for; a cancelled append is never written."""
    with AofManager.open("/aof", tiny(), fs=CrashFileSystem()) as manager:
        log = manager.log("orders")

        async def run():
            room = log.append_reserve(10)
            cancelled = log.append_record_async(b"never")
            later = log.append_record_async(b"later")
            cancelled.cancel()
            room.cancel()
            ids = [await asyncio.wait_for(later, 30)]
            for number in range(8):
                ids.append(await asyncio.wait_for(log.append_record_async(b"%d" % number * 9_000), 30))
            with pytest.raises(InvalidRecordError):
                await log.append_record_async(b"")
            return ids

        ids = asyncio.run(run())
        assert ids == sorted(ids)
        assert payloads(log) == [b"later", *(b"%d" % number * 9_000 for number in range(8))]


def test_async_appends_keep_their_order():
    """Also while some wait for segments, for a reservation, or for a flush; a failed append delays no other."""
    config = tiny(flush=FlushConfig(max_unflushed_bytes=64 * 1024))
    with AofManager.open("/aof", config, fs=CrashFileSystem()) as manager:
        log = manager.log("orders")

        async def run():
            room = log.append_reserve(10)
            futures = [log.append_record_async(b"%d " % number * 40) for number in range(1_000)]
            wrong = log.append_record_async(b"x" * 20_000)
            futures += [log.append_record_async(b"%d " % number * 40) for number in range(1_000, 3_000)]
            futures.pop(500).cancel()
            room.cancel()
            with pytest.raises(InvalidRecordError):
                await asyncio.wait_for(wrong, 60)
            return await asyncio.wait_for(asyncio.gather(*futures), 60)

        ids = asyncio.run(run())
        assert ids == sorted(ids)
        expected = [number for number in range(3_000) if number != 500]
        assert [int(one.split()[0]) for one in payloads(log)] == expected
        asyncio.run(run())  # another loop starts its own queue


def test_close_wakes_all_waiters():
    """Callers that wait for space or for records get an error immediately."""
    with AofManager.open("/aof", tiny(), fs=CrashFileSystem()) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        room = log.append_reserve(10)
        outcomes = []

        def append():
            try:
                log.append_record_with_timeout(b"x", None)
            except StoreClosedError as error:
                outcomes.append(error)

        follower = log.tail_follower(0, durable_only=False)
        assert follower.next(30).payload == b"one"
        threads = [threading.Thread(target=append), threading.Thread(target=lambda: outcomes.append(follower.next()))]
        for thread in threads:
            thread.start()
        log.close()
        for thread in threads:
            thread.join(30)
        assert len(outcomes) == 2
        with pytest.raises(StoreClosedError):
            room.commit()


def test_a_follower_misses_nothing(manager):
    """It gets only durable records, in order, across segments, and every sealed segment once, however late it polls."""
    log = manager.log("orders")
    follower = log.tail_follower(0)
    assert follower.next(0) is None
    log.append_record(b"one")
    assert follower.next(0) is None
    log.flush()
    assert follower.next(0).payload == b"one"
    for number in range(3):
        log.append_record(b"%d" % number)
        log.force_rollover(timeout=5)
    log.append_record(b"unsynced")
    assert [follower.next(0).payload for _ in range(3)] == [b"0", b"1", b"2"]
    assert follower.next(0) is None
    assert [follower.next_sealed_segment(0) for _ in range(4)] == [0, 1, 2, None]
    from_now = log.tail_follower(durable_only=False)
    assert from_now.next_sealed_segment(0) is None
    log.append_record(b"new")
    assert from_now.next(0).payload == b"new"


def test_reading_continues_where_it_ended(manager):
    """From any record, across segments. Views and copies have the same bytes, and runs the same records."""
    log = manager.log("orders")
    expected = [b"%03d" % number * (1 + number % 40) for number in range(400)]
    ids = [log.append_record_with_timeout(record, 5) for record in expected]
    assert len({one >> 32 for one in ids}) > 2
    for start in (0, 1, 57, 398, 399):
        reader = log.open_reader(ids[start], views=bool(start % 2))
        assert [bytes(one.payload) for one in reader] == expected[start:]
        log.append_record_with_timeout(b"more", 5)
        assert [bytes(one.payload) for one in reader] == [b"more"]
        expected.append(b"more")
    runs = list(log.open_reader(ids[57]).runs(records_max=50))
    assert max(map(len, runs)) <= 50
    found = [run.to_arrow().to_pylist() for run in runs]
    flat = [row for run in found for row in run]
    assert [row["payload"] for row in flat] == expected[57:]
    assert [row["record_id"] for row in flat][: len(ids) - 57] == ids[57:]
    assert {row["ext_id"] for row in flat} == {0}


def test_runs_of_one_length_have_the_same_records(manager):
    """The fast path and the slow path return the same, and stop at the same damage."""
    log = manager.log("orders")
    sizes = (100, 100, 7, 100, 12, 13, 600, 1, 4, 5)
    for size in sizes:
        log.append_records_with_timeout(
            [bytes([size % 251, number]) * (size // 2) + b"!" * (size % 2) for number in range(20)], 5
        )
    runs = list(log.open_reader().runs())
    assert b"".join(run.values for run in runs) == b"".join(payloads(log))
    for run in runs:
        column = run.to_arrow().column("payload")
        column.validate(full=True)
        cut = list(pairwise(run.offsets.tolist()))
        assert column.to_pylist() == [run.values[start:end] for start, end in cut]
        assert column.to_pylist() == [
            bytes(run.buffer[at : at + n]) for at, n in zip(run.starts, run.lengths, strict=True)
        ]
    assert [one for run in runs for one in run.timestamps.tolist()] == [one.timestamp for one in log.open_reader()]
    assert FlushConfig().max_unflushed_bytes


def test_an_id_between_two_records_is_not_reported_as_damage(manager):
    """The caller made a mistake: the log is intact, and no reader skips the rest of a segment."""
    log = manager.log("orders")
    for sealed in (False, True):
        first, second = log.append_records([b"one" * 300, b"two" * 300])
        if sealed:
            log.force_rollover(timeout=5)
        for wrong in (first + 1, first + 30, second - 1, second + 7):
            with pytest.raises(UnknownRecordError, match="none begins at"):
                log.read_record(wrong)
            for on_damage in ("raise", "skip"):
                with pytest.raises(UnknownRecordError, match="none begins at"):
                    list(log.open_reader(wrong, on_damage=on_damage))
                with pytest.raises(UnknownRecordError, match="none begins at"):
                    list(log.open_reader(wrong, on_damage=on_damage).runs())
        assert log.read_record(second).payload == b"two" * 300
        log.flush_until(second)
        assert log.is_durable(first)
        assert log.is_durable(second)
        end = second + 24 + 900
        assert [one for one in range(first - 64, end + 40) if log.is_durable(one)] == [first, second]
        for wrong in (end,) if sealed else (first - 1, first + 1, second - 1, end):
            with pytest.raises(UnknownRecordError):
                log.flush_until(wrong)
    for wrong in ("7", None, -1, 1 << 64, 1.5):
        for call in (
            log.read_record,
            log.open_reader,
            log.flush_until,
            log.is_durable,
            lambda one: log.tail_follower(one or ""),
        ):
            with pytest.raises(UnknownRecordError, match="integer of 64 bits"):
                call(wrong)


def test_a_failed_batch_leaves_no_trace(manager):
    """A payload in the middle is not bytes: the records before it are not stored, even after a crash."""
    log = manager.log("orders")
    log.append_record(b"before")
    with pytest.raises(InvalidRecordError, match="memoryview of H"):
        log.append_records([b"x" * 3000, memoryview(b"y" * 4000).cast("H"), b"z" * 3000])
    with pytest.raises(InvalidRecordError, match="not list"):
        log.append_records([b"x", [1]])
    with pytest.raises(InvalidRecordError, match="bytes, not str"):
        log.append_records([b"x", "text"])
    with pytest.raises(InvalidRecordError, match="bytes, not str"):
        log.append_record("text")
    with open_manager(manager._fs.clone_after_kill()) as again:
        assert payloads(again.log("orders")) == [b"before"]
        assert again.log("orders").snapshot().truncated_bytes == 0
    log.append_records([b"after", b"that"], ext_id=[7, 8])
    assert [record[2:] for record in log.open_reader()] == [(0, b"before"), (7, b"after"), (8, b"that")]
    with pytest.raises(InvalidRecordError, match="1 ext_ids for 2 records"):
        log.append_records([b"x", b"y"], ext_id=[7])


def test_a_record_is_found_by_its_time():
    """The first record that is not older, sealed or not. A clock that is set back does not affect the log."""
    clock = ManualClock(now_ns=1_000)
    with open_manager(CrashFileSystem(), clock=clock) as manager:
        log = manager.log("orders")
        ids = []
        for number in range(12):
            clock.set_wall_ns(1_000 + number * 10)
            ids.append(log.append_record_with_timeout(b"x" * 3_000, 5))
        clock.set_wall_ns(500)
        ids.append(log.append_record_with_timeout(b"late", 5))
        assert len({one >> 32 for one in ids}) > 2
        for number in range(12):
            assert log.find_record(1_000 + number * 10) == ids[number]
            assert log.find_record(1_000 + number * 10 - 9) == ids[number]
        assert log.find_record(0) == ids[0]
        assert log.read_record(ids[12]).timestamp == log.read_record(ids[11]).timestamp
        assert log.find_record(1_111) is None
