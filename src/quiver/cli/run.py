"""
`quiver run PIPELINE.yaml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quiver.cli.output import JsonFlag, print_json, print_table

__all__ = ["run"]


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline file.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Fill the placeholder {{NAME}}; else the environment does."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would run, and stop.")] = False,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Logs and state file.  [default: <store>.run]", show_default=False)
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when standard input ends: for a program that runs this one.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Run a pipeline until it is told to stop.

    Receivers and store run in one process, Spark in another; either is restarted when it dies.
    """
    import os  # noqa: PLC0415 - here only: the library reads no environment

    from quiver.pipeline.child import read_pipeline  # noqa: PLC0415
    from quiver.pipeline.run import default_run_dir, describe, run_pipeline  # noqa: PLC0415

    given = assignments or []
    checked = read_pipeline(pipeline, given, os.environ)
    described = describe(checked)
    if check and as_json:
        print_json(described)
        return
    print_table("receivers", described["receivers"])
    print_table("persistence", [described["persistence"]])
    print_table("exporters", described["exporters"], empty="none; the pipeline only buffers")
    if described["metrics"]:
        print_table("metrics", [described["metrics"]])
    if check:
        typer.echo(_promise(len(described["exporters"])))
        return
    where = run_dir or default_run_dir(checked)
    typer.echo(f"logs and state in {where}; Ctrl-C stops")
    code = run_pipeline(
        checked,
        assignments=given,
        run_dir=where,
        say=typer.echo,
        lifeline_fd=0 if stop_with_stdin else None,
    )
    raise typer.Exit(code)


def _promise(exporters: int) -> str:
    if exporters == 0:
        return "No exporter: what is received is kept until somebody reads it."
    if exporters == 1:
        return "The exporter receives everything."
    return f"Each of the {exporters} exporters receives everything; nothing is shared out between them."
