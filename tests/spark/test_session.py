"""The start and the end of a session."""

import os
import subprocess
import sys

import pytest

from quiver.spark.spark_session import _end, session


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


START = """
import os, sys
from pathlib import Path
import quiver.spark
secret = os.environ["SECRET"]
config = {
    "spark.hadoop.secret": secret, "spark.driver.extraJavaOptions": "-Dquiver.mine=yes", "spark.app.name": "own"
}
spark = quiver.spark.session("name", config=config, temp_dir=sys.argv[1])
conf = spark.sparkContext.getConf()
for key in ("master", "hadoop.secret", "app.name", "executor.memory", "sql.session.timeZone"):
    print(key, conf.get("spark." + key))
print("mine", spark.sparkContext._jvm.java.lang.System.getProperty("quiver.mine"))
print("leaked", [one.name for one in Path("/proc").glob("[0-9]*/cmdline") if secret.encode() in one.read_bytes()])
print("files", [one for one in Path(sys.argv[1]).rglob("*.properties")])
print("arguments", os.environ.get("PYSPARK_SUBMIT_ARGS"))
spark.stop()
try:
    quiver.spark.session(config={"spark.jars.packages": "a:b:1"}, temp_dir=sys.argv[1])
except Exception as error:
    print(type(error).__name__, str(error))
"""


@pytest.mark.spark
def test_properties_reach_the_jvm_in_a_private_file(tmp_path):
    """The caller's precede `spark-defaults.conf`, which precedes the default master. No command line has them."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master local[1]\nspark.executor.memory: 700m\n")
    environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path / "conf"), "SECRET": "hunter2 = 5"}
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path / "temp")],
        capture_output=True, text=True, timeout=150, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "master local[1]",
        "hadoop.secret hunter2 = 5",
        "app.name own",
        "executor.memory 700m",
        "sql.session.timeZone UTC",
        "mine yes",
        "leaked []",
        "files []",
        "arguments None",
        "UsageError spark.jars.packages has no effect after the JVM has started: start a new process, or spark-submit",
    ]


@pytest.mark.spark
def test_a_session_that_does_not_start_is_one_sentence(tmp_path):
    """And leaves no temporary files. Java itself prints why it ends, such as a package with an invalid name."""
    script = (
        "import sys, quiver.spark\n"
        "from quiver.errors import QuiverError\n"
        "for options in ({'config': {'spark.jars.packages': 'kafka'}}, {'master': 'local[x]'}):\n"
        "    try:\n"
        "        quiver.spark.session(**options, temp_dir=sys.argv[1])\n"
        "    except QuiverError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=150, check=False
    )
    ended, refused = done.stdout.splitlines()
    assert ended.startswith("Spark does not start with master local[2]: Java ended while it started; the lines"), ended
    assert "Maven Coordinates must be in the form" in done.stderr
    assert refused.startswith("Spark does not start with master local[x]: SparkException: "), done.stderr
    assert list(tmp_path.iterdir()) == []
