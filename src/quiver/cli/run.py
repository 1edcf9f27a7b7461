"""`quiver run PIPELINE.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, print_json
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.pipeline.model import Pipeline
    from quiver.pipeline.processes.run import RunOptions

__all__ = ["run"]

UNMET = 3
"""The exit code of `--check` for a valid file that this machine cannot run."""


CoresOption = Annotated[
    int | None,
    typer.Option(
        "--cores",
        help="The number of ingest processes on the same ports, each with a store.  [default: cores in the file]",
        min=1,
        show_default=False,
    ),
]


CheckOption = Annotated[
    bool, typer.Option("--check", help="Print what would run and what this machine lacks for it, and exit.")
]
DrainOption = Annotated[
    str | None, typer.Option("--drain", help="How long exporters continue when stopping, for example 30s.")
]
RunDirOption = Annotated[
    Path | None,
    typer.Option("--run-dir", help="The directory for logs and state.  [default: <store>.run]", show_default=False),
]


class LogFormats(StrEnum):
    """The formats of logs on standard output."""

    text = "text"
    json = "json"


ForegroundOption = Annotated[
    bool,
    typer.Option("--foreground", help="Log to standard output; in one process without Spark, cores and status."),
]
LogFormatOption = Annotated[
    LogFormats, typer.Option("--log-format", help="The format of what is written to standard output.")
]


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline file.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Fill {{NAME}} and ${NAME}, instead of from the environment."),
    ] = None,
    check: CheckOption = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph for Mermaid, and exit.")] = False,
    cores: CoresOption = None,
    drain: DrainOption = None,
    run_dir: RunDirOption = None,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when standard input ends, for a parent process.")
    ] = False,
    foreground: ForegroundOption = False,
    log_format: LogFormatOption = LogFormats.text,
    as_json: JsonFlag = False,
) -> None:
    """
    Run a pipeline until it is stopped.

    Receivers and stores run in one or several processes, Spark in another one; each is restarted if it dies. SIGHUP
    reloads the file: exporters, processors, spark and log_level change without a restart.

    --check exits with 2 if the file is invalid, and with 3 if it is valid and this machine cannot run it: an extra,
    Java or a file is missing, or a port or directory cannot be used.
    """
    import os  # noqa: PLC0415 - here only: the library reads no environment

    from quiver.pipeline.diagram import as_mermaid  # noqa: PLC0415
    from quiver.pipeline.graph import check_cores  # noqa: PLC0415
    from quiver.pipeline.processes.child import read_pipeline  # noqa: PLC0415
    from quiver.pipeline.processes.requirements import unmet_requirements  # noqa: PLC0415
    from quiver.pipeline.processes.run import RunOptions, check_pyspark, default_run_dir  # noqa: PLC0415
    from quiver.pipeline.processes.sd_notify import watchdog_interval_s  # noqa: PLC0415
    from quiver.settings import parse_duration_s  # noqa: PLC0415

    if as_json and (mermaid or not check):
        raise UsageError(
            "--json needs --check, without --mermaid; for a running pipeline, use its state file or quiver top"
        )
    given = assignments or []
    checked = read_pipeline(pipeline, given, os.environ)
    if cores is None:
        cores = checked.cores
    else:
        check_cores(checked, cores)
    drain_s = None if drain is None else parse_duration_s(drain, key="--drain")
    if mermaid:
        typer.echo(as_mermaid(checked))
        return
    if not check:
        check_pyspark(checked)
    directory = run_dir or default_run_dir(checked)
    described = _describe(checked.placed(directory), cores, os.environ)
    if check:
        _report_check(checked, described, unmet_requirements(checked, cores=cores, run_dir=directory), as_json=as_json)
        return
    options = RunOptions(
        given,
        directory,
        cores,
        drain_s,
        0 if stop_with_stdin else None,
        os.environ.get("NOTIFY_SOCKET"),
        watchdog_interval_s(os.environ),
        foreground,
        log_format.value,
    )
    raise typer.Exit(_run(checked, described, options, lambda: read_pipeline(pipeline, given, os.environ)))


def _run(checked: Pipeline, described: dict[str, Any], options: RunOptions, reread: Callable[[], Pipeline]) -> int:
    from quiver.pipeline.processes.run import fits_one_process, run_pipeline  # noqa: PLC0415

    if options.log_format == "text":
        _print_summary(checked, described)
    if options.foreground and fits_one_process(checked, options.cores):
        from quiver.pipeline.processes.foreground import run_in_one_process  # noqa: PLC0415 - loads Arrow

        return run_in_one_process(checked, options, reread=reread)
    if not options.foreground and options.log_format == "text":
        typer.echo(f"logs and state in {options.run_dir}; Ctrl-C stops")
    return run_pipeline(checked, options, reread=reread, report=typer.echo)


def _describe(placed: Pipeline, cores: int | None, environment: Mapping[str, str]) -> dict[str, Any]:
    from quiver.pipeline.explain import describe  # noqa: PLC0415
    from quiver.spark.session_properties import read_spark_defaults  # noqa: PLC0415

    return describe(placed, cores=cores, spark_defaults=read_spark_defaults(environment))


def _print_summary(checked: Any, described: dict[str, Any]) -> None:
    from quiver.pipeline.diagram import as_text  # noqa: PLC0415

    _print_ports(checked, described)
    typer.echo(as_text(checked))
    for sentence in described["says"]:
        typer.echo(sentence)


def _print_ports(checked: Any, described: dict[str, Any]) -> None:
    if described["persistence"]["cores"] is not None and checked.metrics is not None:
        typer.echo(f"metrics: each core serves its own, at {checked.metrics.listen} and the ports above it")


def _report_check(checked: Any, described: dict[str, Any], unmet: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({**described, "unmet": unmet})
    else:
        _print_check(checked, described)
    for sentence in unmet:
        typer.echo(f"This machine cannot run it: {sentence}", err=True)
    if unmet:
        raise typer.Exit(UNMET)


def _print_check(checked: Any, described: dict[str, Any]) -> None:
    """Print the graph and a description of each node."""
    from quiver.pipeline.diagram import as_text  # noqa: PLC0415

    _print_ports(checked, described)
    typer.echo(as_text(checked))
    typer.echo()
    for kind in ("receivers", "buffers", "processors", "exporters"):
        for node in described[kind]:
            name = node.pop("node")
            typer.echo(f"{name} ({node.pop('is', kind.removesuffix('s'))})")
            _print_values(node)
    if described["spark"]:
        typer.echo("spark")
        _print_values(described["spark"])
    if described["metrics"]:
        typer.echo("metrics")
        _print_values(described["metrics"])
    if described["status"]:
        typer.echo("status page")
        _print_values(described["status"])
    for sentence in described["says"]:
        typer.echo(sentence)


def _print_values(values: dict[str, Any]) -> None:
    from quiver.pipeline.descriptions.words import in_words  # noqa: PLC0415

    for label, text in in_words(values).items():
        typer.echo(f"    {label}: {text}")
