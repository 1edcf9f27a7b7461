"""
The properties with which a session starts, and where they come from.

A JVM that this process starts reads them from a file that only its user can read. On a command line every user of the
machine could read them, and a property may be a secret. A JVM that already runs, such as that of `spark-submit`, has
its own properties, which count like those of `spark-defaults.conf`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.freed_memory import KEEP_FREED_MEMORY
from quiver.spark.session_settings import LOCAL_MASTER, MASTER, PYTHON, is_local, parse_properties, write_properties
from quiver.spark.spark_home import installed_spark_home

__all__ = ["read_spark_defaults", "session_properties", "starting_with", "working_python"]

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_JAVA_ALWAYS = "-Xss16m"
"""Stopping a query inside foreachBatch overflows the default thread stack in one of two cases."""

_JAVA_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Halves the time to the first result. A long, heavy query may be faster with the JVM's defaults."""

_DEFAULTS = {
    # The default is 10 ms, which polls an idle source 88 times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Python results travel as Arrow in both directions.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # No server port and no progress bar by default.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Python workers decode batch after batch.
    **{f"spark.executorEnv.{name}": value for name, value in KEEP_FREED_MEMORY.items()},
}

_LOCAL_DEFAULTS = {
    # The default is 200: on one host each shuffle would start 200 tasks of a few milliseconds each.
    "spark.sql.shuffle.partitions": "4",
    # Everything stays on this host. Executors on other hosts could not reach the driver there.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

_ALWAYS = {
    # Views, offsets and files use UTC; a session in local time would shift every printed timestamp.
    "spark.sql.session.timeZone": "UTC",
}

_DEFAULTS_BYTES_MAX = 1 << 20

_SOCKET_DIRECTORY_CHARS_MAX = 55
"""Spark adds 43 characters for a socket's name, and some systems allow only 103 in total."""


def read_spark_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Return the properties of `spark-defaults.conf`, which is in the directory SPARK_CONF_DIR, or in `conf` of SPARK_HOME
    or of the Spark that pip installed. Empty if there is none.

    Raises:
        OSError: it cannot be read, or is larger than 1 MiB.
    """
    directory = environment.get("SPARK_CONF_DIR")
    if not directory:
        home = environment.get("SPARK_HOME") or installed_spark_home()
        if home is None:
            return {}
        directory = str(Path(home, "conf"))
    try:
        data = REAL_FILES.read_all(str(Path(directory, "spark-defaults.conf")), size_max=_DEFAULTS_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return parse_properties(data.decode(errors="replace"))


def session_properties(
    app_name: str, given: Mapping[str, str], before: Mapping[str, str], temp_dir: Path, *, quick_start: bool
) -> dict[str, str]:
    """
    Return all properties of a session.

    Args:
        app_name: the name of the application.
        given: properties that take precedence over all others.
        before: the properties of `spark-defaults.conf`, or of the JVM that already runs.
        temp_dir: the directory for temporary files of this session.
        quick_start: start the JVM with its fast compiler, unless it gets options of its own.
    """
    master = given.get(MASTER) or before.get(MASTER) or LOCAL_MASTER
    defaults = {
        "spark.local.dir": str(temp_dir / "local"),
        "spark.sql.warehouse.dir": str(temp_dir / "warehouse"),
        **_DEFAULTS,
        **(_LOCAL_DEFAULTS if is_local(master) else {}),
        **_local_sockets(master, temp_dir),
    }
    properties = {**defaults, **before, **_ALWAYS, "spark.app.name": app_name, **given, MASTER: master}
    own = properties.get(_JAVA_OPTIONS)
    # Two collectors, or two sizes of the compiler, would prevent the start.
    more = own if own is not None else _JAVA_QUICK_START if quick_start else ""
    options = more if _JAVA_ALWAYS in more.split() else f"{_JAVA_ALWAYS} {more}"
    return properties | {_JAVA_OPTIONS: options.strip()}


def _local_sockets(master: str, directory: Path) -> dict[str, str]:
    """
    Make Spark and its Python processes use Unix sockets in *directory*, which cost a third of TCP in the kernel.

    Only if all of them run on this host, and the names are not too long.
    """
    if not is_local(master) or len(str(directory)) > _SOCKET_DIRECTORY_CHARS_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }


@contextlib.contextmanager
def starting_with(properties: Mapping[str, str], file: Path) -> Iterator[None]:
    """Let a JVM that starts inside read *properties* from *file*, which is private, and is removed afterwards."""
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(write_properties(properties))
    given = os.environ.get("PYSPARK_SUBMIT_ARGS")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(file))} {given or 'pyspark-shell'}"
    try:
        yield
    finally:
        if given is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = given
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def working_python(properties: Mapping[str, str]) -> Iterator[None]:
    """
    Choose the Python of Spark's processes: that of the property `spark.pyspark.python`, of PYSPARK_PYTHON, or this one.

    A name without a directory, such as ``python3.11``, is looked up by each machine in its own PATH. Here it is this
    interpreter if it has that name, also for a JVM that starts inside.
    """
    # Spark would start `python3` from the PATH, which need not have this package.
    python = properties.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    directory = Path(sys.executable).parent
    if "/" in python or not (directory / python).exists():
        yield
        return
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{directory}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path
