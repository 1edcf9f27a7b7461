"""Searches by time and by number: with or without a valid index, the result equals that of a scan over all heads."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from aof_as_log import ROOT, open_manager, payloads, tiny

from quiver.aof import AofManager, Retention, TierConfig
from quiver.aof.format.describe import AOF_FILES
from quiver.aof.format.names import index_name, parse_index_name
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.format.sparse_index import INDEX_HEADER, IndexMark, SparseIndex, decode_index, encode_index
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.index import before_number, before_time
from quiver.aof.reading.search import first_at
from quiver.observe import InMemoryObserver
from quiver.primitives.checksum import crc64_nvme
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

INDEXES = f"{ROOT}/orders/index"
LARGE = {"segment_min_bytes": 1 << 18, "segment_target_bytes": 1 << 18, "segment_max_bytes": 1 << 18}
INDEX = SparseIndex(7, 4096, 70_000, (IndexMark(0, 64, 100), IndexMark(12, 65_000, 100)))


class Filled:
    """A log of two sealed segments of a few marks each, and a tail; every second record has its own time."""

    def __init__(self, fs=None, **settings) -> None:
        self.fs = fs or CrashFileSystem()
        self.clock = ManualClock()
        self.config = tiny(**{**LARGE, **settings})
        self.manager = open_manager(self.fs, self.config, self.clock)
        self.log = self.manager.log("orders")
        self.records = []
        for number in range(96):
            self.clock.advance(1 if number % 2 else 0)
            record_id = self.log.append_record_with_timeout(b"%d." % number * (number * 37 % 2000 + 1), 5)
            if number in (40, 80):
                self.log.force_rollover(timeout=5)
            self.records.append(self.log.read_record(record_id))

    def check(self, log=None) -> None:
        """Check that every time and every number finds the right record."""
        log = log or self.log
        times = [record.timestamp for record in self.records]
        for moment in {one + step for one in times for step in (-1, 0, 1)}:
            at = bisect_left(times, moment)
            expected = self.records[at].record_id if at < len(times) else None
            assert log.find_record(moment) == expected
        assert [log.find_record_number(number) for number in range(len(times))] == [
            record.record_id for record in self.records
        ]
        assert log.find_record_number(len(times)) is None


def test_a_search_finds_the_same_record_as_a_scan():
    """By time and by number; the first search stores an index of each sealed segment, which later ones use."""
    filled = Filled()
    assert not filled.fs.exists(INDEXES)
    filled.check()
    names = sorted(filled.fs.list_dir(INDEXES))
    assert [parse_index_name(name)[0] for name in names] == [0, 1]
    data = filled.fs.read_all(f"{INDEXES}/{names[0]}", size_max=10_000)
    answer = decode_index(memoryview(data))
    assert isinstance(answer, Frame)
    assert len(answer.value.marks) >= 2
    description = AOF_FILES.describe(names[0], memoryview(data), rows_max=1)
    assert (description.kind, description.is_intact, len(description.tables["marks"])) == ("aof index", True, 1)
    filled.manager.close()
    with open_manager(filled.fs, filled.config) as manager:
        filled.check(manager.log("orders"))


def test_a_log_without_indexes_finds_the_same_records():
    """No index is written, and existing index files are removed."""
    filled = Filled()
    filled.check()
    filled.manager.close()
    with open_manager(filled.fs, tiny(**LARGE, enable_sparse_index=False)) as manager:
        filled.check(manager.log("orders"))
    assert filled.fs.list_dir(INDEXES) == []


def test_a_reader_starts_at_a_time():
    """It starts at the end of the log when all records are older."""
    filled = Filled()
    found = filled.records[50]
    reader = filled.log.open_reader(timestamp=found.timestamp)
    assert next(record.timestamp for record in reader) == found.timestamp
    assert list(filled.log.open_reader(timestamp=filled.records[-1].timestamp + 1)) == []


@pytest.mark.parametrize("harm", ["flip", "cut", "other"])
def test_an_invalid_index_is_rebuilt(harm):
    """It is never used; neither is the valid index of another segment."""
    filled = Filled()
    filled.check()
    filled.manager.close()
    first, second = (f"{INDEXES}/{name}" for name in sorted(filled.fs.list_dir(INDEXES)))
    data = filled.fs.read_all(first, size_max=10_000)
    changed = {"flip": data[:-1] + b"?", "cut": data[:-5], "other": filled.fs.read_all(second, size_max=10_000)}
    file = filled.fs.create_or_truncate(first)
    file.pwrite(changed[harm], 0)
    file.close()
    with open_manager(filled.fs, filled.config) as manager:
        filled.check(manager.log("orders"))
    assert filled.fs.read_all(first, size_max=10_000) == data


def test_a_search_works_without_a_writable_index():
    """The failures to store an index are counted."""
    observer = InMemoryObserver()
    filled = Filled(FaultFileSystem(CrashFileSystem(), {"create": 1}, path_part=".idx", forever=True))
    filled.manager.close()
    with AofManager.open(
        ROOT, filled.config, fs=filled.fs, clock=ManualClock(), observer=observer, background=False
    ) as manager:
        filled.check(manager.log("orders"))
    assert observer.total("aof_index_failed_total") == 2


def test_cold_segments_are_searched_without_their_files():
    """The index is built before a segment is packed; another process unpacks no more than it reads."""
    filled = Filled(tiers=TierConfig(tier0_max_bytes=0))
    filled.manager.maintain()
    assert filled.log.tiers.snapshot().residency[0] == "staged_for_tier0"
    beside = LogFiles(f"{ROOT}/orders", fs=filled.fs)
    assert len(beside.marks(0)) >= 2
    assert len(beside.marks(1)) == 0
    wanted = filled.records[20]
    assert first_at(beside, wanted.timestamp) in {wanted.record_id, filled.records[19].record_id}
    filled.check()
    assert len(beside.marks(1)) >= 2


def test_an_index_is_removed_with_its_segment():
    """Also an index that a crash had restored."""
    filled = Filled(retention=Retention("size", max_total_bytes=1 << 18, action="expire"))
    filled.manager.maintain()
    assert filled.log.find_record(0) is not None
    assert filled.log.find_record_number(3) is None
    filled.manager.close()
    file = filled.fs.create(f"{INDEXES}/{index_name(0, 0)}")
    file.close()
    with open_manager(filled.fs, filled.config) as manager:
        assert len(payloads(manager.log("orders"))) == 96 - 41
    assert [parse_index_name(name)[0] for name in filled.fs.list_dir(INDEXES)] == [1]


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_index_has_golden_bytes():
    """Other programs may rely on these bytes."""
    data = encode_index(INDEX)
    fields = "58464f4101001000070000000200000000100000000000007011010000000000"
    entries = "000000004000000064000000000000000c000000e8fd00006400000000000000"
    checksum = crc64_nvme(bytes.fromhex(fields + entries)).to_bytes(8, "little").hex()
    assert data.hex() == fields + checksum + entries


def test_a_damaged_index_is_never_used():
    """Truncated at every byte, with every byte flipped, with trailing bytes."""
    data = encode_index(INDEX)
    assert decode_index(memoryview(data)) == Frame(INDEX, len(data))
    for end in range(len(data)):
        assert isinstance(decode_index(memoryview(data[:end])), NeedMore)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert isinstance(decode_index(memoryview(flipped)), NeedMore | Damage)
    assert isinstance(decode_index(memoryview(data + b"x")), Damage)
    large = INDEX_HEADER.pack(*INDEX_HEADER.unpack_from(data)[:4], 1 << 20, 0, 0, 0)
    assert isinstance(decode_index(memoryview(large)), Damage)


@pytest.mark.parametrize(
    "marks",
    [
        (IndexMark(1, 100, 5), IndexMark(1, 200, 5)),
        (IndexMark(1, 200, 5), IndexMark(2, 200, 5)),
        (IndexMark(1, 100, 5), IndexMark(2, 200, 4)),
        (IndexMark(0, HEADER_BYTES - 1, 5),),
        (IndexMark(0, 70_000, 5),),
    ],
)
def test_invalid_entries_are_damage(marks):
    """Out of order, or outside the segment."""
    data = encode_index(SparseIndex(7, 4096, 70_000, marks))
    assert isinstance(decode_index(memoryview(data)), Damage)


def test_a_search_starts_at_the_last_mark_before_its_target():
    """The last mark that is older or not above the number, otherwise the first record."""
    marks = (IndexMark(0, 64, 100), IndexMark(12, 65_000, 100), IndexMark(20, 140_000, 300))
    assert before_time(marks, 100) == (HEADER_BYTES, 64)
    assert before_time(marks, 101) == (65_000, 140_000)
    assert before_time(marks, 301) == (140_000, None)
    assert before_time((), 5) == (HEADER_BYTES, None)
    assert [before_number(marks, number) for number in (0, 11, 12, 99)] == [
        (0, 64), (0, 64), (12, 65_000), (20, 140_000),
    ]  # fmt: skip
    assert before_number((), 5) == (0, HEADER_BYTES)
