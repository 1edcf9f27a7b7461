"""A checkpoint on a local disk: synced before its contents are acknowledged, and repaired after a power loss."""

import pytest

from quiver.errors import UsageError
from quiver.primitives.disk.real_files import REAL_FILES, RealFileSystem
from quiver.store.reading.checkpoint import Checkpoint, is_local, repair_checkpoint
from quiver.store.reading.segments import SegmentList
from quiver.store.reading.stream_options import parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber


class Syncs(RealFileSystem):
    """Records what is synced, in order."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def sync_dir(self, path):
        self.noted.append(path)
        super().sync_dir(path)


def spark_writes(root, log, batch, text="v1"):
    (root / log).mkdir(parents=True, exist_ok=True)
    (root / log / str(batch)).write_text(text)
    (root / log / f".{batch}.crc").write_text("crc" if text else "")


def begin(root, text="{}"):
    root.mkdir()
    (root / "metadata").write_text(text)
    (root / ".metadata.crc").write_text("crc" if text else "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("checkpoint", True), ("/a/b:c", True), ("file:///a", True), ("s3a://b/c", False), ("hdfs://n/c", False)],
)
def test_which_checkpoints_are_local(path, expected):
    assert is_local(path) == expected


def test_offsets_are_synced_before_a_batch_is_read_and_commits_before_it_is_acknowledged(store, tmp_path):
    """Each file once, however often Spark calls."""
    root = tmp_path / "checkpoint"
    fs = Syncs()
    store.rows(2)
    options = parse_options({"path": store.root, "slot": "30", "subscriber": "exp", "checkpoint": str(root)})
    segments = SegmentList(REAL_FILES, store.root, slots=frozenset({30}), fail_on_data_loss=True)
    subscriber = StreamSubscriber(fs, options, segments, parallelism=1)
    start = subscriber.initial()
    end = subscriber.latest(start, unlimited=True)
    begin(root)
    spark_writes(root, "offsets", 0)
    fs.noted.clear()
    subscriber.plan(start, end)
    subscriber.plan(start, end)
    assert [path for path in fs.noted if path.startswith(str(root))].count(f"{root}/offsets") == 1
    assert str(root) in fs.noted

    spark_writes(root, "commits", 0)
    fs.noted.clear()
    subscriber.commit(end)
    progress = [at for at, path in enumerate(fs.noted) if path == store.root]
    assert fs.noted.index(f"{root}/commits") < progress[0]
    subscriber.release()


def test_empty_files_at_the_end_are_removed(tmp_path):
    """They had no effect: a batch is read only after its files are synced."""
    root = tmp_path / "checkpoint"
    begin(root)
    for batch in range(3):
        spark_writes(root, "offsets", batch)
        spark_writes(root, "commits", batch)
    spark_writes(root, "offsets", 3, "")
    spark_writes(root, "offsets", 4, "")
    spark_writes(root, "commits", 2, "")
    removed = repair_checkpoint(REAL_FILES, str(root))
    assert sorted(path.removeprefix(f"{root}/") for path in removed) == [
        "commits/.2.crc", "commits/2", "offsets/.3.crc", "offsets/.4.crc", "offsets/3", "offsets/4",
    ]  # fmt: skip
    assert repair_checkpoint(REAL_FILES, str(root)) == []
    assert sorted(path.name for path in (root / "offsets").iterdir()) == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]


def test_an_empty_identity_is_removed_only_before_the_first_batch(tmp_path):
    """Later, sinks know the query by its identity: only its owner can decide."""
    for name, batches in (("new", 0), ("old", 1)):
        root = tmp_path / name
        begin(root, "")
        for batch in range(batches):
            spark_writes(root, "offsets", batch)
        assert bool(repair_checkpoint(REAL_FILES, str(root))) == (batches == 0)
        assert (root / "metadata").exists() == (batches == 1)


def test_an_empty_file_in_the_middle_stays(tmp_path):
    root = tmp_path / "checkpoint"
    begin(root)
    spark_writes(root, "offsets", 0, "")
    spark_writes(root, "offsets", 1)
    assert repair_checkpoint(REAL_FILES, str(root)) == []


def test_a_missing_checkpoint_needs_no_repair(tmp_path):
    assert repair_checkpoint(REAL_FILES, str(tmp_path / "none")) == []
    Checkpoint(REAL_FILES, str(tmp_path / "none")).sync_commits()


def test_a_remote_checkpoint_cannot_be_synced():
    with pytest.raises(UsageError, match="not on a local disk"):
        parse_options({"path": "s", "slot": "30", "subscriber": "exp", "checkpoint": "s3a://bucket/c"})
