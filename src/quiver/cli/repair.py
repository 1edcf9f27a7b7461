"""`quiver repair DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from quiver.store.offline.repair import RepairReport

__all__ = ["repair"]


def repair(
    directory: Annotated[Path, typer.Argument(help="A store's directory. Nobody may have it open.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Mend a store as far as it can be, say what was given up, and keep a copy of every damaged byte.

    Its dead letters are mended, too. Copies go to quarantine/ inside the store. Exits with 1 when something is damaged
    afterwards.
    """
    from quiver.cli.console.progress import Progress  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.offline.closed import require_closed  # noqa: PLC0415
    from quiver.store.offline.repair import repair as mend  # noqa: PLC0415
    from quiver.store.reading.check import nested_stores, refuse_snapshot  # noqa: PLC0415

    roots = instance_roots(REAL_FILES, str(directory))
    refuse_snapshot(REAL_FILES, str(directory))
    nested = [letters for root in roots for letters in nested_stores(REAL_FILES, root)]
    require_closed(REAL_FILES, [*roots, *nested], owner="quiver repair")
    reports: list[RepairReport] = []
    try:
        with Progress("mending") as progress:
            fs = progress.fs(REAL_FILES)
            for root in roots:
                reports.append(mend(fs, root, clock=SYSTEM_CLOCK, dry_run=dry_run))  # noqa: PERF401 - some may be told
    finally:
        # Also when a later core is refused: what was given up is said once, or never.
        if reports and as_json:
            print_json([report.as_dict() for report in reports])
        for report in () if as_json else reports:
            _say(report)
    if any(report.damaged for report in reports):
        raise typer.Exit(1)


def _say(report: RepairReport) -> None:
    for mend in report.mends:
        done, lost = ("to do:  ", "to lose:") if report.dry_run else ("mended: ", "gave up:")
        typer.echo(f"{mend.path}\n  wrong:   {mend.problem}\n  {done} {mend.mended}")
        if mend.gave_up is not None:
            typer.echo(f"  {lost} {mend.gave_up}")
        if mend.copy is not None:
            typer.echo(f"  copy:    {mend.copy}")
    damaged = [finding.as_dict() for finding in report.left if finding.damaged]
    if damaged and not report.dry_run:
        print_table("still damaged", damaged)
    if report.dry_run:
        verdict = "nothing was changed"
    else:
        verdict = f"{len(damaged)} files are still damaged" if damaged else "nothing is damaged"
    things = "1 thing" if len(report.mends) == 1 else f"{len(report.mends)} things"
    typer.echo(f"{report.root}: {things} to mend; {verdict}")
