"""`quiver bench [DIR]`."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.errors import UsageError

__all__ = ["bench"]

_NOTE = "ratio: the store's rate divided by that of a bare log with the same bytes and durability, measured alternately"


class ModeName(StrEnum):
    """The modes to measure."""

    synced = "synced"
    shared = "shared"
    burst = "burst"


def bench(
    directory: Annotated[
        Path, typer.Argument(help="A directory on the disk; all files are removed afterwards.")
    ] = Path(),
    mode: Annotated[
        list[ModeName] | None, typer.Option(help="Only this mode; may be repeated.  [default: all]")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, max=1_000_000, help="The number of rows of a bundle.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.01, max=600, help="The duration of each measurement.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="The number of rounds.")] = 3,
    as_json: JsonFlag = False,
) -> None:
    """
    Measure ingest on this disk against a bare log: bundles per second, their ratio, and syncs per confirmed bundle.

    synced: one caller waits for each sync. shared: concurrent callers share syncs. burst: callers do not wait, and the
    log is synced every 25 ms.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415
    from quiver.cli.measure import MODES, Mode, measure  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    if not directory.is_dir():
        raise UsageError(f"{directory} does not exist")
    wanted: list[Mode] = [one for one in MODES if mode is None or one in mode]
    with (
        tempfile.TemporaryDirectory(prefix="quiver-bench-", dir=directory) as work,
        ProgressDisplay("measuring") as progress,
    ):
        found = [
            measure(
                REAL_FILES,
                work,
                one,
                rows=rows,
                seconds=seconds,
                rounds=rounds,
                clock=SYSTEM_CLOCK,
                on_progress=progress,
            ).as_dict()
            for one in wanted
        ]
    if as_json:
        print_json(found)
        return
    shown = [
        {
            "mode": one["mode"],
            "callers": one["callers"],
            "rows": one["rows"],
            "bundles/s": f"{one['bundles_s']:,.0f}",
            "bare log/s": f"{one['log_s']:,.0f}",
            "ratio": f"{one['ratio']:.2f} ({one['ratio_min']:.2f} to {one['ratio_max']:.2f})",
            "fsyncs per ack": f"{one['fsyncs_per_ack']:.3f}",
            "of the log": f"{one['log_fsyncs_per_ack']:.3f}",
        }
        for one in found
    ]
    print_table(f"ingest, {rounds} rounds of {seconds:g} s", shown)
    typer.echo(_NOTE)
