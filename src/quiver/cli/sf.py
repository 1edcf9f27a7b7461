"""
`quiver sf list|inspect|drain|clear-failed|tail|dead-letters`: the slots of QWP senders.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import WrongUse
from quiver.observe import InMemoryObserver, Value

if TYPE_CHECKING:
    from quiver.qwp.drainers import DrainerEvent
    from quiver.qwp.inspection import SlotReport

__all__ = ["build_sf_app"]

_SILENT_S = 5.0

Root = Annotated[Path, typer.Argument(metavar="SF_DIR", help="What sf_dir says: the directory above the slots.")]
Slot = Annotated[str, typer.Argument(metavar="SLOT", help="A sender_id.")]
Slots = Annotated[list[str] | None, typer.Argument(metavar="SLOT", help="Sender ids; all when left out.")]


def build_sf_app() -> typer.Typer:
    """
    Return the commands below `quiver sf`.
    """
    app = typer.Typer(
        help="Look at the slots of QWP senders, and drain them.", no_args_is_help=True, add_completion=False
    )
    app.command("list", short_help="List slots: what waits, since when, for whom.")(list_slots)
    app.command("inspect", short_help="Show a slot: segments, and tables that wait.")(inspect)
    app.command("drain", short_help="Send what waits, and empty the slots.")(drain)
    app.command("clear-failed", short_help="Let drainers try marked slots again.")(clear_failed)
    app.command("tail", short_help="Print the newest rows, a line of JSON each.")(tail)
    app.command("dead-letters", short_help="List frames that were given up, and why.")(dead_letters)
    return app


def list_slots(root: Root, as_json: JsonFlag = False) -> None:
    """
    List the slots: what waits in them, since when, and who holds them. Safe beside senders.

    Exits with 1 when one cannot be read.
    """
    found = [_look(root, name) for name in _names(root, None)]
    if as_json:
        print_json([_as_dict(one) for one in found])
    else:
        rows = [
            {
                "slot": one.sender_id,
                "backlog": one.backlog,
                "size": human_bytes(one.backlog_bytes),
                "waits": human_age(_age_s(one)),
                "confirmed": one.confirmed if one.confirmed >= 0 else None,
                "last_holder": _holder(one),
                "held": one.is_held,
                "dead_letters": one.dead_letters,
                "failed": one.failed,
                "sound": one.problem is None,
            }
            for one in found
        ]
        print_table(f"slots of {root}", rows)
        for one in found:
            if one.problem is not None:
                typer.echo(f"{one.sender_id}: {one.problem}")
    if any(one.problem is not None for one in found):
        raise typer.Exit(1)


def inspect(root: Root, slot: Slot, as_json: JsonFlag = False) -> None:
    """
    Show a slot: its segments, and which tables wait in it. Exits with 1 when it cannot be read.
    """
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.inspection import frames_of_slot, rows_by_table  # noqa: PLC0415

    (name,) = _names(root, [slot])
    one = _look(root, name)
    waiting: dict[str, int] = {}
    if one.problem is None:
        frames = (frame for frame in frames_of_slot(REAL_FILES, str(root), name) if frame.fsn > one.confirmed)
        waiting = rows_by_table(frames)
    if as_json:
        print_json(_as_dict(one) | {"tables": waiting})
    else:
        fields = {key: value for key, value in _as_dict(one).items() if key != "segments"}
        fields["damaged_copies"] = ", ".join(Path(path).name for path in one.damaged_copies) or None
        print_table(f"{root}/{name}", [{"": key, "value": value} for key, value in fields.items()])
        segments = [{"segment": Path(path).name, "frames": count} for path, count in one.segments.items()]
        print_table("segments", segments)
        print_table("rows that wait", [{"table": table, "rows": rows} for table, rows in waiting.items()])
    if one.problem is not None:
        raise typer.Exit(1)


def drain(
    root: Root,
    slots: Slots = None,
    conf: Annotated[
        str | None, typer.Option("--conf", help="Where to: a connect string. QDB_CLIENT_CONF when left out.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Send what waits in slots, one after the other, and empty them. One that somebody holds is passed over.

    Marked slots are drained when they are named. Exits with 1 when one was not drained.
    """
    events = _drain(root, _names(root, slots), conf, named=bool(slots))
    if as_json:
        print_json([{"slot": one.sender_id, "outcome": one.kind, "reason": one.reason} for one in events])
    else:
        rows = [{"slot": one.sender_id, "outcome": one.kind, "reason": one.reason or None} for one in events]
        print_table(f"slots of {root}", rows, empty="nothing waits")
    if any(one.kind != "drained" for one in events):
        raise typer.Exit(1)


class _Telling(InMemoryObserver):
    """
    Says once in a while that no server answers: the time for reconnecting is minutes.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._said_at = -math.inf

    def event(self, name: str, *, level: int = logging.INFO, **attributes: Value) -> None:  # noqa: ARG002
        """
        Tell the person in front of the terminal, or keep quiet.
        """
        now = self._clock.monotonic()
        if name == "qwp.no_server" and now - self._said_at >= _SILENT_S:
            self._said_at = now
            typer.echo(f"quiver: {attributes['reason']}; {attributes['frames']} frames wait, trying again", err=True)


def _drain(root: Path, names: list[str], conf: str | None, *, named: bool) -> list[DrainerEvent]:
    from random import Random  # noqa: PLC0415 - keeps `--help` quick

    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.qwp.drainers import Drainers  # noqa: PLC0415
    from quiver.qwp.environment import conf_from_env  # noqa: PLC0415
    from quiver.qwp.failover import HostTracker  # noqa: PLC0415
    from quiver.qwp.settings import SenderSettings  # noqa: PLC0415

    settings = replace(SenderSettings.from_conf(conf or conf_from_env()), sf_dir=str(root))
    waiting = [
        one.sender_id for one in (_look(root, name) for name in names) if one.segments and (named or not one.failed)
    ]
    drainers = Drainers(
        settings,
        HostTracker(len(settings.addresses)),
        listener=None,
        on_error=lambda error: typer.echo(f"quiver: {error}", err=True),
        fs=REAL_FILES,
        clock=SYSTEM_CLOCK,
        observer=_Telling(),
        random=Random(),  # noqa: S311
    )
    return [drainers.drain(name) for name in waiting]


def clear_failed(root: Root, slots: Slots = None, as_json: JsonFlag = False) -> None:
    """
    Take the mark from slots that nobody adopts any more. Their senders and drainers try again.
    """
    from quiver.primitives.atomic import remove_durably  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.qwp.format.names import FAILED_NAME  # noqa: PLC0415

    cleared = [one.sender_id for one in (_look(root, name) for name in _names(root, slots)) if one.failed is not None]
    for name in cleared:
        remove_durably(REAL_FILES, [f"{root}/{name}/{FAILED_NAME}"])
    if as_json:
        print_json({"cleared": cleared})
    else:
        typer.echo(f"cleared: {', '.join(cleared) or 'none was marked'}")


def tail(
    root: Root,
    slot: Slot,
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="How many of the newest rows.")] = 10,
    table: Annotated[str | None, typer.Option("--table", help="Of this table only.")] = None,
) -> None:
    """
    Print the newest rows of a slot, a line of JSON each: frame, table, and the row's values.
    """
    from collections import deque  # noqa: PLC0415 - keeps `--help` quick

    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.qwp.inspection import frames_of_slot, rows_of  # noqa: PLC0415

    (name,) = _names(root, [slot])
    newest: deque[dict[str, Any]] = deque(maxlen=rows)
    for frame in frames_of_slot(REAL_FILES, str(root), name):
        if frame.problem is not None:
            newest.append({"frame": frame.fsn, "problem": frame.problem})
        for piece in frame.tables:
            if table in {None, piece.name}:
                newest.extend({"frame": frame.fsn, "table": piece.name, "row": row} for row in rows_of(piece))
    for one in newest:
        print_json(one, in_a_line=True)


def dead_letters(
    root: Root,
    slot: Slot,
    show: Annotated[bool, typer.Option("--rows", help="With the rows.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    List the messages of a slot that the server refused and the sender gave up, with the reason.
    """
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.primitives.scan import Frame  # noqa: PLC0415
    from quiver.qwp.inspection import rows_of  # noqa: PLC0415
    from quiver.qwp.slot import read_dead_letters  # noqa: PLC0415
    from quiver.qwp.wire.decoder import decode_message  # noqa: PLC0415

    (name,) = _names(root, [slot])
    found: list[dict[str, Any]] = []
    for letter in read_dead_letters(REAL_FILES, f"{root}/{name}"):
        answer = decode_message(memoryview(letter.message))
        tables = answer.value.tables if isinstance(answer, Frame) else ()
        found.append({
            "frame": letter.fsn,
            "given_up_at_ns": letter.at_ns,
            "status": letter.status,
            "reason": letter.reason,
            "size_bytes": len(letter.message),
            "tables": {one.name: one.rows for one in tables},
        } | ({"rows": {one.name: rows_of(one) for one in tables}} if show else {}))  # fmt: skip
    if as_json or show:
        print_json(found)
        return
    now_ns = SYSTEM_CLOCK.now_ns()
    rows = [
        {
            "frame": one["frame"],
            "given_up": f"{human_age((now_ns - one['given_up_at_ns']) / 1e9)} ago",
            "status": f"{one['status']:#04x}",
            "size": human_bytes(one["size_bytes"]),
            "tables": [f"{table} ({count})" for table, count in one["tables"].items()],
            "reason": one["reason"],
        }
        for one in found
    ]
    print_table(f"dead letters of {root}/{name}", rows)


# ── slots ────────────────────────────────────────────────────────────────────────────────────────────


def _names(root: Path, wanted: list[str] | None) -> list[str]:
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.inspection import slots_below  # noqa: PLC0415

    found = slots_below(REAL_FILES, str(root))
    for name in wanted or ():
        if name not in found:
            raise WrongUse(f"{root} has no slot {name}; there are: {', '.join(found) or 'none'}")
    return wanted or found


def _look(root: Path, name: str) -> SlotReport:
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.inspection import look_at_slot  # noqa: PLC0415

    return look_at_slot(REAL_FILES, str(root), name)


def _age_s(one: SlotReport) -> float | None:

    return None if one.oldest_us is None else max(0.0, SYSTEM_CLOCK.now_ns() / 1e9 - one.oldest_us / 1e6)


def _holder(one: SlotReport) -> str | None:
    """
    Return the pid that last held the slot, and whether there still is such a process here.
    """
    if one.holder is None or not one.holder.isdecimal():
        return one.holder
    return one.holder if Path(f"/proc/{one.holder}").exists() or not Path("/proc").exists() else f"{one.holder} (gone)"


def _as_dict(one: SlotReport) -> dict[str, Any]:
    return {
        "slot": one.sender_id,
        "backlog_frames": one.backlog,
        "backlog_bytes": one.backlog_bytes,
        "waits_s": _age_s(one),
        "first_frame": one.first_fsn,
        "next_frame": one.next_fsn,
        "confirmed": one.confirmed,
        "size_bytes": one.size_bytes,
        "last_holder": _holder(one),
        "held": one.is_held,
        "failed": one.failed,
        "dead_letters": one.dead_letters,
        "problem": one.problem,
        "damaged_copies": list(one.damaged_copies),
        "segments": one.segments,
    }
