"""`quiver doctor DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, human_bytes, print_json, print_table

if TYPE_CHECKING:
    from quiver.store.reading.doctor import Diagnosis

__all__ = ["doctor"]


def doctor(
    directory: Annotated[Path, typer.Argument(help="Where a store lives, or is to live.")],
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="How many syncs to measure.")] = 40,
    as_json: JsonFlag = False,
) -> None:
    """
    Measure the disk below a directory and say what a store may expect of it, and what survives what.

    Writes a few small files there and removes them; safe beside a live writer. Exits with 1 when a store should not
    live there.
    """
    from quiver.cli.console.progress import Progress  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.doctor import diagnose  # noqa: PLC0415

    with Progress("measuring") as progress:
        # A mount is found by its whole path.
        where = str(directory.resolve())
        found = diagnose(REAL_FILES, where, clock=SYSTEM_CLOCK, samples=samples, on_progress=progress)
    if as_json:
        print_json(found.as_dict())
    else:
        _say(found)
    if not found.is_fit:
        raise typer.Exit(1)


def _say(found: Diagnosis) -> None:
    steps = [
        {
            "step": one.step,
            "samples": one.samples,
            "median": f"{one.median_s * 1e3:.3f} ms",
            "worst": f"{one.worst_s * 1e3:.3f} ms",
        }
        for one in found.latencies
    ]
    print_table(f"{found.directory}: {found.file_system or 'unknown'}, {human_bytes(found.free_bytes)} free", steps)
    print_table("findings", [{"": one.verdict, "what": one.subject, "finding": one.said} for one in found.remarks])
    survives = [{"call": call, "the process dies": dies, "power is lost": lost} for call, dies, lost in found.survives]
    print_table("what is lost when", survives)
    verdict = "A store may live here." if found.is_fit else "A store should not live here."
    typer.echo(verdict)
