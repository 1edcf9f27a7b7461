"""
`quiver run`: a supervisor and the two children of a pipeline, with their logs and a state file.

::

    quiver run ── supervises ──┬── ingest   store, receivers, OTLP exporters  logs in <run dir>/ingest.log
                               └── spark    driver, Parquet exporters         logs in <run dir>/spark.log

Stopping goes along the flow of the data: the receivers first, then the store seals what is open, then Spark writes
what is left, within a deadline.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from quiver.pipeline.graph import Pipeline
from quiver.pipeline.supervise import ChildSpec, Supervisor
from quiver.primitives.atomic import replace_file
from quiver.primitives.backoff import Backoff
from quiver.primitives.lock import hold
from quiver.primitives.real_files import REAL_FILES

__all__ = ["RUN_LOCK", "STATE_NAME", "default_run_dir", "describe", "read_state", "run_pipeline"]

STATE_NAME = "state.json"
RUN_LOCK = "quiver.run.lock"
RESTART_S_MAX = 5.0
"""An SDK gives up after about half a minute of trying: no restart waits so long that its batch is lost."""

INGEST_STOP_S = 20.0
SPARK_STOP_S = 45.0

_log = logging.getLogger("quiver.pipeline")


def default_run_dir(pipeline: Pipeline) -> Path:
    """
    Return where logs and state go unless told otherwise: beside the store, `<store>.run`.
    """
    store = Path(pipeline.persistence.path)
    return store.with_name(f"{store.name}.run")


def describe(pipeline: Pipeline) -> dict[str, Any]:
    """
    Return what would run, as plain values: nodes in flow order, and what each exporter receives.
    """
    store = pipeline.persistence
    return {
        "receivers": [
            {"node": name, "grpc": config.grpc_address, "http": config.http_address, "ack": config.ack}
            for name, config in pipeline.receivers
        ],
        "persistence": {"path": store.path, "durability": store.settings.durability},
        "exporters": [
            {"node": name, "subscriber": name, "to": config.destination, "receives": "everything"}
            for name, config in pipeline.exporters
        ],
        "metrics": None if pipeline.metrics is None else {"listen": pipeline.metrics.listen},
    }


def read_state(run_dir: Path) -> dict[str, Any]:
    """
    Return the state file's contents; empty when the pipeline has not written one yet.
    """
    try:
        state: dict[str, Any] = json.loads((run_dir / STATE_NAME).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return state


def run_pipeline(
    pipeline: Pipeline,
    *,
    assignments: Sequence[str],
    run_dir: Path,
    say: Callable[[str], None],
    lifeline_fd: int | None = None,
) -> int:
    """
    Run *pipeline* until SIGTERM or SIGINT; return the exit code.

    Args:
        pipeline: as checked.
        assignments: ``name=value`` texts for the placeholders, handed on to the children.
        run_dir: logs and state; created when missing.
        say: told in a line what happens.
        lifeline_fd: stop when nothing more can be read here: whoever held the other end is gone.

    Raises:
        DirectoryInUse: another `quiver run` uses *run_dir*.
    """
    run_dir = run_dir.absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    lock = hold(REAL_FILES, str(run_dir / RUN_LOCK), owner=f"quiver run {pipeline.source}")

    def on_change(supervisor: Supervisor, what: str) -> None:
        replace_file(REAL_FILES, str(run_dir / STATE_NAME), _state(pipeline, supervisor))
        if what:
            _log.info("%s", what)
            say(what)

    try:
        supervisor = Supervisor(
            _children(pipeline, assignments, run_dir),
            on_change=on_change,
            backoff=Backoff(first_s=0.2, cap_s=RESTART_S_MAX),
            random=Random(),  # noqa: S311 - jitter, not a secret
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: supervisor.request_stop())
        if lifeline_fd is not None:
            watch = threading.Thread(target=_watch, args=(lifeline_fd, supervisor), name="quiver-lifeline", daemon=True)
            watch.start()
        return supervisor.run()
    finally:
        lock.release()


def _watch(descriptor: int, supervisor: Supervisor) -> None:
    while os.read(descriptor, 1):
        pass
    supervisor.request_stop()


def _children(pipeline: Pipeline, assignments: Sequence[str], run_dir: Path) -> list[ChildSpec]:
    rest = [str(Path(pipeline.source).absolute()), "--run-dir", str(run_dir)]
    for text in assignments:
        rest += ["--set", text]

    def spec(name: str, module: str, stop_timeout_s: float) -> ChildSpec:
        argv = [sys.executable, "-m", module, *rest]
        return ChildSpec(name, argv, run_dir / f"{name}.log", stop_timeout_s)

    children = [spec("ingest", "quiver.pipeline.ingest", INGEST_STOP_S)]
    if pipeline.queries:
        children.append(spec("spark", "quiver.pipeline.export", SPARK_STOP_S))
    return children


def _state(pipeline: Pipeline, supervisor: Supervisor) -> bytes:
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
    state = {"pid": os.getpid(), "pipeline": pipeline.source, "state": supervisor.state, "children": children}
    return json.dumps(state, indent=1).encode() + b"\n"
