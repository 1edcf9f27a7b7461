"""Committing, discarding and importing staged batches, with a format of its own."""

import pytest

from quiver.errors import CorruptionError
from quiver.primitives.batch_notes import BatchCommit, CommitCodec, commit_name, done_name, part_directory
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staged_commits import StagedLog, hold_patiently, noted_batches
from quiver.primitives.disk.staging import names_in
from quiver.primitives.scan import Damage, Frame
from quiver.testing.clock import ManualClock

CODEC = CommitCodec("test_batch", lambda value: value if isinstance(value, str) else None, path_of=str)


@pytest.fixture
def log(tmp_path):
    return StagedLog(REAL_FILES, str(tmp_path), CODEC)


def stage(log, batch, attempt="a"):
    directory = part_directory(batch, 0, attempt)
    REAL_FILES.make_dirs(f"{log.directory('w')}/{directory}")
    REAL_FILES.create_or_truncate(f"{log.directory('w')}/{directory}/part").close()
    return f"{directory}/part"


def test_golden_commit():
    commit = BatchCommit("w", 3, (f"{part_directory(3, 0, 'a')}/part",))
    data = CODEC.encode(commit)
    assert (
        data[:-9] == b'{"test_batch": 1, "writer": "w", "batch": 3, "parts": ["00000000000000000003-00000-a/part"]}\n'
    )
    assert CODEC.decode(data) == Frame(commit, len(data))
    for parts in (("other/part",), (part_directory(4, 0, "a") + "/part",), commit.parts * 2, (1,), None):
        assert isinstance(CODEC.decode(CODEC.encode(BatchCommit("w", 3, parts))), Damage)


def test_a_batch_is_committed_once(log):
    first = stage(log, 0)
    assert log.commit("w", 0, (first,))
    assert log.is_committed("w", 0)
    assert log.awaits_import("w", 0)
    again = stage(log, 0, attempt="b")
    assert not log.commit("w", 0, (again,))
    assert names_in(REAL_FILES, log.directory("w")) == [first.partition("/")[0], commit_name(0)]


def test_a_batch_without_parts_leaves_no_commit(log):
    assert log.commit("w", 0, ())
    assert not log.is_committed("w", 0)


def test_discard_removes_what_killed_tasks_staged_too(log):
    kept = stage(log, 1)
    parts = [stage(log, 0)]
    stage(log, 0, attempt="killed")
    log.discard("w", 0, parts)
    assert names_in(REAL_FILES, log.directory("w")) == [kept.partition("/")[0]]


def test_discard_keeps_the_parts_of_a_committed_batch(log):
    parts = (stage(log, 0),)
    log.commit("w", 0, parts)
    log.discard("w", 0, parts)
    assert log.load("w", 0).parts == parts


def test_batches_are_imported_in_order_and_cleaned_up(log):
    for batch in (0, 2, 1):
        log.commit("w", batch, (stage(log, batch),)) if batch != 1 else stage(log, batch)
    found = []
    assert log.writers() == ["w"]
    assert log.import_writer("w", lambda commit: found.append(commit.batch) or len(commit.parts)) == 2
    assert found == [0, 2]
    assert names_in(REAL_FILES, log.directory("w")) == [done_name(2)]
    assert log.import_writer("w", lambda _: pytest.fail("imported twice")) == 0
    assert noted_batches([done_name(2), commit_name(1)], "done") == [2]


def test_a_damaged_commit_is_reported(log):
    log.commit("w", 0, (stage(log, 0),))
    with open(f"{log.directory('w')}/{commit_name(0)}", "r+b") as file:
        file.write(b"x")
    with pytest.raises(CorruptionError):
        log.import_writer("w", len)


def test_no_writers_where_nothing_was_staged(tmp_path):
    assert StagedLog(REAL_FILES, str(tmp_path / "none"), CODEC).writers() == []


def test_a_lock_is_waited_for(tmp_path):
    path = str(tmp_path / "lock")
    clock = ManualClock()
    with_lock = {"owner": "sink", "patience_s": 1.0, "clock": clock}
    first = hold(REAL_FILES, path, owner="sink")
    assert hold_patiently(REAL_FILES, path, **with_lock) is None
    first.release()
    second = hold(REAL_FILES, path, owner="store")
    assert hold_patiently(REAL_FILES, path, only_for_owner=True, **with_lock) is None
    second.release()
    hold_patiently(REAL_FILES, path, **with_lock).release()
