"""`quiver qwp list|inspect|drain|clear-failed|tail`: commands for the slots of QWP senders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.cli.qwp.dead_letters import dead_letters
from quiver.cli.qwp.slots import NoServerReporter, age_s, holder, names_of_slots, slot_as_dict, slot_report
from quiver.cli.stats.watching import CountOption, EveryOption, WatchOption, check_watching, watch
from quiver.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from quiver.qwp.drainers import DrainerEvent

__all__ = ["build_former_app", "build_qwp_app"]

Root = Annotated[Path, typer.Argument(metavar="SF_DIR", help="The sf_dir of the senders: the parent of the slots.")]
Slot = Annotated[str, typer.Argument(metavar="SLOT", help="A sender_id.")]
Slots = Annotated[list[str] | None, typer.Argument(metavar="SLOT", help="Sender ids. Default: all.")]


def build_qwp_app() -> typer.Typer:
    """Return the commands below `quiver qwp`."""
    app = typer.Typer(help="Inspect and drain the slots of QWP senders.", no_args_is_help=True, add_completion=False)
    app.command("list", short_help="List slots: backlog, age and holder.")(list_slots)
    app.command("inspect", short_help="Show a slot: segments, and unconfirmed rows by table.")(inspect)
    app.command("drain", short_help="Send the unconfirmed frames of slots.")(drain)
    app.command("clear-failed", short_help="Remove failure marks, so that drainers retry the slots.")(clear_failed)
    app.command("tail", short_help="Print the newest rows as JSON lines.")(tail)
    app.command("dead-letters", short_help="List, show, replay, export or remove dead letters.")(dead_letters)
    return app


def build_former_app() -> typer.Typer:
    """Return the same commands under their former name, `quiver sf`, which still works for one release."""
    app = build_qwp_app()
    app.callback()(_warn_former_name)
    return app


def _warn_former_name() -> None:
    """Use `quiver qwp` instead: this name is deprecated."""
    typer.echo("quiver: `quiver sf` is deprecated and will be removed in the next release; use `quiver qwp`", err=True)


def list_slots(
    root: Root,
    watching: WatchOption = False,
    every: EveryOption = "2s",
    count: CountOption = None,
    as_json: JsonFlag = False,
) -> None:
    """
    List the slots with their backlog, its age, and their holder. Safe while senders run.

    With --watch and --json, each poll prints one line. Exits with 1 if a slot cannot be read.
    """
    every_s = check_watching(every, count, is_watching=watching)
    known: dict[str, Any] = {}  # caches what has not changed since the previous poll
    if not watching:
        fine = _list(root, known, as_json=as_json, in_a_line=False)
    else:
        try:
            fine = watch(
                lambda: _list(root, known, as_json=as_json, in_a_line=True),
                SYSTEM_CLOCK,
                every_s=every_s,
                count=count,
                as_json=as_json,
            )
        except KeyboardInterrupt:
            return
    if not fine:
        raise typer.Exit(1)


def _list(root: Path, known: dict[str, Any], *, as_json: bool, in_a_line: bool) -> bool:
    found = [slot_report(root, name, known) for name in names_of_slots(root, None)]
    if as_json:
        print_json([slot_as_dict(one) for one in found], in_a_line=in_a_line)
    else:
        rows = [
            {
                "slot": one.sender_id,
                "backlog": one.backlog,
                "size": human_bytes(one.backlog_bytes),
                "waits": human_age(age_s(one)),
                "confirmed": one.confirmed if one.confirmed >= 0 else None,
                "last_holder": holder(one),
                "held": one.is_held,
                "dead_letters": one.dead_letters,
                "failed": one.failed,
                "intact": one.problem is None,
            }
            for one in found
        ]
        print_table(f"slots of {root}", rows)
        for one in found:
            if one.problem is not None:
                typer.echo(f"{one.sender_id}: {one.problem}")
    return all(one.problem is None for one in found)


def inspect(root: Root, slot: Slot, as_json: JsonFlag = False) -> None:
    """Show the segments of a slot and its unconfirmed rows by table. Exits with 1 if the slot cannot be read."""
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.slots.inspection import frames_of_slot, rows_by_table  # noqa: PLC0415

    (name,) = names_of_slots(root, [slot])
    one = slot_report(root, name)
    waiting: dict[str, int] = {}
    if one.problem is None:
        frames = (frame for frame in frames_of_slot(REAL_FILES, str(root), name) if frame.fsn > one.confirmed)
        waiting = rows_by_table(frames)
    if as_json:
        print_json(slot_as_dict(one) | {"tables": waiting})
    else:
        fields = {key: value for key, value in slot_as_dict(one).items() if key != "segments"}
        fields["damaged_copies"] = ", ".join(Path(path).name for path in one.damaged_copies) or None
        print_table(f"{root}/{name}", [{"": key, "value": value} for key, value in fields.items()])
        segments = [{"segment": Path(path).name, "frames": count} for path, count in one.segments.items()]
        print_table("segments", segments)
        print_table("unconfirmed rows", [{"table": table, "rows": rows} for table, rows in waiting.items()])
    if one.problem is not None:
        raise typer.Exit(1)


def drain(
    root: Root,
    slots: Slots = None,
    conf: Annotated[
        str | None, typer.Option("--conf", help="Connect string of the server. Default: QDB_CLIENT_CONF.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Send the unconfirmed frames of slots, one slot after the other. Slots in use are skipped.

    Slots marked as failed are drained only if they are named. Exits with 1 if a slot was not drained.
    """
    events = _drain(root, names_of_slots(root, slots), conf, named=bool(slots))
    if as_json:
        print_json([{"slot": one.sender_id, "outcome": one.kind, "reason": one.reason} for one in events])
    else:
        rows = [{"slot": one.sender_id, "outcome": one.kind, "reason": one.reason or None} for one in events]
        print_table(f"slots of {root}", rows, empty="nothing to send")
    if any(one.kind != "drained" for one in events):
        raise typer.Exit(1)


def _drain(root: Path, names: list[str], conf: str | None, *, named: bool) -> list[DrainerEvent]:
    from random import Random  # noqa: PLC0415 - keeps `--help` quick

    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.qwp.connection.failover import HostTracker  # noqa: PLC0415
    from quiver.qwp.drainers import Drainers  # noqa: PLC0415
    from quiver.qwp.environment import conf_from_env  # noqa: PLC0415
    from quiver.qwp.settings import SenderSettings  # noqa: PLC0415

    settings = replace(SenderSettings.from_conf(conf or conf_from_env()), sf_dir=str(root))
    waiting = [
        one.sender_id
        for one in (slot_report(root, name) for name in names)
        if one.segments and (named or not one.failed)
    ]
    drainers = Drainers(
        settings,
        HostTracker(len(settings.addresses)),
        listener=None,
        on_error=lambda error: typer.echo(f"quiver: {error}", err=True),
        fs=REAL_FILES,
        clock=SYSTEM_CLOCK,
        observer=NoServerReporter(),
        random=Random(),  # noqa: S311
    )
    return [drainers.drain(name) for name in waiting]


def clear_failed(root: Root, slots: Slots = None, as_json: JsonFlag = False) -> None:
    """Remove the failure mark from slots, so that senders and drainers adopt them again."""
    from quiver.primitives.disk.atomic import remove_durably  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.qwp.format.names import FAILED_NAME  # noqa: PLC0415

    cleared = [
        one.sender_id
        for one in (slot_report(root, name) for name in names_of_slots(root, slots))
        if one.failed is not None
    ]
    for name in cleared:
        remove_durably(REAL_FILES, [f"{root}/{name}/{FAILED_NAME}"])
    if as_json:
        print_json({"cleared": cleared})
    else:
        typer.echo(f"cleared: {', '.join(cleared) or 'none'}")


def tail(
    root: Root,
    slot: Slot,
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of rows.")] = 10,
    table: Annotated[str | None, typer.Option("--table", help="Only rows of this table.")] = None,
) -> None:
    """Print the newest rows of a slot as JSON lines: frame, table and values."""
    from collections import deque  # noqa: PLC0415 - keeps `--help` quick

    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.qwp.slots.inspection import frames_of_slot, rows_of  # noqa: PLC0415

    (name,) = names_of_slots(root, [slot])
    newest: deque[dict[str, Any]] = deque(maxlen=rows)
    for frame in frames_of_slot(REAL_FILES, str(root), name):
        if frame.problem is not None:
            newest.append({"frame": frame.fsn, "problem": frame.problem})
        for piece in frame.tables:
            if table in {None, piece.name}:
                newest.extend({"frame": frame.fsn, "table": piece.name, "row": row} for row in rows_of(piece))
    for one in newest:
        print_json(one, in_a_line=True)
