"""
The steps of the demo: start the pipeline → start the load → kill processes → wait for the export → stop the pipeline.

It runs the real `quiver run` as a separate process and observes it only through the run directory. It polls: `step` is
called a few times a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from quiver.clock import SYSTEM_CLOCK
from quiver.demo.names import SIGNALS
from quiver.demo.report import exported_rows
from quiver.errors import QuiverError
from quiver.pipeline.processes.child import INGEST_READY, SPARK_READY
from quiver.pipeline.processes.run import read_state

__all__ = ["Conductor", "DemoPlan", "DemoProgress"]

POLL_S = 0.2
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """
    The load and the kills of a demo.

    Attributes:
        logs, spans, metrics: the number of records to send by all load processes.
        workers: the number of load processes; even ones use gRPC, odd ones HTTP.
        seconds: the duration of the load.
        kills: (confirmed share of the logs, child) in order; each is killed with SIGKILL while data flow.
        patience_s: the maximum time without progress (records confirmed or exported, a killed process ready again)
            before the demo fails.
    """

    logs: int = 64_000
    spans: int = 24_000
    metrics: int = 24_000
    workers: int = 4
    seconds: float = 30.0
    kills: tuple[tuple[float, str], ...] = ((0.15, "ingest"), (0.40, "spark"), (0.65, "ingest"))
    patience_s: float = 90.0

    def total(self, signal_name: str) -> int:
        """Return the number of records of a signal to send."""
        return int(getattr(self, signal_name))


@dataclass(slots=True)
class DemoProgress:
    """Records by signal: passed to the SDK, reported as delivered, dropped by the SDK, and in the Parquet files."""

    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))
    confirmed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))
    exported: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))


class _Loader:
    """One load process and its last report."""

    def __init__(self, number: int, protocol: str, process: subprocess.Popen[str]) -> None:
        self.number = number
        self.protocol = protocol
        self.process = process
        self.report: Mapping[str, Mapping[str, int]] = {}
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):
                self.report = json.loads(line)

    def finished(self) -> bool:
        if self.process.poll() is None:
            return False
        self._reader.join()
        return True


class Conductor:
    """
    Runs one demo in a directory. A context manager: on exit, every process that it started has ended.

    Args:
        directory: an existing, empty directory for all files.
        pipeline: the pipeline file.
        plan: the load and the kills.
        report: called with a line of text for each event.
    """

    def __init__(self, directory: Path, pipeline: Path, plan: DemoPlan, *, report: Callable[[str], None]) -> None:
        self.plan = plan
        self.progress = DemoProgress()
        self.run_dir = directory / "run"
        self.load_dir = directory / "load"
        self.output = directory / "parquet"
        self._directory = directory
        self._pipeline = pipeline
        self._report_line = report
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._loaders: list[_Loader] = []
        self._killed: list[str] = []
        self._starts: dict[str, int] = {}
        self._began = self._moved = SYSTEM_CLOCK.monotonic()
        self._pause = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for loader in self._loaders:
            if loader.process.poll() is None:
                loader.process.kill()
            loader.process.wait()
        self.stop_pipeline()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the demo."""
        return SYSTEM_CLOCK.monotonic() - self._began

    @property
    def stalled_s(self) -> float:
        """Seconds since something was confirmed or exported, or a process was ready again."""
        return SYSTEM_CLOCK.monotonic() - self._moved

    @property
    def load_ended(self) -> bool:
        """Whether every load process has ended."""
        return all(loader.finished() for loader in self._loaders)

    @property
    def kills_left(self) -> list[tuple[float, str]]:
        """The kills that are left."""
        return list(self.plan.kills[len(self._killed) :])

    def start_pipeline(self) -> None:
        """
        Start `quiver run`, and wait until its ports are open and Spark's queries run.

        Raises:
            QuiverError: it stopped or was not ready in time.
        """
        grpc_port, http_port = _free_ports()
        self._addresses = {"grpc": f"127.0.0.1:{grpc_port}", "http": f"127.0.0.1:{http_port}"}
        self.run_dir.mkdir()
        self.load_dir.mkdir()
        addresses = {f"{protocol}_addr": address for protocol, address in self._addresses.items()}
        argv = [sys.executable, "-m", "quiver.cli.main", "run", str(self._pipeline)]
        argv += ["--run-dir", str(self.run_dir), "--stop-with-stdin"]
        for name, value in {"directory": str(self._directory), **addresses}.items():
            argv += ["--set", f"{name}={value}"]
        with (self.run_dir / "supervisor.log").open("wb") as log:
            self._supervisor = subprocess.Popen(  # noqa: S603 - a trusted command
                argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._report_line("pipeline started; waiting for its ports and for Spark")
        for _ in self._until(START_DEADLINE_S, "the pipeline was not ready"):
            if len(self._ready_pids()) == 2:
                break
        self._report_line(f"ports open, Spark runs after {self.elapsed_s:.1f} s")

    def start_load(self) -> None:
        """Start the load processes."""
        plan = self.plan
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        for number in range(plan.workers):
            protocol = ("grpc", "http")[number % 2]
            argv = [sys.executable, "-m", "quiver.demo.load", "--worker", str(number), "--protocol", protocol]
            argv += ["--endpoint", self._addresses[protocol], "--seconds", str(plan.seconds)]
            argv += ["--out", str(self.load_dir)]
            for name in SIGNALS:
                argv += [f"--{name}", str(_share(plan.total(name), number, plan.workers))]
            with (self.load_dir / f"{number}.log").open("wb") as log:
                process = subprocess.Popen(  # noqa: S603 - a trusted module
                    argv, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, env=environment
                )
            self._loaders.append(_Loader(number, protocol, process))
        self._moved = SYSTEM_CLOCK.monotonic()
        self._report_line(f"{plan.workers} load processes started, gRPC and HTTP in turn")

    def step(self) -> bool:
        """
        Poll once and kill processes that are due. Return False when the load has ended and everything is exported.

        Raises:
            QuiverError: the pipeline stopped, or a load process failed.
        """
        self._pause.wait(POLL_S)
        self._require_pipeline()
        progress = self.progress
        before = {**progress.confirmed}, progress.exported
        for loader in self._loaders:
            if loader.finished() and loader.process.returncode != 0:
                raise QuiverError(f"load process {loader.number} failed; its log is in {self.load_dir}")
        for kind, counts in (("sent", progress.sent), ("confirmed", progress.confirmed), ("failed", progress.failed)):
            for name in SIGNALS:
                counts[name] = sum(loader.report.get(kind, {}).get(name, 0) for loader in self._loaders)
        progress.exported = exported_rows(self.output)
        if before != (progress.confirmed, progress.exported):
            self._moved = SYSTEM_CLOCK.monotonic()
        self._note_restarts()
        self._kill_when_due()
        # Unconfirmed records may be in the files as well, so the number of rows is only a first check.
        return not (self.load_ended and all(progress.exported[name] >= progress.confirmed[name] for name in SIGNALS))

    def stop_pipeline(self) -> int | None:
        """Stop `quiver run` gracefully, which exports the rest, and return its exit code."""
        process, self._supervisor = self._supervisor, None
        if process is None:
            return None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return code

    def _until(self, deadline_s: float, otherwise: str) -> Iterator[None]:
        deadline = SYSTEM_CLOCK.monotonic() + deadline_s
        while SYSTEM_CLOCK.monotonic() < deadline:
            self._require_pipeline()
            yield
            self._pause.wait(POLL_S)
        raise QuiverError(f"{otherwise} within {deadline_s:.0f} s; its logs are in {self.run_dir}")

    def _require_pipeline(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is not None:
            last = (self.run_dir / "supervisor.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise QuiverError(f"the pipeline stopped: {' '.join(last)}; its logs are in {self.run_dir}")

    def _children(self) -> Mapping[str, Mapping[str, Any]]:
        children: Mapping[str, Mapping[str, Any]] = read_state(self.run_dir).get("children", {})
        return children

    def _note_restarts(self) -> None:
        for name, child in self._children().items():
            if child["starts"] > self._starts.get(name, 1) and child["pid"] in self._ready_pids():
                self._starts[name] = child["starts"]
                # On a busy machine Spark takes up to a minute to restart: its next export is measured separately.
                self._moved = SYSTEM_CLOCK.monotonic()
                self._report_line(f"{name} is back and ready as process {child['pid']} at {self.elapsed_s:.1f} s")

    def _ready_pids(self) -> set[int]:
        found: set[int] = set()
        for name in (INGEST_READY, SPARK_READY):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found.add(json.loads((self.run_dir / name).read_bytes())["pid"])
        return found

    def _kill_when_due(self) -> None:
        if not self.kills_left:
            return
        share, name = self.kills_left[0]
        if self.progress.confirmed["logs"] < share * self.plan.logs:
            return
        if name == "spark" and not any(self.progress.exported.values()):
            return  # killing a driver that has exported nothing proves nothing
        pid = self._children().get(name, {}).get("pid")
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._killed.append(name)
            self._report_line(f"SIGKILL to {name}, process {pid}, at {self.elapsed_s:.1f} s with data flowing")


def _share(total: int, number: int, workers: int) -> int:
    return total // workers + (1 if number < total % workers else 0)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
