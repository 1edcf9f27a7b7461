"""A test that reaches its time limit does not disturb the Spark tests after it."""

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_timeout import PYTEST_FAILURE_MESSAGE
from shared_session import SharedSession


class _Sessions:
    """Counts the sessions and the JVMs that were ended."""

    def __init__(self):
        self.started = self.ended = 0
        self.shared = SharedSession(self.start, self.end)

    def start(self):
        self.started += 1
        return f"session {self.started}"

    def end(self):
        self.ended += 1


def time_limit(then=None):
    """Return the error of a test at its time limit; *then* is raised while it ends."""
    try:
        try:
            pytest.fail(PYTEST_FAILURE_MESSAGE % 180.0)
        finally:
            if then is not None:
                raise then
    except BaseException as error:
        return error


@pytest.mark.parametrize("then", [None, ConnectionError("the answer to another call")])
def test_the_next_test_gets_another_session(then):
    """Also if the interrupted test fails in another way at its end."""
    sessions = _Sessions()
    assert sessions.shared.get() == "session 1"
    sessions.shared.replace_after(time_limit(then))
    assert sessions.ended == 1
    assert sessions.shared.get() == "session 2"


def test_a_failed_test_keeps_the_session():
    """Only a time limit interrupts calls."""
    sessions = _Sessions()
    sessions.shared.get()
    sessions.shared.replace_after(AssertionError("1 == 2"))
    assert (sessions.shared.get(), sessions.ended) == ("session 1", 0)


TESTS = """
import pytest

def test_that_starts_it(spark):
    assert spark.range(2).count() == 2

@pytest.mark.timeout(2)
def test_that_waits(spark):
    spark._jvm.java.lang.Thread.sleep(600_000)

@pytest.mark.parametrize("rows", [3, 4])
def test_that_follows(spark, rows):
    assert spark.range(rows).count() == rows
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_real_session_is_replaced(tmp_path):
    """Of the tests after one that waits for the JVM at its time limit, each gets the answers to its own calls."""
    folder = Path(__file__).parent
    (tmp_path / "conftest.py").write_text((folder / "conftest.py").read_text())
    (tmp_path / "test_limits.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error"]
    argv += [f"--rootdir={tmp_path}", "-o", f"pythonpath={folder}", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
