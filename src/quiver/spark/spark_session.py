"""
A Spark session that works on a fresh machine.

Each setting below has a reason; `config` overrides any of them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quiver.lazy_names import renamed_keyword
from quiver.spark.java import find_java_home
from quiver.spark.spark_home import installed_spark_home, link_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]

_JAVA_ALWAYS = "-Xss16m"
"""Stopping a query inside foreachBatch overflows the default thread stack in one of two cases."""

_JAVA_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Halves the time to the first result. A long, heavy query may be faster with the JVM's defaults."""

_SETTINGS = {
    # Views, offsets and files use UTC; a session in local time would shift every printed timestamp.
    "spark.sql.session.timeZone": "UTC",
    # The default is 10 ms, which polls an idle source 88 times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    # The default is 200: on one host each shuffle would start 200 tasks of a few milliseconds each.
    "spark.sql.shuffle.partitions": "4",
    # Python results travel as Arrow in both directions.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # No server port and no progress bar by default.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Everything stays on this host by default.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}


_SOCKET_DIRECTORY_CHARS_MAX = 55
"""Spark adds 43 characters for a socket's name, and some systems allow only 103 in total."""


@renamed_keyword("scratch", "temp_dir")
def session(
    app_name: str = "quiver",
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    *,
    quick_start: bool = True,
    temp_dir: str | Path | None = None,
) -> SparkSession:
    """
    Return a running session with all formats registered. An active session is returned unchanged.

    Finds Java, makes Spark's Python processes use this interpreter, and keeps Spark's own files in a temporary
    directory of the process.

    Args:
        app_name: the name of the application in Spark.
        master: where it runs; two local cores by default.
        config: Spark settings, which override those of this module.
        quick_start: start the JVM with only its fast compiler and the serial collector.
        temp_dir: the parent of the temporary directory, created if missing. Removing it also removes everything that a
            killed process left. None means the system's default.

    Raises:
        QuiverError: no Java was found that the installed PySpark runs on.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - importing quiver.spark stays cheap

    from quiver.spark.formats import register  # noqa: PLC0415
    from quiver.spark.spark_features import JAVA_MAJOR_MAX  # noqa: PLC0415

    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    os.environ["JAVA_HOME"] = find_java_home(JAVA_MAJOR_MAX)
    # Spark would start `python3` from the PATH, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    place = _own_place(temp_dir)
    builder = SparkSession.builder.appName(app_name).master(master)
    settings = {
        **_SETTINGS,
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": f"{_JAVA_ALWAYS} {_JAVA_QUICK_START if quick_start else ''}".strip(),
        **_local_sockets(master, place),
        **(config or {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _linked_home(master, place / "home"):
            spark = builder.getOrCreate()
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    atexit.register(_end, spark, place)
    register(spark)
    return spark


def _own_place(temp_dir: str | Path | None) -> Path:
    if temp_dir is None:
        return Path(tempfile.mkdtemp(prefix="quiver-spark-"))
    Path(temp_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=temp_dir))


def _end(spark: SparkSession, temp_dir: Path) -> None:
    """Remove *temp_dir* when the process ends, after running queries and the JVM, which use it."""
    # Errors are ignored, such as those of a killed JVM: the process is exiting.
    with contextlib.suppress(Exception):
        for query in spark.streams.active:
            query.stop()
    with contextlib.suppress(Exception):
        spark.stop()
    shutil.rmtree(temp_dir, ignore_errors=True)


def _local_sockets(master: str, directory: Path) -> dict[str, str]:
    """
    Make Spark and its Python processes use Unix sockets in *directory*, which cost a third of TCP in the kernel.

    Only if all of them run on this host, and the names are not too long.
    """
    if not master.startswith("local[") or len(str(directory)) > _SOCKET_DIRECTORY_CHARS_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }


@contextlib.contextmanager
def _linked_home(master: str, directory: Path) -> Iterator[None]:
    """
    Let a JVM that starts inside use a Spark home in *directory*, from which its Python processes start faster.

    Only if all of them run on this host, and Spark is the one that pip installed: SPARK_HOME, if set, is respected.
    """
    installed = installed_spark_home()
    if "SPARK_HOME" in os.environ or installed is None or not master.startswith("local["):
        yield
        return
    try:
        link_spark_home(installed, directory)
    except OSError:
        # Without links, processes start as usual.
        yield
        return
    os.environ["SPARK_HOME"] = str(directory)
    try:
        yield
    finally:
        # The JVM has it now. Other users of Spark in this process find the installed one.
        del os.environ["SPARK_HOME"]
