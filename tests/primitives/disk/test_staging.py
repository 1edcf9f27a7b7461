"""Batches that many stage and one takes over: names, notes, and what is removed."""

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
    """What other programs may rely on."""
    assert with_checksum(b'{"batch": 3}') == NOTE
    assert decode_note(NOTE) == Frame({"batch": 3}, len(NOTE))


def test_notes_are_whole_or_not_at_all():
    """Cut at every byte, with every byte flipped, with something behind, and with what is no note at all."""
    for end in range(len(NOTE)):
        assert isinstance(decode_note(NOTE[:end]), NeedMore)
    for at in range(len(NOTE)):
        assert isinstance(decode_note(NOTE[:at] + bytes([NOTE[at] ^ 1]) + NOTE[at + 1 :]), NeedMore | Damage)
    for data in (NOTE + b"x", with_checksum(b"{"), with_checksum(b"[]"), bytes(NOTE_BYTES_MAX + 1)):
        assert isinstance(decode_note(data), Damage)


def test_names():
    """Made and parsed; what this code would not make is somebody else's."""
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
    """A writer with batches 0 to 2, of which 1 was taken over, and what they staged."""
    found = tmp_path / "incoming" / "query"
    for batch in range(3):
        (found / part_directory(batch, 0, "a")).mkdir(parents=True)
        (found / part_directory(batch, 0, "a") / "00000.part").write_bytes(b"x")
    for name in (done_name(0), done_name(1), begun_name(1), commit_name(2), begun_name(2), f"{done_name(1)}.tmp"):
        (found / name).write_bytes(NOTE)
    (found / "strange").write_bytes(b"")
    return found


def test_what_was_taken_goes(directory):
    """All but its last note, what is still to come, and what is somebody else's."""
    assert last_batch(REAL_FILES, str(directory)) == 2
    remove_taken(REAL_FILES, str(directory), 1)
    left = {commit_name(2), begun_name(2), done_name(1), part_directory(2, 0, "a"), "strange"}
    assert {one.name for one in directory.iterdir()} == left
    remove_taken(REAL_FILES, str(directory), 1)
    assert {one.name for one in directory.iterdir()} == left


def test_of_a_writer_that_writes_once_nothing_stays(directory):
    """Unless somebody else's file is there."""
    once = directory.with_name("job-1")
    once.mkdir()
    (once / done_name(0)).write_bytes(NOTE)
    remove_taken(REAL_FILES, str(once), 0)
    assert not once.exists()


def test_nobody_has_staged_anything(tmp_path):
    """No directory, or a file in its place, holds no batch."""
    (tmp_path / "file").write_bytes(b"")
    for name in ("none", "file"):
        assert names_in(REAL_FILES, str(tmp_path / name)) == []
        assert last_batch(REAL_FILES, str(tmp_path / name)) == -1


def test_only_staging_is_removed(directory):
    """A name that is none of a staging directory is left alone."""
    remove_staged(REAL_FILES, str(directory), ["strange", "..", part_directory(0, 0, "a")])
    assert (directory / "strange").exists()
    assert not (directory / part_directory(0, 0, "a")).exists()
