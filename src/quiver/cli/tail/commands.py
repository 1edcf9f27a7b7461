"""`quiver tail DIR`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, print_json
from quiver.cli.tail.conditions import holds_all, parse_condition
from quiver.cli.tail.rows import as_line, plain_rows
from quiver.errors import CorruptionError, InvalidBundleError, UsageError

if TYPE_CHECKING:
    from quiver.bundle import Bundle
    from quiver.cli.tail.conditions import Condition

__all__ = ["tail"]

POLL_S = 0.2


def tail(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    view: Annotated[str | None, typer.Option(help="logs, spans or metrics: flat rows of telemetry.")] = None,
    slot: Annotated[str | None, typer.Option(help="The name or number of a slot, instead of a view.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION", help="Only rows such as 'severity_number >= 17' or 'body ~ error'; repeatable."
        ),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns, comma-separated.")] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", help="latest, or log: first the rows that the log still has, or without a log the segments."
        ),
    ] = "latest",
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many rows.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Print the rows of a store as they are ingested, until it is stopped.

    Reads the log, and is not a subscriber: nothing is acknowledged or kept for it. Safe while a writer runs. With
    `durability: segment_only`, which keeps no log, rows are printed when their segment is sealed.
    """
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.reading.followers import LogFollower, SegmentFollower  # noqa: PLC0415

    if (view is None) == (slot is None):
        raise UsageError("give either --view logs, spans or metrics, or --slot NAME")
    if start not in {"latest", "log"}:
        raise UsageError("--from must be latest or log")
    known = _columns_of(view)
    conditions = [parse_condition(text, known) for text in where or ()]
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    roots = instance_roots(REAL_FILES, str(directory))
    followers = [follower(REAL_FILES, root) for root in roots for follower in (LogFollower, SegmentFollower)]
    if start == "latest":
        for one in followers:
            one.skip_to_end()
    printed = 0
    never = threading.Condition()
    try:
        while True:
            for follower in followers:
                for bundle in follower.poll():
                    for row in _rows(bundle, view, slot, conditions):
                        _print(row, wanted, as_json=as_json)
                        printed += 1
                        if printed == count:
                            return
                for problem in follower.problems:
                    typer.echo(f"quiver: skipped: {problem}", err=True)
                follower.problems.clear()
            with never:
                SYSTEM_CLOCK.wait(never, POLL_S)
    except KeyboardInterrupt:
        return


def _columns_of(view: str | None) -> list[str]:
    """Return the columns of a view; empty for a slot, whose columns are only known from its data."""
    if view is None:
        return []
    from quiver.otap import view_schema  # noqa: PLC0415 - keeps `--help` quick

    return list(view_schema(view).names)


def _rows(
    bundle: Bundle, view_name: str | None, slot: str | None, conditions: list[Condition]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of *bundle* for which all conditions hold."""
    if view_name is None:
        number = bundle.adapter.slot(int(slot) if slot is not None and slot.isdecimal() else slot or 0)
        batch = bundle.batches.get(number)
        rows = [] if batch is None else plain_rows(batch)
    else:
        from quiver.otap import view  # noqa: PLC0415 - needs the extra `otlp`

        if {"spans": "traces"}.get(view_name, view_name) not in bundle.adapter.signals_of(bundle.slots):
            return
        try:
            rows = plain_rows(view(bundle, view_name))
        except (CorruptionError, InvalidBundleError) as error:
            typer.echo(f"quiver: skipped a bundle that cannot be decoded: {error}", err=True)
            return
    yield from (row for row in rows if holds_all(row, conditions))


def _print(row: dict[str, Any], wanted: list[str] | None, *, as_json: bool) -> None:
    if wanted is not None:
        row = {name: row.get(name) for name in wanted}
    if as_json:
        print_json(row, in_a_line=True)
    else:
        typer.echo(as_line(row))
