"""The place of Spark's own files is gone when the run is, or when the next one begins; nothing else is removed."""

import tempfile

import pytest

from quiver.pipeline.processes.spark_scratch import NOTE_NAME, scratch_of


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary directory of the test's own."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def run_dir(tmp_path):
    """The directory of a run."""
    place = tmp_path / "run"
    place.mkdir()
    return place


def test_it_is_gone_at_the_end(temporary, run_dir):
    """And nobody is told of it any more."""
    with scratch_of(run_dir) as place:
        assert place.parent == temporary
        assert not place.exists()
        (place / "local").mkdir(parents=True)
    assert not list(temporary.iterdir())
    assert not list(run_dir.iterdir())


def test_the_next_run_removes_what_a_killed_one_left(temporary, run_dir):
    """Each has a place of its own."""
    killed = scratch_of(run_dir)
    (killed.__enter__() / "local").mkdir(parents=True)
    (left,) = temporary.iterdir()
    with scratch_of(run_dir) as place:
        assert not left.exists()
        assert place != left


@pytest.mark.parametrize("named", ["precious", "quiver-spark-0123456", "quiver-spark-01234567x"])
def test_nothing_else_is_removed(temporary, run_dir, named):
    """Whatever the note says."""
    (temporary / named).mkdir()
    (run_dir / NOTE_NAME).write_text(str(temporary / named), encoding="utf-8")
    with scratch_of(run_dir):
        assert (temporary / named).is_dir()


@pytest.mark.parametrize("note", [b"", b"\xff", bytes(10_000), b"quiver-spark-01234567"])
def test_a_note_that_says_no_place_is_passed_over(temporary, run_dir, note, monkeypatch):
    """A place is an absolute path."""
    monkeypatch.chdir(temporary)
    (temporary / "quiver-spark-01234567").mkdir()
    (run_dir / NOTE_NAME).write_bytes(note)
    with scratch_of(run_dir) as place:
        assert (run_dir / NOTE_NAME).read_text() == str(place)
    assert (temporary / "quiver-spark-01234567").is_dir()


@pytest.mark.usefixtures("temporary")
def test_a_full_disk_is_no_reason_not_to_start(run_dir):
    """Then it is not noted."""
    run_dir.rmdir()
    with scratch_of(run_dir) as place:
        assert place.name.startswith("quiver-spark-")
