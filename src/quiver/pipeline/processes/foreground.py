"""
`quiver run --foreground` without Spark, cores and a status page: the ingest process alone, without a supervisor.

Logs are written to standard output. A process that fails ends with its exit code, and the program that started it,
such as a container runtime, restarts it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from quiver.clock import SYSTEM_CLOCK
from quiver.counted import counted
from quiver.pipeline.ingest import ingest
from quiver.pipeline.model import Pipeline
from quiver.pipeline.processes.buffer_contents import places_of, remaining
from quiver.pipeline.processes.child import DRAIN_S, INGEST_READY, ORPHAN_DEADLINE_S, ChildContext, run_body
from quiver.pipeline.processes.log_relay import TEXT_FORMAT, JsonFormatter
from quiver.pipeline.processes.parent_watchdog import ParentWatchdog
from quiver.pipeline.processes.run import (
    RUN_LOCK,
    STATE_NAME,
    RunOptions,
    memory_buffers,
    read_facts,
)
from quiver.pipeline.processes.sd_notify import notify
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.lock import hold
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = ["run_in_one_process"]

READY_LOOK_S = 0.2

_log = logging.getLogger("quiver.pipeline")


def run_in_one_process(pipeline: Pipeline, options: RunOptions, *, reread: Callable[[], Pipeline]) -> int:
    """
    Run *pipeline* in this process until SIGTERM or SIGINT; return the exit code. On SIGHUP the file is read again.

    Raises:
        DirectoryInUseError: another `quiver run` uses the run directory.
    """
    run_dir = options.run_dir.absolute()
    options = replace(options, run_dir=run_dir)
    _log_to_stdout(options)
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as resources:
        resources.callback(hold(REAL_FILES, str(run_dir / RUN_LOCK), owner=f"quiver run {pipeline.source}").release)
        placed = pipeline.placed(run_dir)
        resources.enter_context(memory_buffers(placed, run_dir))
        (run_dir / INGEST_READY).unlink(missing_ok=True)
        _write_state(placed, run_dir, "running")
        watchdog = ParentWatchdog(deadline_s=ORPHAN_DEADLINE_S, stdin_fd=options.watchdog_fd)
        resources.enter_context(_notifying(options, watchdog))
        drain_s = DRAIN_S if options.drain_s is None else options.drain_s

        def context() -> ChildContext:
            return ChildContext(placed, run_dir, watchdog, drain_s=drain_s, reread=lambda: reread().placed(run_dir))

        code = run_body(ingest, context)
        for name, bundles, directory in remaining(places_of(placed)):
            fate = "for the next start" if placed.is_durable else "lost: it was in memory"
            _log.info("%s: %s left in %s, %s", name, counted(bundles, "bundle"), directory, fate)
        _write_state(placed, run_dir, "failed" if code else "stopped")
    return code


def _log_to_stdout(options: RunOptions) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter("ingest") if options.log_format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _write_state(pipeline: Pipeline, run_dir: Path, state: str) -> None:
    """Write the state file as a supervisor would, for `quiver top`."""
    child = {"pid": os.getpid(), "state": state, "starts": 1, "last_exit": "", "log": ""}
    values = {
        "pid": os.getpid(),
        "pipeline": pipeline.source,
        "state": state,
        "cores": None,
        "buffers": {buffer.name: str(Path(buffer.config.path).absolute()) for buffer in pipeline.buffers},
        "metrics": None if pipeline.metrics is None else pipeline.metrics.listen,
        "children": {"ingest": child},
    }
    try:
        replace_file(REAL_FILES, str(run_dir / STATE_NAME), json.dumps(values, indent=1).encode() + b"\n")
    except OSError as error:
        _log.warning("%s is not up to date: %s", STATE_NAME, error)


@contextlib.contextmanager
def _notifying(options: RunOptions, watchdog: ParentWatchdog) -> Iterator[None]:
    """Tell systemd when everything listens, that the process works, and when it stops."""
    ended = threading.Condition()
    is_over = is_stopping = False

    def tell_stopping() -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            notify(options.notify_socket, "STOPPING=1")

    def work() -> None:
        is_ready, due_s = False, 0.0
        with ended:
            while not is_over:
                facts = read_facts(options.run_dir / INGEST_READY)
                if not is_ready and facts.get("pid") == os.getpid():
                    is_ready = True
                    ports = ", ".join(facts.get("listening", ()))
                    notify(options.notify_socket, "READY=1", f"STATUS=ready: listens on {ports}")
                    _log.info("ready: listens on %s", ports)
                if watchdog.is_closing:
                    tell_stopping()
                now_s = SYSTEM_CLOCK.monotonic()
                if options.watchdog_interval_s is not None and now_s >= due_s:
                    due_s = now_s + options.watchdog_interval_s
                    notify(options.notify_socket, "WATCHDOG=1")
                SYSTEM_CLOCK.wait(ended, READY_LOOK_S)

    thread = threading.Thread(target=work, name="quiver-notify", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with ended:
            is_over = True
            ended.notify_all()
        thread.join()
        tell_stopping()
