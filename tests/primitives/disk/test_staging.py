"""Batches that many tasks stage and one owner imports: names, notes, and removal."""

import pytest

from quiver.primitives.batch_notes import (
    BATCH_MAX,
    NOTE_BYTES_MAX,
    begun_name,
    commit_name,
    decode_note,
    done_name,
    encode_note,
    is_count,
    is_writer,
    parse_note_name,
    parse_part_directory,
    part_directory,
)
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.disk.staging import last_batch, names_in, remove_staged, remove_taken
from quiver.primitives.scan import Damage, Frame, NeedMore

NOTE = encode_note({"batch": 3})


def with_checksum(line):
    return b"%s\n%08x\n" % (line, crc32(line))


def test_golden_note():
    """Other programs may rely on these bytes."""
    assert with_checksum(b'{"batch": 3}') == NOTE
    assert decode_note(NOTE) == Frame({"batch": 3}, len(NOTE))


def test_notes_are_complete_or_damaged():
    """Truncated at every byte, with every byte flipped, with trailing junk, and other data than a note."""
    for end in range(len(NOTE)):
        assert isinstance(decode_note(NOTE[:end]), NeedMore)
    for at in range(len(NOTE)):
        assert isinstance(decode_note(NOTE[:at] + bytes([NOTE[at] ^ 1]) + NOTE[at + 1 :]), NeedMore | Damage)
    for data in (NOTE + b"x", with_checksum(b"{"), with_checksum(b"[]"), bytes(NOTE_BYTES_MAX + 1)):
        assert isinstance(decode_note(data), Damage)


def test_names():
    """Built and parsed; names that this code would not build belong to other programs."""
    assert [parse_note_name(make(7)) for make in (commit_name, begun_name, done_name)] == [
        (7, "commit"),
        (7, "begun"),
        (7, "done"),
    ]
    assert parse_note_name("7.commit") is None
    assert parse_note_name(f"{BATCH_MAX + 1:020}.commit") is None
    assert parse_part_directory(part_directory(7, 2, "0x1")) == 7
    assert parse_part_directory("7-2-x") is None
    assert [is_writer(name) for name in ("q-1", "", "../x", "x" * 65)] == [True, False, False, False]
    assert [is_count(value) for value in (0, True, -1, "1", None)] == [True, False, False, False, False]


@pytest.fixture
def directory(tmp_path):
    """A writer with batches 0 to 2, of which batch 1 was imported, and their staged files."""
    found = tmp_path / "incoming" / "query"
    for batch in range(3):
        (found / part_directory(batch, 0, "a")).mkdir(parents=True)
        (found / part_directory(batch, 0, "a") / "00000.part").write_bytes(b"x")
    for name in (done_name(0), done_name(1), begun_name(1), commit_name(2), begun_name(2), f"{done_name(1)}.tmp"):
        (found / name).write_bytes(NOTE)
    (found / "strange").write_bytes(b"")
    return found


def test_imported_batches_are_removed(directory):
    """Except for the last note, later batches, and files of other programs."""
    assert last_batch(REAL_FILES, str(directory)) == 2
    remove_taken(REAL_FILES, str(directory), 1)
    left = {commit_name(2), begun_name(2), done_name(1), part_directory(2, 0, "a"), "strange"}
    assert {one.name for one in directory.iterdir()} == left
    remove_taken(REAL_FILES, str(directory), 1)
    assert {one.name for one in directory.iterdir()} == left


def test_nothing_is_left_of_a_writer_that_writes_once(directory):
    """Unless its directory has a file of another program."""
    once = directory.with_name("job-1")
    once.mkdir()
    (once / done_name(0)).write_bytes(NOTE)
    remove_taken(REAL_FILES, str(once), 0)
    assert not once.exists()


def test_a_missing_directory_has_no_batches(tmp_path):
    """The same applies to a file in its place."""
    (tmp_path / "file").write_bytes(b"")
    for name in ("none", "file"):
        assert names_in(REAL_FILES, str(tmp_path / name)) == []
        assert last_batch(REAL_FILES, str(tmp_path / name)) == -1


def test_only_staging_directories_are_removed(directory):
    """Other names stay."""
    remove_staged(REAL_FILES, str(directory), ["strange", "..", part_directory(0, 0, "a")])
    assert (directory / "strange").exists()
    assert not (directory / part_directory(0, 0, "a")).exists()
