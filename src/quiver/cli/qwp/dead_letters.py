"""`quiver qwp dead-letters SF_DIR SLOT list|show|replay|export|clear`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from quiver.cli.console.output import JsonFlag, human_age, human_bytes, print_json, print_table
from quiver.cli.qwp.slots import NoServerReporter, names_of_slots
from quiver.clock import SYSTEM_CLOCK
from quiver.counted import counted
from quiver.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from quiver.qwp.slots.dead_letters import StoredDeadLetter
    from quiver.qwp.wire.decoded import Table

__all__ = ["dead_letters"]


class Action(StrEnum):
    """An operation on dead letters."""

    list = "list"
    show = "show"
    replay = "replay"
    export = "export"
    clear = "clear"
    resend = "resend"  # the former name of replay, for one release


def dead_letters(
    root: Annotated[Path, typer.Argument(metavar="SF_DIR", help="The sf_dir of the senders: the parent of the slots.")],
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="A sender_id.")],
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="list, show, replay, export or clear.")
    ] = Action.list,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Ids as listed: 12.1f3a9c20, or 12 for all of frame 12. Default: all."),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", help="Only dead letters with rows of this table.")] = None,
    conf: Annotated[
        str | None, typer.Option("--conf", help="Connect string for replay. Default: QDB_CLIENT_CONF.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Target of export: a directory, or a .parquet file with --table.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    rows: Annotated[bool, typer.Option("--rows", help="Include the rows in the list, as show does.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    List, show, replay, export or remove frames that the server refused and the sender dropped.

    Safe while the sender runs. A replayed dead letter is removed once the server has accepted it. If the server refuses
    it again, it stays, with the new reason. Exits with 1 if dead letters are damaged or were not accepted.
    """
    (name,) = names_of_slots(root, [slot])
    directory = f"{root}/{name}"
    found, damage = _find(directory, ids or [], table)
    if action is Action.show or rows:
        print_json([_as_dict(one, tables) | {"rows": _rows(tables)} for one, tables in found])
    elif action is Action.list:
        _list(directory, found, as_json=as_json)
    elif action is Action.clear:
        _clear(directory, found, is_all=not ids and table is None, as_json=as_json)
    elif action is Action.export:
        _export(found, to, table, force=force, as_json=as_json)
    else:
        if action is Action.resend:
            typer.echo("deprecated: resend is now replay; the former name is removed in the next release", err=True)
        _replay(directory, [one for one, _ in found], conf, as_json=as_json)
    for one in damage if action is not Action.clear else ():
        typer.echo(str(one), err=True)
    if damage and action is not Action.clear:
        raise typer.Exit(1)


_Found = list[tuple["StoredDeadLetter", tuple["Table", ...]]]


def _find(directory: str, wanted: list[str], table: str | None) -> tuple[_Found, list[object]]:
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.scan import Frame  # noqa: PLC0415
    from quiver.qwp.slots.dead_letters import StoredDeadLetter, dead_letters_of  # noqa: PLC0415
    from quiver.qwp.wire.decoder import decode_message  # noqa: PLC0415

    found: _Found = []
    damage: list[object] = []
    ids = set()
    for one in dead_letters_of(REAL_FILES, directory):
        if not isinstance(one, StoredDeadLetter):
            damage.append(one)
            continue
        ids |= {one.id, str(one.letter.fsn)}
        if wanted and one.id not in wanted and str(one.letter.fsn) not in wanted:
            continue
        answer = decode_message(memoryview(one.letter.message))
        tables = answer.value.tables if isinstance(answer, Frame) else ()
        if table is None or any(table == each.name for each in tables):
            found.append((one, tables))
    missing = [text for text in wanted if text not in ids]
    if missing:
        raise UsageError(f"{directory} has no dead letter {', '.join(missing)}")
    return found, damage


def _as_dict(one: StoredDeadLetter, tables: tuple[Table, ...]) -> dict[str, Any]:
    letter = one.letter
    return {
        "letter": one.id,
        "frame": letter.fsn,
        "given_up_at_ns": letter.at_ns,
        "status": letter.status,
        "reason": letter.reason,
        "size_bytes": len(letter.message),
        "tables": {each.name: each.rows for each in tables},
    }


def _rows(tables: tuple[Table, ...]) -> dict[str, list[dict[str, Any]]]:
    from quiver.qwp.slots.inspection import rows_of  # noqa: PLC0415 - keeps `--help` quick

    return {each.name: rows_of(each) for each in tables}


def _list(directory: str, found: _Found, *, as_json: bool) -> None:
    if as_json:
        print_json([_as_dict(*one) for one in found])
        return
    now_ns = SYSTEM_CLOCK.now_ns()
    rows = [
        {
            "letter": one.id,
            "given_up": f"{human_age((now_ns - one.letter.at_ns) / 1e9)} ago",
            "status": f"{one.letter.status:#04x}" if one.letter.status else None,
            "size": human_bytes(len(one.letter.message)),
            "tables": [f"{each.name} ({each.rows})" for each in tables],
            "reason": one.letter.reason,
        }
        for one, tables in found
    ]
    print_table(f"dead letters of {directory}", rows)


def _clear(directory: str, found: _Found, *, is_all: bool, as_json: bool) -> None:
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.slots.dead_letters import remove_dead_letters  # noqa: PLC0415

    removed = remove_dead_letters(REAL_FILES, directory, None if is_all else {one.id for one, _ in found})
    if as_json:
        print_json({"removed": removed})
    else:
        typer.echo(f"{counted(removed, 'dead letter')} removed")


def _replay(directory: str, dead_letters: list[StoredDeadLetter], conf: str | None, *, as_json: bool) -> None:
    from quiver.qwp.environment import conf_from_env  # noqa: PLC0415 - keeps `--help` quick
    from quiver.qwp.settings import SenderSettings  # noqa: PLC0415
    from quiver.qwp.slots.dead_letter_replay import replay_dead_letters  # noqa: PLC0415

    settings = replace(SenderSettings.from_conf(conf or conf_from_env()), sf_dir=None)
    done = replay_dead_letters(settings, directory, dead_letters, observer=NoServerReporter())
    if as_json:
        refused = [{"frame": one.fsn, "status": one.status, "reason": one.reason} for one in done.refused]
        halted = None if done.halted is None else str(done.halted)
        print_json({"taken": done.taken, "refused": refused, "left": done.left, "halted": halted})
    else:
        accepted = counted(done.taken, "dead letter")
        typer.echo(f"{accepted} accepted, {len(done.refused):,} refused again, {done.left:,} not sent")
        for one in done.refused:
            typer.echo(f"frame {one.fsn}: {one.reason}")
        if done.halted is not None:
            typer.echo(f"quiver: {done.halted}", err=True)
    if done.refused or done.left:
        raise typer.Exit(1)


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Group:
    """Rows of one table. Columns with the same name have the same type."""

    fields: dict[str, pa.DataType]
    batches: list[pa.RecordBatch]

    def takes(self, schema: pa.Schema) -> bool:
        return all(self.fields.get(field.name, field.type) == field.type for field in schema)


def _export(found: _Found, to: Path | None, table: str | None, *, force: bool, as_json: bool) -> None:
    import pyarrow as pa  # noqa: PLC0415 - keeps `--help` quick

    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.reading.export import export  # noqa: PLC0415
    from quiver.store.segment.cast import cast_to_schema  # noqa: PLC0415

    if to is None:
        raise UsageError("export needs a target: --to DIRECTORY, or --table NAME --to FILE.parquet")
    if to.suffix == ".parquet" and table is None:
        raise UsageError(f"{to}: a file holds the rows of one table; add --table NAME, or pass a directory")
    files = dict(_files(to, _groups(found, table)))
    for path in files:
        if path.exists() and not force:
            raise UsageError(f"{path} exists; use --force to overwrite it")
        if to.suffix == ".parquet" and not path.parent.is_dir():
            raise UsageError(f"{path.parent}: no such directory")
    if files and to.suffix != ".parquet":
        to.mkdir(parents=True, exist_ok=True)
    written = []
    for path, group in files.items():
        schema = pa.schema(list(group.fields.items()))
        done = export(REAL_FILES, str(path), "parquet", schema, (cast_to_schema(one, schema) for one in group.batches))
        written.append(done)
    if as_json:
        print_json([{"path": one.path, "rows": one.rows, "size_bytes": one.size_bytes} for one in written])
        return
    for one in written:
        typer.echo(f"{one.path}: {counted(one.rows, 'row')}")
    if not written:
        typer.echo("nothing to export")


def _files(to: Path, groups: dict[str, list[_Group]]) -> Iterator[tuple[Path, _Group]]:
    for table, ones in groups.items():
        first = to if to.suffix == ".parquet" else to / f"{quote(table, safe=' ')}.parquet"
        for number, group in enumerate(ones, 1):
            yield first if number == 1 else first.with_name(f"{first.stem}-{number}.parquet"), group


def _groups(found: _Found, wanted: str | None) -> dict[str, list[_Group]]:
    """Return the rows by table. Dead letters in which a column has a different type form their own group."""
    groups: dict[str, list[_Group]] = {}
    for one, tables in found:
        for table in tables:
            if wanted not in {None, table.name} or not table.rows or not table.columns:
                continue
            batch = _with_reason(one, table)
            known = groups.setdefault(table.name, [])
            group = next((each for each in known if each.takes(batch.schema)), None)
            if group is None:
                group = _Group({}, [])
                known.append(group)
            group.fields |= {field.name: field.type for field in batch.schema}
            group.batches.append(batch)
    return groups


def _with_reason(one: StoredDeadLetter, table: Table) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - keeps `--help` quick

    from quiver.store.reading.export import plain_schema  # noqa: PLC0415
    from quiver.store.segment.cast import cast_to_schema  # noqa: PLC0415

    batch = table.to_arrow()
    batch = cast_to_schema(batch, plain_schema(batch.schema))
    for name, value, kind in (
        ("dead_letter", one.id, pa.string()),
        ("dead_letter_at", one.letter.at_ns, pa.timestamp("ns", "UTC")),
        ("dead_letter_status", one.letter.status, pa.uint8()),
        ("dead_letter_reason", one.letter.reason, pa.string()),
    ):
        batch = batch.append_column(name, pa.array([value] * table.rows, kind))
    return batch
