import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiver.spark import spark_session
from quiver.spark.spark_home import installed_spark_home, link_spark_home
from quiver.spark.spark_session import _linked_home


def test_a_home_has_everything_that_the_installed_one_has(tmp_path):
    installed = installed_spark_home()
    link_spark_home(installed, tmp_path / "home")
    for path in ("bin/spark-submit", "jars", "python/lib", "version.py"):
        assert (tmp_path / "home" / path).exists()
    assert {path.name for path in (tmp_path / "home").iterdir()} == {path.name for path in installed.iterdir()}
    archives = {path.name for path in (installed / "python" / "lib").iterdir()}
    assert {path.name for path in (tmp_path / "home/python/lib").iterdir()} == archives


def test_modules_come_from_packages_with_bytecode(tmp_path):
    link_spark_home(installed_spark_home(), tmp_path / "home")
    archives = [str(path) for path in sorted((tmp_path / "home/python/lib").glob("*.zip"))]
    assert [Path(path).name.partition("-")[0] for path in archives] == ["py4j", "pyspark.zip"]
    code = "import py4j.version, pyspark.version as v; print(py4j.version.__file__, v.__file__, v.__cached__)"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(archives)}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    assert [path.startswith(str(tmp_path)) for path in found] == [True, True, True]
    assert found[2].endswith(".pyc")


def test_an_archive_without_an_installed_package_stays_an_archive(tmp_path):
    installed = tmp_path / "installed"
    archive = installed / "python" / "lib" / "not_installed-1.0-src.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"archive")
    link_spark_home(installed, tmp_path / "home")
    link = tmp_path / "home" / "python" / "lib" / archive.name
    assert link.read_bytes() == b"archive"


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]"])
def test_executors_that_are_not_in_this_process_keep_their_home(master, tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with _linked_home(master, tmp_path / "home"):
        assert "SPARK_HOME" not in os.environ
    assert not (tmp_path / "home").exists()


def test_a_chosen_home_is_respected(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with _linked_home("local[2]", tmp_path / "home"):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_only_the_jvm_gets_the_home(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with _linked_home("local[2]", tmp_path / "home"):
        assert os.environ["SPARK_HOME"] == str(tmp_path / "home")
    assert "SPARK_HOME" not in os.environ


def test_without_links_spark_starts_as_usual(tmp_path, monkeypatch):
    def refuse(installed, directory):
        raise OSError("no links here")

    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(spark_session, "link_spark_home", refuse)
    with _linked_home("local[2]", tmp_path / "home"):
        assert "SPARK_HOME" not in os.environ


def test_workers_import_the_linked_package(spark):
    def where(batches):
        import pyarrow as pa
        import pyspark

        for _ in batches:
            yield pa.record_batch({"path": [pyspark.__file__]})

    found = spark.range(1).mapInArrow(where, "path string").collect()[0]["path"]
    assert Path(found).parts[-3:] == ("pyspark.zip", "pyspark", "__init__.py")
    assert Path(found).is_file(), "the package is a directory, not an archive"
