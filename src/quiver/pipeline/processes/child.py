"""The start and end of every child process of a pipeline: arguments, logging, exit codes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quiver.errors import PipelineError, QuiverError, UsageError
from quiver.pipeline.config.parse import DOCUMENT_BYTES_MAX
from quiver.pipeline.graph import load_pipeline
from quiver.pipeline.model import Pipeline
from quiver.pipeline.processes.extras import missing_extra
from quiver.pipeline.processes.log_relay import TEXT_FORMAT
from quiver.pipeline.processes.parent_watchdog import EXIT_WRONG_USE, ParentWatchdog
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.descriptors import raise_descriptor_limit
from quiver.primitives.disk.real_files import REAL_FILES

__all__ = [
    "DRAIN_S",
    "INGEST_READY",
    "SPARK_READY",
    "ChildContext",
    "child_main",
    "has_closed",
    "ingest_ready",
    "parse_assignments",
    "read_pipeline",
    "reload_log_level",
    "run_body",
    "set_log_level",
    "write_closed",
    "write_ready",
]

INGEST_READY = "ingest.json"
SPARK_READY = "spark.json"
"""The file that a child writes to the run directory when it is ready: its pid and a few facts."""

_log = logging.getLogger("quiver.pipeline")

NOTE_BYTES_MAX = 1 << 20
"""The maximum size of a file that one process leaves for another in the run directory."""

DRAIN_S = 8.0
ORPHAN_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class ChildContext:
    """
    The context of a child's body.

    Attributes:
        pipeline: the validated pipeline, with the directories of its buffers.
        run_dir: the directory for state.
        watchdog: signals when to stop and when to reload.
        cores: the number of ingest processes that share the ports; None for a single process without cores.
        core: the number of this process.
        drain_s: how long to continue with sealed data after a stop request.
        temp_dir: the directory for Spark's temporary files, which the supervisor removes; None for the system default.
        reread: reads the pipeline file again.
    """

    pipeline: Pipeline
    run_dir: Path
    watchdog: ParentWatchdog
    cores: int | None = None
    core: int = 0
    drain_s: float = DRAIN_S
    temp_dir: Path | None = None
    reread: Callable[[], Pipeline] | None = field(default=None, repr=False)

    @property
    def ready_name(self) -> str:
        """The name of the ready file of this ingest process."""
        return ingest_ready(None if self.cores is None else self.core)


def ingest_ready(core: int | None) -> str:
    """Return the name of the ready file of the ingest process of *core*; None is a single process."""
    return INGEST_READY if core is None else f"ingest-{core}.json"


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """
    Return the ``name=value`` texts as a mapping.

    Raises:
        UsageError: an assignment has no ``=`` or no name.
    """
    values: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {text}: write --set name=value")
        values[name] = value
    return values


def read_pipeline(
    path: Path, assignments: Sequence[str], environment: Mapping[str, str], *, source: str | None = None
) -> Pipeline:
    """
    Read and validate the pipeline file; placeholders come from *assignments*, then from *environment*. Messages call
    the file *source* if given.

    Raises:
        PipelineError: the file is invalid.
        UsageError: the file does not exist, or an assignment matches no placeholder.
    """
    given = parse_assignments(assignments)
    try:
        with path.open("rb") as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise PipelineError(str(path), 1, f"the file is larger than {DOCUMENT_BYTES_MAX} bytes")
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from error
    pipeline, placeholders = load_pipeline(text, source=source or str(path), values=ChainMap(given, dict(environment)))
    for name in given:
        if name not in placeholders:
            known = ", ".join(sorted(placeholders)) or "none"
            raise UsageError(f"--set {name}: {path} has no placeholder of that name; it has {known}")
    return pipeline


def child_main(body: Callable[[ChildContext], None], argv: Sequence[str] | None = None) -> int:
    """
    Run *body* until the supervisor asks to stop; return the exit code.

    Exit code 2 means that a restart cannot help. The last line of the log is the human-readable reason.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--source")
    parser.add_argument("--set", dest="assignments", action="append", default=[])
    parser.add_argument("--cores", type=int)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--drain-s", type=float, default=DRAIN_S)
    parser.add_argument("--temp-dir", type=Path)
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=TEXT_FORMAT)

    def reread() -> Pipeline:
        pipeline = read_pipeline(arguments.pipeline, arguments.assignments, os.environ, source=arguments.source)
        return pipeline.placed(arguments.run_dir)

    return run_body(
        body,
        lambda: ChildContext(
            reread(),
            arguments.run_dir,
            ParentWatchdog(deadline_s=ORPHAN_DEADLINE_S),
            cores=arguments.cores,
            core=arguments.core,
            drain_s=arguments.drain_s,
            temp_dir=arguments.temp_dir,
            reread=reread,
        ),
    )


def run_body(body: Callable[[ChildContext], None], make_context: Callable[[], ChildContext]) -> int:
    """Run *body* until it ends; log its error, and return the exit code. Code 2: a restart cannot help."""
    raise_descriptor_limit()
    try:
        context = make_context()
        set_log_level(context.pipeline)
        body(context)
    except UsageError as error:
        _log.error("%s", error)
        return EXIT_WRONG_USE
    except ModuleNotFoundError as error:
        _log.error("%s", missing_extra(error))
        return EXIT_WRONG_USE
    except (QuiverError, OSError) as error:
        _log.error("%s", error)
        return 1
    return 0


def set_log_level(pipeline: Pipeline) -> None:
    """Set the log level of this process to that of *pipeline*."""
    logging.getLogger().setLevel(pipeline.log_level.upper())


def reload_log_level(context: ChildContext) -> None:
    """Apply the log level of the current file. An invalid file changes nothing."""
    try:
        if context.reread is not None:
            set_log_level(context.reread())
    except UsageError as error:
        _log.error("not reloaded: %s", error)


def write_ready(run_dir: Path, name: str, facts: Mapping[str, Any]) -> None:
    """Atomically write the ready file of this process, with its pid, to *run_dir*."""
    data = json.dumps({"pid": os.getpid(), **facts}, indent=1).encode() + b"\n"
    replace_file(REAL_FILES, str(run_dir / name), data)


def write_closed(run_dir: Path, name: str) -> None:
    """Record in *run_dir* that this process accepts no more data."""
    try:
        write_ready(run_dir, name, {"closed": True})
    except OSError:
        # Deleting a file works even if the disk is full; writing one may not.
        (run_dir / name).unlink(missing_ok=True)


def has_closed(run_dir: Path, name: str, pid: int) -> bool:
    """Return whether process *pid*, which was ready under *name*, accepts no more data."""
    try:
        facts = json.loads(REAL_FILES.read_all(str(run_dir / name), size_max=NOTE_BYTES_MAX))
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return bool(facts.get("pid") == pid and facts.get("closed"))
