"""One Spark session per process, and stores of sealed segments."""

import pyspark.util
import pytest
from shared_session import SharedSession, end_jvm, start_session
from stores import StoreMaker

_SHARED = SharedSession(start_session, end_jvm)


def pytest_configure(config):
    """Ignore sockets that PySpark 4.0 and 4.1 leave to the garbage collector after each `collect`."""
    if not hasattr(pyspark.util._load_from_socket, "__wrapped__"):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def store(tmp_path):
    """Return an empty store, to which a test adds segments."""
    return StoreMaker(tmp_path / "buffer")


@pytest.fixture
def spark():
    """Return the session of this process."""
    return _SHARED.get()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    """Replace the session after a time limit, before fixtures of the interrupted test call it again."""
    if call.excinfo is not None:
        _SHARED.replace_after(call.excinfo.value)
    return (yield)


def pytest_sessionfinish():
    _SHARED.stop()
