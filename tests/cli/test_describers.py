"""The registry of describers: exactly one of them matches each kind of path, and the commands follow it."""

import pytest

from quiver.aof import AofManager
from quiver.aof.format.sink_batch import COMMITS as AOF_COMMITS
from quiver.aof.format.sink_batch import StagedPart
from quiver.cli.describers import DESCRIBERS, describer_of
from quiver.observe import InMemoryObserver
from quiver.primitives.batch_notes import BatchCommit, commit_name, part_directory
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.qwp.slots.ring import RingSettings
from quiver.qwp.slots.slot import open_slot
from quiver.store.format.sink_commit import COMMITS as STORE_COMMITS
from quiver.topics.store import TopicStore

PIPELINE = "version: 1\nreceivers: {}\n"


@pytest.fixture
def aof_dir(tmp_path):
    with AofManager.open(str(tmp_path / "aof"), background=False) as manager:
        log = manager.log("orders")
        log.append_records([b"1", b"2"])
        log.force_rollover(timeout=5)
        log.append_records([b"3"])
    return tmp_path / "aof"


@pytest.fixture
def slots_dir(tmp_path):
    root = tmp_path / "slots"
    slot = open_slot(REAL_FILES, str(root), "edge", RingSettings(4096, 1 << 20, 1.0), observer=InMemoryObserver())
    slot.ring.append(b"frame")
    slot.close()
    return root


@pytest.fixture
def topics_dir(tmp_path):
    with TopicStore.open(tmp_path / "topics", background=False) as topics:
        topics.topic("default/orders").append(b"1")
    return tmp_path / "topics"


def names_of(path):
    return [one.name for one in DESCRIBERS if one.matches(path)]


def test_exactly_one_describer_matches_each_directory(any_dir, aof_dir, slots_dir, topics_dir, tmp_path, call):
    """A store and an append-only log both have `segments/`, and a snapshot has every directory of a store."""
    copy = tmp_path / "copy"
    assert call("snapshot", any_dir, copy).exit_code == 0

    assert names_of(any_dir) == ["a store"]
    assert names_of(copy) == ["a snapshot"]
    assert names_of(aof_dir) == names_of(aof_dir / "orders") == ["a directory of append-only logs"]
    assert names_of(slots_dir) == ["a directory of QWP slots"]
    assert names_of(slots_dir / "edge") == ["a QWP slot"]
    assert names_of(topics_dir) == ["a directory of topics"]


def test_a_directory_of_another_program_has_no_describer(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    assert names_of(tmp_path) == []
    assert names_of(tmp_path / "missing") == []


def test_exactly_one_describer_matches_each_file(made_store, aof_dir, slots_dir):
    """Every file that a log writes, except locks and files in preparation."""
    expected = {
        "a file of a store": made_store,
        "a file of an append-only log": aof_dir / "orders" / "segments",
        "a file of a QWP slot": slots_dir / "edge",
    }
    for name, root in expected.items():
        paths = [
            one
            for one in root.rglob("*")
            if one.is_file() and not one.name.startswith(".lock") and one.suffix not in {".lock", ".spare", ".tmp"}
        ]
        assert paths
        assert {str(one): names_of(one) for one in paths} == {str(one): [name] for one in paths}


def test_exactly_one_describer_matches_a_pipeline_file(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)

    assert names_of(path) == ["a pipeline file"]


@pytest.mark.parametrize("has_store_commit", [True, False])
def test_commits_of_sinks_have_one_name_and_differ_in_their_bytes(tmp_path, has_store_commit):
    part = part_directory(4, 0, "a")
    stored, logged = STORE_COMMITS, AOF_COMMITS
    path = tmp_path / commit_name(4)
    if has_store_commit:
        path.write_bytes(stored.encode(BatchCommit("q", 4, (f"{part}/0000000000000001.qseg",))))
    else:
        path.write_bytes(logged.encode(BatchCommit("q", 4, (StagedPart(f"{part}/00000.part", 1, 2),))))

    assert names_of(path) == ["a file of a store" if has_store_commit else "a file of an append-only log"]


def test_a_damaged_file_is_recognized_by_its_name(made_store, aof_dir, tmp_path):
    segment = next((aof_dir / "orders" / "segments").glob("*.seg"))
    for name, kind in ((segment.name, "an append-only log"), ("quiver.wal.cursor", "a store"), ("x.sfa", "a QWP slot")):
        path = tmp_path / name
        path.write_bytes(b"\xff" * 100)
        assert names_of(path) == [f"a file of {kind}"]


def test_other_logs_are_refused_with_their_commands(aof_dir, slots_dir, topics_dir, call):
    """An append-only log has a directory `segments` like a store, and must not count as an empty one."""
    for root, group in ((aof_dir / "orders", "quiver aof"), (slots_dir, "quiver qwp"), (topics_dir, "quiver topic")):
        for command in ("verify", "stats"):
            result = call(command, root)
            assert result.exit_code == 2
            assert f"`{group}`" in result.output.replace("\n", " ")


def test_a_describer_has_what_its_commands_need():
    """Files are described, stores verified; every directory names the commands that work on it."""
    for one in DESCRIBERS:
        assert one.group.split()[0] == "quiver"
        assert (one.describe is not None) == one.name.startswith("a file")
        assert one.stats is None or one.verify is not None


def test_a_group_has_only_its_own_describers(aof_dir):
    path = next((aof_dir / "orders" / "segments").glob("*.seg"))

    assert describer_of(path, "quiver") is None
    assert describer_of(path, "quiver aof").name == "a file of an append-only log"
