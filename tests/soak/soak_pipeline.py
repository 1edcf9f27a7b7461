"""The pipeline of the soak of deliveries: files, a destination, and files after a processor that sometimes fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from soak_far_side import FIRST_NS, FarSide, is_poison, numbers_of

from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.dead_letters import read_dead_letters
from quiver.pipeline.processes.child import INGEST_READY, SPARK_READY
from quiver.pipeline.processes.run import read_state
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.store.format.names import parse_segment_name
from quiver.store.reading.listing import summarize_subscribers
from quiver.store.subscribers.retry_set import load_retry_set

ODD_EVERY, ODD = 1009, 100
"""Each record of such a number is one that the processor fails on; every attempt costs some jobs of Spark's."""

PIPELINE = """\
nodes:
  otlp:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [buffer]}}
    config: {protocols: {http: {listening_addr: "127.0.0.1:{{port}}"}}}
  buffer:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [lake, remote, shares]}}
    config:
      path: "{{directory}}/buffer"
      segment: {max_open_duration: 500ms}
      retention: {delete_grace: 1s}
  lake:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {path: "{{directory}}/lake", trigger: 500ms}
  shares:
    kind: processor
    plugin_urn: "urn:quiver:sql:processor"
    out_ports: {out_port: {destinations: [checked]}}
    config: {query: "SELECT time_unix_nano AS n, 1 / (body.int_value % {{every}} - {{odd}}) AS share FROM logs"}
  checked:
    kind: exporter
    plugin_urn: "urn:quiver:file:exporter"
    config:
      path: "{{directory}}/checked"
      retry: {initial_interval: 200ms, max_interval: 2s, max_attempts: 2}
  remote:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config:
      http_endpoint: "http://127.0.0.1:{{far}}"
      timeout: 5s
      retry: {initial_interval: 100ms, max_interval: 2s}
"""


class Pipeline:
    """`quiver run`, and the processes below it."""

    def __init__(self, directory: Path, far_port: int) -> None:
        self.directory = directory
        self.run_dir = directory / "buffer.run"
        path = directory / "soak.yaml"
        path.write_text(PIPELINE, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        values = {"port": self.port, "far": far_port, "directory": directory, "every": ODD_EVERY, "odd": ODD}
        self.argv = [sys.executable, "-m", "quiver.cli.main", "run", str(path)]
        self.argv += [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        self.log = directory / "run.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for name in (INGEST_READY, SPARK_READY):
            (self.run_dir / name).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log)
        self.wait_until(lambda: (self.run_dir / INGEST_READY).exists() and (self.run_dir / SPARK_READY).exists(), 120)

    def wait_until(self, true, seconds):
        self._wait(lambda: self._lives() and true(), seconds)

    def _lives(self) -> bool:
        assert self.process.poll() is None, self.tail()
        return True

    def _wait(self, true, seconds):
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        pause = threading.Event()
        while not true():
            assert SYSTEM_CLOCK.monotonic() < deadline, self.tail()
            pause.wait(0.2)

    def kill(self) -> None:
        """Kill the supervisor; its children end with it."""
        self.process.kill()
        self.process.wait()
        children = read_state(self.run_dir)["children"].values()
        self._wait(lambda: not any(one["pid"] and alive(one["pid"]) for one in children), 60)

    def kill_child(self, name: str) -> bool:
        child = read_state(self.run_dir)["children"].get(name)
        if child is None or child["state"] != "running":
            return False
        try:
            os.kill(child["pid"], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Within the block, a child and its own children are stopped (SIGSTOP)."""
        pid = read_state(self.run_dir)["children"][name]["pid"]
        stopped = [pid, *descendants(pid)]
        for one in stopped:
            os.kill(one, signal.SIGSTOP)
        try:
            yield
        finally:
            for one in stopped:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGCONT)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self.tail()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)

    def tail(self) -> str:
        logs = [self.log, *sorted(self.run_dir.glob("*.log"))]
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs if log.exists())


def descendants(pid: int) -> list[int]:
    """The processes that *pid* started, and those that they started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def lags(root: str) -> dict[str, int | None]:
    return {
        one.subscriber: one.lag_bundles for one in summarize_subscribers(REAL_FILES, root, now_ns=SYSTEM_CLOCK.now_ns())
    }


def sealed(root: str) -> list[str]:
    return [name for name in os.listdir(f"{root}/segments") if parse_segment_name(name) is not None]


def is_odd(number: int) -> bool:
    """Return whether the processor fails on the record of that number."""
    return number % ODD_EVERY == ODD


def checked(directory: Path) -> Counter[int]:
    """The numbers after the processor."""
    found: Counter[int] = Counter()
    for path in directory.glob("logs/[!.]*"):
        found.update(json.loads(line)["n"] - FIRST_NS for line in path.read_text().splitlines())
    return found


def letters_of(root: str, exporter: str) -> dict[int, str]:
    """Number → reason of each dead letter; a dead letter is one request."""
    return {
        number: letter.reason
        for letter in read_dead_letters(REAL_FILES, root, exporter)
        for data in letter.bundle[60].column(0).to_pylist()
        for number in numbers_of(data)
    }


def settle(pipeline: Pipeline, stalled_s: float) -> None:
    """
    Wait until all exporters have everything, no retry is pending, and the disk is free. Fail if an exporter makes no
    progress for *stalled_s*.
    """
    root = f"{pipeline.directory}/buffer"
    waits = ("remote", "checked", "lake")

    def left() -> int:
        held = sum(len(load_retry_set(REAL_FILES, root, name)) for name in waits)
        # The next poll brings the last acknowledgements, and frees their space.
        return sum(lag or 0 for lag in lags(root).values()) + held + len(sealed(root))

    least = left()
    while least:
        pipeline.wait_until(lambda least=least: left() < least, stalled_s)
        least = left()


def check(directory: Path, far: FarSide, sent: set[int], unknown: set[int]) -> None:
    """All three exporters have everything except the records that they refuse, which are in their dead letters."""
    root = f"{directory}/buffer"
    files = exported(directory / "lake")
    assert set(files.values()) == {1}, [number for number, count in files.items() if count > 1][:20]
    assert sent <= set(files) <= sent | unknown
    good = {number for number in files if not is_poison(number)}
    assert set(far.arrived) == good
    refused = letters_of(root, "remote")
    assert set(refused) == set(files) - good
    assert all(reason.startswith("HTTP 400") for reason in refused.values())
    assert all(len(ids) == 1 for ids in far.batch_ids.values()), "a request that is sent again carries the same id"
    after = checked(directory / "checked")
    odd = {number for number in files if is_odd(number)}
    assert set(after.values()) <= {1}, [number for number, count in after.items() if count > 1][:20]
    assert set(after) == set(files) - odd
    failed = letters_of(root, "checked")
    assert set(failed) == odd
    assert all("DIVIDE_BY_ZERO" in reason for reason in failed.values())


def exported(lake: Path) -> Counter[int]:
    """Number → how often a reader of the Parquet files finds it."""
    found: Counter[int] = Counter()
    for path in lake.rglob("*.parquet"):
        if any(part.startswith((".", "_")) for part in path.relative_to(lake).parts):
            continue
        times = pq.read_table(path, columns=["time_unix_nano"]).column("time_unix_nano").cast(pa.int64())
        found.update(time - FIRST_NS for time in times.to_pylist())
    return found
