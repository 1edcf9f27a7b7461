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
    directory: Annotated[Path, typer.Argument(help="The directory of a store, or of a planned one.")],
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="The number of syncs to measure.")] = 40,
    as_json: JsonFlag = False,
) -> None:
    """
    Measure the disk of a directory, and report its guarantees: which data survive which failures.

    Writes a few small files there and removes them; safe while a writer runs. Exits with 1 if the disk is unsuitable
    for a store.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.doctor import diagnose  # noqa: PLC0415

    with ProgressDisplay("measuring") as progress:
        # A mount is found by its absolute path.
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
    print_table("findings", [{"": one.verdict, "what": one.subject, "finding": one.finding} for one in found.remarks])
    survives = [{"call": call, "the process dies": dies, "power is lost": lost} for call, dies, lost in found.survives]
    print_table("what is lost when", survives)
    verdict = "This disk is suitable for a store." if found.is_fit else "This disk is not suitable for a store."
    typer.echo(verdict)
