"""Settings of a session, without a session."""

from pathlib import Path

import pytest

from quiver.spark.spark_session import _end, _local_sockets, session


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

    def __init__(self, temp_dir, problem=None):
        self.existed = []
        self.streams = self
        self.active = [self]
        self._temp_dir = temp_dir
        self._problem = problem

    def stop(self):
        self.existed.append(self._temp_dir.exists())
        if self._problem is not None:
            raise self._problem


@pytest.mark.parametrize("problem", [None, ConnectionRefusedError("the JVM is gone")])
def test_queries_stop_before_their_directory_is_removed(tmp_path, problem):
    """At the end of the process, a running query is stopped, then the session, and only then files are removed."""
    temp_dir = tmp_path / "spark"
    temp_dir.mkdir()
    spark = _Session(temp_dir, problem)
    _end(spark, temp_dir)
    assert spark.existed == [True, True]
    assert not temp_dir.exists()


def test_former_keyword_of_the_temporary_directory_works_with_a_warning(monkeypatch, tmp_path):
    active = _Session(tmp_path)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: active)
    monkeypatch.setattr("quiver.spark.formats.register", lambda _: None)
    with pytest.warns(DeprecationWarning, match=r"session\(scratch=\) is now temp_dir="):
        assert session(scratch=tmp_path) is active
