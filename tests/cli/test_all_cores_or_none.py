"""What is done to the files of all cores is begun in none of them when it cannot be done in one."""

import json
import shutil

import pytest

import quiver


@pytest.fixture
def cores_dir(made_cores, tmp_path):
    """A copy of a store of two cores."""
    copy = tmp_path / "store"
    shutil.copytree(made_cores, copy)
    return copy


def contents(directory):
    """Every file but locks, which say who held them last."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".lock")
    return {str(path): path.read_bytes() for path in files}


def flip(path):
    """Damage the file in its middle."""
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("command", [("repair",), ("migrate", "--profile", "otap")])
def test_a_core_that_is_open_keeps_all_as_they_are(cores_dir, call, command):
    """Whoever has the last core open is named; the others are neither mended nor in another profile."""
    name, *options = command
    if name == "repair":
        (cores_dir / "core_0" / "wal" / "quiver.wal.cursor").write_bytes(b"nonsense")
    with quiver.open(cores_dir, cores=2, core=1, background=False):
        before = contents(cores_dir)
        done = call(name, cores_dir, *options)
        assert done.exit_code != 0
        assert "core_1" in done.stderr
        assert contents(cores_dir) == before


def test_a_damaged_core_keeps_all_in_their_profile(cores_dir, call):
    """The store still opens as it was, and migrates when it is mended."""
    flip(min((cores_dir / "core_1" / "segments").glob("*.qseg")))
    before = contents(cores_dir)
    done = call("migrate", cores_dir, "--profile", "otap")
    assert done.exit_code == 1
    assert "run quiver repair first" in done.stderr
    assert contents(cores_dir) == before
    assert call("repair", cores_dir).exit_code == 0
    assert [one["profile"] for one in json.loads(call("migrate", cores_dir, "--profile", "otap", "--json").output)] == [
        "otap",
        "otap",
    ]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_was_mended_is_told_when_a_later_core_is_refused(cores_dir, call, options):
    """A later run finds nothing wrong with the first core any more, and could not say it."""
    (cores_dir / "core_0" / "wal" / "quiver.wal.cursor").write_bytes(b"nonsense")
    log = cores_dir / "core_1" / "wal" / "quiver.wal.cursor"
    log.unlink()
    log.mkdir()
    done = call("repair", cores_dir, *options)
    assert done.exit_code == 2
    assert "core_0/wal/quiver.wal.cursor" in done.stdout
    assert "core_1/wal/quiver.wal.cursor" in done.stderr


def test_a_segment_number_is_of_one_core(cores_dir, call):
    """The first core may have reached it and the second not: none of them is rewound."""
    before = contents(cores_dir)
    done = call("subscribers", cores_dir, "rewind", "fast", "--to", "0")
    assert done.exit_code == 2
    assert "each core counts its own segments" in done.stderr
    assert contents(cores_dir) == before
    assert call("subscribers", cores_dir / "core_1", "rewind", "fast", "--to", "0").exit_code == 0
