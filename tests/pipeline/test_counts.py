"""What the Spark process counts is told by the ingest process, once, whichever of them dies in between."""

import pytest

from quiver.observe import InMemoryObserver
from quiver.pipeline.counts import SPARK_COUNTS, CountsRead, CountsWritten

NAME = "quiver.exporter.given_up_total"


def given_up(written, amount):
    written.observer.count(NAME, amount, exporter="lake", how="drop")
    written.write()


def test_what_was_counted_is_told_once(tmp_path):
    """With its attributes. Nothing is told before the other process is there, or when nothing new came."""
    told = InMemoryObserver()
    reading = CountsRead(tmp_path, told)
    reading.look()
    written = CountsWritten(tmp_path, 1)
    given_up(written, 2)
    for _ in range(2):
        reading.look()
    given_up(written, 3)
    reading.look()
    assert dict(told.counts) == {(NAME, (("exporter", "lake"), ("how", "drop"))): 5}


def test_another_life_of_either_counts_from_nothing(tmp_path):
    """What the new one counts is added to what the old one had, also where it happens to be more."""
    told = InMemoryObserver()
    reading = CountsRead(tmp_path, told)
    given_up(CountsWritten(tmp_path, 1), 2)
    reading.look()
    given_up(CountsWritten(tmp_path, 2), 7)
    reading.look()
    assert told.total(NAME) == 9
    anew = InMemoryObserver()
    CountsRead(tmp_path, anew).look()
    assert anew.total(NAME) == 7


def test_nothing_is_written_that_did_not_change(tmp_path):
    """It is asked four times a second."""
    written = CountsWritten(tmp_path, 1)
    written.write()
    assert not (tmp_path / SPARK_COUNTS).exists()
    given_up(written, 1)
    (tmp_path / SPARK_COUNTS).unlink()
    written.write()
    assert not (tmp_path / SPARK_COUNTS).exists()


def test_a_counter_of_nothing_begins(tmp_path):
    """So that a rate sees its first event."""
    told = InMemoryObserver()
    given_up(CountsWritten(tmp_path, 1), 0)
    CountsRead(tmp_path, told).look()
    assert dict(told.counts) == {(NAME, (("exporter", "lake"), ("how", "drop"))): 0}


@pytest.mark.parametrize(
    "said", ["", "{", "[]", "{}", '{"pid": 1, "counts": [[1]]}', '{"pid": 1, "counts": [["a", 1, 1]]}']
)
def test_a_file_of_another_shape_says_nothing(tmp_path, said):
    """The ingest process has more to do than metrics."""
    (tmp_path / SPARK_COUNTS).write_text(said)
    told = InMemoryObserver()
    CountsRead(tmp_path, told).look()
    assert not told.counts
