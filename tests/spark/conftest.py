"""One Spark session per run, and stores of sealed segments."""

import contextlib

import pyspark.util
import pytest
from stores import StoreMaker


def pytest_configure(config):
    """Ignore sockets that PySpark 4.0 and 4.1 leave to the garbage collector after each `collect`."""
    if not hasattr(pyspark.util._load_from_socket, "__wrapped__"):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


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
