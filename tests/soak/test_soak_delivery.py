"""
Two exporters for minutes, one of them down for two fifths of the time, while ingest and Spark are killed at random: at
the end both have everything, files exactly once and the far side at least once, dead letters are exactly what the far
side refused, and the disk is free.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from soak_far_side import FIRST_NS, FarSide, Producer, is_poison, numbers_of

from quiver.clock import SYSTEM_CLOCK
from quiver.delivery.dead_letters import read_letters
from quiver.delivery.retry_set import load_retry_set
from quiver.pipeline.child import INGEST_READY, SPARK_READY
from quiver.pipeline.run import read_state
from quiver.primitives.real_files import REAL_FILES
from quiver.store.format.names import parse_segment_name
from quiver.store.roster import standings

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1800)]

PRODUCERS = 2
KILL_EVERY_S = (6.0, 18.0)
SETTLE_S = 240.0

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
    out_ports: {out_port: {destinations: [lake, remote]}}
    config:
      path: "{{directory}}/buffer"
      segment: {max_open_duration: 500ms}
      retention: {delete_grace: 1s}
  lake:
    kind: exporter
    plugin_urn: "urn:quiver:parquet:exporter"
    config: {path: "{{directory}}/lake", trigger: 500ms}
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
        values = {"port": self.port, "far": far_port, "directory": directory}
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
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        pause = threading.Event()
        while not true():
            assert self.process.poll() is None, self.tail()
            assert SYSTEM_CLOCK.monotonic() < deadline, self.tail()
            pause.wait(0.2)

    def kill_child(self, name: str) -> bool:
        child = read_state(self.run_dir)["children"].get(name)
        if child is None or child["state"] != "running":
            return False
        try:
            os.kill(child["pid"], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

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


def lags(root: str) -> dict[str, int | None]:
    return {one.subscriber: one.lag_bundles for one in standings(REAL_FILES, root, now_ns=SYSTEM_CLOCK.now_ns())}


def sealed(root: str) -> list[str]:
    return [name for name in os.listdir(f"{root}/segments") if parse_segment_name(name) is not None]


def exported(lake: Path) -> Counter[int]:
    """What any reader of Parquet sees: number → how often."""
    found: Counter[int] = Counter()
    for path in lake.rglob("*.parquet"):
        if any(part.startswith((".", "_")) for part in path.relative_to(lake).parts):
            continue
        times = pq.read_table(path, columns=["time_unix_nano"]).column("time_unix_nano").cast(pa.int64())
        found.update(time - FIRST_NS for time in times.to_pylist())
    return found


def torment(pipeline: Pipeline, far: FarSide, seconds: float, random: Random) -> Counter[str]:
    """Kill children at random for so long; the far side is down from a third of it on, for two fifths."""
    began = SYSTEM_CLOCK.monotonic()
    killed: Counter[str] = Counter()
    pause = threading.Event()
    kill_at = began + random.uniform(*KILL_EVERY_S)
    while (passed := SYSTEM_CLOCK.monotonic() - began) < seconds:
        wants_up = not 0.3 * seconds <= passed < 0.7 * seconds
        if wants_up != far.is_up:
            far.up() if wants_up else far.down()
        if SYSTEM_CLOCK.monotonic() >= kill_at:
            name = random.choice(["ingest", "ingest", "spark"])
            killed[name] += pipeline.kill_child(name)
            kill_at = SYSTEM_CLOCK.monotonic() + random.uniform(*KILL_EVERY_S)
        assert pipeline.process.poll() is None, pipeline.tail()
        pause.wait(0.2)
    return killed


def test_both_exporters_end_with_everything(tmp_path, request):
    """However often anything was killed."""
    seconds = request.config.getoption("--delivery-seconds")
    far = FarSide()
    root = f"{tmp_path}/buffer"
    with Pipeline(tmp_path, far.port) as pipeline:
        producers = [Producer(pipeline.port, first, PRODUCERS, 0.01) for first in range(PRODUCERS)]
        for one in producers:
            one.start()
        killed = torment(pipeline, far, seconds, Random(20))
        for one in producers:
            one.stopping.set()
            one.join()
        if not far.is_up:
            far.up()
        sent = set().union(*(one.confirmed for one in producers))
        unknown = set().union(*(one.unknown for one in producers))
        pipeline.wait_until(lambda: not any(lags(root).values()), SETTLE_S)
        # The last acknowledgements, and what they free, come with the next look.
        pipeline.wait_until(lambda: not sealed(root) and not load_retry_set(REAL_FILES, root, "remote"), SETTLE_S)
        pipeline.stop()
    far.down()

    assert len(sent) > 5 * seconds
    assert killed.total() >= seconds // 30
    files = exported(tmp_path / "lake")
    assert set(files.values()) == {1}, [number for number, count in files.items() if count > 1][:20]
    assert sent <= set(files) <= sent | unknown
    good = {number for number in files if not is_poison(number)}
    assert set(far.arrived) == good
    letters = read_letters(REAL_FILES, root, "remote")
    refused = [
        number for letter in letters for data in letter.bundle[60].column(0).to_pylist() for number in numbers_of(data)
    ]
    assert sorted(refused) == sorted(set(files) - good)
    assert all(letter.reason.startswith("HTTP 400") for letter in letters)
    assert all(len(ids) == 1 for ids in far.batch_ids.values()), "a request that is sent again carries the same id"
