"""A sink keeps to the cap of its store: it waits for space like any producer, or fails and leaves nothing."""

import os

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import quiver
from quiver.cli.main import build_app
from quiver.cli.stats.store import collect_stats
from quiver.errors import CapacityError
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.settings import KIB, Settings
from quiver.spark.store.sink_options import SinkOptions
from quiver.spark.store.sink_stage import StoreSink
from quiver.store.format.names import DEAD_LETTER_DIR
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.limits.disk_reports import find_room
from quiver.store.limits.tree_bytes import tree_bytes
from quiver.store.opening import open_store
from quiver.store.reading.check import check_store
from quiver.store.staging.batches import commit_batch, discard, stage
from quiver.store.staging.room import SinkRoom
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem

ROOT = "/store"
CAP = 1024 * KIB
SMALL = Settings(
    size_cap_bytes=CAP, wal_rotate_bytes=64 * KIB, segment_bytes_max=64 * KIB, delete_grace_s=3600.0,
    maintain_interval_s=0.1,
)  # fmt: skip


class Rig:
    """A store with a cap and without threads: its maintenance runs whenever a sink waits."""

    def __init__(self, settings=SMALL):
        self.clock = ManualClock()
        self.disk = CrashFileSystem(clock=self.clock)
        self.store = open_store(ROOT, settings, fs=self.disk, clock=self.clock, background=False)
        self.reader = self.store.register("reader", start="earliest")
        self.store.activate()
        self.store.maintain()
        self.batch = -1
        self.between = self.store.maintain
        wait = self.clock.wait

        def maintained(condition, timeout):
            self.between()
            return wait(condition, timeout)

        self.clock.wait = maintained

    def write(self, nbytes, writer="query", timeout_s=5.0):
        """Stage a batch of one task with *nbytes* bytes, and commit it."""
        self.batch += 1
        options = SinkOptions(path=ROOT, slot=30, timeout_s=timeout_s)
        data = pa.record_batch({"data": [os.urandom(nbytes)]})
        staged = stage(
            self.disk, ROOT, [{30: data}], writer=writer, batch=self.batch, partition=0, attempt="a", options=options,
            clock=self.clock,
        )  # fmt: skip
        commit_batch(self.disk, ROOT, writer=writer, batch=self.batch, staged=[staged], clock=self.clock)

    def take_all(self):
        while (handle := self.reader.next_bundle(timeout=0)) is not None:
            handle.ack()

    @property
    def on_disk(self):
        return tree_bytes(self.disk, ROOT)


def fill(rig, nbytes=100 * KIB):
    """Write batches until one finds no space, and return their number."""
    for written in range(50):
        try:
            rig.write(nbytes)
        except CapacityError:
            return written
    raise AssertionError("the sink never failed")


def test_a_sink_at_the_cap_fails_and_leaves_nothing():
    """Without a subscriber that resolves bundles, the cap holds, however often the batch is repeated."""
    rig = Rig()
    assert 5 <= fill(rig) <= 10
    for _ in range(20):
        with pytest.raises(CapacityError, match="the store /store has no space for"):
            rig.write(100 * KIB, timeout_s=1.0)
    assert rig.on_disk <= CAP
    rig.store.maintain()
    assert rig.store.stats()["staged_bytes"] < KIB, "the note of the last batch stays"


def test_a_sink_waits_until_there_is_space():
    """A segment that a subscriber has resolved is deleted immediately, even within its grace period."""
    rig = Rig()
    fill(rig)
    before = rig.store.stats()["segments"]
    maintain = rig.store.maintain

    def finish_and_maintain():
        rig.take_all()
        maintain()

    rig.between = finish_and_maintain
    for _ in range(10):
        rig.write(100 * KIB)
    assert rig.on_disk <= CAP
    assert rig.store.stats()["segments"] <= before + 1


def test_resolved_segments_are_deleted_for_a_sink():
    """They were kept only in case of a rewind."""
    rig = Rig()
    fill(rig)
    rig.take_all()
    rig.store.maintain()
    assert rig.store.stats()["segments"] >= 5
    rig.write(100 * KIB)
    assert rig.store.stats()["segments"] >= 4, "no more than needed was deleted"


def test_staged_data_count_for_other_producers():
    """`ingest` is refused before staged data and segments together exceed the cap."""
    rig = Rig()
    rig.batch += 1
    options = SinkOptions(path=ROOT, slot=30)
    data = pa.record_batch({"data": [os.urandom(900 * KIB)]})
    stage(
        rig.disk, ROOT, [{30: data}], writer="query", batch=0, partition=0, attempt="a", options=options,
        clock=rig.clock,
    )  # fmt: skip
    rig.store.maintain()
    assert rig.store.stats()["staged_bytes"] > 900 * KIB
    assert rig.store.stats()["disk_bytes"] > 900 * KIB
    with pytest.raises(CapacityError, match="of which staged by Spark sinks 9"):
        for _ in range(20):
            rig.store.ingest(quiver.Bundle({30: pa.record_batch({"data": [os.urandom(20 * KIB)]})}))
    assert rig.on_disk <= CAP


def test_committed_batches_are_imported_at_the_cap():
    """They are on disk already, and only a segment can be resolved."""
    rig = Rig()
    rig.between = lambda: None
    for _ in range(20):
        try:
            rig.write(100 * KIB, timeout_s=0.0)
        except CapacityError:
            break
    assert rig.store.stats()["segments"] == 0
    rig.store.maintain()
    assert rig.store.stats()["segments"] >= 5
    assert rig.store.stats()["staged_bytes"] < KIB, "the note of the last batch stays"


def test_drop_oldest_deletes_segments_for_a_sink():
    """As for any producer."""
    settings = Settings(
        size_cap_bytes=CAP, size_cap_policy="drop_oldest", wal_rotate_bytes=64 * KIB, segment_bytes_max=64 * KIB
    )
    rig = Rig(settings)
    for _ in range(30):
        rig.write(100 * KIB)
        rig.store.maintain()
    assert rig.on_disk <= CAP
    assert rig.store.stats()["segments"] >= 5


def test_the_cap_applies_while_no_store_is_open():
    """The owner stored it in the directory; a sink that would exceed it fails."""
    rig = Rig()
    rig.store.close()
    rig.between = lambda: None
    assert 5 <= fill(rig) <= 10
    assert rig.on_disk <= CAP


def test_a_store_without_a_cap_does_not_limit_sinks():
    """Also if its owner opened it with a cap before."""
    rig = Rig()
    rig.store.close()
    assert find_room(rig.disk, ROOT) is not None
    with open_store(ROOT, fs=rig.disk, clock=rig.clock, background=False) as store:
        store.maintain()
        assert find_room(rig.disk, ROOT) is None
    rig.between = lambda: None
    rig.write(5 * CAP)


def test_dead_letters_do_not_count():
    """They have their own cap."""
    rig = Rig()
    found = find_room(rig.disk, ROOT)
    rig.disk.make_dirs(f"{ROOT}/{DEAD_LETTER_DIR}/out")
    file = rig.disk.create(f"{ROOT}/{DEAD_LETTER_DIR}/out/quiver.x")
    file.pwrite(bytes(CAP), 0)
    file.close()
    assert find_room(rig.disk, ROOT) == found


def test_a_torn_cap_file_is_ignored():
    """It is just being written."""
    rig = Rig()
    file = rig.disk.open_write(f"{ROOT}/quiver.cap")
    file.pwrite(b"\0\0\0", 3)
    file.close()
    assert find_room(rig.disk, ROOT) is None
    SinkRoom(rig.disk, ROOT, 0.0, rig.clock).wait_for(10 * CAP)


def test_an_aborted_batch_leaves_no_files_of_killed_tasks():
    """A task that was killed does not report its staged files."""
    rig = Rig()
    rig.between = lambda: None
    options = SinkOptions(path=ROOT, slot=30)
    data = {30: pa.record_batch({"data": [b"x"]})}
    for batch, attempt in ((0, "a"), (0, "b"), (1, "a")):
        stage(
            rig.disk, ROOT, [data], writer="query", batch=batch, partition=0, attempt=attempt, options=options,
            clock=rig.clock,
        )  # fmt: skip
    discard(rig.disk, ROOT, writer="query", batch=0, staged=[])
    assert [name[:20] for name in rig.disk.list_dir(f"{ROOT}/{INCOMING_DIR}/query")] == [f"{1:020}"]


def test_a_sink_waits_until_its_last_batch_is_imported(tmp_path):
    """For any reason, for example a cap on the number of segments."""
    settings = Settings(segments_max=3, delete_grace_s=3600.0)
    sink = StoreSink(SinkOptions(path=str(tmp_path), slot=30, timeout_s=0.0), str(tmp_path))
    rows = pa.record_batch({"id": [1]})
    with quiver.open(tmp_path, settings, background=False) as store:
        store.register("reader", start="earliest")
        store.activate()
        with pytest.raises(CapacityError, match="imports no more staged batches"):
            for batch in range(20):
                sink.commit(writer="query", batch=batch, staged=[sink.stage([rows], writer="query", batch=batch)])
                store.maintain()
        assert 3 <= batch <= 5


def test_staged_batches_are_verified_and_counted(tmp_path):
    """A committed batch belongs to the store before its import; a flipped byte in it is damage."""
    sink = StoreSink(SinkOptions(path=str(tmp_path), slot=30), str(tmp_path))
    with quiver.open(tmp_path, background=False) as store:
        rows = pa.record_batch({"id": list(range(1000))})
        staged = sink.stage([rows], writer="query", batch=0)
        sink.commit(writer="query", batch=0, staged=[staged])
        report = check_store(REAL_FILES, str(tmp_path))
        assert (report.staged_bundles, report.damaged) == (1, False)
        figures = collect_stats(REAL_FILES, str(tmp_path), now_ns=0)
        assert figures.staged_bytes >= staged.size_bytes
        assert figures.disk_bytes >= figures.staged_bytes + figures.wal_bytes
        result = CliRunner().invoke(build_app(), ["verify", str(tmp_path)])
        assert "1 staged; nothing is damaged" in result.stdout
        (part,) = staged.parts
        path = tmp_path / "incoming" / "query" / part
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
        assert check_store(REAL_FILES, str(tmp_path)).damaged
        path.unlink()
        store.maintain()
        assert not check_store(REAL_FILES, str(tmp_path)).damaged, "a missing part was imported"


def test_a_batch_above_the_cap_is_refused_with_advice():
    """Waiting helps only smaller batches: this one can never fit."""
    rig = Rig()
    with pytest.raises(
        CapacityError, match=f"its cap is {CAP} bytes, so limit the batches of the query at their source"
    ):
        rig.write(2 * CAP, timeout_s=1.0)
    assert rig.store.stats()["staged_bytes"] < KIB
