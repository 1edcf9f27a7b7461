"""
A Spark session that works on a fresh machine.

`session_properties` has the default properties, each with its reason; `config` overrides any of them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quiver.errors import QuiverError, UsageError
from quiver.lazy_names import naming_extra, renamed_keyword
from quiver.spark.exporters.spark_errors import describe_error
from quiver.spark.java import find_java_home
from quiver.spark.session_properties import read_spark_defaults, session_properties, starting_with, working_python
from quiver.spark.session_settings import MASTER, is_local
from quiver.spark.spark_home import installed_spark_home, link_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["has_stopped", "session"]

_AT_START = ("spark.jars.packages", "spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories")
"""Properties that have an effect only when the JVM starts."""

_JAVA_ENDED = "JAVA_GATEWAY_EXITED"
"""PySpark's name for it. The error itself has no reason, such as a package that cannot be resolved."""


@renamed_keyword("scratch", "temp_dir")
def session(
    app_name: str = "quiver",
    master: str | None = None,
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
        master: where it runs; None for `spark.master` of *config*, of `spark-submit` or of `spark-defaults.conf`, or
            else two local cores.
        config: Spark settings, which override those of this module and of `spark-defaults.conf`. They are passed to
            the JVM in a private file, not on its command line.
        quick_start: start the JVM with only its fast compiler and the serial collector, unless it is given options.
        temp_dir: the parent of the temporary directory, created if missing. Removing it also removes everything that a
            killed process left. None means the system's default.

    Raises:
        QuiverError: no Java was found that the installed PySpark runs on, or Spark does not start.
        UsageError: *config* has packages, and the JVM of this process already runs.
        ModuleNotFoundError: the extra `spark` is not installed.
    """
    with naming_extra("quiver.spark", "spark"):
        from pyspark.sql import SparkSession  # noqa: PLC0415 - importing quiver.spark stays cheap

    from quiver.spark.formats import register  # noqa: PLC0415
    from quiver.spark.spark_features import JAVA_MAJOR_MAX  # noqa: PLC0415

    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    os.environ["JAVA_HOME"] = find_java_home(JAVA_MAJOR_MAX)
    place = _own_place(temp_dir)
    given = {**(config or {}), **({} if master is None else {MASTER: master})}
    try:
        spark = _started(app_name, given, place, quick_start=quick_start)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    atexit.register(_end, spark, place)
    register(spark)
    return spark


def _started(app_name: str, given: Mapping[str, str], place: Path, *, quick_start: bool) -> SparkSession:
    """Start a session whose temporary files are in *place*, in the JVM that runs or in a new one."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - an extra
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder
    # Spark has no public way to ask whether the JVM of this process runs.
    is_running = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: SLF001
    if is_running:
        SparkContext._ensure_initialized()  # noqa: SLF001
        before = dict(SparkConf().getAll())
        late = [key for key in _AT_START if key in given and given[key] != before.get(key)]
        if late:
            raise UsageError(f"{late[0]} has no effect after the JVM has started: start a new process, or spark-submit")
    else:
        before = read_spark_defaults(os.environ)
    properties = session_properties(app_name, given, before, place, quick_start=quick_start)
    if is_running:
        for key, value in properties.items():
            builder = builder.config(key, value)
    master = properties[MASTER]
    with contextlib.ExitStack() as start:
        start.enter_context(working_python(properties))
        start.enter_context(_linked_home(master, place / "home"))
        if not is_running:
            start.enter_context(starting_with(properties, place / "session.properties"))
        try:
            return builder.getOrCreate()
        except (Py4JError, PySparkException) as error:
            reason = describe_error(error)
            if _JAVA_ENDED in reason:
                reason = "Java ended while it started; the lines that it printed before this one give the reason"
            raise QuiverError(f"Spark does not start with master {master}: {reason}") from error


def has_stopped(spark: SparkSession) -> bool:
    """Return whether *spark* has ended, for example because a cluster removed its application."""
    context = spark.sparkContext._jsc  # noqa: SLF001 - Spark has no public way to ask
    return context is None or bool(context.sc().isStopped())


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


@contextlib.contextmanager
def _linked_home(master: str, directory: Path) -> Iterator[None]:
    """
    Let a JVM that starts inside use a Spark home in *directory*, from which its Python processes start faster.

    Only if all of them run on this host, and Spark is the one that pip installed: SPARK_HOME, if set, is respected.
    """
    installed = installed_spark_home()
    if "SPARK_HOME" in os.environ or installed is None or not is_local(master):
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
