"""Opening a store: which files are read, counted at the file system, never timed."""

import re
from collections import Counter

import pyarrow as pa
import pytest

import quiver
from quiver.bundle import BundleRef
from quiver.store import recovery
from quiver.store.opening import open_store
from quiver.store.recovery import load_segments, quarantine_file, scan_log
from quiver.store.wal.replay import scan_file
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/d"
TAIL_BYTES = 16 * 1024


class CountingFile:
    """A file that counts how many bytes are read from it."""

    def __init__(self, file, counts):
        self._file = file
        self._counts = counts

    def pread(self, size, offset):
        data = self._file.pread(size, offset)
        self._counts[self._file.path] += len(data)
        return data

    def __getattr__(self, name):
        return getattr(self._file, name)


class CountingFiles:
    """A file system that counts reads: bytes by path, and calls by name and path."""

    def __init__(self, fs):
        self._fs = fs
        self.bytes_read = Counter()
        self.calls = Counter()

    def open_read(self, path):
        self.calls["open_read", path] += 1
        return CountingFile(self._fs.open_read(path), self.bytes_read)

    def read_all(self, path, *, size_max):
        data = self._fs.read_all(path, size_max=size_max)
        self.calls["read_all", path] += 1
        self.bytes_read[path] += len(data)
        return data

    def map_read(self, path):
        self.calls["map_read", path] += 1
        return self._fs.map_read(path)

    def list_dir(self, path):
        self.calls["list_dir", path] += 1
        return self._fs.list_dir(path)

    def __getattr__(self, name):
        return getattr(self._fs, name)

    def segment_calls(self, name):
        return {path: count for (call, path), count in self.calls.items() if call == name and path.endswith(".qseg")}


def bundle(rows=4):
    return quiver.Bundle({30: pa.record_batch({"x": pa.array(range(rows), pa.int64())})})


def opened(fs, **settings):
    return open_store(ROOT, quiver.Settings(**settings), fs=fs, clock=ManualClock(), background=False)


def sealed(count, rows=4):
    """The disk of a store that was closed with *count* segments of one bundle each."""
    fs = CrashFileSystem()
    with opened(fs) as store:
        store.register("s", start="earliest")
        for _ in range(count):
            store.ingest(bundle(rows))
            store.seal()
    return fs


@pytest.fixture
def verifications(monkeypatch):
    """Record each computation of the checksum of a whole segment."""
    from quiver.store.format.segment.file import check_segment_checksum
    from quiver.store.segment import reader

    counted = []

    def counting(view):
        counted.append(len(view))
        return check_segment_checksum(view)

    monkeypatch.setattr(reader, "check_segment_checksum", counting)
    return counted


def test_opening_reads_the_end_of_each_segment_once(verifications):
    """For any size of a segment, opening reads its last 16 KiB, in one call, and maps nothing."""
    fs = CountingFiles(sealed(5, rows=50_000))
    with opened(fs) as store:
        assert len(store.internals.catalog) == 5
        assert set(fs.segment_calls("open_read").values()) == {1}
        assert len(fs.segment_calls("open_read")) == 5
        assert not fs.segment_calls("map_read")
        assert not verifications
        for info in store.internals.catalog.segments():
            assert info.size_bytes > 400_000
            assert fs.bytes_read[info.path] <= TAIL_BYTES


def test_each_directory_is_listed_a_fixed_number_of_times():
    """Ten times the segments need no further listing, and no access except to the segments themselves."""
    calls = []
    for count in (3, 30):
        fs = CountingFiles(sealed(count))
        opened(fs).close()
        calls.append({key: number for key, number in fs.calls.items() if not key[1].endswith(".qseg")})
    assert calls[0] == calls[1]
    assert max(number for (name, _), number in calls[0].items() if name == "list_dir") <= 4


def test_a_checksum_is_computed_once_before_the_first_bundle(verifications):
    """Once in the life of the process, also if more segments are read in turn than readers are cached."""
    count = 70  # the store keeps 64 readers
    fs = CountingFiles(sealed(count))
    with opened(fs) as store:
        assert not verifications
        store.internals.catalog.bundle(BundleRef(3, 0))
        assert len(verifications) == 1
        for _ in range(2):
            for seq in range(count):
                assert store.internals.catalog.bundle(BundleRef(seq, 0)) == bundle()
        assert len(verifications) == count


def test_a_damaged_body_is_detected_when_it_is_read():
    """Opening does not detect it; none of its bytes is delivered; the other segments are."""
    disk = sealed(2, rows=5_000)
    path = f"{ROOT}/segments/0000000000000000.qseg"
    data = bytearray(disk.read_all(path, size_max=1 << 20))
    data[1000] ^= 1
    disk.remove(path)
    file = disk.create(path)
    file.pwrite(bytes(data), 0)
    with opened(disk) as store:
        assert len(store.internals.catalog) == 2
        with pytest.raises(quiver.CorruptionError):
            store.internals.catalog.bundle(BundleRef(0, 0))
        assert store.internals.catalog.bundle(BundleRef(1, 0)) == bundle(5_000)
        assert disk.list_dir(f"{ROOT}/quarantine") == ["0000000000000000.qseg"]


def test_quarantine_replaces_nothing():
    """A file with the same name is kept; the same bytes are stored once."""
    disk = sealed(1)
    for contents in (b"first", b"second", b"first", b"second"):
        file = disk.create(f"{ROOT}/a.qseg")
        file.pwrite(contents, 0)
        file.close()
        quarantine_file(disk, ROOT, f"{ROOT}/a.qseg")
        assert not disk.exists(f"{ROOT}/a.qseg")
    kept = [disk.read_all(f"{ROOT}/quarantine/{name}", size_max=9) for name in disk.list_dir(f"{ROOT}/quarantine")]
    assert sorted(kept) == [b"first", b"second"]


def test_a_segment_after_the_cursor_is_verified_at_open(verifications):
    """
    Its bundles may also be in the log: before those entries are skipped, the segment is read completely, and counts as
    verified from then on.
    """
    disk = sealed(4)
    disk.remove(f"{ROOT}/wal/quiver.wal.cursor")
    with opened(CountingFiles(disk)) as store:
        assert len(verifications) == 4
        for seq in range(4):
            store.internals.catalog.bundle(BundleRef(seq, 0))
        assert len(verifications) == 4


def test_log_files_are_read_once_and_replayed_ones_twice():
    """Files whose entries are all in segments are read once; retired ones with something to replay, once more."""
    disk = CrashFileSystem()
    store = opened(disk, wal_rotate_bytes=20_000, segment_bytes_max=1 << 20)
    store.register("s", start="earliest")
    for _ in range(20):
        store.ingest(bundle(200))
    purged = f"{ROOT}/wal/quiver.wal.1"
    data = disk.read_all(purged, size_max=1 << 20)
    store.seal()
    for _ in range(20):
        store.ingest(bundle(200))
    disk = disk.clone_after_kill()
    disk.create(purged).pwrite(data, 0)  # as after a power loss
    retired = {f"{ROOT}/wal/{name}" for name in disk.list_dir(f"{ROOT}/wal") if name[-1].isdigit()}
    holding = {path: scan_file(disk, path).entries[-1].sequence >= 20 for path in retired}
    fs = CountingFiles(disk)
    opened(fs, wal_rotate_bytes=20_000, segment_bytes_max=1 << 20)

    reads = {path: count for (name, path), count in fs.calls.items() if name == "read_all" and path in retired}
    assert reads == {path: 2 if to_replay else 1 for path, to_replay in holding.items()}
    assert set(reads.values()) == {1, 2}
    active = f"{ROOT}/wal/quiver.wal"
    assert fs.calls["read_all", active] == 1


def test_entries_that_segments_contain_are_not_decoded(monkeypatch):
    """The scan checks every entry and creates no objects; of entries with one layout, recovery parses the first."""
    from quiver.store.wal import scan as scanning

    disk = CrashFileSystem()
    store = opened(disk)
    for _ in range(9):
        store.ingest(bundle())
    store.seal()
    for _ in range(4):
        store.ingest(bundle())
    disk = disk.clone_after_kill()
    asked = []
    read_entry = scanning.read_entry
    monkeypatch.setattr(scanning, "read_entry", lambda view, offset: asked.append(offset) or read_entry(view, offset))
    assert len(scan_file(disk, f"{ROOT}/wal/quiver.wal").entries) == 13
    assert not asked
    with opened(disk) as store:
        assert store.stats()["open_bundles"] == 4
    assert asked == [scan_file(disk, f"{ROOT}/wal/quiver.wal").entries[9]._offset]


def test_entries_of_a_scan_are_a_sequence():
    """By index, by slice and in order they are the same; their positions follow from the file's header."""
    disk = CrashFileSystem()
    store = opened(disk, wal_rotate_bytes=1_000)
    for _ in range(12):
        store.ingest(bundle())
    entries = scan_file(disk, f"{ROOT}/wal/quiver.wal.1").entries
    following = scan_file(disk, f"{ROOT}/wal/quiver.wal.2").entries

    assert len(entries) > 1
    assert [one.sequence for one in entries] == list(range(len(entries)))
    assert entries[-1].end == entries[len(entries) - 1].end == following[0].start
    assert [one.start for one in entries[1:]] == [one.start for one in entries][1:]
    moved = entries.needed(lambda _sequence, _end: False, position_end=0, sequence_end=0, shift=7)
    assert [one.start for one in moved] == [one.start + 7 for one in entries]
    assert [one.entry for one in moved] == [one.entry for one in entries]
    assert entries.sequence_end == following[0].sequence
    with pytest.raises(IndexError):
        entries[len(entries)]


def test_steps_can_be_called_again():
    """Loading segments and scanning the log change nothing about a valid directory."""
    from quiver.observe import InMemoryObserver
    from quiver.store.catalog import Catalog

    disk = sealed(3)
    before = disk.steps
    observer = InMemoryObserver()
    for _ in range(2):
        catalog = Catalog(disk, f"{ROOT}/segments", quiver.OTAP, on_damage=lambda _info, _damage: None)
        assert load_segments(disk, ROOT, catalog, cursor=0, observer=observer) == (3, 0)
        found = scan_log(disk, ROOT, adapter=quiver.OTAP, cursor=0, segments=catalog.segments(), observer=observer)
        assert (len(found.replay), found.next_sequence) == (0, 3)
    assert disk.steps == before


def test_a_plan_reads_the_end_of_each_segment_once(verifications):
    """A scan maps one segment for each schema; of the others it reads the last 16 KiB, in one call."""
    disk = sealed(6, rows=50_000)
    with opened(disk) as store:
        store.ingest(quiver.Bundle({30: pa.record_batch({"x": [1], "host": ["a"]})}))
        store.seal()
    fs = CountingFiles(disk)
    reader = quiver.read(ROOT, fs=fs)
    assert reader.scan(30).schema.names == ["x", "host"]
    assert sorted(fs.segment_calls("map_read")) == [f"{ROOT}/segments/{seq:016}.qseg" for seq in (0, 6)]
    assert set(fs.segment_calls("open_read").values()) == {1}
    assert {path: size for path, size in fs.bytes_read.items() if path.endswith(".qseg")} == {
        path: min(TAIL_BYTES, disk.stat(path).size_bytes) for path in fs.segment_calls("open_read")
    }
    assert verifications == []
    before = fs.calls.copy()
    assert reader.scan(30).schema.names == ["x", "host"]
    assert not {call for call, _ in fs.calls - before} & {"map_read"}
    assert not [path for (_, path) in fs.calls - before if path.endswith(".qseg")]


def test_a_flipped_bit_at_the_end_of_a_segment_is_reported_or_harmless(tmp_path):
    """A plan uses no directory that its manifest does not confirm: all rows are returned, or the damage is reported."""
    with quiver.open(tmp_path, background=False) as store:
        for _ in range(2):
            store.ingest(bundle())
            store.seal()
    path = max((tmp_path / "segments").glob("*.qseg"))
    data = path.read_bytes()
    expected = quiver.read(tmp_path).scan(30).to_table()
    reported = 0
    for at in range(len(data) - 3000, len(data), 17):
        path.unlink()  # a file that is mapped must not be cut
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        scan = quiver.read(tmp_path).scan(30)
        rows = scan.to_table()
        reported += bool(scan.problems)
        assert rows.equals(expected if not scan.problems else expected.slice(0, 4)), at
    assert reported > 100


def test_each_step_of_recovery_is_logged_in_order(tmp_path, caplog):
    """The log of a reopened store has the steps of the list in `recovery`, with their results."""
    listed = re.findall(r"^\d+\. `(\w+)`", recovery.__doc__, re.MULTILINE)
    with quiver.open(tmp_path / "s") as store:
        store.register("reader", start="earliest")
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [1]})}))
        store.seal()
    caplog.clear()
    with caplog.at_level("INFO", logger="quiver"):
        quiver.open(tmp_path / "s").close()
    reports = [record.getMessage() for record in caplog.records]
    steps = [line for line in reports if line.startswith("quiver.recovery.step ")]

    assert listed
    assert [re.search(r"step=(\w+)", line)[1] for line in steps] == listed
    assert " segments=1 quarantined=0 " in steps[listed.index("load_segments")]
    assert " subscribers=1 " in steps[listed.index("progress")]
    assert reports.index(steps[-1]) < next(
        i for i, line in enumerate(reports) if line.startswith("quiver.engine.init ")
    )
