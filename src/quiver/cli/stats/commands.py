"""`quiver stats DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.cli.stats.watching import CountOption, EveryOption, WatchOption, check_watching
from quiver.cli.stats.watching import watch as look_again

if TYPE_CHECKING:
    from quiver.cli.stats.store import StoreStats
    from quiver.clock import Clock

__all__ = ["stats", "watch"]


def stats(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    watching: WatchOption = False,
    every: EveryOption = "2s",
    count: CountOption = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Show the segments, bytes and subscribers' lag of a store.

    Read-only; safe while a writer runs. With --watch and --json, each update is one line.
    """
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415 - keeps `--help` quick

    every_s = check_watching(every, count, is_watching=watching)
    if not watching:
        if not _look(directory, SYSTEM_CLOCK, as_json=as_json, in_a_line=False):
            raise typer.Exit(1)
        return
    try:
        fine = watch(directory, SYSTEM_CLOCK, every_s=every_s, count=count, as_json=as_json)
    except KeyboardInterrupt:
        return
    if not fine:
        raise typer.Exit(1)


def watch(directory: Path, clock: Clock, *, every_s: float, count: int | None, as_json: bool) -> bool:
    """Print the figures every *every_s* seconds, *count* times or until interrupted; return if the last are fine."""
    return look_again(
        lambda: _look(directory, clock, as_json=as_json, in_a_line=True),
        clock,
        every_s=every_s,
        count=count,
        as_json=as_json,
    )


def _look(directory: Path, clock: Clock, *, as_json: bool, in_a_line: bool) -> bool:
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.cli.describers import describer_of, refusal, store_stats  # noqa: PLC0415

    describer = describer_of(directory)
    if describer is not None and describer.stats is None:
        raise refusal(directory, describer)
    read = store_stats if describer is None or describer.stats is None else describer.stats
    with ProgressDisplay("reading", clock=clock) as progress:
        found = read(directory, now_ns=clock.now_ns(), on_progress=progress)
    if as_json:
        print_json(found.as_dict(), in_a_line=in_a_line)
    else:
        _show(found)
    return not found.unreadable and not any(one.problem for one in found.subscribers)


def _show(found: StoreStats) -> None:
    row = {
        "segments": found.segments,
        "bundles": found.bundles,
        "segment_bytes": human_bytes(found.segment_bytes),
        "wal_files": found.wal_files,
        "wal_bytes": human_bytes(found.wal_bytes),
        "staged_bytes": human_bytes(found.staged_bytes),
        "dead_letters": human_bytes(found.dead_letter_bytes),
        "on_disk": human_bytes(found.disk_bytes),
        "in_tier_only": found.cold_segments,
        "quarantined": found.quarantine_files,
        "oldest": human_age(found.oldest_age_s),
    }
    print_table(found.directory, [row])
    if len(found.cores) > 1:
        cores = [
            {
                "core": Path(core.directory).name,
                "segments": core.segments,
                "bundles": core.bundles,
                "segment_bytes": human_bytes(core.segment_bytes),
                "wal_bytes": human_bytes(core.wal_bytes),
                "oldest": human_age(core.oldest_age_s),
            }
            for core in found.cores
        ]
        print_table("cores", cores)
    rows = [
        {
            "subscriber": one.subscriber,
            "lag_bundles": one.lag_bundles,
            "lag_segments": one.lag_segments,
            "lag_bytes": None if one.lag_bytes is None else human_bytes(one.lag_bytes),
            "oldest": human_age(one.oldest_age_s),
            "problem": one.problem,
        }
        for one in found.subscribers
    ]
    print_table("subscribers", rows)
    for line in found.unreadable:
        typer.echo(f"not counted: {line}", err=True)
