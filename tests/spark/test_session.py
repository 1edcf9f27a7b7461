"""Settings of a session, without a session."""

from pathlib import Path

import pytest

from quiver.spark.spark_session import _end, _local_sockets


def test_local_processes_use_unix_sockets():
    """In a directory of this process only."""
    assert _local_sockets("local[2]", Path("/tmp/quiver-spark-1")) == {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": "/tmp/quiver-spark-1",
    }


@pytest.mark.parametrize(
    ("master", "directory"),
    [("spark://host:7077", "/tmp/q"), ("local-cluster[2,1,1024]", "/tmp/q"), ("local[2]", "/" + 55 * "d")],
)
def test_other_masters_keep_tcp(master, directory):
    """Remote executors do not have the directory, and the name of a socket has a limit."""
    assert _local_sockets(master, Path(directory)) == {}


class _Session:
    """Records the calls, and whether the directory existed at each of them."""

    def __init__(self, scratch, problem=None):
        self.existed = []
        self.streams = self
        self.active = [self]
        self._scratch = scratch
        self._problem = problem

    def stop(self):
        self.existed.append(self._scratch.exists())
        if self._problem is not None:
            raise self._problem


@pytest.mark.parametrize("problem", [None, ConnectionRefusedError("the JVM is gone")])
def test_queries_stop_before_their_directory_is_removed(tmp_path, problem):
    """At the end of the process, a running query is stopped, then the session, and only then files are removed."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    spark = _Session(scratch, problem)
    _end(spark, scratch)
    assert spark.existed == [True, True]
    assert not scratch.exists()
