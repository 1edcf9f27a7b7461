"""A directory or a pipe in place of a file of the store is reported with a remedy, and not changed."""

import os
import shutil

import pytest

import quiver
from quiver.errors import CorruptionError, QuiverError
from quiver.primitives.disk.real_files import RealFile

NAMES = [
    *("wal/quiver.wal.cursor", "wal/quiver.wal", "wal/quiver.wal.3", "segments/0000000000000000.qseg"),
    *("segments/0000000000000099.qseg", "segments/quiver.cold", "segments/quiver.segment.floor"),
    *("quiver.id", "quiver.drops", "quiver.evicted", "quiver.sub.fast", "quiver.sub.new", "quiver.sub.fast.bak"),
]


def make_directory(path):
    (path / "kept").mkdir(parents=True)


ordinary_pread = RealFile.pread


def bounded_pread(file, size, offset):
    """Fails a test that would read gigabytes."""
    assert min(size, file.size() - offset) < 1 << 20
    return ordinary_pread(file, size, offset)


DIRECTORY, PIPE = "a directory is in the place of a file", "a pipe, a socket or a device is in the place of a file"
KINDS = {DIRECTORY: (make_directory, shutil.rmtree), PIPE: (os.mkfifo, os.unlink)}
PIPES = ("wal/quiver.wal", "segments/0000000000000000.qseg", "segments/quiver.cold", "quiver.sub.fast")


@pytest.mark.parametrize(("name", "reason"), [(name, DIRECTORY) for name in NAMES] + [(name, PIPE) for name in PIPES])
def test_a_directory_in_place_of_a_file_is_reported_and_not_changed(store_dir, call, name, reason):
    """`verify` continues with the other files, `repair` and opening change nothing, and all report its path."""
    make, remove = KINDS[reason]
    path = store_dir / name
    path.unlink(missing_ok=True)
    make(path)
    verified = call("verify", store_dir, "--json")
    assert verified.exit_code == 1
    assert reason in verified.output
    assert str(path) in verified.output
    repaired = call("repair", store_dir)
    assert repaired.exit_code == 2
    assert f"{path}: {reason}: move it away" in repaired.output
    for command in ("stats", "subscribers"):
        assert call(command, store_dir).exit_code in (0, 1, 2)
    try:
        quiver.open(store_dir, background=False).close()
    except QuiverError as error:
        assert str(path) in str(error)
    assert path.exists()
    remove(path)
    call("repair", store_dir)
    assert call("verify", store_dir).exit_code == 0


@pytest.mark.parametrize("name", ["wal/quiver.wal.cursor", "quiver.sub.fast", "quiver.drops", "segments/quiver.cold"])
def test_a_small_file_of_gigabytes_is_reported_and_not_read(store_dir, call, name, monkeypatch):
    with (store_dir / name).open("wb") as file:
        file.truncate(3 << 30)
    monkeypatch.setattr(RealFile, "pread", bounded_pread)
    verified = call("verify", store_dir)
    assert verified.exit_code == 1
    assert "too large: a valid file has at most 268435456 bytes; it was not read" in verified.output
    inspected = call("inspect", store_dir)
    assert inspected.exit_code == 1
    assert "too large: a valid file has at most" in inspected.output


def test_a_file_of_another_program_is_not_read(store_dir, call, monkeypatch):
    with (store_dir / "video").open("wb") as file:
        file.truncate(3 << 30)
    monkeypatch.setattr(RealFile, "pread", bounded_pread)
    assert call("inspect", store_dir).exit_code == 0
    assert "is no file of a store or a slot" in call("inspect", store_dir / "video").output


@pytest.mark.parametrize("reason", KINDS)
def test_a_directory_in_place_of_a_core_claim_is_reported(tmp_path, call, reason):
    """It prevents opening the core, so `verify` reports it."""
    root = tmp_path / "cores"
    quiver.open(root, cores=2, background=False).close()
    path = root / "core_1" / "quiver.core"
    path.unlink()
    make, remove = KINDS[reason]
    make(path)
    verified = call("verify", root, "--json")
    assert verified.exit_code == 1
    assert str(path) in verified.output
    with pytest.raises(CorruptionError, match=reason):
        quiver.open(root, cores=2, background=False)
    remove(path)
    assert call("verify", root).exit_code == 0
    quiver.open(root, cores=2, background=False).close()


@pytest.mark.parametrize("reason", KINDS)
def test_a_directory_in_place_of_a_lock_is_reported(store_dir, call, reason):
    (store_dir / "quiver.lock").unlink()
    KINDS[reason][0](store_dir / "quiver.lock")
    assert f"quiver.lock: {reason}" in call("repair", store_dir).output
    with pytest.raises(QuiverError, match=reason):
        quiver.open(store_dir, background=False)
