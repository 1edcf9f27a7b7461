"""Damaged files give an error with path and offset, never a traceback or a wrong result."""

import json

import pytest
from typer.testing import CliRunner

from quiver.cli.main import build_app
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.reading.check import check_store

RUNNER = CliRunner()
FORMATTED = ("*.qseg", "quiver.wal*", "quiver.sub.*", "quiver.segment.floor")


def files_of(root):
    return sorted(
        {path for pattern in FORMATTED for path in root.rglob(pattern) if path.is_file() and path.suffix != ".lock"}
    )


def call(*arguments):
    result = RUNNER.invoke(build_app(), [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in {0, 1}
    return result


def put(path, data):
    path.chmod(0o600)
    path.write_bytes(data)


def used(data):
    """The bytes before the zeros that a log writes ahead."""
    return len(data.rstrip(b"\0"))


def test_every_kind_of_file_is_covered(made_store):
    """The tests below damage all kinds, including a retired log file."""
    names = [path.name for path in files_of(made_store)]

    assert any(name.endswith(".qseg") for name in names)
    assert any(name.startswith("quiver.wal.") and name != "quiver.wal.cursor" for name in names)
    assert {"quiver.wal", "quiver.wal.cursor", "quiver.sub.fast", "quiver.sub.slow"} <= set(names)


def test_a_flipped_byte_is_found(store_dir):
    """In any file, at any used offset: a finding with that path, and no exception."""
    for path in files_of(store_dir):
        complete = path.read_bytes()
        end = used(complete)
        for offset in range(0, end, max(1, end // 70)):
            put(path, complete[:offset] + bytes([complete[offset] ^ 0x41]) + complete[offset + 1 :])
            report = check_store(REAL_FILES, str(store_dir))
            found = [finding for finding in report.findings if finding.path == str(path)]
            assert found, f"{path.name} at {offset}"
            assert all(0 <= finding.offset <= len(complete) for finding in found)
        put(path, complete)
    assert not check_store(REAL_FILES, str(store_dir)).damaged


def test_a_truncated_file_never_raises(store_dir):
    """Truncated anywhere, a file is reported as valid, torn or damaged."""
    for path in files_of(store_dir):
        complete = path.read_bytes()
        end = used(complete)
        for size in range(0, end, max(1, end // 40)):
            put(path, complete[:size])
            report = check_store(REAL_FILES, str(store_dir))
            if path.name != "quiver.wal" and not path.name.startswith("quiver.wal."):
                assert any(finding.path == str(path) and finding.damaged for finding in report.findings), size
        put(path, complete)


def test_an_unreadable_segment_does_not_hide_others(store_dir):
    """It is one finding; all others are checked and counted."""
    before = check_store(REAL_FILES, str(store_dir))
    path = next(one for one in files_of(store_dir) if one.suffix == ".qseg")
    path.unlink()
    path.mkdir()
    report = check_store(REAL_FILES, str(store_dir))
    assert [finding.path for finding in report.findings if finding.damaged] == [str(path)]
    assert "a directory is in the place of a file" in report.findings[0].reason
    assert (report.files, report.log_entries) == (before.files, before.log_entries)


@pytest.mark.parametrize("name", ["segment", "quiver.wal", "quiver.wal.cursor", "quiver.sub.slow"])
def test_the_commands_survive_damage(store_dir, name):
    """`verify`, `inspect` and `stats` on flipped and truncated files: a message or a table, exit code 0 or 1."""
    path = next(one for one in files_of(store_dir) if one.name == name or (name == "segment" and one.suffix == ".qseg"))
    complete = path.read_bytes()
    end = used(complete)
    for offset in sorted({9, end // 2, end - 1}):
        for data in (complete[:offset], complete[:offset] + bytes([complete[offset] ^ 0xFF]) + complete[offset + 1 :]):
            put(path, data)
            found = json.loads(call("verify", store_dir, "--json").output)
            damaged = [finding["path"] for finding in found["findings"] if finding["kind"] == "damaged"]
            verified = call("verify", store_dir)
            assert verified.exit_code == (1 if damaged else 0)
            assert all(one == str(path) for one in damaged)
            call("inspect", path)
            call("inspect", path, "--json")
            call("inspect", store_dir)
            call("stats", store_dir)
            call("stats", store_dir, "--json")


def test_a_torn_tail_is_reported_but_is_not_damage(store_dir):
    """The last write before a crash: exit code 0."""
    path = store_dir / "wal" / "quiver.wal"
    complete = path.read_bytes()
    put(path, complete[: used(complete) - 3])
    result = call("verify", store_dir)

    assert result.exit_code == 0
    assert "torn tail" in result.output


def test_quarantined_files_and_leftovers_are_reported(store_dir):
    """Neither is damage."""
    (store_dir / "quarantine").mkdir()
    (store_dir / "quarantine" / "0000000000000009.qseg").write_bytes(b"x")
    (store_dir / "segments" / "0000000000000009.qseg.tmp").write_bytes(b"x")
    result = call("verify", store_dir, "--json")

    assert result.exit_code == 0
    assert {one["kind"] for one in json.loads(result.output)["findings"]} == {"quarantined", "left over"}
