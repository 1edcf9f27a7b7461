"""Spark's temporary directory is removed at the end of a run or the start of the next; nothing else is removed."""

import tempfile

import pytest

from quiver.pipeline.processes.spark_temp_dir import NOTE_NAME, spark_temp_dir


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return a temporary directory of the test."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def run_dir(tmp_path):
    """Return the directory of a run."""
    place = tmp_path / "run"
    place.mkdir()
    return place


def test_the_directory_is_removed_at_the_end(temporary, run_dir):
    """And the environment no longer refers to it."""
    with spark_temp_dir(run_dir) as place:
        assert place.parent == temporary
        assert not place.exists()
        (place / "local").mkdir(parents=True)
    assert not list(temporary.iterdir())
    assert not list(run_dir.iterdir())


def test_the_next_run_removes_the_directory_of_a_killed_one(temporary, run_dir):
    """Each run has its own directory."""
    killed = spark_temp_dir(run_dir)
    (killed.__enter__() / "local").mkdir(parents=True)
    (left,) = temporary.iterdir()
    with spark_temp_dir(run_dir) as place:
        assert not left.exists()
        assert place != left


@pytest.mark.parametrize("named", ["precious", "quiver-spark-0123456", "quiver-spark-01234567x"])
def test_no_other_directory_is_removed(temporary, run_dir, named):
    """For any content of the note."""
    (temporary / named).mkdir()
    (run_dir / NOTE_NAME).write_text(str(temporary / named), encoding="utf-8")
    with spark_temp_dir(run_dir):
        assert (temporary / named).is_dir()


@pytest.mark.parametrize("note", [b"", b"\xff", bytes(10_000), b"quiver-spark-01234567"])
def test_an_invalid_note_is_ignored(temporary, run_dir, note, monkeypatch):
    """A note contains an absolute path."""
    monkeypatch.chdir(temporary)
    (temporary / "quiver-spark-01234567").mkdir()
    (run_dir / NOTE_NAME).write_bytes(note)
    with spark_temp_dir(run_dir) as place:
        assert (run_dir / NOTE_NAME).read_text() == str(place)
    assert (temporary / "quiver-spark-01234567").is_dir()


@pytest.mark.usefixtures("temporary")
def test_a_full_disk_does_not_prevent_a_start(run_dir):
    """Then the note is not written."""
    run_dir.rmdir()
    with spark_temp_dir(run_dir) as place:
        assert place.name.startswith("quiver-spark-")
