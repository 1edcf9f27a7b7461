"""
Opening a log after crashes, damage and changes by other programs: no file contents make it fail, and no record is
invented.
"""

from __future__ import annotations

import errno
import json

import pytest
from aof_as_log import ROOT, SEGMENTS, open_manager, payloads, segment_files, tail_of, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_files import overwrite
from quiver.aof import AofManager, Retention, maintenance, recovery
from quiver.aof.format import record
from quiver.aof.format.names import DURABILITY, SegmentName, spare_name
from quiver.aof.format.record import RECORD_HEAD_BYTES, encode_record
from quiver.aof.format.sealed_pointer import SealedPointer, encode_pointer
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, SegmentHeader, encode_header
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.errors import DataLossError, NotDurableError, WouldBlockError
from quiver.observe import InMemoryObserver
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

SIZE = 16 * 1024


def written(*records: bytes, close: bool = False) -> CrashFileSystem:
    """Return a disk with these records, all durable, as a crash or a close leaves it."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for record in records:
            log.append_record(record)
        log.flush()
        crashed = fs.clone_after_crash(0)
    return fs if close else crashed


def make(fs: CrashFileSystem, name: str, data: bytes) -> str:
    fs.make_dirs(SEGMENTS)
    path = f"{SEGMENTS}/{name}"
    file = fs.create(path)
    file.pwrite(data, 0)
    file.sync()
    file.close()
    fs.sync_dir(SEGMENTS)
    return path


def reopened(fs: CrashFileSystem) -> list[bytes]:
    """Return the records after recovery; appending works, and two more opens change nothing."""
    with open_manager(fs) as manager:
        found = payloads(manager.log("orders"))
        manager.log("orders").append_record(b"more")
    for _ in range(2):
        with open_manager(fs) as manager:
            assert payloads(manager.log("orders")) == [*found, b"more"]
    return found


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("preallocated", bytes(SIZE)),
        ("empty", b""),
        ("short", bytes(10)),
        ("short header", encode_header(SegmentHeader(5, 0, 0, SIZE, 1, 1))[:40]),
        ("header alone", encode_header(SegmentHeader(5, 0, 0, SIZE, 1, 1))),
        ("header and zeros", encode_header(SegmentHeader(5, 0, 0, SIZE, 1, 1)).ljust(SIZE, b"\0")),
        ("junk", b"\xff" * SIZE),
        ("another segment's header", encode_header(SegmentHeader(4, 0, 0, SIZE, 1, 1)).ljust(SIZE, b"\0")),
    ],
)
@pytest.mark.parametrize("records", [[], [b"one", b"two"]])
def test_invalid_files_do_not_prevent_opening(name, data, records):
    """With records or alone, newer than the records: the log opens with all records, and appending works."""
    fs = written(*records)
    make(fs, str(SegmentName(5, 0, 1)), data)
    assert reopened(fs) == records
    with open_manager(fs) as manager:
        assert min(one.segment_id for one in manager.log("orders").segment_snapshot()) >= 0
        assert manager.log("orders").segment_snapshot()[-1].segment_id in {5, 6} if not records else True


def test_foreign_files_are_kept():
    """Names that this code would not build are kept; its own leftovers are removed."""
    fs = written(b"one")
    make(fs, "notes.seg", b"mine")
    make(fs, spare_name(9), bytes(SIZE))
    make(fs, "current.sealed.tmp", b"half")
    assert reopened(fs) == [b"one"]
    names = fs.list_dir(SEGMENTS)
    assert "notes.seg" in names
    assert not [name for name in names if name.endswith((".tmp", ".spare"))]


def test_a_spare_with_records_becomes_a_segment():
    """The process was killed between the first record and the rename: the header identifies the segment."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"unsynced")
        killed = fs.clone_after_kill()
    assert segment_files(killed) == []
    with open_manager(killed) as manager:
        assert manager.log("orders").read_record(record_id).payload == b"unsynced"
        assert len(segment_files(killed)) == 1


@given(st.data())
@settings(max_examples=150)
def test_any_damage_to_the_tail_leaves_exactly_the_valid_prefix(data):
    """The tail is not known to be durable, and truncated, zeroed, overwritten or flipped: only the prefix remains."""
    sizes = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=12))
    records = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    fs = written(*records)
    path, end = tail_of(fs)
    at = data.draw(st.integers(HEADER_BYTES, end - 1))
    ends = [HEADER_BYTES]
    for size in sizes:
        ends.append(ends[-1] + 24 + size)
    kind = data.draw(st.sampled_from(["cut", "zeros", "junk", "flip"]))
    file = fs.open_write(path)
    if kind == "cut":
        file.truncate(at)
    elif kind == "zeros":
        file.pwrite(bytes(SIZE - at), at)
    elif kind == "junk":
        file.pwrite(data.draw(st.binary(min_size=1, max_size=400)), at)
    else:
        file.pwrite(bytes([file.pread(1, at)[0] ^ 1 << data.draw(st.integers(0, 7))]), at)
    after = file.pread(SIZE, 0)
    file.close()
    with open_manager(fs) as manager:
        found = payloads(manager.log("orders"))
    complete = 0
    while (
        complete < len(records)
        and after[ends[complete] : ends[complete + 1]][24:] == records[complete]
        and (after[ends[complete] : ends[complete] + 8] == encode_record(records[complete], timestamp=0)[:8])
    ):
        complete += 1
    assert found == records[:complete]
    assert complete >= sum(one <= at for one in ends[1:])


def test_truncated_records_never_reappear():
    """A record of equal length replaces a damaged one; the intact record after it stays removed."""
    fs = written(b"a" * 50, b"b" * 50, b"c" * 50)
    path, _ = tail_of(fs)
    overwrite(fs, path, HEADER_BYTES + 74 + 30, b"x")
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"a" * 50]
        log.append_record(b"B" * 50)
        log.flush()
        crashed = fs.clone_after_crash(0)
    for disk in (fs, crashed):
        with open_manager(disk) as manager:
            assert payloads(manager.log("orders")) == [b"a" * 50, b"B" * 50]


def test_recovered_records_are_durable_even_after_a_failed_sync():
    """The kernel considers pages clean that the disk never received: recovery rewrites the records that it returns."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, forever=True)
    manager = open_manager(fs)
    log = manager.log("orders")
    record_id = log.append_record(b"shown" * 2_000)
    fs.fail_on("sync", 1)
    with pytest.raises(NotDurableError):
        log.flush_until(record_id)
    with pytest.raises(NotDurableError):
        manager.close()
    with open_manager(disk) as again:
        assert payloads(again.log("orders")) == [b"shown" * 2_000]
        lost = disk.clone_after_crash(0)
    with open_manager(lost) as again:
        assert payloads(again.log("orders")) == [b"shown" * 2_000]


def test_damage_in_the_durable_part_is_kept_and_reported():
    """It is not a torn tail: the segment is sealed with its damage, and its intact records are read."""
    fs = written(b"a" * 50, b"b" * 50, close=True)
    path, _ = tail_of(fs)
    overwrite(fs, path, HEADER_BYTES + 30, b"x")
    observer = InMemoryObserver()
    reports = []
    observer.event = lambda name, **fields: reports.append((name, fields.get("path"), fields.get("reason")))
    with AofManager.open(ROOT, tiny(), fs=fs, clock=ManualClock(), observer=observer, background=False) as manager:
        log = manager.log("orders")
        assert [record.payload for record in log.open_reader(on_lost="skip")] == [b"b" * 50]
        assert [one.state for one in log.segment_snapshot()] == ["sealed"]
    reason = "damaged at 64, durable up to 212: checksum mismatch in a record of 50 bytes"
    assert ("aof.recovery.damaged", path, reason) in reports
    assert observer.counts["aof_recovery_findings_total", (("kind", "damaged"),)] == 1


def test_opening_scans_only_the_records_that_were_not_durable(monkeypatch):
    """The bytes before the mark of the snapshot have one checksum, which is compared instead of that of each record."""
    fs = written(*[b"durable" * 9] * 50, close=True)
    path, end = tail_of(fs)
    late = encode_record(b"late", timestamp=1)
    overwrite(fs, path, end, late)
    decoded = []

    def continue_scan(found, view, limit):
        decoded.append((found.end, found.record_count))
        return record.continue_scan(found, view, limit)

    monkeypatch.setattr(recovery, "continue_scan", continue_scan)
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == [b"durable" * 9] * 50 + [b"late"]
    assert decoded == [(end, 50)]


def test_the_snapshot_is_written_at_once_when_it_lacks_many_durable_bytes(monkeypatch):
    """Otherwise recovery after a kill would scan all records of a second."""
    monkeypatch.setattr(maintenance, "SNAPSHOT_BYTES", 100)
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        directory = f"{ROOT}/orders/{DURABILITY}"
        for size in (200, 300, 10):  # the third waits for the interval, and the clock does not move
            record_id = log.append_record(b"x" * size)
            log.flush()
            manager._workers.run_pending()
        (name,) = fs.list_dir(directory)
        (row,) = json.loads(fs.open_read(f"{directory}/{name}").pread(4096, 0))
        assert HEADER_BYTES + row["record_count"] * RECORD_HEAD_BYTES + 500 == row["durable_bytes"]
        assert row["durable_bytes"] == record_id & 0xFFFF_FFFF


def test_a_mark_that_does_not_fit_is_ignored():
    """A snapshot of another file, or with numbers that no scan finds, costs a complete scan and loses nothing."""
    fs = written(*[b"durable" * 9] * 5, close=True)
    directory = f"{ROOT}/orders/{DURABILITY}"
    (name,) = [f"{directory}/{one}" for one in fs.list_dir(directory)]
    (row,) = json.loads(fs.open_read(name).pread(4096, 0))
    for changed in ({"bytes_crc64": 1}, {"last_offset": 0}, {"last_offset": 2**40}, {"durable_bytes": 2**40}):
        text = json.dumps([row | {"requested_bytes": 2**41} | changed]).encode()
        broken = fs.clone_after_crash(0)
        overwrite(broken, name, 0, text + b" " * 100)
        with open_manager(broken) as manager:
            assert payloads(manager.log("orders")) == [b"durable" * 9] * 5, changed


def test_a_torn_tail_is_truncated_and_counted():
    """After the durable end, damage is the result of a power loss and is removed."""
    fs = written(b"a" * 50)
    path, end = tail_of(fs)
    overwrite(fs, path, end, encode_record(b"half a record", timestamp=1)[:-3])
    with open_manager(fs) as manager:
        snapshot = manager.log("orders").snapshot()
        assert snapshot.record_count == 1
        assert snapshot.quarantined == ()
        assert snapshot.truncated_bytes == SIZE - end


def sealed_disk(count: int) -> CrashFileSystem:
    """Return a disk with *count* sealed segments of one record each."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for number in range(count):
            log.set_coordinator_watermark(number * 10)
            log.append_record(b"record %d" % number)
            log.force_rollover(timeout=1)
    return fs


IMPOSSIBLE_POINTERS = {
    "an id of 64 bits": SealedPointer((1 << 64) - 1, 20, 480),
    "an id that no segment after it can have": SealedPointer(0xFFFF_FFFF, 20, 480),
    "more segments than bytes": SealedPointer(1 << 31, 20, 100_000),
    "bytes of 64 bits": SealedPointer(3, 20, (1 << 64) - 1),
    "more bytes than segments": SealedPointer(3, 20, 1 << 40),
    "no bytes": SealedPointer(99, 500, 0),
    "bytes of another segment": SealedPointer(2, 20, 288),
    "a watermark of another segment": SealedPointer(2, 1 << 63, 480),
    "a place before later segments": SealedPointer(0, 0, 400),
}


def pointed(damage: bytes | None) -> CrashFileSystem:
    """Return a disk with three segments, the last from byte 384 to 480 of the log, and this pointer."""
    fs = sealed_disk(3)
    fs.remove(f"{SEGMENTS}/current.sealed")
    if damage is not None:
        make(fs, "current.sealed", damage)
    return fs


@pytest.mark.parametrize(
    "damage", [None, b"", b"\xff" * 32, encode_pointer(SealedPointer(0, 0, 96)), b"\xff" * 100_000]
)
def test_the_pointer_may_be_missing_damaged_or_old(damage):
    """Its values are derived from the segments."""
    with open_manager(pointed(damage)) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"record 0", b"record 1", b"record 2"]
        assert log.coordinator_watermark == 20
        assert log.append_record(b"more") >> 32 == 3


@pytest.mark.parametrize("pointer", IMPOSSIBLE_POINTERS.values(), ids=IMPOSSIBLE_POINTERS)
def test_a_pointer_with_impossible_numbers_is_ignored(pointer):
    """Every later append failed, because the numbers do not fit into the header of a segment."""
    fs = pointed(encode_pointer(pointer))
    beside = LogFiles(f"{ROOT}/orders", fs=fs)
    assert beside.pointer() == SealedPointer(1, 10, 288)  # proven by the next segment
    (finding,) = check_log_directory(fs, "orders", beside.directory, read_records=True).findings
    assert finding.path == f"{SEGMENTS}/current.sealed"
    assert finding.reason.startswith("ignored: ")
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"record 0", b"record 1", b"record 2"]
        assert log.coordinator_watermark == 20
        assert log.append_record(b"more") >> 32 == 3
        log.force_rollover(timeout=1)
    assert beside.pointer().segment_id == 3
    assert check_log_directory(fs, "orders", beside.directory, read_records=True).findings == ()


def test_a_pointer_to_a_lost_segment_prevents_reuse():
    """Neither its id nor its position in the log is used again, and its watermark is kept."""
    with open_manager(pointed(encode_pointer(SealedPointer(5, 500, 2000)))) as manager:
        log = manager.log("orders")
        assert log.coordinator_watermark == 500
        assert log.append_record(b"more") >> 32 == 6
        assert log.segment_snapshot()[-1].base_offset == 2000 + FOOTER_BYTES


def test_a_bad_record_with_a_lost_pointer_loses_only_itself():
    """The footer of the next segment proves that this segment was sealed, so it is not truncated at the bad record."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for _ in range(2):
            log.append_records([b"one", b"two", b"three"])
            log.force_rollover(timeout=1)
    overwrite(fs, segment_files(fs)[0], HEADER_BYTES + 27 + 24, b"X")
    fs.remove(f"{SEGMENTS}/current.sealed")
    with open_manager(fs) as manager:
        found = [record.payload for record in manager.log("orders").open_reader(on_damage="skip")]
        assert found == [b"one", b"three", b"one", b"two", b"three"]


def test_records_counted_by_the_footer_but_damaged_are_reported():
    """The footer was written when the records were durable: readers report those that are damaged now."""
    fs = sealed_disk(1)
    fs.remove(f"{SEGMENTS}/current.sealed")
    fs.sync_dir(SEGMENTS)
    (path,) = segment_files(fs)
    overwrite(fs, path, HEADER_BYTES + 24, b"\xff")
    for _ in range(2):
        with open_manager(fs) as manager:
            log = manager.log("orders")
            with pytest.raises(DataLossError):
                payloads(log)
            assert log.append_record(b"more") >> 32 == 1


def test_a_sealed_segment_without_its_footer_is_sealed_again():
    """According to the pointer it was sealed; its records have the values of the footer."""
    fs = sealed_disk(2)
    path = segment_files(fs)[-1]
    before = fs.read_all(path, size_max=SIZE)
    overwrite(fs, path, SIZE - FOOTER_BYTES, bytes(FOOTER_BYTES))
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == [b"record 0", b"record 1"]
    after = fs.read_all(path, size_max=SIZE)
    assert after[-96:-44] == before[-96:-44]  # all but the time of the seal
    assert after[: SIZE - 96] == before[: SIZE - 96]


def test_damage_in_a_sealed_segment_loses_one_record():
    """The error has path and offset; a reader that skips losses gets all later records."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for number in range(3):
            log.append_record(b"record %d" % number)
        log.force_rollover(timeout=1)
    (path,) = segment_files(fs)
    overwrite(fs, path, HEADER_BYTES + 32 + 24, b"X")
    with open_manager(fs) as manager:
        reader = manager.log("orders").open_reader(on_damage="skip")
        assert [bytes(one.payload) for one in reader] == [b"record 0", b"record 2"]
        assert reader.skipped == 1
        runs = manager.log("orders").open_reader(on_damage="skip").runs()
        assert [run.values for run in runs] == [b"record 0", b"record 2"]


def test_many_unsealed_segments_are_accepted():
    """All but the newest are sealed, and the log continues in the newest."""
    fs = CrashFileSystem()
    for index in range(4):
        base = index * (HEADER_BYTES + 32 + FOOTER_BYTES)
        header = SegmentHeader(index, index, base, SIZE, 1, 1)
        data = encode_header(header) + encode_record(b"record %d" % index, timestamp=index + 1)
        make(fs, str(SegmentName(index, base, 1)), data.ljust(SIZE, b"\0"))
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"record %d" % index for index in range(4)]
        assert [one.state for one in log.segment_snapshot()] == ["sealed"] * 3 + ["active"]
        assert log.append_record(b"more") >> 32 == 3


def test_ids_are_never_reused():
    """Not even when the newest segments are missing, archived or quarantined."""
    fs = sealed_disk(3)
    path = segment_files(fs)[-1]
    overwrite(fs, path, 0, b"\xff" * 100)
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert log.append_record(b"more") >> 32 == 3
        with pytest.raises(DataLossError):
            payloads(log)
        assert [one.payload for one in log.open_reader(on_lost="skip")] == [b"record 0", b"record 1", b"more"]
    assert f"{ROOT}/orders/quarantine/" in log.snapshot().quarantined[0]


class NoRoom(FaultFileSystem):
    """A disk that cannot reserve any block while *full*."""

    full = True

    def may_fail(self, op: str, path: str) -> None:
        if self.full and op == "reserve":
            raise OSError(errno.ENOSPC, "no space left on device", path)
        super().may_fail(op, path)


@pytest.mark.parametrize("spares", [0, 2])
def test_a_log_opens_on_a_full_disk(spares):
    """Its records are readable, old segments can be removed to free space, and then appends succeed again."""
    disk = CrashFileSystem()
    with open_manager(disk) as manager:
        for number in range(3):
            manager.log("orders").append_record_with_timeout(b"%d" % number * 9000, 5)
    fs = NoRoom(disk)
    clock = ManualClock()
    config = tiny(preallocate_segments=spares, retention=Retention("size", max_total_bytes=1, action="expire"))
    with open_manager(fs, config, clock) as manager:
        log = manager.log("orders")
        assert len(payloads(log)) == 3
        with pytest.raises(WouldBlockError, match="admission"):
            log.append_record_with_timeout(b"four", 5)
        manager.maintain()
        assert len(payloads(log)) < 3
        fs.full = False
        log.append_record_with_timeout(b"four", 5)
        assert payloads(log)[-1] == b"four"


def test_a_full_disk_during_open_seals_the_tail():
    """The disk has no space to continue in it; its records exist, and appends succeed when there is space."""
    disk = written(b"one")
    fs = FaultFileSystem(disk, {"reserve": 1}, error=28)
    with open_manager(fs, tiny(preallocate_segments=0)) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"one"]
        assert log.segment_snapshot()[0].state == "sealed"
        log.append_record_with_timeout(b"two", 5)
        assert payloads(log) == [b"one", b"two"]
