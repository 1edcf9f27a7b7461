"""`quiver repair DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.counted import counted

if TYPE_CHECKING:
    from quiver.store.offline.repair import RepairReport

__all__ = ["repair"]


def repair(
    directory: Annotated[Path, typer.Argument(help="A store's directory; no process may have it open.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Repair a store as far as possible, report what is lost, and keep copies of all damaged bytes.

    Dead letters are repaired, too. The copies are in quarantine/ inside the store. Exits with 1 if something is still
    damaged.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.offline.closed import require_closed  # noqa: PLC0415
    from quiver.store.offline.repair import repair as repair_store  # noqa: PLC0415
    from quiver.store.reading.check import nested_stores, refuse_snapshot  # noqa: PLC0415

    roots = instance_roots(REAL_FILES, str(directory))
    refuse_snapshot(REAL_FILES, str(directory))
    nested = [path for root in roots for path in nested_stores(REAL_FILES, root)]
    require_closed(REAL_FILES, [*roots, *nested], owner="quiver repair")
    reports: list[RepairReport] = []
    try:
        with ProgressDisplay("repairing", of=[*roots, *nested]) as progress:
            fs = progress.fs(REAL_FILES)
            for root in roots:
                reports.append(repair_store(fs, root, clock=SYSTEM_CLOCK, dry_run=dry_run))  # noqa: PERF401 - after an error, report the first ones
    finally:
        # Also if a later core is refused: the losses cannot be reported later.
        if reports and as_json:
            print_json([report.as_dict() for report in reports])
        for report in () if as_json else reports:
            _say(report)
    if any(report.damaged for report in reports):
        raise typer.Exit(1)


def _say(report: RepairReport) -> None:
    for repaired in report.repairs:
        done, lost = ("planned:", "to lose:") if report.dry_run else ("repair: ", "lost:   ")
        typer.echo(f"{repaired.path}\n  problem: {repaired.problem}\n  {done} {repaired.action}")
        if repaired.lost is not None:
            typer.echo(f"  {lost} {repaired.lost}")
        if repaired.copy is not None:
            typer.echo(f"  copy:    {repaired.copy}")
    damaged = [finding.as_dict() for finding in report.findings if finding.damaged]
    if damaged and not report.dry_run:
        print_table("still damaged", damaged)
    if report.dry_run:
        verdict = "nothing was changed"
    else:
        verdict = f"still damaged: {counted(len(damaged), 'file')}" if damaged else "nothing is damaged"
    things = counted(len(report.repairs), "thing") if report.repairs else "nothing"
    typer.echo(f"{report.root}: {things} to repair; {verdict}")
