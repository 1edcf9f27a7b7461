"""A command that changes the files of all cores changes none of them if it cannot change each of them."""

import json
import shutil

import pytest

import quiver


@pytest.fixture
def cores_dir(made_cores, tmp_path):
    """Return a copy of a store of two cores."""
    copy = tmp_path / "store"
    shutil.copytree(made_cores, copy)
    return copy


def contents(directory):
    """Return all files but locks, which record their last owner."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".lock")
    return {str(path): path.read_bytes() for path in files}


def flip(path):
    """Damage the middle of the file."""
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("command", [("repair",), ("migrate", "--profile", "otap")])
def test_an_open_core_prevents_changes_to_all_cores(cores_dir, call, command):
    """The error names the core that is open; the others are neither repaired nor migrated."""
    name, *options = command
    if name == "repair":
        (cores_dir / "core_0" / "wal" / "quiver.wal.cursor").write_bytes(b"nonsense")
    with quiver.open(cores_dir, cores=2, core=1, background=False):
        before = contents(cores_dir)
        done = call(name, cores_dir, *options)
        assert done.exit_code != 0
        assert "core_1" in done.stderr
        assert contents(cores_dir) == before


def test_a_damaged_core_prevents_a_migration_of_all_cores(cores_dir, call):
    """The store still opens in its old profile, and migrates after a repair."""
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
def test_repairs_are_reported_even_if_a_later_core_is_refused(cores_dir, call, options):
    """A second run finds no damage in the first core, so it could not report the repair."""
    (cores_dir / "core_0" / "wal" / "quiver.wal.cursor").write_bytes(b"nonsense")
    log = cores_dir / "core_1" / "wal" / "quiver.wal.cursor"
    log.unlink()
    log.mkdir()
    done = call("repair", cores_dir, *options)
    assert done.exit_code == 2
    assert "core_0/wal/quiver.wal.cursor" in done.stdout
    assert "core_1/wal/quiver.wal.cursor" in done.stderr


def test_a_segment_number_applies_to_one_core_only(cores_dir, call):
    """The first core may contain the segment when the second does not: no core is rewound."""
    before = contents(cores_dir)
    done = call("subscribers", cores_dir, "rewind", "fast", "--to", "0")
    assert done.exit_code == 2
    assert "each core counts its own segments" in done.stderr
    assert contents(cores_dir) == before
    assert call("subscribers", cores_dir / "core_1", "rewind", "fast", "--to", "0").exit_code == 0
