"""Batches staged and committed by a Spark sink are imported into a log once, after a crash at any step."""

import threading

import pytest

from disk_files import PowerCut
from quiver.aof import AofConfig, AofManager
from quiver.aof.format.record import encode_record
from quiver.aof.format.sink_batch import COMMITS, BatchStep, StagedPart, decode_begun, encode_begun
from quiver.errors import CorruptionError, WouldBlockError
from quiver.observe import InMemoryObserver
from quiver.primitives.batch_notes import BatchCommit, begun_name, commit_name, done_name, encode_note, part_directory
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staged_commits import read_note
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.spark.aof.sink import commit_records, discard_records, is_records_batch_committed, stage_records
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem
from quiver.testing.faultfs import FaultFileSystem

pytestmark = pytest.mark.usefixtures("quiet")

ROOT = "/aof/orders"


class TinyConfig(AofConfig):
    """Segments of 16 KiB, less than the minimum of the public settings, so a batch of a few records needs several."""

    segment_floor_bytes = 16 * 1024


def staged(fs, root, batch, texts, *, writer="query", partition=0, attempt="a"):
    """Stage the records of one task."""
    rows = [(text.encode(), number) for number, text in enumerate(texts)]
    return stage_records(fs, root, rows, writer=writer, batch=batch, partition=partition, attempt=attempt)


def write(fs, root, batch, texts, *, writer="query", **more):
    """Stage a batch of two tasks and commit it."""
    half = len(texts) // 2
    found = [
        staged(fs, root, batch, texts[:half], writer=writer, partition=0, **more),
        staged(fs, root, batch, texts[half:], writer=writer, partition=1, **more),
    ]
    return commit_records(fs, root, writer=writer, batch=batch, staged=found, clock=ManualClock())


def open_manager(fs, root=ROOT, **more):
    config = TinyConfig(segment_min_bytes=1, segment_target_bytes=1, segment_max_bytes=1)
    parent = root.rpartition("/")[0]
    return AofManager.open(parent, config, fs=fs, clock=ManualClock(), background=False, **more)


def texts_of(log):
    return [bytes(record.payload).decode()[:8].rstrip(".") for record in log.open_reader()]


def left(fs, root=ROOT, writer="query"):
    directory = f"{root}/incoming/{writer}"
    return sorted(fs.list_dir(directory)) if fs.exists(directory) else []


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "aof" / "orders")


def test_records_are_visible_after_the_commit(root):
    """Staged records are not; a committed batch is appended in order, and only once."""
    found = staged(REAL_FILES, root, 0, ["a", "b"])
    with open_manager(REAL_FILES, root) as manager:
        assert texts_of(manager.log("orders")) == []
    assert commit_records(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert not write(REAL_FILES, root, 0, ["a", "b"], attempt="b")
    assert write(REAL_FILES, root, 1, ["c", "d", "e"])
    with open_manager(REAL_FILES, root) as manager:
        log = manager.log("orders")
        assert texts_of(log) == ["a", "b", "c", "d", "e"]
        assert [record.ext_id for record in log.open_reader()] == [0, 1, 0, 0, 1]
        assert all(log.is_durable(record.record_id) for record in log.open_reader())
    assert left(REAL_FILES, root) == [done_name(1)]


def test_discarded_records_are_never_imported(root):
    """A committed batch stays, even if the driver did not learn of its commit and discards it."""
    found = staged(REAL_FILES, root, 0, ["a"])
    discard_records(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert left(REAL_FILES, root) == []
    assert write(REAL_FILES, root, 0, ["b", "c"])
    discard_records(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert is_records_batch_committed(REAL_FILES, root, writer="query", batch=0)
    assert not is_records_batch_committed(REAL_FILES, root, writer="query", batch=1)
    assert commit_records(REAL_FILES, root, writer="query", batch=1, staged=[staged(REAL_FILES, root, 1, [])])


def test_an_open_log_imports_during_maintenance_and_on_close(root):
    """Both are needed: a sink commits without an import if it sees that the log is open."""
    with open_manager(REAL_FILES, root) as manager:
        log = manager.log("orders")
        log.append_record(b"own")
        write(REAL_FILES, root, 0, ["a", "b"])
        assert texts_of(log) == ["own"]
        manager.maintain()
        assert texts_of(log) == ["own", "a", "b"]
        assert left(REAL_FILES, root) == [done_name(0)]
        write(REAL_FILES, root, 1, ["c"])
        write(REAL_FILES, root, 2, ["d"], writer="job-1")
    with open_manager(REAL_FILES, root) as manager:
        assert sorted(texts_of(manager.log("orders"))) == ["a", "b", "c", "d", "own"]
    assert left(REAL_FILES, root, "job-1") == []


def test_the_background_thread_imports_staged_batches(root):
    """A follower receives the record without a call to `maintain`."""
    with AofManager.open(root.rpartition("/")[0]) as manager:
        follower = manager.log("orders").tail_follower()
        write(REAL_FILES, root, 0, ["a"])
        record = follower.next(timeout=30)
        assert record is not None
        assert record.payload == b"a"


def test_a_batch_may_need_several_segments(root):
    """It is imported step by step; records may have any length up to what a segment can contain."""
    texts = [f"{number}." + "." * (number * 97 % 15_000) for number in range(60)]
    assert write(REAL_FILES, root, 0, texts)
    with open_manager(REAL_FILES, root) as manager:
        log = manager.log("orders")
        assert [bytes(one.payload).decode() for one in log.open_reader()] == texts
        found = staged(REAL_FILES, root, 1, ["x", "y" * 17_000])
        commit_records(REAL_FILES, root, writer="query", batch=1, staged=[found], clock=ManualClock())
        assert log.import_staged() == 1
        assert commit_name(1) in left(REAL_FILES, root)
        log.append_record_with_timeout(b"own", 5)
    assert write(REAL_FILES, root, 2, [])
    with AofManager.open(root.rpartition("/")[0], background=False) as manager:
        assert texts_of(manager.log("orders"))[60:] == ["x", "own", "y" * 8]


def test_a_damaged_batch_does_not_block_others(root):
    """A part whose bytes differ from the commit is left where it is."""
    observer = InMemoryObserver()
    with open_manager(REAL_FILES, root, observer=observer) as manager:
        log = manager.log("orders")
        for writer in ("bad", "cut", "good"):
            write(REAL_FILES, root, 0, [writer, "b"], writer=writer)
        bad, cut = (f"{root}/incoming/{writer}/{part_directory(0, 0, 'a')}/00000.part" for writer in ("bad", "cut"))
        data = REAL_FILES.read_all(bad, size_max=1000)
        for path, changed in ((bad, data[:-1] + b"?"), (cut, data[:-1])):
            with open(path, "wb") as file:
                file.write(changed)
        assert log.import_staged() == 2
        assert log.import_staged() == 0
        assert texts_of(log) == ["good", "b"]
        log.append_record(b"own")
        assert observer.total("aof_sink_records_total") == 2
    assert commit_name(0) in left(REAL_FILES, root, "bad")
    assert commit_name(0) in left(REAL_FILES, root, "cut")


def test_a_commit_with_a_wrong_count_is_damage(root):
    """A commit with more records than its part contains is not imported."""
    found = staged(REAL_FILES, root, 0, ["a", "b"])
    more = found.part._replace(records=3)
    REAL_FILES.make_dirs(f"{root}/incoming/query")
    with open(f"{root}/incoming/query/{commit_name(0)}", "wb") as file:
        file.write(COMMITS.encode(BatchCommit("query", 0, (more,))))
    with open_manager(REAL_FILES, root):
        pass
    assert commit_name(0) in left(REAL_FILES, root)


def test_producers_and_sinks_append_concurrently(root):
    """Each record is in the log once, in the order of its producer."""
    with AofManager.open(root.rpartition("/")[0]) as manager:
        log = manager.log("orders")

        def produce(name):
            for number in range(200):
                log.append_record_with_timeout(f"{name}{number}".encode(), None)

        threads = [threading.Thread(target=produce, args=(name,)) for name in "xy"]
        for thread in threads:
            thread.start()
        for batch in range(5):
            write(REAL_FILES, root, batch, [f"s{batch * 10 + number}" for number in range(10)])
            log.import_staged()
        for thread in threads:
            thread.join()
        found = [bytes(record.payload).decode() for record in log.open_reader()]
        for name, count in (("x", 200), ("y", 200), ("s", 50)):
            assert [text for text in found if text[0] == name] == [f"{name}{number}" for number in range(count)]


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_step_blocks_other_appends():
    """Once the note of a batch is written, nothing else is appended until its records are durable."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, path_part="/segments/", forever=True)
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"own")
        write(disk, ROOT, 0, ["a", "b"])
        log.flush()
        fs.fail_on("sync")
        assert log.import_staged() == 0
        with pytest.raises(WouldBlockError) as blocked:
            log.append_record(b"other")
        assert blocked.value.kind == "tail"
        fs.heal()
        assert log.import_staged() == 2
        manager.maintain()
        log.append_record_with_timeout(b"other", 5)
        assert texts_of(log) == ["own", "a", "b", "other"]


def test_a_note_that_cannot_be_written_does_not_block_producers():
    """The disk is full, but the open segment has space."""
    disk = CrashFileSystem()
    fs = FaultFileSystem(disk, path_part=".begun.tmp", forever=True)
    with open_manager(fs) as manager:
        log = manager.log("orders")
        log.append_record(b"own")
        write(disk, ROOT, 0, ["a", "b"])
        fs.fail_on("pwrite")
        assert log.import_staged() == 0
        log.append_record(b"other")
        fs.heal()
        assert log.import_staged() == 2
        assert texts_of(log) == ["own", "other", "a", "b"]


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────

LONG = "." * 5_000
BATCHES = (["a", "b" + LONG, "c" + LONG, "d" + LONG], ["e" + LONG, "f", "g" + LONG, "h", "i" + LONG])
WANTED = list("abcdefghi")


def every_batch(fs):
    """Run a query that can be restarted, next to an owner that appends its own records."""
    for number, texts in enumerate(BATCHES):
        if not is_records_batch_committed(fs, ROOT, writer="query", batch=number):
            write(fs, ROOT, number, texts)
        with open_manager(fs) as manager:
            manager.log("orders").append_record_with_timeout(b"own", 5)


def disks_of_crashes(steps_of, *, kill):
    """Return a copy of the disk before each step, after a kill or a power loss at that point."""
    fs = CrashFileSystem()
    disks = []
    fs.on_step = lambda op, path: disks.append((
        f"{op} {path}", fs.clone_after_kill() if kill else fs.clone_after_crash(len(disks) % 8),
    ))  # fmt: skip
    steps_of(fs)
    return disks


@pytest.mark.parametrize("kill", [True, False], ids=["kill", "power"])
def test_a_crash_at_any_step_keeps_each_record_once_and_in_order(kill):
    """The query is restarted on each copy of the disk."""
    for label, disk in disks_of_crashes(every_batch, kill=kill):
        every_batch(disk)
        with open_manager(disk) as manager:
            found = [text for text in texts_of(manager.log("orders")) if text != "own"]
            assert found == WANTED, label
        assert left(disk) == [done_name(1)], label


def test_a_crash_during_two_imports_keeps_each_record_once():
    """One batch was partly appended, the other not at all: each continues at its own position."""

    def stop(done, path):
        if (done, path.endswith(".seg")) == ("sync", True):
            raise PowerCut

    fs = CrashFileSystem()
    write(fs, ROOT, 0, ["a", "b"], writer="one")
    with pytest.raises(PowerCut), open_manager(fs) as manager:
        manager.log("orders").append_record(b"own")
        manager.log("orders").flush()
        write(fs, ROOT, 1, ["same", "same"], writer="one")
        write(fs, ROOT, 0, ["same", "same", "same"], writer="two")
        fs.on_step = stop
        manager.log("orders").import_staged()
    fs.on_step = None
    for disk in (fs.clone_after_kill(), *(fs.clone_after_crash(seed) for seed in range(6))):
        with open_manager(disk) as manager:
            assert texts_of(manager.log("orders")) == ["a", "b", "own", *["same"] * 5]


def test_an_unreadable_note_stops_its_batch(root):
    """The number of records that are already in the log is unknown: it is reported, and nothing is appended twice."""
    with open_manager(REAL_FILES, root) as manager:
        manager.log("orders")
        write(REAL_FILES, root, 0, ["a", "b"])
        with open(f"{root}/incoming/query/{begun_name(0)}", "wb") as file:
            file.write(b"{}")
    with open_manager(REAL_FILES, root) as manager:
        assert texts_of(manager.log("orders")) == []
    assert commit_name(0) in left(REAL_FILES, root)


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────

PART = StagedPart("00000000000000000003-00000-7/00000.part", 2, 52)
COMMIT = BatchCommit("q-1", 3, (PART,))
STEP = BatchStep(1, 20, 5, 1234)


def test_notes_and_parts_have_golden_bytes(tmp_path):
    """Other programs may rely on them."""
    assert COMMITS.encode(COMMIT)[:-9] == (
        b'{"quiver_aof_batch": 1, "writer": "q-1", "batch": 3, '
        b'"parts": [["00000000000000000003-00000-7/00000.part", 2, 52]]}\n'
    )
    assert encode_begun(STEP)[:-9] == (
        b'{"quiver_aof_batch": 1, "part": 1, "index": 20, "count": 5, "log_records": 1234}\n'
    )
    found = staged(REAL_FILES, str(tmp_path), 3, ["hello", "x"], writer="q-1", attempt="7")
    path = tmp_path / "incoming" / "q-1" / "00000000000000000003-00000-7" / "00000.part"
    assert path.read_bytes() == encode_record(b"hello", timestamp=0) + encode_record(b"x", timestamp=0, ext_id=1)
    assert found.part == PART._replace(size_bytes=54)


def test_notes_round_trip_or_are_refused():
    """Complete, cut at every byte, with every byte flipped, and with trailing junk."""
    data = COMMITS.encode(COMMIT)
    assert COMMITS.decode(data) == Frame(COMMIT, len(data))
    assert decode_begun(encode_begun(STEP)) == Frame(STEP, len(encode_begun(STEP)))
    for end in range(len(data)):
        assert isinstance(COMMITS.decode(data[:end]), NeedMore)
    for at in range(len(data)):
        assert isinstance(COMMITS.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]), NeedMore | Damage)
    assert isinstance(COMMITS.decode(data + b"x"), Damage)
    assert isinstance(decode_begun(data), Damage)
    assert isinstance(decode_begun(b""), NeedMore)


@pytest.mark.parametrize(
    "commit",
    [
        BatchCommit("../x", 3, (PART,)),
        BatchCommit("q", 4, (PART,)),
        BatchCommit("q", 3, (PART, PART)),
        BatchCommit("q", 3, (PART._replace(path="00000000000000000003-00000-7/../x"),)),
        BatchCommit("q", 3, (PART._replace(records=-1),)),
        BatchCommit("q", 3, (PART._replace(size_bytes="2"),)),
        BatchCommit("q", 3, ("x",)),
        BatchCommit("q", 3, None),
        BatchCommit("q", -1, ()),
    ],
)
def test_invalid_commits_are_damage(commit, tmp_path):
    """A commit may name only files in the staging directory of its own writer."""
    assert isinstance(COMMITS.decode(COMMITS.encode(commit)), Damage)
    (tmp_path / "x").write_bytes(COMMITS.encode(commit))
    with pytest.raises(CorruptionError):
        read_note(REAL_FILES, str(tmp_path / "x"), COMMITS.decode)


def test_another_version_is_damage():
    assert isinstance(COMMITS.decode(encode_note({"quiver_aof_batch": 2})), Damage)
