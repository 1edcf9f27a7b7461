"""Known failures of logs with this design: each test shows that this log does not have one of them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from aof_as_log import ROOT, SEGMENTS, AofAsLog, open_manager, payloads, segment_files, tail_of, tiny

from quiver.aof import Aof, AofManager, Retention, TierConfig
from quiver.aof.format.durability import decode_durability
from quiver.aof.format.names import SegmentName
from quiver.aof.format.segment_file import HEADER_BYTES, decode_footer, decode_header
from quiver.errors import InvalidRecordError, RolloverError, WouldBlockError
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

SIZE = 16 * 1024


@pytest.mark.parametrize("size", [1, 3, 5, 7, 8, 9, 10, 12, 13, 16])
def test_records_of_unaligned_length_survive_recovery(size):
    """A writer that pads, with a scan that does not, loses all records but the first."""
    fs = CrashFileSystem()
    expected = [bytes([number]) * size for number in range(1, 11)]
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for record in expected:
            log.append_record(record)
        log.flush()
        crashed = fs.clone_after_crash(0)
        log.force_rollover(timeout=5)
    for disk in (crashed, fs):
        with open_manager(disk) as manager:
            assert payloads(manager.log("orders")) == expected
            assert manager.log("orders").snapshot().truncated_bytes == 0


def test_segments_are_sealed_without_any_call(tmp_path):
    """A log that waits for a seal request stops after two segments."""
    with AofManager.open(str(tmp_path), tiny()) as manager:
        log = manager.log("orders")
        for number in range(210):
            log.append_record_with_timeout(b"%05d" % number * 1500, 30)
        log.flush()
        assert log.snapshot().segments[-1].segment_id >= 100
    with AofManager.open(str(tmp_path), tiny()) as manager:
        assert [one[:5] for one in payloads(manager.log("orders"))] == [b"%05d" % number for number in range(210)]


def test_a_log_that_was_never_written_opens_again():
    """A preallocated file has no header; after a kill or a close it does not prevent opening."""
    fs = CrashFileSystem()
    for _ in range(3):
        manager = open_manager(fs)
        manager.log("orders")
        killed = fs.clone_after_kill()
        manager.close()
        with open_manager(killed) as again:
            assert payloads(again.log("orders")) == []
    assert segment_files(fs) == []


def test_sealing_an_empty_tail_does_nothing():
    """A footer without a header would make a file that cannot be opened."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert log.force_rollover(timeout=5) is None
        log.append_record(b"x")
        log.force_rollover(timeout=5)
        assert log.force_rollover(timeout=5) is None
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == [b"x"]


def test_a_file_shorter_than_its_header_is_salvaged():
    """Its records exist, and the file continues with its full size."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        manager.log("orders").append_record(b"kept")
    path, end = tail_of(fs)
    file = fs.open_write(path)
    file.truncate(end)
    file.close()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"x" * 12_000)
        assert [len(one) for one in payloads(log)] == [4, 12_000]


def steps_of(fs: CrashFileSystem, work) -> list[tuple[str, str]]:
    steps: list[tuple[str, str]] = []
    fs.on_step = lambda op, path: steps.append((op, path.rpartition("/")[2]))
    work()
    fs.on_step = None
    return steps


def test_a_seal_syncs_in_order():
    """First records, then the footer, the pointer, and the name: one sync for two of them can tear in a crash."""
    fs = CrashFileSystem()
    with open_manager(fs, tiny(preallocate_segments=0)) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.flush()
        log.append_record(b"y")
        with pytest.raises(WouldBlockError):
            log.seal_current_segment()
        found = steps_of(fs, log._context.run_maintenance)
        steps = [one for one in found if one[0] not in {"create", "reserve"} or ".spare" not in one[1]]
        steps = [one for one in steps if ".json" not in one[1] and one != ("sync_dir", "durability")]
        assert steps[0][0] == steps[1][0] == "sync"
        assert steps[2:] == [
            ("create", "current.sealed.tmp"), ("pwrite", "current.sealed.tmp"), ("sync", "current.sealed.tmp"),
            ("rename", "current.sealed"), ("sync_dir", "segments"),
        ]  # fmt: skip


def test_a_first_flush_syncs_in_order():
    """The contents are durable before the name, and a flush returns after the sync of the directory."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        record_id = log.append_record(b"x")
        states = []

        def on_step(op, path):
            states.append((op, log.is_durable(record_id)))

        fs.on_step = on_step
        log.flush_until(record_id)
        fs.on_step = None
        assert states == [("sync", False), ("rename", False), ("sync_dir", False)]
        assert log.is_durable(record_id)


def test_the_pointer_is_never_missing():
    """Removing the old pointer before renaming the new one leaves a moment without any."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.force_rollover(timeout=5)
        missing = []

        def on_step(op, path):
            clones = [fs.clone_after_crash(seed) for seed in range(4)]
            missing.extend(clone for clone in clones if not clone.exists(f"{SEGMENTS}/current.sealed"))

        fs.on_step = on_step
        for _ in range(3):
            log.append_record(b"x")
            log.force_rollover(timeout=5)
        fs.on_step = None
        assert missing == []


def test_a_segment_filled_to_the_last_byte_has_one_successor():
    """If its end is detected twice, two successors get the same position in the log."""
    fs = CrashFileSystem()
    with open_manager(fs, tiny(preallocate_segments=3)) as manager:
        log = manager.log("orders")
        for number in range(6):
            log.append_record_with_timeout(bytes([number + 1]) * (SIZE - 64 - 96 - 24), 5)
            manager.maintain()
        log.flush()
        offsets = [one.base_offset for one in log.segment_snapshot()]
        assert offsets == [number * SIZE for number in range(6)]
        assert [one.base_record_count for one in log.segment_snapshot()] == list(range(6))
        assert len({one.split("_")[1] for one in segment_files(fs)}) == 6


def test_base_offsets_count_headers_records_and_footers():
    """As the document defines them, also after reopening."""
    fs = CrashFileSystem()
    expected = 0
    for number in range(3):
        with open_manager(fs) as manager:
            log = manager.log("orders")
            log.append_record(b"x" * (number + 1))
            assert log.segment_snapshot()[-1].base_offset == expected
            log.force_rollover(timeout=5)
        expected += 64 + 24 + number + 1 + 96


def test_a_writer_that_waits_for_a_segment_is_woken():
    """A segment that is created in the background must wake the waiting writer."""
    with AofManager.open("/aof", tiny(preallocate_segments=0), fs=CrashFileSystem()) as manager:
        log = manager.log("orders")
        done = []

        def work():
            for number in range(40):
                done.append(log.append_record_with_timeout(b"%d" % number * 5_000, None))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert len(done) == 40


def test_a_reserved_first_record_has_its_timestamp_in_the_header():
    """As if it was appended."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        with log.append_reserve(3) as room:
            room.payload[:] = b"abc"
            room.commit()
        log.flush()
        header = decode_header(memoryview(fs.read_all(segment_files(fs)[0], size_max=SIZE))).value
        assert header.base_timestamp == next(iter(log.open_reader())).timestamp > 0


def test_a_failed_pointer_write_only_delays_the_seal():
    """The rollover completes, the segment is sealed later, and the log continues meanwhile."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, error=28, path_part="current.sealed")
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        fs.fail_on("pwrite", 1)
        with pytest.raises(RolloverError):
            log.force_rollover(timeout=5)
        log.append_record_with_timeout(b"two", 5)
        manager.maintain()
        assert [one.state for one in log.segment_snapshot()] == ["sealed", "active"]
        assert payloads(log) == [b"one", b"two"]


def test_the_durability_snapshot_does_not_grow():
    """It contains only segments that are not sealed."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for _ in range(20):
            log.append_record(b"x")
            log.force_rollover(timeout=5)
        log.append_record(b"x")
        path = f"{ROOT}/orders/warm/durability/{log.stream_id:020}.json"
    found = decode_durability(memoryview(fs.read_all(path, size_max=1 << 20))).value
    assert [one.segment_id for one in found] == [20]


@pytest.mark.parametrize("offset", [0, 5, 6, 8, 20, 27])
@pytest.mark.parametrize("records", [0, 1])
def test_a_damaged_header_of_a_sealed_segment_loses_nothing(offset, records):
    """The header has no checksum; name, footer and records have the same values and verify each other."""
    fs = CrashFileSystem()
    clock = ManualClock()
    config = tiny(retention=Retention("time", ttl_s=60)) if not records else tiny()
    with open_manager(fs, config, clock) as manager:
        log = manager.log("orders")
        log.append_records([b"x", b"y"], ext_id=7)
        log.force_rollover(timeout=5)
        clock.advance(0 if records else 100)
        manager.maintain()
        manager.maintain()
        expected = payloads(log)
    path = segment_files(fs)[-1]
    before = fs.read_all(path, size_max=SIZE)
    file = fs.open_write(path)
    file.pwrite(bytes([before[offset] ^ 0x40]), offset)
    file.close()
    for _ in range(2):
        with open_manager(fs) as manager:
            log = manager.log("orders")
            assert log.snapshot().quarantined == ()
            assert payloads(log) == expected
            assert log.snapshot().record_count == 2
        assert fs.read_all(path, size_max=SIZE) == before


def test_a_header_is_not_rebuilt_from_a_damaged_segment():
    """A record is damaged, too: the footer may belong to another segment, so the file is quarantined."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"xyz")
        log.force_rollover(timeout=5)
    (path,) = segment_files(fs)
    file = fs.open_write(path)
    file.pwrite(b"\x01", 20)
    file.pwrite(b"\x01", 64 + 25)
    file.close()
    with open_manager(fs) as manager:
        assert len(manager.log("orders").snapshot().quarantined) == 1


@pytest.mark.parametrize("bit", [bit for bit in range(32) if bit != 14])  # without it the size is 0
def test_a_flipped_bit_in_the_size_of_a_sealed_segment_loses_nothing(bit):
    """The footer is at the position that follows from the length of the file."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.force_rollover(timeout=5)
    (path,) = segment_files(fs)
    file = fs.open_write(path)
    file.pwrite(bytes([file.pread(1, 28 + bit // 8)[0] ^ 1 << bit % 8]), 28 + bit // 8)
    file.close()
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == [b"x"]
        assert fs.stat(path).size_bytes == SIZE


def test_one_of_two_files_of_a_segment_is_quarantined():
    """The other is kept, and the log opens."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"x")
        log.force_rollover(timeout=5)
    (path,) = segment_files(fs)
    data = bytearray(fs.read_all(path, size_max=SIZE))
    data[20:28] = (500).to_bytes(8, "little")
    file = fs.create(f"{SEGMENTS}/{SegmentName(0, 500, 1)}")
    file.pwrite(data, 0)
    file.close()
    with open_manager(fs) as manager:
        assert payloads(manager.log("orders")) == [b"x"]
        assert len(manager.log("orders").snapshot().quarantined) == 1


def test_the_footer_describes_the_segment():
    """Count and payload checksum are right, also after a reopened segment was continued."""
    fs = CrashFileSystem()
    for number in range(3):
        with open_manager(fs) as manager:
            manager.log("orders").append_records([b"%d" % number * 10, b"tail"])
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"end")
        log.force_rollover(timeout=5)
    data = memoryview(fs.read_all(segment_files(fs)[0], size_max=SIZE))
    footer = decode_footer(data[-96:]).value
    again = CrashFileSystem()
    with open_manager(again) as manager:
        log = manager.log("orders")
        log.append_records([b"0" * 10, b"tail", b"1" * 10, b"tail", b"2" * 10, b"tail", b"end"])
        log.force_rollover(timeout=5)
    other = decode_footer(memoryview(again.read_all(segment_files(again)[0], size_max=SIZE))[-96:]).value
    assert (footer.record_count, footer.checksum, footer.durable_bytes) == (7, other.checksum, other.durable_bytes)
    assert footer.last_record_id & 0xFFFF_FFFF > HEADER_BYTES


def test_a_full_disk_during_segment_creation_is_temporary():
    """For every step without space, nothing is lost and no leftovers remain."""
    for operation in ("create", "reserve", "pwrite"):
        for nth in range(1, 8):
            disk = CrashFileSystem()
            fs = FaultFileSystem(disk, error=28)
            log = AofAsLog(fs, rolls=False)
            fs.fail_on(operation, nth)
            for number in range(8):
                for _ in range(3):
                    try:
                        log.append(b"%d" % number * 6_000, durable=True)
                    except Exception:
                        log.upkeep()
                    else:
                        break
            expected = [b"%d" % number * 6_000 for number in range(8)]
            assert log.read() == expected, (operation, nth)
            log.close()
            with open_manager(disk.clone_after_crash(0)) as again:
                assert payloads(again.log("orders")) == expected


def test_close_packs_no_segment_again():
    """A log that packs each sealed segment again on every close wears out its disk."""
    fs = CrashFileSystem()
    packed: list[str] = []
    fs.on_step = lambda op, path: packed.append(path) if op == "create" and ".zst" in path else None
    for _ in range(3):
        with open_manager(fs, tiny(compression="zstd")) as manager:
            log = manager.log("orders")
            log.append_record(b"x")
            log.force_rollover(timeout=5)
            manager.maintain()
    assert len(packed) == len(set(packed)) == 3


def test_an_evicted_segment_is_counted_once():
    """However often the eviction is requested."""
    with open_manager(CrashFileSystem(), tiny(tiers=TierConfig())) as manager:
        log = manager.log("orders")
        for _ in range(2):
            log.append_record(b"x")
            log.force_rollover(timeout=5)
        for _ in range(3):
            log.tiers.evict(0)
            manager.maintain()
        counts = log.tiers.snapshot().counts
        assert (counts.evictions, counts.compressions, counts.hydrations) == (1, 1, 0)


def test_an_async_append_larger_than_any_segment_fails():
    """If it waited for a segment that is large enough, it would wait forever, and use up segments meanwhile."""

    async def append(log: Aof) -> None:
        with pytest.raises(InvalidRecordError):
            await asyncio.wait_for(log.append_record_async(b"x" * SIZE), 30)

    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        asyncio.run(append(log))
        log.append_record(b"y")
        assert [one.segment_id for one in log.segment_snapshot()] == [0]


def test_a_pointer_to_a_missing_segment_prevents_reuse_of_its_id():
    """The pointer is not used to find segments, but its id is not used again."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for _ in range(2):
            log.append_record(b"x")
            log.force_rollover(timeout=5)
    fs.remove(segment_files(fs)[-1])
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"x"]
        assert log.append_record(b"y") >> 32 == 2


def test_foreign_files_do_not_prevent_opening():
    """A name in `segments/` that is not parsed does not stop recovery and is not removed."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        manager.log("orders").append_record(b"x")
    stray = [f"{SEGMENTS}/{name}.seg" for name in ("notes", "1_2_3", "00000000000000000000_00000000000000000000_x")]
    for path in stray:
        fs.create(path).close()
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert payloads(log) == [b"x"]
        log.append_record(b"y")
        log.force_rollover(timeout=5)
    assert all(fs.exists(path) for path in stray)


def test_a_log_keeps_its_number():
    """Regardless of the order and number of opens: names of chunks and objects contain it."""
    fs = CrashFileSystem()
    with open_manager(fs) as manager:
        numbers = {name: manager.log(name).stream_id for name in ("one", "two", "three")}
        manager.log("two").close()
        assert manager.log("two").stream_id == numbers["two"]
    with open_manager(fs) as manager:
        for name in ("three", "one", "two"):
            assert manager.log(name).stream_id == numbers[name]
    assert len(set(numbers.values())) == 3
