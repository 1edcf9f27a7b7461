"""
Settings of the session that need no session.
"""

from pathlib import Path

import pytest

from quiver.spark.session import _local_sockets


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
