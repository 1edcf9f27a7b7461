"""The ingest process publishes the counts of the Spark process, each once, after a restart of either."""

import pytest

from quiver.observe import InMemoryObserver
from quiver.pipeline.counts import SPARK_COUNTS, CountsRead, CountsWritten

NAME = "quiver.exporter.given_up_total"


def given_up(written, amount):
    written.observer.count(NAME, amount, exporter="lake", how="drop")
    written.write()


def test_counts_are_published_once(tmp_path):
    """With their attributes; not before the Spark process writes them, and not again without new ones."""
    observer = InMemoryObserver()
    reading = CountsRead(tmp_path, observer)
    reading.look()
    written = CountsWritten(tmp_path, 1)
    given_up(written, 2)
    for _ in range(2):
        reading.look()
    given_up(written, 3)
    reading.look()
    assert dict(observer.counts) == {(NAME, (("exporter", "lake"), ("how", "drop"))): 5}


def test_a_restart_of_either_process_starts_a_new_count(tmp_path):
    """The counts of a new Spark process are added to those of the old one, even if they are larger."""
    observer = InMemoryObserver()
    reading = CountsRead(tmp_path, observer)
    given_up(CountsWritten(tmp_path, 1), 2)
    reading.look()
    given_up(CountsWritten(tmp_path, 2), 7)
    reading.look()
    assert observer.total(NAME) == 9
    restarted = InMemoryObserver()
    CountsRead(tmp_path, restarted).look()
    assert restarted.total(NAME) == 7


def test_unchanged_counts_are_not_written(tmp_path):
    """Writing is attempted four times a second."""
    written = CountsWritten(tmp_path, 1)
    written.write()
    assert not (tmp_path / SPARK_COUNTS).exists()
    given_up(written, 1)
    (tmp_path / SPARK_COUNTS).unlink()
    written.write()
    assert not (tmp_path / SPARK_COUNTS).exists()


def test_a_counter_starts_at_zero(tmp_path):
    """So that a rate includes the first event."""
    observer = InMemoryObserver()
    given_up(CountsWritten(tmp_path, 1), 0)
    CountsRead(tmp_path, observer).look()
    assert dict(observer.counts) == {(NAME, (("exporter", "lake"), ("how", "drop"))): 0}


@pytest.mark.parametrize(
    "said", ["", "{", "[]", "{}", '{"pid": 1, "counts": [[1]]}', '{"pid": 1, "counts": [["a", 1, 1]]}']
)
def test_an_invalid_file_is_ignored(tmp_path, said):
    """An error in metrics must not stop the ingest process."""
    (tmp_path / SPARK_COUNTS).write_text(said)
    observer = InMemoryObserver()
    CountsRead(tmp_path, observer).look()
    assert not observer.counts
