"""One Spark session per run, and stores made of sealed segments."""

import contextlib

import pytest
from stores import StoreMaker


@pytest.fixture
def store(tmp_path):
    """An empty store, to be filled segment by segment."""
    return StoreMaker(tmp_path / "buffer")


@pytest.fixture(scope="session")
def spark():
    """The session of this run."""
    import quiver.spark

    session = quiver.spark.session("tests", config={"spark.sql.shuffle.partitions": "1"})
    yield session
    with contextlib.suppress(Exception):
        session.stop()
