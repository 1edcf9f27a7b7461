"""Batches staged and committed by a Spark sink are imported into the store once, after a crash at any step."""

import json

import pyarrow as pa
import pytest

import quiver
from disk_files import PowerCut
from lanes import every, with_stride
from quiver.errors import CapacityError, CorruptionError, DirectoryInUseError
from quiver.primitives.batch_notes import BatchCommit, commit_name, part_directory
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.scan import Damage, Frame, NeedMore
from quiver.settings import Settings
from quiver.spark.store.sink_options import SinkOptions
from quiver.spark.store.sink_stage import bundles_of
from quiver.store.format.names import STORE_LOCK
from quiver.store.format.sink_commit import COMMITS, INCOMING_DIR, decode_commit, parse_commit_name
from quiver.store.reading.check import check_store
from quiver.store.segment.reader import SegmentReader
from quiver.store.staged_import import awaits_import, first_free_segment
from quiver.store.staging.batches import await_room, commit_batch, discard, is_committed, stage
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"


class Maintaining(ManualClock):
    """A clock on which each wait runs the maintenance of a store."""

    def __init__(self, store):
        super().__init__()
        self.store = store

    def wait(self, condition, timeout):
        self.store.maintain()
        return super().wait(condition, timeout)


def staged(fs, root, batch, ids, *, writer="query", attempt="a", partition=0, clock=None):
    """Stage the rows of one task."""
    options = SinkOptions(path=root, slot=30)
    bundles = bundles_of([pa.record_batch({"id": pa.array(ids, pa.int64())})], options)
    return stage(
        fs,
        root,
        bundles,
        writer=writer,
        batch=batch,
        partition=partition,
        attempt=attempt,
        options=options,
        clock=clock or ManualClock(),
    )


def write(fs, root, batch, ids, **more):
    """Stage a batch of two tasks and commit it."""
    half = len(ids) // 2
    found = [
        staged(fs, root, batch, ids[:half], partition=0, **more),
        staged(fs, root, batch, ids[half:], partition=1, **more),
    ]
    writer = more.get("writer", "query")
    return commit_batch(fs, root, writer=writer, batch=batch, staged=found, clock=ManualClock())


def visible(fs, root=ROOT):
    """Return the numbers in the sealed segments, in order, after checking that each segment is complete."""
    seen = []
    directory = f"{root}/segments"
    for name in fs.list_dir(directory) if fs.exists(directory) else []:
        if name.endswith(".qseg"):
            reader = SegmentReader.open(fs, f"{directory}/{name}")
            reader.verify()
            for index in range(reader.bundle_count):
                seen += reader.bundle(index)[30].column("id").to_pylist()
    return seen


def test_rows_are_visible_after_the_commit(tmp_path):
    """Staged rows are not; a committed batch is read like any other, and is imported only once."""
    root = str(tmp_path)
    found = staged(REAL_FILES, root, 0, [1, 2])
    assert visible(REAL_FILES, root) == []
    assert commit_batch(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert not write(REAL_FILES, root, 0, [1, 2], attempt="b")
    assert write(REAL_FILES, root, 1, [3, 4])
    assert visible(REAL_FILES, root) == [1, 2, 3, 4]
    assert [bundle[30].num_rows for _, bundle in quiver.read(root).bundles()] == [2, 1, 1]
    assert REAL_FILES.list_dir(f"{root}/{INCOMING_DIR}/query") == [commit_name(1)]


def test_discarded_rows_are_never_imported(tmp_path):
    """A committed batch stays, even if the driver did not learn of its commit and discards it."""
    root = str(tmp_path)
    found = staged(REAL_FILES, root, 0, [1])
    discard(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert REAL_FILES.list_dir(f"{root}/{INCOMING_DIR}/query") == []
    assert write(REAL_FILES, root, 0, [2, 3])
    discard(REAL_FILES, root, writer="query", batch=0, staged=[found])
    assert visible(REAL_FILES, root) == [2, 3]
    assert is_committed(REAL_FILES, root, writer="query", batch=0)
    assert not is_committed(REAL_FILES, root, writer="query", batch=1)


def test_an_open_store_imports_during_maintenance(tmp_path):
    """The batch gets the next number and is visible to every subscriber, also in another process."""
    with quiver.open(tmp_path, Settings(delete_grace_s=0, deliver_unsealed=False), background=False) as store:
        subscriber = store.register("reader", start="earliest")
        store.activate()
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [1]})}))
        store.seal()
        write(REAL_FILES, str(tmp_path), 0, [2, 3])
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [4]})}))
        assert store.stats()["segments"] == 1
        assert awaits_import(REAL_FILES, str(tmp_path))
        assert store.maintain().sealed == 2
        assert not awaits_import(REAL_FILES, str(tmp_path))
        store.seal()
        handles = iter(lambda: subscriber.next_bundle(timeout=0), None)
        seen = []
        for handle in handles:
            seen += handle.bundle[30].column("id").to_pylist()
            handle.ack()
        assert seen == [1, 2, 3, 4]
        assert store.maintain().segments_deleted == 4
    with quiver.open(tmp_path, background=False) as store:
        assert store.stats()["segments"] == 0
        assert store.stats()["next_segment"] == 4


def test_an_imported_segment_does_not_move_the_cursor(tmp_path):
    """Its bundles were never in the log: bundles that are only in the log are recovered after a crash."""
    store = quiver.open(tmp_path, Settings(segment_open_s_max=3600), background=False)
    store.ingest(quiver.Bundle({30: pa.record_batch({"id": [1]})}), durable=True)
    write(REAL_FILES, str(tmp_path), 0, [2, 3])
    store.maintain()
    copy = tmp_path.with_name("copy")
    REAL_FILES.make_dirs(str(copy))
    for directory in ("wal", "segments"):
        (copy / directory).mkdir()
        for name in REAL_FILES.list_dir(f"{tmp_path}/{directory}"):
            (copy / directory / name).write_bytes((tmp_path / directory / name).read_bytes())
    store.close()
    with quiver.open(copy, background=False) as crashed:
        crashed.seal()
        assert sorted(visible(REAL_FILES, str(copy))) == [1, 2, 3]


def test_an_import_waits_while_a_lower_segment_is_not_written(tmp_path):
    """A reader that follows the numbers would skip the segment that is still being sealed."""
    with quiver.open(tmp_path, Settings(segment_open_s_max=3600), background=False) as store:
        store.ingest(quiver.Bundle({30: pa.record_batch({"id": [1]})}))
        write(REAL_FILES, str(tmp_path), 0, [2, 3])
        with store._lock:
            store._sealing.swap()
        assert store._sealer.import_staged(lambda: True) == 0
        store.maintain()
        assert visible(REAL_FILES, str(tmp_path)) == [1, 2, 3]


def capped(policy):
    return Settings.from_mapping(
        {
            "retention.size_cap": "200KiB",
            "retention.size_cap_policy": policy,
            "retention.delete_grace": "0s",
            "wal.rotation_target": "32KiB",
            "segment.target_size": "32KiB",
        }
    )


def test_a_store_at_its_cap_imports_the_batches_that_fit(tmp_path):
    """
    The rest is imported when there is space. Otherwise, a store after processors would never apply backpressure.

    In the end, each batch is imported completely and once.
    """
    with quiver.open(tmp_path, capped("backpressure"), background=False) as store:
        reader = store.register("reader", start="earliest")
        store.maintain()
        waiting = list(range(8))
        with pytest.raises(CapacityError, match="has no space for"):
            while waiting:
                batch = waiting[0]
                write(REAL_FILES, str(tmp_path), batch, range(batch * 8000, (batch + 1) * 8000))
                store.maintain()
                del waiting[0]
        assert 1 < len(waiting) < 7
        assert store.stats()["disk_bytes"] <= 200 * 1024
        seen = []
        for batch in waiting:
            while (handle := reader.next_bundle(timeout=0)) is not None:
                seen += handle.bundle[30]["id"].to_pylist()
                handle.ack()
            clock = Maintaining(store)
            write(REAL_FILES, str(tmp_path), batch, range(batch * 8000, (batch + 1) * 8000), clock=clock)
            store.maintain()
            await_room(REAL_FILES, str(tmp_path), writer="query", clock=ManualClock())
        while (handle := reader.next_bundle(timeout=0)) is not None:
            seen += handle.bundle[30]["id"].to_pylist()
            handle.ack()
    assert seen == list(range(64_000))


def test_a_store_at_its_cap_drops_the_oldest_data_for_staged_batches(tmp_path):
    """If its policy is `drop_oldest`: the loss is counted and reported as for `ingest`."""
    with quiver.open(tmp_path, capped("drop_oldest"), background=False) as store:
        store.register("reader", start="earliest")
        clock = Maintaining(store)
        for batch in range(8):
            write(REAL_FILES, str(tmp_path), batch, range(batch * 8000, (batch + 1) * 8000), clock=clock)
            store.maintain()
            await_room(REAL_FILES, str(tmp_path), writer="query", clock=ManualClock())
        assert store.stats()["segment_bytes"] <= 200 * 1024 + 40_000
        assert store.lag("reader").pending_bundles < 16
    assert visible(REAL_FILES, str(tmp_path))[-1] == 63_999


def test_a_sink_imports_batches_if_no_store_is_open(tmp_path):
    """Without an owner, the batches that were committed before the store was closed would never be imported."""
    with quiver.open(tmp_path, background=False):
        write(REAL_FILES, str(tmp_path), 0, range(10))
        assert awaits_import(REAL_FILES, str(tmp_path))
    await_room(REAL_FILES, str(tmp_path), writer="query", clock=ManualClock())
    assert visible(REAL_FILES, str(tmp_path)) == list(range(10))


def test_new_numbers_are_above_all_used_numbers(tmp_path):
    """Including numbers of deleted segments: the progress of a subscriber, the lowest free segment number."""
    with quiver.open(tmp_path, Settings(delete_grace_s=0), background=False) as store:
        subscriber = store.register("reader", start="earliest")
        for number in range(3):
            store.ingest(quiver.Bundle({30: pa.record_batch({"id": [number]})}))
            store.seal()
        while (handle := subscriber.next_bundle(timeout=0)) is not None:
            handle.ack()
        store.maintain()
    assert visible(REAL_FILES, str(tmp_path)) == []
    assert first_free_segment(REAL_FILES, str(tmp_path)) >= 3


def test_a_sink_waits_for_another_sink_but_not_for_a_store(tmp_path):
    """Another sink releases the lock soon; an open store imports the batch itself."""
    root = str(tmp_path)
    lock = hold(REAL_FILES, f"{root}/{STORE_LOCK}", owner="quiver store")
    write(REAL_FILES, root, 0, [1, 2])
    assert visible(REAL_FILES, root) == []
    lock.release()
    write(REAL_FILES, root, 1, [3, 4])
    assert visible(REAL_FILES, root) == [1, 2, 3, 4]
    other = hold(REAL_FILES, f"{root}/{STORE_LOCK}", owner="quiver sink")
    clock = ManualClock()
    found = staged(REAL_FILES, root, 2, [5])
    commit_batch(REAL_FILES, root, writer="query", batch=2, staged=[found], clock=clock)
    assert clock.monotonic() > 4
    other.release()
    with quiver.open(root, background=False), pytest.raises(DirectoryInUseError):
        hold(REAL_FILES, f"{root}/{STORE_LOCK}", owner="another program")


def test_writers_of_a_single_batch_leave_no_files(tmp_path):
    """A batch write has no second batch, so its last number need not be stored."""
    assert write(REAL_FILES, str(tmp_path), 0, [1, 2], writer="job-1")
    assert visible(REAL_FILES, str(tmp_path)) == [1, 2]
    assert REAL_FILES.list_dir(f"{tmp_path}/{INCOMING_DIR}") == []


def fresh():
    fs = CrashFileSystem()
    fs.make_dirs(ROOT)
    write(fs, ROOT, 0, [0, 1])
    return fs


def cut_at(stop):
    counted = iter(range(10_000))

    def cut(op, path):
        if next(counted) == stop:
            raise PowerCut

    return cut


def steps_of(action):
    fs, steps = fresh(), []
    fs.on_step = lambda op, path: steps.append(op)
    action(fs)
    return len(steps)


def open_and_close(fs):
    """Run the owner of the store: open, maintain, close."""
    with quiver.open(ROOT, fs=fs, clock=ManualClock(), background=False) as store:
        store.maintain()


@with_stride(3)
@pytest.mark.parametrize("owner", ["sink", "store"])
def test_a_crash_at_any_step_imports_a_batch_once(owner, stride):
    """Nothing of it before the commit, all of it in the end; earlier batches stay; nothing is imported twice."""
    total = steps_of(lambda fs: write(fs, ROOT, 1, [10, 11]))
    assert total > 20
    for stop in every(stride, range(total)):
        for seed in range(3):
            fs = fresh()
            fs.on_step = cut_at(stop)
            with pytest.raises(PowerCut):
                write(fs, ROOT, 1, [10, 11], attempt="b")
            after = fs.clone_after_crash(seed)
            seen = visible(after)
            assert seen[:2] == [0, 1]
            committed = is_committed(after, ROOT, writer="query", batch=1)
            assert len(seen) == len(set(seen))
            assert committed or seen == [0, 1]
            if owner == "store":
                open_and_close(after)
                assert visible(after) == ([0, 1, 10, 11] if committed else [0, 1])
            write(after, ROOT, 1, [10, 11], attempt="c")
            assert sorted(visible(after)) == [0, 1, 10, 11]
            write(after, ROOT, 1, [10, 11], attempt="d")
            last = after.clone_after_crash(seed)
            assert sorted(visible(last)) == [0, 1, 10, 11]
            assert last.list_dir(f"{ROOT}/{INCOMING_DIR}/query") == [commit_name(1)]


def test_a_crash_of_the_owner_at_any_step_imports_nothing_twice():
    """The owner is interrupted during the import, and opened again."""

    def waiting():
        fs = fresh()
        lock = hold(fs, f"{ROOT}/{STORE_LOCK}", owner="quiver store")
        write(fs, ROOT, 1, [10, 11])
        lock.release()
        return fs

    fs, steps = waiting(), []
    fs.on_step = lambda op, path: steps.append(op)
    open_and_close(fs)
    for stop in range(len(steps)):
        for seed in range(2):
            fs = waiting()
            fs.on_step = cut_at(stop)
            with pytest.raises(PowerCut):
                open_and_close(fs)
            after = fs.clone_after_crash(seed)
            assert len(visible(after)) == len(set(visible(after)))
            open_and_close(after)
            assert sorted(visible(after.clone_after_crash(seed))) == [0, 1, 10, 11]


def test_a_damaged_batch_does_not_block_other_writers(tmp_path):
    """A damaged commit or staged segment is left where it is; the store continues, and so do other writers."""
    root = str(tmp_path)
    lock = hold(REAL_FILES, f"{root}/{STORE_LOCK}", owner="quiver store")
    write(REAL_FILES, root, 0, [1, 2], writer="bad")
    write(REAL_FILES, root, 0, [3, 4], writer="good")
    lock.release()
    path = tmp_path / INCOMING_DIR / "bad" / commit_name(0)
    complete = path.read_bytes()
    path.write_bytes(complete.replace(b'"batch": 0', b'"batch": 1'))
    with quiver.open(root, background=False) as store:
        store.maintain()
        store.maintain()
        assert visible(REAL_FILES, root) == [3, 4]
    assert [finding.path for finding in check_store(REAL_FILES, root).findings if finding.damaged] == [str(path)]
    with pytest.raises(CorruptionError, match="the checksum of the note differs"):
        write(REAL_FILES, root, 5, [5, 6], writer="good")
    path.write_bytes(complete)
    with quiver.open(root, background=False) as store:
        store.maintain()
    assert sorted(visible(REAL_FILES, root)) == [1, 2, 3, 4, 5, 6]


def test_a_commit_has_golden_bytes():
    """Those of the documentation; a prefix needs more bytes; every flipped byte and trailing junk are found."""
    commit = BatchCommit("5c0f", 12, (f"{part_directory(12, 0, '7')}/0000000000000000.qseg",))
    data = COMMITS.encode(commit)
    assert data == (
        b'{"quiver_commit": 1, "writer": "5c0f", "batch": 12, '
        b'"parts": ["00000000000000000012-00000-7/0000000000000000.qseg"]}\nGOLDEN\n'
    ).replace(b"GOLDEN", b"aafbd717")
    assert decode_commit(memoryview(data)) == Frame(commit, len(data))
    for end in range(1, len(data)):
        assert isinstance(decode_commit(memoryview(data[:end])), NeedMore)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert not isinstance(decode_commit(memoryview(flipped)), Frame)
    assert isinstance(decode_commit(memoryview(data + b"x")), Damage)


@pytest.mark.parametrize(
    "change",
    [
        {"writer": "../up"},
        {"writer": 1},
        {"batch": -1},
        {"batch": True},
        {"parts": "x"},
        {"parts": ["../0000000000000000.qseg"]},
        {"parts": ["00000000000000000011-00000-7/0000000000000000.qseg"]},
        {"parts": ["00000000000000000012-00000-7/quiver.lock"]},
        {"parts": [3]},
        {"parts": ["00000000000000000012-00000-7/0000000000000000.qseg"] * 2},
        {"quiver_commit": 2},
    ],
)
def test_a_commit_may_name_only_its_own_files(change):
    """Even with a valid checksum."""
    from quiver.primitives.checksum import crc32

    value = {"quiver_commit": 1, "writer": "5c0f", "batch": 12, "parts": []} | change
    line = json.dumps(value).encode()
    assert isinstance(decode_commit(memoryview(line + f"\n{crc32(line):08x}\n".encode())), Damage)


def test_commit_names_round_trip():
    """Other names are not parsed."""
    assert parse_commit_name(commit_name(7)) == 7
    assert [parse_commit_name(name) for name in ("7.commit", "-0000000000000000007.commit", "x")] == [None] * 3


def test_inspect_describes_a_commit():
    """By its name and by its first bytes; the example of the documentation is described correctly."""
    from pathlib import Path

    from quiver.store.format.describe.files import STORE_FILES

    page = (Path(__file__).parents[3] / "docs" / "formats" / "sink.md").read_text()
    example = page.rpartition("```text\n")[2].partition("```")[0].encode()
    described = STORE_FILES.describe("unnamed", memoryview(example)).as_dict()
    assert described["kind"] == "sink commit"
    assert described["fields"] == {"writer": "5c0f", "batch": 12, "parts": 1}
    assert not described["problems"]
    assert STORE_FILES.describe(commit_name(3), memoryview(b"junk")).as_dict()["problems"]
