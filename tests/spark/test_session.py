"""Settings of the session that need no session."""

from pathlib import Path

import pytest

from quiver.spark.spark_session import _end, _local_sockets


def test_local_processes_talk_over_unix_sockets():
    """In a directory of this process alone."""
    assert _local_sockets("local[2]", Path("/tmp/quiver-spark-1")) == {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": "/tmp/quiver-spark-1",
    }


@pytest.mark.parametrize(
    ("master", "directory"),
    [("spark://host:7077", "/tmp/q"), ("local-cluster[2,1,1024]", "/tmp/q"), ("local[2]", "/" + 55 * "d")],
)
def test_others_keep_tcp(master, directory):
    """Executors elsewhere have no such directory, and a socket's name has a limit."""
    assert _local_sockets(master, Path(directory)) == {}


class _Session:
    """Says what was asked of it, and whether the directory was still there."""

    def __init__(self, scratch, problem=None):
        self.told = []
        self.streams = self
        self.active = [self]
        self._scratch = scratch
        self._problem = problem

    def stop(self):
        self.told.append(self._scratch.exists())
        if self._problem is not None:
            raise self._problem


@pytest.mark.parametrize("problem", [None, ConnectionRefusedError("the JVM is gone")])
def test_queries_end_before_their_directory_goes(tmp_path, problem):
    """A query that runs when the process ends is stopped, then the session, and only then the files go."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    spark = _Session(scratch, problem)
    _end(spark, scratch)
    assert spark.told == [True, True]
    assert not scratch.exists()
