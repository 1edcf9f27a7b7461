"""
A directory where a file of the store belongs: somebody's mistake, named with what to do, and touched by nobody.
"""

import shutil

import pytest

import quiver
from quiver.errors import QuiverError

NAMES = [
    *("wal/quiver.wal.cursor", "wal/quiver.wal", "wal/quiver.wal.3", "segments/0000000000000000.qseg"),
    *("segments/0000000000000099.qseg", "segments/quiver.cold", "segments/quiver.segment.floor"),
    *("quiver.id", "quiver.drops", "quiver.evicted", "quiver.sub.fast", "quiver.sub.new", "quiver.sub.fast.bak"),
]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_named_and_left_alone(store_dir, call, name):
    """`verify` goes on to the other files, `repair` and opening change nothing, and all say which path it is."""
    path = store_dir / name
    path.unlink(missing_ok=True)
    (path / "kept").mkdir(parents=True)
    verified = call("verify", store_dir, "--json")
    assert verified.exit_code == 1
    assert "a directory lies where a file belongs" in verified.output
    assert str(path) in verified.output
    repaired = call("repair", store_dir)
    assert repaired.exit_code == 2
    assert f"{path}: a directory lies where a file belongs: move it away" in repaired.output
    try:
        quiver.open(store_dir, background=False).close()
    except QuiverError as error:
        assert str(path) in str(error)
    assert (path / "kept").is_dir()
    shutil.rmtree(path)
    call("repair", store_dir)
    assert call("verify", store_dir).exit_code == 0


def test_a_lock_is_such_a_file(store_dir, call):
    (store_dir / "quiver.lock").unlink()
    (store_dir / "quiver.lock").mkdir()
    assert "quiver.lock: a directory lies where a file belongs" in call("repair", store_dir).output
    with pytest.raises(QuiverError, match="a directory lies where a file belongs"):
        quiver.open(store_dir, background=False)
