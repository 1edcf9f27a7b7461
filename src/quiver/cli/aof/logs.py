"""Selection of the logs of a `quiver aof` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.aof.reading.check import CheckedLog
    from quiver.objects import ObjectLocation

__all__ = ["LogName", "Logs", "checked_logs", "logs_of", "one_log"]

Logs = Annotated[Path, typer.Argument(help="The directory of the logs, or of one log.")]
LogName = Annotated[
    str | None, typer.Option("--log", "--stream", help="One of the logs in the directory.  [default: all logs]")
]


def logs_of(root: Path, log: str | None) -> dict[str, str]:
    """
    Return the logs at *root*, or only *log*: name → directory.

    Raises:
        UsageError: there is no log, or none of that name.
    """
    from quiver.aof.reading.files import logs_below  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    found = logs_below(REAL_FILES, str(root))
    if log is None:
        return found
    if log not in found:
        raise UsageError(f"{root} has no log {log!r}; its logs are {', '.join(found)}")
    return {log: found[log]}


def one_log(root: Path, log: str | None) -> tuple[str, str]:
    """
    Return name and directory of the only log at *root*, or of *log*.

    Raises:
        UsageError: there are several; or as for `logs_of`.
    """
    found = logs_of(root, log)
    if len(found) > 1:
        raise UsageError(f"{root} has the logs {', '.join(found)}; select one with --log")
    return next(iter(found.items()))


def checked_logs(
    root: Path, log: str | None, *, read_records: bool, objects: ObjectLocation | None = None
) -> list[CheckedLog]:
    """
    Check the logs at *root*, read-only. Their objects are read, too, if *objects* is given.

    Raises:
        UsageError: as for `logs_of`.
        AccessDeniedError, ObjectsUnavailableError: the objects cannot be read.
    """
    from quiver.aof.reading.check import check_log_directory  # noqa: PLC0415
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415
    from quiver.objects import open_objects  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    logs = logs_of(root, log)
    tier = None if objects is None else open_objects(objects, writable=False)
    try:
        with ProgressDisplay("reading", of=list(logs.values())) as progress:
            fs = progress.fs(REAL_FILES)
            return [
                check_log_directory(fs, name, directory, read_records=read_records, objects=tier)
                for name, directory in logs.items()
            ]
    finally:
        if tier is not None:
            tier.close()
