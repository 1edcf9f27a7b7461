"""A Spark cluster on loopback: one master and two workers, each in its own process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark

from ports import free_port
from quiver.spark.java import find_java_home

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": find_java_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


class Member:
    """One process of the cluster, with its log, in which a test waits for a line."""

    def __init__(self, directory: Path, name: str, *words: str, path: str | None = None) -> None:
        self.lines: list[str] = []
        self._seen = threading.Condition()
        variables = environment() | {"SPARK_LOG_DIR": str(directory)}
        if path is not None:
            variables["PATH"] = path
            variables.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [str(SPARK_CLASS), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=directory, env=variables,
        )  # fmt: skip
        threading.Thread(target=self._read, name=f"log of {name}", daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._seen:
                self.lines.append(line)
                self._seen.notify_all()

    def await_line(self, pattern: str, timeout_s: float = 240.0) -> None:
        with self._seen:
            if not self._seen.wait_for(lambda: any(re.search(pattern, line) for line in self.lines), timeout_s):
                raise TimeoutError(f"no line like {pattern!r} in:\n{''.join(self.lines[-20:])}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Cluster:
    """The address for `spark-submit`, and the processes."""

    def __init__(self, url: str, workers: list[Member]) -> None:
        self.url = url
        self.workers = workers

    def submit(self, script: Path, *words: str, timeout_s: float = 400.0) -> str:
        """Run a job on both workers until it ends, and return its output."""
        argv = [str(SPARK_SUBMIT), "--master", self.url]
        for setting in ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.ui.enabled=false"):
            argv += ["--conf", setting]
        done = subprocess.run(
            [*argv, str(script), *words],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout


@contextlib.contextmanager
def running_cluster(directory: Path, workers: int = 2, *, path: str | None = None) -> Iterator[Cluster]:
    """
    Yield a cluster of one master and *workers* workers with one core each, and stop it afterwards.

    *path* is the PATH of the workers and their executors, which then find packages only in their own Python.
    """
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    members: list[Member] = []
    try:
        master = "org.apache.spark.deploy.master.Master"
        members.append(
            Member(directory, "master", master, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        )
        members[0].await_line("I have been elected leader")
        for number in range(workers):
            worker = "org.apache.spark.deploy.worker.Worker"
            place = directory / f"worker-{number}"
            place.mkdir()
            words = [worker, url, "--host", "127.0.0.1", "-c", "1", "-m", "1G", "-d", str(place), "--webui-port", "0"]
            members.append(Member(directory, f"worker {number}", *words, path=path))
        for member in members[1:]:
            member.await_line("Successfully registered with master")
        yield Cluster(url, members[1:])
    finally:
        for member in reversed(members):
            member.stop()
