"""
`quiver run`: a supervisor and the children of a pipeline, with their logs and a state file.

::

    quiver run ── supervises ──┬── ingest   stores, receivers, OTLP exporters          logs in <run dir>/ingest.log
                               ├── spark    driver, processors, all other exporters    logs in <run dir>/spark.log
                               └── status   the status page, if configured              logs in <run dir>/status.log

With `--cores N` there are ingest-0 … ingest-N-1 on the same ports. A stop follows the data flow, within one deadline:
receivers close and stores seal their open segments; Spark writes the remaining data, buffer by buffer; forwarders send
what Spark wrote to their buffers; the stores close. Data that remains is reported. On SIGHUP the file is read again,
and changes that need no restart are applied.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from quiver.clock import SYSTEM_CLOCK
from quiver.counted import counted
from quiver.errors import QuiverError, UsageError
from quiver.pipeline.companion_stores import sibling_directory
from quiver.pipeline.config.formatting import size_words
from quiver.pipeline.diagram import as_graph
from quiver.pipeline.model import Pipeline, memory_directory
from quiver.pipeline.processes.buffer_contents import (
    Count,
    count_in_short_process,
    has_other_subscribers,
    places_of,
)
from quiver.pipeline.processes.child import DRAIN_S, NOTE_BYTES_MAX, has_closed
from quiver.pipeline.processes.extras import missing_extra
from quiver.pipeline.processes.log_relay import LogFormat, LogLine, LogRelay, as_json
from quiver.pipeline.processes.reload import changed_queries, describe_changes, needs_restart
from quiver.pipeline.processes.sd_notify import notify
from quiver.pipeline.processes.spark_temp_dir import spark_temp_dir
from quiver.pipeline.processes.supervise import ChildSpec, Supervisor
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.short_process import call_in_short_process
from quiver.store.format.names import DEAD_LETTER_DIR
from quiver.store.limits.tree_bytes import tree_bytes

__all__ = [
    "RUN_LOCK",
    "STATE_NAME",
    "RunOptions",
    "above_default_caps",
    "check_pyspark",
    "default_run_dir",
    "fits_one_process",
    "memory_buffers",
    "read_facts",
    "read_state",
    "run_pipeline",
]

STATE_NAME = "state.json"
KEPT_NAME = "running.yaml"
"""A copy of the running pipeline file. The children read this copy: a restarted child must not see a file that is being
edited."""

RUN_LOCK = "quiver.run.lock"
RESTART_S_MAX = 5.0
"""SDKs stop retrying after about half a minute: every restart is early enough that their batches are not lost."""

READY_LOOK_S = 0.2
EVENTS_KEPT = 30
"""The number of events in the state file: restarts, mostly."""

SPARK_DRAIN_S = 25.0
STOP_MORE_S = 12.0
"""Extra time for a child beyond the drain time: to seal once more, to stop a JVM."""

SPARK_STAGE = 0
INGEST_STAGE = 1
STATUS_STAGE = 2
"""
Stages of a stop, after all ports are closed: Spark first, then the ingest processes, which send what it wrote. The
status page is last, because it shows the stop.
"""

_log = logging.getLogger("quiver.pipeline")


def default_run_dir(pipeline: Pipeline) -> Path:
    """
    Return the default directory of logs and state: `<store>.run`, or `<file>.run` in the current directory without a
    store.
    """
    if not pipeline.persistence.path:
        return Path(f"{Path(pipeline.source).stem}.run")
    return sibling_directory(pipeline.persistence.path, "run")


def read_state(run_dir: Path) -> dict[str, Any]:
    """Return the state file's contents; empty when the pipeline has not written one yet."""
    try:
        state: dict[str, Any] = json.loads(REAL_FILES.read_all(str(run_dir / STATE_NAME), size_max=NOTE_BYTES_MAX))
    except (FileNotFoundError, ValueError):
        return {}
    return state


@dataclass(frozen=True, slots=True)
class RunOptions:
    """
    Options of `quiver run`.

    Attributes:
        assignments: ``name=value`` texts for the placeholders, passed on to the children.
        run_dir: the directory of logs and state; created when missing.
        cores: the number of ingest processes that share the ports, each with its own store; None for a single process
            without cores.
        drain_s: how long exporters continue after a stop request, in total; None for 25 s with Spark and 8 s without.
        watchdog_fd: a descriptor; the pipeline stops when its other end is closed.
        notify_socket: the socket of systemd for readiness and stop messages; None sends none.
        watchdog_interval_s: how often systemd is told that this process works; None never does.
        foreground: pass on all lines of the logs of children; otherwise only warnings and errors.
        log_format: the format of these lines.
    """

    assignments: Sequence[str]
    run_dir: Path
    cores: int | None = None
    drain_s: float | None = None
    watchdog_fd: int | None = None
    notify_socket: str | None = None
    watchdog_interval_s: float | None = None
    foreground: bool = False
    log_format: LogFormat = "text"


def fits_one_process(pipeline: Pipeline, cores: int | None) -> bool:
    """Return whether *pipeline* needs no Spark process, no status page, and one ingest process."""
    return not pipeline.queries and cores is None and pipeline.status is None


def run_pipeline(
    pipeline: Pipeline, options: RunOptions, *, reread: Callable[[], Pipeline], report: Callable[[str], None]
) -> int:
    """
    Run *pipeline* until SIGTERM or SIGINT; return the exit code. On SIGHUP the file is read again.

    Args:
        pipeline: a validated pipeline.
        options: see `RunOptions`.
        reread: reads and validates the file again.
        report: called with one line per event.

    Raises:
        DirectoryInUseError: another `quiver run` uses the run directory.
    """
    run_dir = options.run_dir.absolute()
    options = replace(options, run_dir=run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as resources:
        resources.callback(hold(REAL_FILES, str(run_dir / RUN_LOCK), owner=f"quiver run {pipeline.source}").release)
        temp_dir = resources.enter_context(spark_temp_dir(run_dir))
        running = _Running(pipeline.placed(run_dir), options, temp_dir, reread, report)
        resources.enter_context(memory_buffers(running.pipeline, run_dir))
        running.report_left_over()
        threading.Thread(target=running.report_when_ready, name="quiver-ready", daemon=True).start()
        supervisor = running.supervisor
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: supervisor.request_stop())
        signal.signal(signal.SIGHUP, lambda _number, _frame: supervisor.request_reload())
        if options.watchdog_fd is not None:
            arguments = (options.watchdog_fd, supervisor)
            threading.Thread(target=_watch, args=arguments, name="quiver-watchdog", daemon=True).start()
        code = supervisor.run()
        running.pass_on_logs()
        running.report_remaining()
        return code


class _Running:
    """A running pipeline: its current model, its supervisor, and its state file."""

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        temp_dir: Path,
        reread: Callable[[], Pipeline],
        report: Callable[[str], None],
    ) -> None:
        self.pipeline = pipeline
        self._options = options
        self._temp_dir = temp_dir
        self._reread = reread
        self._report_line = report
        self._file = self._keep(pipeline)
        self._is_stop_reported = False
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._relay = LogRelay(self._write, everything=options.foreground, log_format=options.log_format)
        self._watchdog_at = 0.0
        self.supervisor = Supervisor(
            _children(pipeline, options, self._file, self._temp_dir),
            on_change=self._on_change,
            on_reload=self._on_reload,
            backoff=Backoff(first_s=0.2, cap_s=RESTART_S_MAX),
            random=Random(),  # noqa: S311 - jitter, not a secret
            on_tick=self._on_tick,
        )
        self._relay.start(self._logs())

    def _logs(self) -> dict[str, Path]:
        return {child.spec.name: child.spec.log_path for child in self.supervisor.children}

    def _on_tick(self, _: Supervisor) -> None:
        self.pass_on_logs()
        interval_s = self._options.watchdog_interval_s
        if interval_s is not None and SYSTEM_CLOCK.monotonic() >= self._watchdog_at:
            self._watchdog_at = SYSTEM_CLOCK.monotonic() + interval_s
            notify(self._options.notify_socket, "WATCHDOG=1")

    def pass_on_logs(self) -> None:
        """Pass on the lines that children logged since the last call."""
        self._relay.look(self._logs())

    def _keep(self, pipeline: Pipeline) -> Path:
        """Write the running pipeline file, and return the path that the children read."""
        path = self._options.run_dir / KEPT_NAME
        try:
            replace_file(REAL_FILES, str(path), pipeline.text.encode())
        except OSError as error:
            # Start even if the disk is full: buffered data has to be delivered.
            _log.warning("the children read %s itself: %s", pipeline.source, error)
            return Path(pipeline.source).absolute()
        return path

    def _on_change(self, supervisor: Supervisor, what: str) -> None:
        if what:
            self._events.append({"at_ns": SYSTEM_CLOCK.now_ns(), "what": what})
        state = _state(self.pipeline, supervisor, self._options, list(self._events))
        try:
            replace_file(REAL_FILES, str(self._options.run_dir / STATE_NAME), state)
        except OSError as error:
            # The disk is full: the children wait for space, and must not be killed because the state file is stale.
            _log.warning("%s is not up to date: %s", STATE_NAME, error)
        if supervisor.state == "stopping" and not self._is_stop_reported:
            self._is_stop_reported = True
            notify(self._options.notify_socket, "STOPPING=1")
        if what:
            self._report(what)

    def _report(self, what: str) -> None:
        _log.info("%s", what)
        if self._options.log_format == "json":
            what = as_json(LogLine(None, "INFO", _log.name, what), "quiver")
        self._write(what)

    def _write(self, line: str) -> None:
        # The reader of the output may have exited: a pager, a terminal.
        with contextlib.suppress(OSError):
            self._report_line(line)

    def _on_reload(self, supervisor: Supervisor) -> None:
        try:
            new = self._reread().placed(self._options.run_dir)
            if new.queries and not self.pipeline.queries:
                _require_spark()
            new.spark.check_files()
        except (QuiverError, OSError, ModuleNotFoundError) as error:
            # The running pipeline continues in any case.
            self._report(f"not reloaded: {error}")
            return
        reasons = needs_restart(self.pipeline, new)
        if reasons:
            self._report(f"not reloaded, this needs a restart: {'; '.join(reasons)}")
            return
        try:
            replace_file(REAL_FILES, str(self._options.run_dir / KEPT_NAME), new.text.encode())
        except OSError as error:
            self._report(f"not reloaded: {error}")
            return
        old, self.pipeline = self.pipeline, new
        for child in supervisor.children:
            if child.spec.stage == STATUS_STAGE:
                continue  # it reads the state file for each update, and the pipeline file for each replay
            if child.spec.stage == INGEST_STAGE or not changed_queries(old, new):
                supervisor.send_signal(child.spec.name, signal.SIGHUP)
            else:
                supervisor.renew(child.spec.name)
        supervisor.change(_children(new, self._options, self._file, self._temp_dir))
        self._report(f"reloaded: {describe_changes(old, new)}")

    def report_left_over(self) -> None:
        """
        Report subscribers that retain data which no exporter of this pipeline will read, and stores that are larger
        than their default cap.
        """
        for name, size, cap in above_default_caps(self.pipeline):
            self._report(
                f"{name} has {size_words(size)}, more than the default of its retention.size_cap, {size_words(cap)}: "
                "all of it is delivered, and senders are asked to retry until there is space; size_cap: none removes "
                "the cap"
            )
        for name, bundles, directory in self._undelivered():
            self._report(
                f"{directory} keeps {counted(bundles, 'bundle')} for {name}, which is no exporter here; if no other "
                f"program reads as {name}: quiver subscribers {shlex.quote(directory)} drop {name}"
            )

    def _undelivered(self) -> list[Count]:
        if not has_other_subscribers(places_of(self.pipeline)):
            return []
        (found,) = self._counts("undelivered")
        return found

    def _counts(self, *names: str) -> list[list[Count]]:
        try:
            return count_in_short_process(places_of(self.pipeline), *names)
        except QuiverError as error:
            self._report(f"the buffers could not be counted: {error}")
            return [[] for _ in names]

    def report_when_ready(self) -> None:
        """Report once when every running child is ready; until then, ports are closed."""
        never = threading.Condition()
        while True:
            children = {child.spec.name: child.pid for child in self.supervisor.children}
            facts = {name: read_facts(self._options.run_dir / f"{name}.json") for name in children}
            if self.supervisor.state in {"stopping", "stopped", "failed"}:
                return
            if all(pid is not None and facts[name].get("pid") == pid for name, pid in children.items()):
                break
            with never:
                SYSTEM_CLOCK.wait(never, READY_LOOK_S)
        ports = dict.fromkeys(port for fact in facts.values() for port in fact.get("listening", ()))
        status = f"ready: listens on {', '.join(ports)}" if ports else "ready"
        notify(self._options.notify_socket, "READY=1", f"STATUS={status}")
        self._report(status)

    def report_remaining(self) -> None:
        """Report how much data each exporter has left in its buffer."""
        left, in_log, lost = self._counts("remaining", "not_sealed", "lost_dead_letters")
        for name, bundles, directory in left:
            fate = "for the next start" if self.pipeline.is_durable else "lost: it was in memory"
            self._report(f"{name}: {counted(bundles, 'bundle')} left in {directory}, {fate}")
        for name, bundles, directory in in_log:
            self._report(
                f"{name}: {counted(bundles, 'bundle')} left in the log of {directory}, which was not sealed, for "
                "each of its exporters with the next start"
            )
        for name, count, directory in lost:
            self._report(f"{name}: {counted(count, 'dead letter')} left in {directory}, lost: it was in memory")


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts that a child wrote when it became ready; empty until then."""
    try:
        return dict(json.loads(REAL_FILES.read_all(str(path), size_max=NOTE_BYTES_MAX)))
    except (OSError, ValueError):
        return {}


def above_default_caps(pipeline: Pipeline) -> list[tuple[str, int, int]]:
    """Return each buffer that is larger than a cap which is not in the file: its name, its size, and the cap."""
    found = []
    for buffer in pipeline.buffers:
        cap = buffer.config.settings.size_cap_bytes
        if cap is None or not buffer.config.has_default_cap:
            continue
        try:
            size = tree_bytes(REAL_FILES, buffer.config.path, skip=(DEAD_LETTER_DIR,))
        except OSError as error:
            _log.warning("%s cannot be looked at: %s", buffer.config.path, error)
            continue
        if size > cap:
            found.append((buffer.name, size, cap))
    return found


@contextlib.contextmanager
def memory_buffers(pipeline: Pipeline, run_dir: Path) -> Iterator[None]:
    """Create an empty directory for the buffers in memory, and remove it at the end."""
    root = memory_directory(run_dir)
    if pipeline.is_durable:
        yield
        return
    shutil.rmtree(root, ignore_errors=True)  # left by a run that was killed
    root.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(root, ignore_errors=True)


def check_pyspark(pipeline: Pipeline) -> None:
    """
    Check that the installed PySpark can run the exporters of *pipeline*, before any process starts.

    A machine without PySpark can still check a pipeline file.

    Raises:
        UsageError: the installed PySpark is too old.
    """
    if not pipeline.queries or importlib.util.find_spec("pyspark") is None:
        return
    _require_features()


def _require_spark() -> None:
    """
    Check that a Spark process can run on this machine; otherwise its failure would end the whole pipeline.

    Raises:
        QuiverError: Java is missing.
        UsageError: the installed PySpark is too old.
        ModuleNotFoundError: the extra `spark` is not installed.
    """
    from quiver.spark.java import find_java_home  # noqa: PLC0415 - an extra

    if importlib.util.find_spec("pyspark") is None:
        raise ModuleNotFoundError(missing_extra(ModuleNotFoundError("pyspark", name="pyspark")))
    _require_features()
    find_java_home()


def _require_features() -> None:
    missing = call_in_short_process("quiver.spark.spark_features:missing_for_exporters")
    if missing:
        raise UsageError(missing)


def _watch(descriptor: int, supervisor: Supervisor) -> None:
    while os.read(descriptor, 1):
        pass
    supervisor.request_stop()


def _children(pipeline: Pipeline, options: RunOptions, file: Path, temp_dir: Path) -> list[ChildSpec]:
    rest = [str(file), "--source", pipeline.source, "--run-dir", str(options.run_dir)]
    for text in options.assignments:
        rest += ["--set", text]
    if options.cores is not None:
        rest += ["--cores", str(options.cores)]
    drain_s = options.drain_s
    if drain_s is None:
        drain_s = SPARK_DRAIN_S if pipeline.queries else DRAIN_S
    rest += ["--drain-s", str(drain_s)]

    def spec(name: str, module: str, stop_timeout_s: float, stage: int, *more: str) -> ChildSpec:
        argv = [sys.executable, "-m", module, *rest, *more]
        closed = partial(has_closed, options.run_dir, f"{name}.json") if stage == INGEST_STAGE else lambda _: True
        return ChildSpec(name, argv, options.run_dir / f"{name}.log", stop_timeout_s, stage, closed)

    stop_s = drain_s + STOP_MORE_S
    ingest = "quiver.pipeline.ingest"
    if options.cores is None:
        children = [spec("ingest", ingest, stop_s, INGEST_STAGE)]
    else:
        children = [
            spec(f"ingest-{core}", ingest, stop_s, INGEST_STAGE, "--core", str(core)) for core in range(options.cores)
        ]
    if pipeline.queries:
        stop_s = drain_s + 2 * STOP_MORE_S
        children.append(spec("spark", "quiver.pipeline.export", stop_s, SPARK_STAGE, "--temp-dir", str(temp_dir)))
    if pipeline.status is not None:
        argv = [sys.executable, "-m", "quiver", "status", str(file), "--run-dir", str(options.run_dir)]
        argv += ["--stop-with-stdin", *(part for text in options.assignments for part in ("--set", text))]
        log = options.run_dir / "status.log"
        children.append(ChildSpec("status", argv, log, STOP_MORE_S, STATUS_STAGE))
    return children


def _state(pipeline: Pipeline, supervisor: Supervisor, options: RunOptions, events: Sequence[dict[str, Any]]) -> bytes:
    children = {
        child.spec.name: {
            "pid": child.pid,
            "state": child.state,
            "starts": child.starts,
            "last_exit": child.last_exit,
            "log": str(child.spec.log_path),
        }
        for child in supervisor.children
    }
    state = {
        "pid": os.getpid(),
        "pipeline": pipeline.source,
        "state": supervisor.state,
        "cores": options.cores,
        "buffers": {buffer.name: str(Path(buffer.config.path).absolute()) for buffer in pipeline.buffers},
        "metrics": None if pipeline.metrics is None else pipeline.metrics.listen,
        "size_caps": {buffer.name: buffer.config.settings.size_cap_bytes for buffer in pipeline.buffers},
        "disk_cap": None if pipeline.disk is None else pipeline.disk.size_cap,
        "graph": as_graph(pipeline),
        "events": events,
        "children": children,
    }
    return json.dumps(state, indent=1).encode() + b"\n"
