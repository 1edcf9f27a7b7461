"""Reading a directory while a writer has it open: every bundle once, in order, despite changes; damage is reported."""

import os

import pyarrow as pa
import pytest

from quiver.bundle import Bundle, BundleRef
from quiver.errors import CorruptionError, InvalidBundleError, UsageError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import Settings
from quiver.store.opening import open_store
from quiver.store.reading.read import read
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"


def _bundle(number: int, slot: int = 60) -> Bundle:
    return Bundle({slot: pa.record_batch({"data": pa.array([b"%06d" % number])})})


def _number(bundle: Bundle) -> int:
    (slot,) = bundle.slots
    return int(bundle[slot].column(0)[0].as_py())


class Writer:
    """A store on a disk in memory, driven manually. Every action can be called at any time."""

    def __init__(self, *, rotate_bytes=1200, subscriber=True):
        self.disk = CrashFileSystem()
        self.clock = ManualClock()
        settings = Settings(
            segment_bytes_max=2000,
            wal_rotate_bytes=rotate_bytes,
            wal_bytes_max=1 << 20,
            wal_files_max=50,
            delete_grace_s=0,
        )
        self.store = open_store(ROOT, settings, fs=self.disk, clock=self.clock, background=False)
        self.subscriber = self.store.register("a", start="earliest") if subscriber else None
        self.ingested: list[int] = []
        self.acked: set[int] = set()

    def ingest(self, count=1):
        for _ in range(count):
            self.store.ingest(_bundle(len(self.ingested)))
            self.ingested.append(len(self.ingested))

    def seal(self):
        self.store.seal()

    def finish_oldest(self, count=3):
        for _ in range(count):
            handle = self.subscriber.next_bundle(timeout=0)
            if handle is None:
                break
            self.acked.add(_number(handle.bundle))
            handle.ack()
        self.store.maintain()
        self.store.maintain()

    def everything(self):
        self.ingest(4)
        self.seal()
        self.finish_oldest(100)
        self.ingest(4)


def _numbers(reader):
    return [_number(bundle) for _, bundle in reader.bundles()]


@pytest.fixture
def writer():
    writer = Writer()
    yield writer
    writer.store.close()


def test_sealed_segments_are_read_before_the_log(writer):
    """The reference of a logged bundle is provisional: the number that the next segment will get."""
    writer.ingest(3)
    writer.seal()
    writer.ingest(2)
    reader = read(ROOT, fs=writer.disk)
    found = list(reader.bundles())
    assert [_number(bundle) for _, bundle in found] == [0, 1, 2, 3, 4]
    assert [str(ref) for ref, _ in found] == ["0:0", "0:1", "0:2", "1:0", "1:1"]
    assert all(bundle.ingested_at_ns == writer.clock.now_ns() for _, bundle in found)
    assert reader.problems == []
    writer.seal()
    assert [ref for ref, _ in reader.bundles()] == [ref for ref, _ in found]


def test_a_pass_changes_nothing_and_takes_no_lock(writer):
    """No call writes, creates, renames, removes, syncs or locks."""
    writer.ingest(12)
    writer.seal()
    writer.ingest(2)
    before = writer.disk.steps
    with read(ROOT, fs=writer.disk) as reader:
        assert len(_numbers(reader)) == 14
        assert reader.segments()
        assert list(reader.scan(60))
    assert writer.disk.steps == before


def test_a_closed_store_and_a_crashed_one_read_the_same():
    writer = Writer()
    writer.ingest(20)
    killed = writer.disk.clone_after_kill()
    writer.store.close()
    assert _numbers(read(ROOT, fs=killed)) == _numbers(read(ROOT, fs=writer.disk)) == list(range(20))


def test_a_directory_without_a_store_is_reported(tmp_path):
    with pytest.raises(UsageError, match="holds no store"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


def test_an_empty_store_is_empty(tmp_path):
    open_store(tmp_path, background=False).close()
    reader = read(str(tmp_path) + "/")
    assert list(reader.bundles()) == []
    assert reader.segments() == []
    assert list(reader.scan("logs", columns=["body"])) == []


def test_a_directory_without_any_log_file_is_read(writer):
    """Between two renames of a rotation, or in a copy of the segments only."""
    writer.ingest(2)
    writer.seal()
    writer.disk.remove(f"{ROOT}/wal/quiver.wal")
    assert _numbers(read(ROOT, fs=writer.disk)) == [0, 1]


def test_metadata_of_segments_needs_no_streams(writer):
    writer.ingest(3)
    writer.seal()
    writer.ingest(1)
    writer.seal()
    infos = read(ROOT, fs=writer.disk).segments()
    assert [(info.seq, info.bundle_count) for info in infos] == [(0, 3), (1, 1)]
    assert all(info.size_bytes > 0 for info in infos)


def test_selected_slots_are_read_alone(writer):
    """Ids or names; bundles with none of them are skipped, and references do not change."""
    for sealed in (True, False):
        writer.store.ingest(_bundle(1, slot=60))
        writer.store.ingest(_bundle(2, slot=61))
        both = {60: _bundle(3)[60], 61: _bundle(4)[60]}
        writer.store.ingest(Bundle(both))
        if sealed:
            writer.seal()
    reader = read(ROOT, fs=writer.disk)
    chosen = list(reader.bundles(slots=["otlp_traces"]))
    assert [(str(ref), bundle.slots) for ref, bundle in chosen] == [
        ("0:1", (61,)), ("0:2", (61,)), ("1:1", (61,)), ("1:2", (61,)),
    ]  # fmt: skip
    assert [bundle.slots for _, bundle in reader.bundles(slots=[60, 61])] == [(60,), (61,), (60, 61)] * 2
    for unknown in ("no such slot", 64):
        with pytest.raises(InvalidBundleError):
            reader.bundles(slots=[unknown])


def test_a_scan_yields_one_slot_with_the_selected_columns(writer):
    """A column that a bundle lacks is null there; one that no bundle has is an error."""
    first = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    second = pa.record_batch({"c": [1.5], "a": [3]})
    for batch in (first, second):
        writer.store.ingest(Bundle({"logs": batch}))
    writer.store.ingest(_bundle(0))
    writer.seal()
    writer.store.ingest(Bundle({30: first}))
    reader = read(ROOT, fs=writer.disk)
    everything = pa.table({"a": [1, 2, 3, 1, 2], "b": ["x", "y", None, "x", "y"], "c": [None, None, 1.5, None, None]})
    assert reader.scan("logs").to_table() == everything
    assert reader.scan(30, columns=["b", "a"]).to_table() == everything.select(["b", "a"])
    assert reader.scan("logs", columns=["c"]).to_table() == everything.select(["c"])
    with pytest.raises(UsageError, match="no column 'typo'; there are a, b, c"):
        reader.scan("logs", columns=["a", "typo"])


class Interrupted:
    """A file system that calls *action* before its n-th reading call."""

    def __init__(self, inner, at, action):
        self._inner, self._left, self._action = inner, at, action

    def __getattr__(self, name):
        method = getattr(self._inner, name)
        if name not in {"list_dir", "open_read", "map_read", "read_all", "stat", "exists"}:
            return method

        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0:
                self._action()
            return method(*args, **kwargs)

        return call

    @property
    def calls_left(self):
        return self._left


def _prepared():
    """Two segments, one of them finished, retired log files, and entries that are only in the log."""
    writer = Writer()
    writer.ingest(4)
    writer.seal()
    writer.ingest(4)
    writer.seal()
    writer.finish_oldest(2)
    writer.ingest(5)
    assert len([name for name in writer.disk.list_dir(f"{ROOT}/wal") if name != "quiver.wal"]) >= 1
    return writer


@pytest.mark.parametrize("action", ["ingest", "seal", "finish_oldest", "everything"])
def test_concurrent_changes_neither_hide_nor_duplicate_bundles(action):
    """
    The writer acts before each single call of a pass, in turn. Unfinished bundles from the beginning of the pass are
    returned exactly once; none is returned twice; the order of ingest is preserved.
    """
    at = 0
    while True:
        at += 1
        writer = _prepared()
        there = list(writer.ingested)
        fs = Interrupted(writer.disk, at, getattr(writer, action))
        reader = read(ROOT, fs=fs)
        found = _numbers(reader)
        assert len(set(found)) == len(found), (at, found)
        assert found == sorted(found), (at, found)
        assert set(there) - writer.acked <= set(found) <= set(writer.ingested), (at, found)
        assert reader.problems == [], at
        writer.store.close()
        if fs.calls_left > 0:
            break
    assert at > 8


@pytest.mark.parametrize("action", ["ingest", "seal", "finish_oldest", "everything"])
def test_concurrent_changes_neither_hide_nor_duplicate_rows_of_a_scan(action):
    """
    As above, with the action before each call of planning and of reading. A scan that is read again has the same
    bundles, except those whose segment was finished and deleted meanwhile.
    """
    at = 0
    while True:
        at += 1
        writer = _prepared()
        there = list(writer.ingested)
        fs = Interrupted(writer.disk, at, getattr(writer, action))
        reader = read(ROOT, fs=fs)
        scan = reader.scan(60)
        first, second = ([int(value.as_py()) for batch in scan for value in batch.column(0)] for _ in range(2))
        for found in (first, second):
            assert len(set(found)) == len(found), (at, found)
            assert found == sorted(found), (at, found)
            assert set(there) - writer.acked <= set(found) <= set(writer.ingested), (at, found)
        assert set(second) <= set(first), at
        assert reader.problems == [], at
        writer.store.close()
        if fs.calls_left > 0:
            break
    assert at > 8


def test_changes_between_two_bundles_of_a_pass(writer):
    """The writer acts at every step of the iteration, and the pass still ends."""
    writer.ingest(6)
    writer.seal()
    writer.ingest(2)
    found = []
    for _, bundle in read(ROOT, fs=writer.disk).bundles():
        found.append(_number(bundle))
        if len(writer.ingested) < 40:
            writer.ingest(3)
            writer.seal()
            writer.finish_oldest(1)
    assert found == sorted(set(found))
    assert set(range(8)) - writer.acked <= set(found)


def test_batches_outlive_their_segment(tmp_path):
    """On a real disk: the mapping exists as long as one of its batches."""
    store = open_store(tmp_path, Settings(delete_grace_s=0), background=False, clock=ManualClock())
    subscriber = store.register("a", start="earliest")
    for number in range(3):
        store.ingest(_bundle(number))
    store.seal()
    bundles = [bundle for _, bundle in read(tmp_path).bundles()]
    while (handle := subscriber.next_bundle(timeout=0)) is not None:
        handle.ack()
    store.maintain()
    assert REAL_FILES.list_dir(f"{tmp_path}/segments") == ["quiver.segment.floor"]
    store.close()
    assert [_number(bundle) for bundle in bundles] == [0, 1, 2]


def _damaged(disk, path, data):
    """A copy of *disk* with the bytes *data* in the file *path*."""
    copy = disk.clone_after_kill()
    copy.remove(path)
    copy.create(path).pwrite(data, 0)
    return copy


def _damages(data, step):
    """Every *step*-th byte flipped, every *step*-th length truncated, and trailing junk."""
    for at in range(0, len(data), step):
        yield data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        yield data[:at]
    yield data + b"\x55" * 9


@pytest.mark.parametrize(
    ("name", "step", "kept"),
    [
        ("segments/0000000000000001.qseg", 67, {4, 5, 6, 7, 8, 9, 10}),
        ("segments/quiver.segment.floor", 1, {2, 3, 4, 5, 6, 7, 8, 9, 10}),
        ("wal/quiver.wal.cursor", 1, {2, 3, 4, 5, 6, 7, 8, 9, 10}),
        ("wal/quiver.wal", 23, {2, 3, 4, 5, 6, 7}),
    ],
)
def test_a_damaged_file_affects_only_its_own_bundles(name, step, kept):
    """No wrong bundle, no duplicates and no exception; all other bundles are returned."""
    writer = Writer(rotate_bytes=100_000)
    for count, finished in ((2, 2), (2, 0), (2, 0), (2, 0)):
        writer.ingest(count)
        writer.seal()
        writer.finish_oldest(finished)
    # Segment 0 was deleted, 2 and 3 begin at bundle 4; then the entries that are only in the log.
    writer.ingest(3)
    disk = writer.disk.clone_after_kill()
    assert _numbers(read(ROOT, fs=disk)) == list(range(2, 11))
    path = f"{ROOT}/{name}"
    complete = disk.read_all(path, size_max=1 << 20)
    used = len(complete.rstrip(b"\0"))
    for data in _damages(complete[:used], step):
        reader = read(ROOT, fs=_damaged(disk, path, data))
        found = _numbers(reader)
        reports = list(reader.problems)
        reader = read(ROOT, fs=_damaged(disk, path, data))
        scanned = [int(value.as_py()) for batch in reader.scan(60) for value in batch.column(0)]
        assert scanned == found
        assert len(set(found)) == len(found)
        assert kept <= set(found) <= set(range(11)), (data[:60], found)
        for problems in (reports, reader.problems):
            assert all(problem.path.startswith(ROOT) and problem.reason for problem in problems)
            if "qseg" in name:
                assert problems
    writer.store.close()


def test_damage_in_a_retired_log_file_is_reported_and_the_rest_is_read():
    """One flipped byte costs one bundle, even in the oldest file."""
    writer = Writer(subscriber=False, rotate_bytes=900)
    writer.ingest(4)
    disk = writer.disk
    path = f"{ROOT}/wal/quiver.wal.1"
    complete = disk.read_all(path, size_max=1 << 20)
    reader = read(ROOT, fs=_damaged(disk, path, complete[:60] + bytes([complete[60] ^ 1]) + complete[61:]))
    assert _numbers(reader) == [1, 2, 3]
    assert [problem.path for problem in reader.problems] == [path]
    assert _numbers(reader) == [1, 2, 3]
    assert len(reader.problems) == 1
    cut = read(ROOT, fs=_damaged(disk, path, complete[:-3]))
    assert len(_numbers(cut)) == 3
    assert "retired" in cut.problems[0].reason
    writer.store.close()


def test_strict_reading_raises_at_the_first_damage(writer):
    writer.ingest(2)
    writer.seal()
    path = f"{ROOT}/segments/0000000000000000.qseg"
    complete = writer.disk.read_all(path, size_max=1 << 20)
    for data in (complete[:100] + b"!" + complete[101:], complete[:-1], b""):
        disk = _damaged(writer.disk, path, data)
        reader = read(ROOT, fs=disk, strict=True)
        with pytest.raises(CorruptionError) as caught:
            list(reader.bundles())
        assert caught.value.path == path
        lenient = read(ROOT, fs=disk)
        assert _numbers(lenient) == []
        assert len(lenient.problems) == 1


def test_apparent_damage_in_the_active_file_is_read_again(writer):
    """A reader may see one entry half written and the next one complete; a moment later both are complete."""
    writer.ingest(3)
    path = f"{ROOT}/wal/quiver.wal"
    complete = writer.disk.read_all(path, size_max=1 << 20)
    half = complete[:80] + bytes(20) + complete[100:]
    reads = []

    class Torn:
        def __getattr__(self, name):
            return getattr(writer.disk, name)

        def read_all(self, wanted, *, size_max):
            if wanted == path:
                reads.append(wanted)
                return half if len(reads) == 1 else complete
            return writer.disk.read_all(wanted, size_max=size_max)

    reader = read(ROOT, fs=Torn())
    assert _numbers(reader) == [0, 1, 2]
    assert reader.problems == []
    assert len(reads) == 2


def test_a_path_may_be_any_path_object(tmp_path):
    store = open_store(tmp_path, background=False)
    store.ingest(_bundle(7))
    store.seal()
    store.close()
    for path in (tmp_path, os.fspath(tmp_path), f"{tmp_path}/"):
        assert [ref for ref, _ in read(path).bundles()] == [BundleRef(0, 0)]
