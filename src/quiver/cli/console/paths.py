"""Path arguments. An empty path is refused, because typer would interpret it as the current directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from typer import BadParameter

from quiver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

    from quiver.pipeline.model import Pipeline

__all__ = ["pipeline_given", "place_of", "refuse_empty_paths"]


def refuse_empty_paths(app: typer.Typer) -> None:
    """
    Make every command of *app* and its groups refuse empty paths. Call it after all commands are added.

    ``quiver topic produce "$TOPICS" …`` with an unset variable must not write to the current directory.
    """
    for command in app.registered_commands:
        if command.callback is not None:
            hints = get_type_hints(command.callback, include_extras=True)
            for hint in hints.values():
                _refuse_empty(hint)
            command.callback.__annotations__ = (
                hints  # typer would evaluate annotations in text form again, without the parsers
            )
    for group in app.registered_groups:
        if group.typer_instance is not None:
            refuse_empty_paths(group.typer_instance)


def place_of(root: str, directory: str) -> str:
    """
    Return the name of the store at *root* in tables: the core for a core of *directory*, and store and core for a core
    of a companion store.
    """
    from quiver.store.format.cores import parse_core_directory  # noqa: PLC0415 - keeps `--help` quick

    one = Path(root).absolute()
    if Path(directory).absolute() in one.parents or parse_core_directory(one.name) is None:
        return one.name
    return f"{one.parent.name}/{one.name}"


def pipeline_given(
    source: Path, assignments: Sequence[str] | None, run_dir: Path | None
) -> tuple[Pipeline, Path] | None:
    """
    Return the pipeline of the file *source* and its run directory; None if *source* is not a file.

    Raises:
        PipelineError: the file is not a valid pipeline.
        UsageError: options of a pipeline were given without a pipeline file.
    """
    import os  # noqa: PLC0415 - here only: the library reads no environment

    from quiver.pipeline.processes.child import read_pipeline  # noqa: PLC0415 - keeps `--help` quick
    from quiver.pipeline.processes.run import default_run_dir  # noqa: PLC0415

    if not source.is_file():
        if assignments or run_dir is not None:
            raise UsageError(f"--set and --run-dir need a pipeline file, and {source} is not a file")
        return None
    pipeline = read_pipeline(source, assignments or [], os.environ)
    return pipeline, run_dir or default_run_dir(pipeline)


def _refuse_empty(hint: Any) -> None:
    kind, *annotations = get_args(hint) if get_origin(hint) is not None else (hint,)
    if kind is Path or Path in get_args(kind):
        for one in annotations:
            if hasattr(one, "parser"):
                one.parser = path


def path(text: str | Path) -> Path:
    """
    Return *text* as a path. Help texts show the name of this function.

    Raises:
        BadParameter: it is empty.
    """
    if text == "":
        raise BadParameter("an empty path names nothing; write . for the current directory")
    return Path(text)
