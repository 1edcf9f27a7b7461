"""`quiver demo`."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from quiver.demo.report import SignalReport
    from quiver.demo.runner import Conductor

__all__ = ["demo"]

MARKER = "quiver-demo.json"
"""Marks a directory that was created by a demo and may be removed by the next one."""

PIPELINE_NAME = "otlp-to-parquet.yaml"


def demo(
    directory: Annotated[Path, typer.Argument(help="The output directory; an earlier demo in it is removed.")] = Path(
        "demo-run"
    ),
    scale: Annotated[float, typer.Option(min=0.01, max=100.0, help="A factor for the load.")] = 1.0,
    as_json: JsonFlag = False,
) -> None:
    """
    Run a pipeline under load, kill its processes while data flow, and check every record.

    OpenTelemetry SDK → OTLP → buffer → Spark → Parquet. Exits with 1 unless every confirmed record is in the
    Parquet files exactly once. The directory is kept.
    """
    import opentelemetry.sdk  # noqa: F401, PLC0415 - fail now, not in a load process
    import pyspark  # noqa: F401, PLC0415
    from rich.console import Console  # noqa: PLC0415

    from quiver.demo.runner import Conductor, DemoPlan  # noqa: PLC0415

    usual = DemoPlan()
    plan = DemoPlan(
        logs=round(usual.logs * scale), spans=round(usual.spans * scale), metrics=round(usual.metrics * scale)
    )
    pipeline = _prepare(directory)
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, highlight=False)

    with Conductor(directory.absolute(), pipeline, plan, report=say) as course:
        course.start_pipeline()
        course.start_load()
        ended = _watch(course, console)
        load_ended = course.load_ended
        code = course.stop_pipeline()
        elapsed_s = course.elapsed_s
    rows = _signal_rows(course)
    problems = _problems(course, rows, ended=ended, load_ended=load_ended, code=code)
    if as_json:
        print_json({"signals": rows, "seconds": round(elapsed_s, 1), "problems": problems, "directory": str(directory)})
    else:
        print_table("result", rows)
        _print_end(directory, problems, f"after {len(plan.kills)} kills, in {elapsed_s:.0f} s")
    if problems:
        raise typer.Exit(1)


def _prepare(directory: Path) -> Path:
    """Create *directory* and return the copy of the pipeline file in it."""
    if directory.exists():
        if not directory.is_dir() or (any(directory.iterdir()) and not (directory / MARKER).exists()):
            raise UsageError(f"{directory} exists and is not from an earlier demo; name another directory")
        _require_idle(directory / "run")
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / MARKER).write_text(json.dumps({"made_by": "quiver demo"}) + "\n", encoding="utf-8")
    pipeline = directory / PIPELINE_NAME
    pipeline.write_bytes((files("quiver.demo") / PIPELINE_NAME).read_bytes())
    return pipeline.absolute()


def _require_idle(run_dir: Path) -> None:
    from quiver.pipeline.processes.run import RUN_LOCK  # noqa: PLC0415
    from quiver.primitives.disk.lock import hold  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    if (run_dir / RUN_LOCK).exists():
        # Raises if the earlier demo still runs: do not remove its files.
        hold(REAL_FILES, str(run_dir / RUN_LOCK), owner="quiver demo").release()


def _watch(course: Conductor, console: Console) -> bool:
    """Show the progress until everything is exported. Return False if nothing changed for too long."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    from quiver.demo.names import SIGNALS  # noqa: PLC0415

    columns = (TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[tuple[str, str], Any] = {
            (name, kind): bars.add_task(f"{name} {kind}", total=course.plan.total(name))
            for name in SIGNALS
            for kind in ("confirmed", "exported")
        }
        going = True
        while going and course.stalled_s < course.plan.patience_s:
            going = course.step()
            for (name, kind), task in tasks.items():
                bars.update(task, completed=getattr(course.progress, kind)[name])
    return not going


def _signal_rows(course: Conductor) -> list[dict[str, Any]]:
    from quiver.demo.report import settle  # noqa: PLC0415

    accounts: list[SignalReport] = settle(course.output, course.load_dir, course.progress.sent)
    return [
        {
            "signal": one.signal,
            "sent": one.sent,
            "confirmed": one.confirmed,
            "exported": one.exported,
            "missing": one.missing,
            "duplicated": one.duplicated,
        }
        for one in accounts
    ]


def _problems(
    course: Conductor, rows: list[dict[str, Any]], *, ended: bool, load_ended: bool, code: int | None
) -> list[str]:
    # After stopping early, nothing is lost: the records are in the buffer.
    missing = "missing" if ended else "not exported yet"
    problems = [
        f"{row['signal']}: {row['missing']:,} {missing}, {row['duplicated']:,} duplicated"
        for row in rows
        if row["missing"] or row["duplicated"]
    ]
    problems += [f"{row['signal']}: nothing was confirmed" for row in rows if not row["confirmed"]]
    # Late records were exported while the pipeline stopped, or are missing.
    if not ended and (any(row["missing"] for row in rows) or not load_ended):
        problems.append(f"nothing was exported for {course.plan.patience_s:.0f} s; the logs are in {course.run_dir}")
    if course.kills_left:
        names = ", ".join(name for _, name in course.kills_left)
        problems.append(f"the load ended before these processes were killed: {names}")
    if code != 0:
        problems.append(f"quiver run ended with exit code {code}")
    return problems


def _print_end(directory: Path, problems: list[str], how: str) -> None:
    for problem in problems:
        typer.echo(f"FAILED: {problem}")
    if not problems:
        typer.echo(f"Every confirmed record was exported exactly once, {how}.")
    columns = "columns=['time', 'severity_text', 'scope_name']"
    query = f"import pyarrow.dataset as d; print(d.dataset('{directory}/parquet/logs').head(5, {columns}).to_pandas())"
    typer.echo(f"\nAll files are in {directory}. Try next:\n")
    typer.echo(f"  {_command('quiver')} stats {directory}/buffer")
    typer.echo(f"  {_command('quiver')} inspect {directory}/buffer")
    typer.echo(f'  {_command("python")} -c "{query}"')


def _command(name: str) -> str:
    """Return the command *name* of this environment, which may not be the one on the search path."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and (not here.exists() or Path(found).resolve() == here.resolve()):
        return name
    try:
        return str(here.relative_to(Path.cwd()))
    except ValueError:
        return str(here)
