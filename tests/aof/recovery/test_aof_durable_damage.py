"""Damage to the active segment, before its durable end: intact records are read, and lost ones are reported once."""

from __future__ import annotations

import pytest
from aof_as_log import ROOT, SEGMENTS, open_manager, tail_of, tiny

from disk_files import overwrite
from quiver.aof import Reader, TierConfig
from quiver.aof.format.record import encode_record
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.reading.check import check_log_directory
from quiver.aof.reading.files import LogFiles
from quiver.errors import DataLossError
from quiver.testing.crashfs import CrashFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

LOG = f"{ROOT}/orders"
SIZE = 16 * 1024
HEAD = 24
RECORDS = [bytes([65 + number]) * 50 for number in range(6)]
RECORD_BYTES = HEAD + 50


def closed(*, sealed: int = 1) -> tuple[CrashFileSystem, dict[int, bytes]]:
    """A closed log with sealed segments of three records, and an active segment of six."""
    fs, written = CrashFileSystem(), {}
    with open_manager(fs) as manager:
        log = manager.log("orders")
        for _ in range(sealed):
            written |= dict(zip(log.append_records(RECORDS[:3]), RECORDS[:3], strict=True))
            log.force_rollover(timeout=1)
        written |= dict(zip(log.append_records(RECORDS), RECORDS, strict=True))
    return fs, written


def cut(fs, path, size):
    file = fs.open_write(path)
    file.truncate(size)
    file.sync()
    file.close()


def drained(reader):
    """Return the records of a reader, and how often it raised."""
    found, losses = {}, 0
    while True:
        try:
            for record in reader:
                found[record.record_id] = bytes(record.payload)
        except DataLossError:
            losses += 1
        else:
            return found, losses


def beside(fs, **options):
    return Reader(LogFiles(LOG, fs=fs), 0, **options)


SECOND = HEADER_BYTES + RECORD_BYTES
DAMAGE = {
    "a payload": ([(SECOND + 30, b"x")], [1]),
    "a length": ([(SECOND, b"\xff\xff\xff\x7f")], [1]),
    "zeros": ([(SECOND + 10, bytes(2 * RECORD_BYTES))], [1, 2, 3]),
    "the first record": ([(HEADER_BYTES + 2, b"xxx")], [0]),
    "the last record": ([(HEADER_BYTES + 5 * RECORD_BYTES + 40, b"x")], [5]),
    "two places": ([(SECOND + 30, b"x"), (SECOND + 2 * RECORD_BYTES + 30, b"x")], [1, 3]),
    "all of it": ([(HEADER_BYTES, bytes(6 * RECORD_BYTES))], [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize(("changes", "lost"), DAMAGE.values(), ids=DAMAGE)
def test_intact_records_after_damage_are_read(changes, lost):
    """The segment was truncated at the first damaged record: later records were lost, and their ids were reused."""
    fs, written = closed()
    path, _ = tail_of(fs)
    ids = sorted(written)[3:]
    for offset, data in changes:
        overwrite(fs, path, offset, data)
    expected = {one: written[one] for one in written if one not in {ids[number] for number in lost}}
    assert drained(beside(fs))[0] == expected
    new = 0
    for _ in range(2):
        with open_manager(fs) as manager:
            log = manager.log("orders")
            assert log.snapshot().quarantined == ()
            new = new or log.append_record(b"new")
            found, losses = drained(log.open_reader())
            assert found == expected | {new: b"new"}
            assert losses
            reader = log.open_reader(on_lost="skip")
            assert drained(reader) == (found, 0)
            assert all(any(first <= ids[one] < after for first, after in reader.lost) for one in lost)
            assert not any(first <= one < after for first, after in reader.lost for one in found)
    assert new not in written
    assert check_log_directory(fs, "orders", LOG, read_records=True).damaged


@pytest.mark.parametrize("number", range(6))
def test_records_after_the_durable_end_are_kept_too(number):
    """A killed process loses no written record, regardless of other damage; a torn record is truncated."""
    fs, _ = closed()
    path, end = tail_of(fs)
    new = [b"written", b"not synced"]
    data = b"".join(encode_record(one, timestamp=1_700_000_000_000_000_000) for one in new)
    overwrite(fs, path, end, data + b"\x05\0\0\0torn")
    overwrite(fs, path, HEADER_BYTES + number * RECORD_BYTES + 30, b"x")
    with open_manager(fs) as manager:
        log = manager.log("orders")
        found = [record.payload for record in log.open_reader(on_lost="skip")]
        assert found == RECORDS[:3] + [one for one in RECORDS if one != RECORDS[number]] + new
        assert log.snapshot().record_count == 3 + 6 + 2
        assert log.append_record(b"more") >> 32 == 2


@pytest.mark.parametrize("left", [HEADER_BYTES + 2 * RECORD_BYTES + 10, HEADER_BYTES + 3 * RECORD_BYTES, 70])
def test_a_truncated_file_keeps_its_ids(left):
    """The ids of lost records are not reused, and readers report the loss."""
    fs, written = closed()
    cut(fs, tail_of(fs)[0], left)
    complete = 3 + max(0, left - HEADER_BYTES) // RECORD_BYTES
    expected = {one: written[one] for one in sorted(written)[:complete]}
    for reader in (beside(fs), None):
        if reader is None:
            with open_manager(fs) as manager:
                new = manager.log("orders").append_record(b"new")
                found, losses = drained(manager.log("orders").open_reader())
            assert new > max(written)
            assert found.pop(new) == b"new"
        else:
            found, losses = drained(reader)
        assert (found, losses) == (expected, 1)


@pytest.mark.parametrize("sealed", [0, 2])
@pytest.mark.parametrize("at", [0, 4, 9, 20, 30, 44, 60])
def test_a_damaged_header_of_the_open_segment_is_rebuilt(at, sealed):
    """The segment was quarantined with all its records, and readers did not report it."""
    fs, written = closed(sealed=sealed)
    path, _ = tail_of(fs)
    before = fs.read_all(path, size_max=SIZE)
    overwrite(fs, path, at, bytes([before[at] ^ 0x55]))
    assert drained(beside(fs)) == (written, 0)
    for _ in range(2):
        with open_manager(fs) as manager:
            log = manager.log("orders")
            assert log.snapshot().quarantined == ()
            assert drained(log.open_reader()) == (written, 0)
            assert log.snapshot().record_count == len(written)


@pytest.mark.parametrize("how", ["removed", "empty", "zeros"])
def test_a_missing_active_segment_is_reported(how):
    """Its ids are not reused: a follower in the middle of it would mistake other records for its own."""
    fs, written = closed()
    path, _ = tail_of(fs)
    if how == "removed":
        fs.remove(path)
        fs.sync_dir(SEGMENTS)
    else:
        cut(fs, path, 0 if how == "empty" else 1)
        cut(fs, path, 0 if how == "empty" else SIZE)
    assert check_log_directory(fs, "orders", LOG, read_records=True).damaged
    expected = {one: written[one] for one in sorted(written)[:3]}
    for _ in range(2):
        with open_manager(fs) as manager:
            assert manager.log("orders").snapshot().missing
        assert check_log_directory(fs, "orders", LOG, read_records=True).damaged
    with open_manager(fs) as manager:
        log = manager.log("orders")
        assert log.snapshot().missing
        new = log.append_record(b"new")
        assert new > max(written)
        assert drained(log.open_reader()) == (expected | {new: b"new"}, 1)
        log.flush()
    assert check_log_directory(fs, "orders", LOG, read_records=True).damaged
    assert drained(beside(fs)) == (expected | {new: b"new"}, 1)


def test_other_processes_read_the_open_segment_with_a_damaged_pointer():
    """The reader ended silently after the newest sealed segment, because this one was not known to be sealed."""
    fs, written = closed()
    overwrite(fs, f"{SEGMENTS}/current.sealed", 0, b"\xff" * 8)
    for durable_only in (False, True):
        assert drained(beside(fs, durable_only=durable_only)) == (written, 0)


def test_the_lost_range_of_an_unknown_segment_covers_all_of_it():
    """It was empty: its end was its start."""
    fs, written = closed()
    cut(fs, tail_of(fs)[0], 0)
    reader = beside(fs, on_lost="skip")
    assert sorted(drained(reader)[0]) == sorted(written)[:3]
    assert reader.lost == [(1 << 32 | HEADER_BYTES, 2 << 32 | HEADER_BYTES)]


def test_a_segment_that_was_sealed_with_damage_is_not_uploaded():
    """It stays on the disk, and callers that wait for it get the reason. Later segments are uploaded."""
    fs, written = closed()
    path, _ = tail_of(fs)
    overwrite(fs, path, SECOND + 30, b"x")
    with open_manager(fs, tiny(tiers=TierConfig(objects="/cold"))) as manager:
        log = manager.log("orders")
        manager.maintain()
        assert list(log.tiers.uploads.damaged) == [1]
        log.append_record(b"new", durable="object")
        assert log.tiers.snapshot().upload_lag_bytes == 6 * RECORD_BYTES
        assert len(drained(log.open_reader())[0]) == len(written)
