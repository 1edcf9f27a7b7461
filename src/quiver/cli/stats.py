"""
`quiver stats DIR`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quiver.cli.output import JsonFlag, human_age, human_bytes, print_json, print_table

__all__ = ["stats"]


def stats(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    as_json: JsonFlag = False,
) -> None:
    """
    Count what a store holds: segments, bytes, and how far each subscriber is behind.

    Reads only; safe beside a live writer.
    """
    from quiver.cli.store_stats import collect_stats  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415

    found = collect_stats(REAL_FILES, str(directory), now_ns=SYSTEM_CLOCK.now_ns())
    if as_json:
        print_json(found.as_dict())
        return
    print_table(
        str(directory),
        [
            {
                "segments": found.segments,
                "bundles": found.bundles,
                "segment_bytes": human_bytes(found.segment_bytes),
                "wal_files": found.wal_files,
                "wal_bytes": human_bytes(found.wal_bytes),
                "oldest": human_age(found.oldest_age_s),
            }
        ],
    )
    rows = [
        {
            "subscriber": one.subscriber,
            "lag_bundles": one.lag_bundles,
            "lag_segments": one.lag_segments,
            "oldest": human_age(one.oldest_age_s),
            "problem": one.problem,
        }
        for one in found.subscribers
    ]
    print_table("subscribers", rows)
    for line in found.unreadable:
        typer.echo(f"not counted: {line}", err=True)
    if found.unreadable or any(one.problem for one in found.subscribers):
        raise typer.Exit(1)
