"""One Spark session per run, and stores of sealed segments."""

import contextlib

import pytest
from stores import StoreMaker


@pytest.fixture
def store(tmp_path):
    """Return an empty store, to which a test adds segments."""
    return StoreMaker(tmp_path / "buffer")


@pytest.fixture(scope="session")
def spark():
    """Return the session of this run."""
    import quiver.spark

    session = quiver.spark.session("tests", config={"spark.sql.shuffle.partitions": "1"})
    yield session
    with contextlib.suppress(Exception):
        session.stop()
