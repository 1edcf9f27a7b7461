"""Every command on an invalid directory, file or snapshot: a one-line message and an exit code, never a traceback."""

import errno
import os
import shutil

import pytest

import quiver
from quiver.primitives.disk.real_files import RealFileSystem

COMMANDS = {
    "inspect": lambda path, _to: ["inspect", path],
    "verify": lambda path, _to: ["verify", path],
    "stats": lambda path, _to: ["stats", path],
    "watch": lambda path, _to: ["stats", path, "--watch", "--count", "1"],
    "repair": lambda path, _to: ["repair", path],
    "dry run": lambda path, _to: ["repair", path, "--dry-run"],
    "list": lambda path, _to: ["subscribers", path],
    "drop": lambda path, _to: ["subscribers", path, "drop", "slow"],
    "rewind": lambda path, _to: ["subscribers", path, "rewind", "slow", "--to", "earliest"],
    "export": lambda path, to: ["export", path, "--slot", "logs", "--to", to / "out.parquet"],
    "view": lambda path, to: ["export", path, "--view", "logs", "--to", to / "out.jsonl"],
    "migrate": lambda path, _to: ["migrate", path, "--profile", "otap"],
    "snapshot": lambda path, to: ["snapshot", path, to / "copy"],
    "restore": lambda path, to: ["restore", path, to / "back"],
    "doctor": lambda path, _to: ["doctor", path, "--samples", "1"],
    "bench": lambda path, _to: ["bench", path, "--seconds", "0.01", "--rounds", "1", "--mode", "synced", "--rows", "1"],
}
ON_ANY_DIRECTORY = {"doctor", "bench"}


@pytest.fixture
def to(tmp_path):
    """Return the directory in which a command may create files."""
    directory = tmp_path / "to"
    directory.mkdir()
    return directory


@pytest.fixture(params=COMMANDS)
def command(request):
    """Return each command in turn."""
    return request.param


def message_of(result):
    """Return the only line of the output, which names the error."""
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    assert lines[0].startswith("quiver: ")
    return lines[0]


def test_a_missing_path_is_refused(command, tmp_path, to, call):
    """With exit code 2 and the path; the path is not created."""
    path = tmp_path / "nothing"
    result = call(*COMMANDS[command](path, to))

    assert result.exit_code == 2
    assert str(path) in message_of(result)
    assert not path.exists()
    assert list(to.iterdir()) == []


def test_an_empty_directory_is_refused(command, tmp_path, to, call):
    """With exit code 2, except by the commands that measure a disk. It stays empty."""
    path = tmp_path / "empty"
    path.mkdir()
    result = call(*COMMANDS[command](path, to))

    if command not in ON_ANY_DIRECTORY:
        assert result.exit_code == 2
        assert str(path) in message_of(result)
    assert list(path.iterdir()) == []
    assert list(to.iterdir()) == []


def test_a_file_of_another_program_is_refused(command, tmp_path, to, call):
    """Only `inspect` accepts files, and only those of Quiver; the file is not changed."""
    path = tmp_path / "file"
    path.write_bytes(b"[bold]not ours")
    result = call(*COMMANDS[command](path, to))

    assert result.exit_code == 2
    assert str(path) in result.output.replace("\n", "")
    assert path.read_bytes() == b"[bold]not ours"
    assert list(to.iterdir()) == []


def test_a_directory_of_another_program_is_refused(command, tmp_path, to, call):
    """Its files are neither read as a store nor changed."""
    path = tmp_path / "photos"
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "a.jpg").write_bytes(b"\xff\xd8" * 100)
    (path / "quiver.txt").write_text("notes")
    result = call(*COMMANDS[command](path, to))

    if command not in ON_ANY_DIRECTORY:
        assert result.exit_code == 2
        message_of(result)
    assert sorted(one.name for one in path.rglob("*")) == ["a.jpg", "deep", "quiver.txt"]


def test_foreign_files_in_a_store_are_ignored(command, store_dir, to, call):
    """Files and directories with similar names are neither changed nor an obstacle."""
    (store_dir / "core_x").mkdir()
    (store_dir / "core_7").mkdir()
    (store_dir / "segments" / "1.qseg").write_bytes(b"short name")
    (store_dir / "segments" / "99999999999999999999999.qseg").write_bytes(b"long name")
    (store_dir / "segments" / "folder").mkdir()
    (store_dir / "wal" / "quiver.wal.01").write_bytes(b"zero ahead")
    (store_dir / "quiver.sub.a b").write_bytes(b"blank")
    (store_dir / "quiver.sub.con").write_bytes(b"device")
    (store_dir / "ünï\ncode").write_bytes(b"")
    before = {path for path in store_dir.rglob("*") if path.is_file() and path.read_bytes() in GARBAGE}
    result = call(*COMMANDS[command](store_dir, to))

    if command == "restore":
        assert result.exit_code == 2
    elif command not in {"inspect", "view"}:
        assert result.exit_code == 0, result.output
    assert {path for path in before if not path.exists()} == set()


GARBAGE = {b"short name", b"long name", b"zero ahead", b"blank", b"device", b""}


def test_an_open_store_is_read_but_not_changed(command, store_dir, to, call):
    """Commands that read it work; those that change it are refused and name the owner."""
    with quiver.open(store_dir, background=False) as store:
        slow = store.register("slow")
        handle = slow.next_bundle(timeout=0)
        result = call(*COMMANDS[command](store_dir, to))
        if command in {"repair", "dry run", "drop", "rewind", "migrate"}:
            assert result.exit_code == 1
            assert "quiver" in message_of(result)
        elif command in {"restore", "view"}:
            assert result.exit_code in {0, 2}
        else:
            assert result.exit_code == 0, result.output
        handle.ack()


def test_a_disk_error_is_reported_with_its_path(command, store_dir, to, monkeypatch, call):
    """For missing permissions and for a read error, with exit code 1."""
    for number in (errno.EACCES, errno.EIO):

        def refused(_self, path, *_arguments, number=number, **_named):
            raise OSError(number, os.strerror(number), path)

        with monkeypatch.context() as patched:
            for name in ("open_read", "open_write", "create", "create_or_truncate", "map_read", "list_dir", "read_all"):
                patched.setattr(RealFileSystem, name, refused)
            result = call(*COMMANDS[command](store_dir, to))
        assert result.exit_code == 1, result.output
        assert os.strerror(number) in message_of(result)
        assert str(store_dir) in message_of(result) or "to/" in message_of(result)


def test_a_store_with_only_empty_files_is_reported_or_repaired(command, store_dir, to, call):
    """The disk lost the length of every file: exit code 1 for the damage, or a repair, never a traceback."""
    for path in store_dir.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(b"")
    result = call(*COMMANDS[command](store_dir, to))

    assert result.exit_code in {0, 1, 2}
    if command in {"inspect", "verify", "stats", "list", "export", "snapshot"}:
        assert result.exit_code != 0, result.output
    if command == "repair":
        assert result.exit_code == 0, result.output
        with quiver.open(store_dir, background=False) as store:
            assert store.stats()["segments"] == 0


def test_a_truncated_snapshot_is_refused(store_dir, tmp_path, to, call):
    """The message names the truncated file, or the missing file list; nothing is restored."""
    copy = tmp_path / "copy"
    assert call("snapshot", store_dir, copy).exit_code == 0
    for path in sorted(copy.rglob("*")):
        if not path.is_file():
            continue
        cut = tmp_path / "cut"
        shutil.copytree(copy, cut)
        damaged = cut / path.relative_to(copy)
        damaged.chmod(0o600)
        damaged.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        result = call("restore", cut, to / "back")
        assert result.exit_code == 1
        assert str(damaged) in message_of(result)
        assert not (to / "back").exists()
        damaged.unlink()
        assert call("restore", cut, to / "back").exit_code in {1, 2}
        assert not (to / "back").exists()
        shutil.rmtree(cut)
