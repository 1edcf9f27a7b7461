"""
Lost records were retired before they were read, removed manually, or damaged. A reader reports each range once and
continues after it, or skips the range and records it.
"""

from __future__ import annotations

import contextlib
import os
from random import Random

import pytest
from aof_as_log import ROOT, open_manager, payloads, segment_files, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tier_samples import COLD, cold_disk

from disk_files import overwrite
from quiver.aof import AofManager, Retention, TierConfig
from quiver.aof.format.record import RECORD_HEAD_BYTES
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.reader import Reader
from quiver.errors import (
    CorruptionError,
    DataLossError,
    StoreFailedError,
    UnknownRecordError,
    UsageError,
    WouldBlockError,
)
from quiver.objects.directory import DirectoryObjects
from quiver.observe import InMemoryObserver
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

WARM = f"{ROOT}/orders/warm"
SIZE = 16 * 1024


def opened(fs, config=None, observer=None) -> AofManager:
    return AofManager.open(
        ROOT, config or tiny(), fs=fs, clock=ManualClock(), background=False, observer=observer
    )  # fmt: skip


def fill(log, count, *, start=0) -> list[bytes]:
    """Write *count* sealed segments of three records each; return their payloads."""
    written = []
    for number in range(start, start + count):
        records = [b"%d.%d." % (number, part) * (50 + part) for part in range(3)]
        log.append_records_with_timeout(records, 5)
        log.force_rollover(timeout=5)
        written += records
    return written


def all_of(reader) -> tuple[list[bytes], list[DataLossError]]:
    """Return everything that a reader yields, and everything that it raises."""
    found, lost = [], []
    while True:
        try:
            for record in reader:
                found.append(bytes(record.payload))
        except DataLossError as error:
            lost.append(error)
        else:
            return found, lost


def runs_of(reader) -> tuple[list[bytes], list[DataLossError]]:
    """Return the same as `all_of`, read as runs."""
    found, lost = [], []
    while True:
        try:
            for run in reader.runs():
                found += run.to_arrow().column("payload").to_pylist()
        except DataLossError as error:
            lost.append(error)
        else:
            return found, lost


def beside(fs, objects=None) -> LogFiles:
    return LogFiles(f"{ROOT}/orders", fs=fs, objects=objects)


EXPIRING = tiny(retention=Retention("size", max_total_bytes=SIZE, action="expire"))


@pytest.mark.parametrize("config", [EXPIRING, tiny(retention=EXPIRING.retention, tiers=TierConfig())])
def test_a_follower_reports_records_removed_by_retention(config):
    """It was inside the first segment; the next record is hundreds of records later."""
    observer = InMemoryObserver()
    with opened(CrashFileSystem(), config, observer) as manager:
        log = manager.log("orders")
        log.append_records([b"%d" % number for number in range(300)])
        follower, other = log.tail_follower(0, durable_only=False), log.tail_follower(0, on_lost="skip")
        log.flush()
        assert [follower.next(0).payload for _ in range(200)] == [b"%d" % number for number in range(200)]
        assert [other.next(0).payload for _ in range(200)][-1] == b"199"
        for number in range(300, 1500, 300):
            log.force_rollover(timeout=5)
            log.append_records_with_timeout([b"%d" % one for one in range(number, number + 300)], 5)
        log.force_rollover(timeout=5)
        manager.maintain()
        first = int(payloads(log)[0])
        assert first > 300
        # It reads its mapped segment to the end.
        seen = []
        with pytest.raises(
            DataLossError, match=rf"records from \d+ on are lost .*; the reader continues at {first_id(log)}"
        ):
            while True:
                seen.append(int(follower.next(0).payload))
        assert seen in ([], list(range(200, 300)))
        assert int(follower.next(0).payload) == first
        assert int(other.next(0).payload) in {200, first}
        lost = observer.counts[("aof_records_lost_total", (("kind", "gone"),))]
        assert lost == first - (seen or [199])[-1] - 1


def first_id(log) -> int:
    return next(iter(log.open_reader())).record_id


def test_a_reader_reports_a_missing_segment():
    """599 → 800: a file was removed manually. Opening reports it, and so does every reader that crosses it."""
    fs, observer = CrashFileSystem(), InMemoryObserver()
    with opened(fs) as manager:
        written = fill(manager.log("orders"), 4)
    fs.remove(segment_files(fs)[1])
    with opened(fs, observer=observer) as manager:
        log = manager.log("orders")
        assert observer.counts[("aof_recovery_findings_total", (("kind", "missing"),))] == 1
        ((first, behind),) = log.snapshot().missing
        assert (first >> 32, behind) == (0, 2 << 32 | HEADER_BYTES)
        for read in (all_of, runs_of):
            found, (error,) = read(log.open_reader())
            assert found == written[:3] + written[6:]
            assert "3 records from" in str(error)
            assert f"the reader continues at {2 << 32 | HEADER_BYTES}" in str(error)
        for reader in (log.open_reader(on_lost="skip"), Reader(beside(fs), 0, on_lost="skip")):
            assert all_of(reader) == (written[:3] + written[6:], [])
            assert reader.lost == [(first, behind)]
            assert reader.skipped == 3
        found, (error,) = all_of(Reader(beside(fs), 0))
        assert found == written[:3] + written[6:]
        assert observer.total("aof_records_lost_total") == 9


def test_a_file_removed_from_an_open_log_is_reported():
    """The log remembers that the file existed."""
    fs = CrashFileSystem()
    with opened(fs) as manager:
        log = manager.log("orders")
        written = fill(log, 3)
        fs.remove(segment_files(fs)[1])
        found, (error,) = all_of(log.open_reader())
        assert found == written[:3] + written[6:]
        assert "3 records from" in str(error)
        assert "segment 1 has no file" in str(error)


def test_the_id_of_an_expired_record_is_unknown():
    """An id in a removed segment is not a valid start: no other record is read instead, unless requested."""
    fs = CrashFileSystem()
    with opened(fs, EXPIRING) as manager:
        log = manager.log("orders")
        expired = log.append_record(b"first")
        log.force_rollover(timeout=5)
        written = fill(log, 3)
        manager.maintain()
        kept = payloads(log)
        assert kept == written[-3:]
        for sources in (log, beside(fs)):
            opens = log.open_reader if sources is log else lambda one, **how: Reader(sources, one, **how)
            for wrong in (expired, expired + 30, 1 << 32, 1 << 32 | 4000):
                reader = opens(wrong)
                for _ in range(2):
                    with pytest.raises(UnknownRecordError, match="is missing; the log continues with record"):
                        list(reader)
                with pytest.raises(UnknownRecordError):
                    list(reader.runs())
                reader = opens(wrong, on_lost="skip")
                assert all_of(reader) == (kept, [])
                assert [first for first, _ in reader.lost] == [wrong]
            with pytest.raises(UnknownRecordError, match="none begins at"):
                list(opens(3 << 32 | 15_000))
        with pytest.raises(UnknownRecordError):
            log.tail_follower(expired).next(0)
        with pytest.raises(UnknownRecordError):
            log.read_record(expired)
        assert all_of(log.open_reader(0)) == (kept, [])


def test_nothing_is_lost_after_the_last_record_of_a_removed_segment():
    """Readers and followers at its end continue with the next segment, whether they read it or started there."""
    fs = CrashFileSystem()
    with opened(fs, EXPIRING) as manager:
        log = manager.log("orders")
        log.append_record(b"one")
        reader, follower, new = log.open_reader(), log.tail_follower(0), log.tail_follower()
        log.flush()
        end = Reader(beside(fs), new._reader.position)
        assert payloads(log) == [record.payload for record in reader] == [follower.next(0).payload] == [b"one"]
        log.force_rollover(timeout=5)
        written = fill(log, 1, start=1)
        manager.maintain()
        assert len(segment_files(fs)) == 1
        for one in (reader, end):
            assert all_of(one) == (written, [])
        for one in (follower, new):
            assert [one.next(0).payload for _ in range(3)] == written


def test_a_follower_from_the_end_reports_losses_too():
    """It started at the end of the log, in a segment that did not exist yet, and was never polled."""
    fs = CrashFileSystem()
    with opened(fs, EXPIRING) as manager:
        log = manager.log("orders")
        fill(log, 1)
        follower = log.tail_follower()
        written = fill(log, 3)
        manager.maintain()
        with pytest.raises(DataLossError, match="6 records from"):
            follower.next(0)
        assert follower.next(0).payload == written[-3]
        with pytest.raises(DataLossError, match="segments from 1 on are gone; the follower goes on with 3"):
            follower.next_sealed_segment(0)
        assert follower.next_sealed_segment(0) == 3
        assert follower.next_sealed_segment(0) is None


# ---- damaged records


def heads_of(payload_sizes) -> list[int]:
    """Return where records of these sizes begin."""
    found, at = [], HEADER_BYTES
    for size in payload_sizes:
        found.append(at)
        at += RECORD_HEAD_BYTES + size
    return found


WRONG_LENGTHS = {
    "longer than the segment": (1 << 31).to_bytes(4, "little"),
    "zero": bytes(4),
    "into the next record": (700).to_bytes(4, "little"),
    "into itself": (3).to_bytes(4, "little"),
}


@pytest.mark.parametrize("which", [0, 3, 9])
@pytest.mark.parametrize("length", WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
@pytest.mark.parametrize("indexed", [False, True])
def test_a_bad_length_loses_one_record(which, length, indexed):
    """The next record is found by time and checksum; an index helps but is not necessary."""
    fs = CrashFileSystem()
    records = [bytes([65 + number]) * (100 + 50 * number) for number in range(10)]
    with opened(fs, tiny(enable_sparse_index=indexed)) as manager:
        log = manager.log("orders")
        ids = log.append_records(records)
        log.force_rollover(timeout=5)
        log.find_record(1)
        written = fill(log, 1)
    overwrite(fs, segment_files(fs)[0], ids[which], length)
    rest = records[:which] + records[which + 1 :] + written
    with opened(fs, tiny(enable_sparse_index=indexed)) as manager:
        log = manager.log("orders")
        for sources in (log, beside(fs)):
            for read in (all_of, runs_of):
                reader = log.open_reader() if sources is log else Reader(sources, 0)
                found, (error,) = read(reader)
                assert found == rest
                assert f"record {ids[which]} is lost" in str(error)
        reader = log.open_reader(on_damage="skip")
        assert all_of(reader) == (rest, [])
        assert reader.skipped == 1
        assert [first for first, _ in reader.lost] == [ids[which]]
        for number, record_id in enumerate(ids):
            if number != which:
                assert log.read_record(record_id).payload == records[number]
                assert next(iter(log.open_reader(record_id))).payload == records[number]
        with pytest.raises(CorruptionError):
            log.read_record(ids[which])


def test_a_page_of_zeros_or_junk_loses_only_its_records():
    """Several consecutive records are lost, and the error has their number."""
    records = [b"%04d" % number * 30 for number in range(90)]
    for junk in (bytes(4096), b"\xa5" * 4096):
        fs = CrashFileSystem()
        with opened(fs) as manager:
            log = manager.log("orders")
            ids = log.append_records(records)
            log.force_rollover(timeout=5)
        overwrite(fs, segment_files(fs)[0], 4096, junk)
        hit = [n for n, at in enumerate(ids) if at < 8192 and at + RECORD_HEAD_BYTES + 120 > 4096]
        observer = InMemoryObserver()
        with opened(fs, observer=observer) as manager:
            found, (error,) = all_of(manager.log("orders").open_reader())
            assert found == records[: hit[0]] + records[hit[-1] + 1 :]
            assert f"{len(hit)} records from {ids[hit[0]]} on are lost" in str(error)
            assert f"the reader continues at {ids[hit[-1] + 1]}" in str(error)
            assert observer.counts[("aof_records_lost_total", (("kind", "damaged"),))] == len(hit)


def test_a_record_within_a_payload_is_not_a_record_of_the_log():
    """A payload contains the bytes of complete records. With its own length damaged, they are still not returned."""
    fs = CrashFileSystem()
    with opened(fs) as manager:
        log = manager.log("orders")
        log.append_records([b"first", b"second"])
        log.flush()
        inner = fs.read_all(segment_files(fs)[0], size_max=SIZE)[HEADER_BYTES:160]
        inner = inner[: 2 * RECORD_HEAD_BYTES + 11]
        outer = log.append_record(inner)
        log.append_record(b"last")
        log.force_rollover(timeout=5)
    overwrite(fs, segment_files(fs)[0], outer, bytes(4))
    with opened(fs) as manager:
        found, lost = all_of(manager.log("orders").open_reader())
        assert (found, len(lost)) == ([b"first", b"second", b"last"], 1)


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=20),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_damage_to_one_record_leaves_the_others_readable(sizes, data):
    """Whichever bytes replace it, the others are read unchanged and in order, and none is invented."""
    fs = CrashFileSystem()
    records = [bytes([number % 250 + 1]) * size for number, size in enumerate(sizes)]
    with opened(fs) as manager:
        log = manager.log("orders")
        ids = log.append_records(records)
        log.force_rollover(timeout=5)
    which = data.draw(st.integers(0, len(sizes) - 1))
    room = RECORD_HEAD_BYTES + sizes[which]
    at = data.draw(st.integers(0, room - 1))
    junk = data.draw(st.binary(min_size=1, max_size=room - at))
    overwrite(fs, segment_files(fs)[0], ids[which] + at, junk)
    others = records[:which] + records[which + 1 :]
    with opened(fs) as manager:
        log = manager.log("orders")
        for sources in (log, beside(fs)):
            reader = log.open_reader(on_lost="skip") if sources is log else Reader(sources, 0, on_lost="skip")
            found = [(one.record_id, bytes(one.payload)) for one in reader]
            assert [one for one in found if one[0] != ids[which]] == [
                (one, payload) for one, payload in zip(ids, records, strict=True) if one != ids[which]
            ]
            assert all(payload == records[which] for one, payload in found if one == ids[which])
            assert len(found) + len(reader.lost) == len(others) + 1


# ---- segments without a file


def tiered(**changes):
    """Everything that can be evicted is evicted immediately."""
    return tiny(tiers=TierConfig(**{"tier0_max_bytes": 0, **changes}))


def copies_in(fs, config) -> list[str]:
    """Return the only copies of segments 0, 1 and 2: packed files, or objects."""
    if config.tiers.objects is None:
        return [f"{WARM}/{name}" for name in fs.list_dir(WARM) if name.endswith(".zst")]
    return [f"{COLD}/{info.key}" for info in DirectoryObjects(fs, COLD, clock=ManualClock()).list_below("")]


CONFIGS = {"warm": tiered(), "object": tiered(objects=COLD, warm_max_bytes=0)}


def readers(log, fs, config, **how):
    """A reader of the log, one that does not wait, and one of another process, before any segment is hydrated."""
    yield Reader(beside(fs, config.tiers.objects), 0, **how)
    yield log.open_reader(0, **how)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_missing_copy_loses_its_segment(config):
    """It was the only copy: all other segments are read by all readers, and opening the log reports the loss."""
    fs, observer = cold_disk(), InMemoryObserver()
    with opened(fs, config) as manager:
        written = fill(manager.log("orders"), 4)
        manager.maintain()
    fs.remove(copies_in(fs, config)[1])
    rest = written[:3] + written[6:]
    with opened(fs, config, observer) as manager:
        log = manager.log("orders")
        for reader in readers(log, fs, config):
            found, (error,) = all_of(reader)
            assert found == rest
            assert "3 records from" in str(error)
            assert all_of(reader) == ([], [])
        for how in ({"on_lost": "skip"}, {"on_damage": "skip"}):
            for reader in readers(log, fs, config, **how):
                assert all_of(reader) == (rest, [])
                assert reader.skipped == 3
        assert runs_of(log.open_reader(on_lost="skip"))[0] == rest
        follower = log.tail_follower(0)
        with pytest.raises(DataLossError):
            list(iter(lambda: follower.next(0), None))
        assert [follower.next(0).payload for _ in range(6)] == written[6:]
    with opened(fs, config, observer) as manager:
        found = manager.log("orders").snapshot().missing
        assert [first >> 32 for first, _ in found] == [1]
    assert not check_log_directory(fs, "orders", f"{ROOT}/orders", read_records=False).is_intact


def test_a_reader_that_does_not_wait_continues_after_a_missing_copy():
    """It gets an error when the segment cannot be hydrated."""
    fs = cold_disk()
    config = CONFIGS["object"]
    with opened(fs, config) as manager:
        written = fill(manager.log("orders"), 4)
        manager.maintain()
    fs.remove(copies_in(fs, config)[1])
    with opened(fs, tiny(tiers=TierConfig(objects=COLD))) as manager:
        reader = manager.log("orders").open_reader(wait=False, on_damage="skip")
        found = []
        for _ in range(20):
            with contextlib.suppress(WouldBlockError):
                for record in reader:
                    found.append(record.payload)
            manager.maintain()
        assert found == written[:3] + written[6:]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_damaged_copy_loses_only_its_bad_records(config):
    """For any flipped bit, records with a valid checksum are read, the rest is reported, and no file is restored."""
    for place in range(20, 100, 8):
        fs = cold_disk()
        with opened(fs, config) as manager:
            written = fill(manager.log("orders"), 4)
            manager.maintain()
        path = copies_in(fs, config)[1]
        at = fs.stat(path).size_bytes * place // 100
        (byte,) = fs.read_all(path, size_max=SIZE)[at : at + 1]
        overwrite(fs, path, at, bytes([byte ^ 4]))
        with opened(fs, config) as manager:
            log = manager.log("orders")
            for reader in readers(log, fs, config):
                found, lost = all_of(reader)
                kept = [payload for payload in found if payload in written[3:6]]
                assert found == written[:3] + kept + written[6:]
                assert len(lost) >= (3 - len(kept) > 0)
            assert lost  # another process reads a copy in chunks, and a flipped bit outside of records is not noticed
            for reader in readers(log, fs, config, on_damage="skip"):
                assert all_of(reader) == (written[:3] + kept + written[6:], [])
            assert len(segment_files(fs)) == 3  # all others were hydrated


def test_one_bad_frame_of_a_packed_segment_loses_only_its_records():
    """Records in the other frames are unpacked, whether or not the first frame can be."""
    big = tiny(tiers=TierConfig(), segment_max_bytes=8 << 20, segment_min_bytes=8 << 20, segment_target_bytes=8 << 20)
    for bad in (0, 1, 3):
        fs = cold_disk()
        random = Random(bad)
        records = [random.randbytes(40_000) for _ in range(100)]
        with opened(fs, big) as manager:
            log = manager.log("orders")
            for record in records:
                log.append_record_with_timeout(record, 5)
            log.force_rollover(timeout=5)
            log.append_record(b"last")
            log.force_rollover(timeout=5)
            log.tiers.evict(0)
        (path,) = copies_in(fs, big)
        # Incompressible bytes are stored: a frame is about as long as its bytes. Its magic marks it as a frame.
        overwrite(fs, path, fs.stat(path).size_bytes * bad // 4 + (bad > 0) * 200, bytes(40))
        with opened(fs, big) as manager:
            log = manager.log("orders")
            found, lost = all_of(log.open_reader())
            assert found[-1] == b"last"
            assert 70 <= len(found) < 101
            assert set(found) <= {*records, b"last"}
            assert found == [one for one in [*records, b"last"] if one in set(found)]
            assert all_of(Reader(beside(fs), 0))[0] == found
            assert len(lost) == 1


def test_a_reader_from_a_time_starts_at_the_damage():
    """If the record of that time is lost, the reader reports it and reads the following ones."""
    fs = cold_disk()
    clock = ManualClock()
    with open_manager(fs, tiered(), clock) as manager:
        log = manager.log("orders")
        times, written = [], []
        for number in range(3):
            clock.advance(10)
            times.append(clock.now_ns())
            written += fill(log, 1, start=number)
        manager.maintain()
        fs.remove(copies_in(fs, tiered())[1])
        with pytest.raises(CorruptionError):
            log.find_record(times[1])
        found, (error,) = all_of(log.open_reader(timestamp=times[1]))
        assert found == written[6:]
        assert f"from {1 << 32 | HEADER_BYTES} on are lost" in str(error)
        assert log.find_record(times[2]) == 2 << 32 | HEADER_BYTES


# ---- files with damage outside of records


@pytest.mark.parametrize("what", ["header", "footer", "both"])
def test_other_processes_read_a_segment_without_header_or_footer(what):
    """The range of its records is known from its name and the next segment."""
    fs = CrashFileSystem()
    with opened(fs) as manager:
        written = fill(manager.log("orders"), 3)
    path = segment_files(fs)[1]
    if what != "footer":
        overwrite(fs, path, 0, bytes(HEADER_BYTES))
    if what != "header":
        overwrite(fs, path, SIZE - FOOTER_BYTES, bytes(FOOTER_BYTES))
    for durable_only in (True, False):
        found, (error,) = all_of(Reader(beside(fs), 0, durable_only=durable_only))
        assert found == written
        assert error.path == path
        assert all_of(Reader(beside(fs), 0, on_lost="skip", durable_only=durable_only)) == (written, [])
    overwrite(fs, path, HEADER_BYTES, bytes(4))
    found, lost = all_of(Reader(beside(fs), 0))
    assert (found, len(lost)) == (written[:3] + written[4:], 1)


def test_a_truncated_file_loses_only_the_truncated_records():
    """In an open log, and in another process: no reader mistakes the end of the file for the end of the log."""
    fs = CrashFileSystem()
    with opened(fs) as manager:
        written = fill(manager.log("orders"), 3)
    path = segment_files(fs)[1]
    file = fs.open_write(path)
    file.truncate(HEADER_BYTES + RECORD_HEAD_BYTES + len(written[3]) + 10)
    file.close()
    found, (error,) = all_of(Reader(beside(fs), 0))
    assert found == written[:4] + written[6:]
    assert "2 records from" in str(error) or "records from" in str(error)


def test_a_pipe_instead_of_a_segment_is_a_damaged_segment(tmp_path):
    """Another process reads all other segments."""
    root = str(tmp_path / "aof")
    with AofManager.open(root, tiny(), background=False) as manager:
        written = fill(manager.log("orders"), 3)
    path = sorted((tmp_path / "aof/orders/segments").glob("*_*_*.seg"))[1]
    path.unlink()
    os.mkfifo(path)
    found, (error,) = all_of(Reader(LogFiles(f"{root}/orders"), 0))
    assert found == written[:3] + written[6:]
    assert "a pipe, a socket or a device" in str(error)
    checked = check_log_directory(REAL_FILES, "orders", f"{root}/orders", read_records=True)
    assert [finding.path for finding in checked.findings if "pipe" in finding.reason] == [str(path)]


def test_loss_policies_are_raise_or_skip():
    with opened(CrashFileSystem()) as manager:
        for wrong in ({"on_lost": "ignore"}, {"on_damage": "stop"}):
            with pytest.raises(UsageError, match="neither raise nor skip"):
                manager.log("orders").open_reader(**wrong)


def test_a_follower_of_a_failed_log_raises():
    """It waited forever for records that can never become durable. All durable records come first."""
    fs = CrashFileSystem()
    with opened(fs) as manager:
        log = manager.log("orders")
        follower = log.tail_follower(log.append_record(b"durable"))
        log.flush()
        log.append_record(b"not durable")
        log._context.fail("a thread died")
        assert follower.next(timeout=0).payload == b"durable"
        for wait in (follower.next, follower.next_sealed_segment):
            with pytest.raises(StoreFailedError, match="a thread died"):
                wait(timeout=0)
    assert follower.next(timeout=0) is None
