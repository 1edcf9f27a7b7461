"""`quiver aof dump|inspect|verify|tail|evict|hydrate`."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.aof.admin import add_admin_commands
from quiver.cli.aof.logs import LogName, Logs, checked_logs, one_log
from quiver.cli.aof.restore import restore
from quiver.cli.console.output import JsonFlag, exit_of_verify, human_age, human_bytes, print_json, print_table
from quiver.cli.object_store import ObjectOptions, ObjectsUrl, object_location
from quiver.counted import counted
from quiver.errors import DataLossError, UsageError

if TYPE_CHECKING:
    from quiver.aof.reading.source import Record
    from quiver.objects import ObjectLocation
    from quiver.primitives.findings import Description, Finding

__all__ = ["build_aof_app"]

POLL_S = 0.2

Root = Annotated[Path | None, typer.Option("--root", help="The directory of the logs, as an option.")]
AnyLogs = Annotated[Path | None, typer.Argument(help="The directory of the logs, or of one log.")]


def build_aof_app() -> typer.Typer:
    """Return the commands below `quiver aof`."""
    app = typer.Typer(help="Inspect and read append-only logs.", no_args_is_help=True, add_completion=False)
    for command, short in _COMMANDS.items():
        app.command(command.__name__, short_help=short)(command)
    add_admin_commands(app)
    return app


def dump(
    logs: AnyLogs = None,
    root: Root = None,
    log: LogName = None,
    json_only: Annotated[bool, typer.Option("--json", "--json-only", help="Print JSON, no tables.")] = False,
) -> None:
    """
    Show metrics, residency and queues of the logs, as tables and as one line of JSON. Safe while a writer runs.

    Figures that are only in the writer's memory are shown as last written, with their age.
    """
    from quiver.aof.reading.status import read_status  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    if (logs is None) == (root is None):
        raise UsageError("give the logs once: quiver aof dump aof/, or quiver aof dump --root aof/")
    root = root or logs or Path()
    checked = checked_logs(root, log, read_records=False)
    now_ns = SYSTEM_CLOCK.now_ns()
    all_described = [
        one.as_dict() | {"writer": read_status(REAL_FILES, one.directory).as_dict(now_ns)} for one in checked
    ]
    if not json_only:
        for one, described in zip(checked, all_described, strict=True):
            typer.echo(f"{one.name}: {one.directory}")
            queues = described["queues"]
            waiting = {"waiting to be sealed": queues["seal"], "batches of sinks": queues["sink"]}
            print_table("tier 0", [_sizes(described["tier0"]) | waiting])
            print_table("tier 1", [_sizes(described["tier1"] | described["tier1"]["residency"] | {"residency": None})])
            waiting = {"waiting to be uploaded": queues["upload"], "waiting to be deleted": queues["delete"]}
            print_table("tier 2", [_sizes(described["tier2"]) | waiting])
            print_table("segments", [_segment_row(row) for row in described["segments"]])
            _print_findings(one.findings)
            _print_writer(described["writer"])
    print_json({"root": str(root), "logs": all_described}, in_a_line=True)


def inspect(
    path: Annotated[Path, typer.Argument(help="A file of a log, or a directory.")],
    rows: Annotated[int, typer.Option(min=0, help="The number of rows of each table.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Describe a file of a log, or a log's directory. Exits with 1 if something is damaged."""
    if path.is_dir():
        checked = checked_logs(path, None, read_records=False)
        if as_json:
            print_json([one.as_dict() for one in checked])
        else:
            for one in checked:
                print_table(f"segments of {one.name}", [_segment_row(row) for row in one.as_dict()["segments"]])
                _print_findings(one.findings)
        is_intact = all(one.is_intact for one in checked)
    else:
        described = _described(path, rows)
        if described.kind == "unknown":
            raise UsageError(f"{path} is not a file of an append-only log")
        if as_json:
            print_json(described.as_dict())
        else:
            _print_file(described)
        is_intact = described.is_intact
    if not is_intact:
        raise typer.Exit(1)


def verify(
    root: Logs,
    log: LogName = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Read and check every record. Safe while a writer runs.

    With --objects, records that are only in objects are read, and also the objects of all other segments. Exits with 1
    if something is damaged, and with 3 if nothing is, but something was not read.
    """
    checked = checked_logs(root, log, read_records=True, objects=object_location(objects, option))
    if as_json:
        print_json([one.as_dict() for one in checked])
    else:
        for one in checked:
            verdict = "DAMAGED" if one.damaged else "NOT ALL READ" if one.unread else "intact"
            unread = f", {one.unread_records:,} of them not read" if one.unread_records else ""
            typer.echo(f"{one.directory}: {verdict}, {counted(one.records, 'record')}{unread}")
            _print_findings(one.findings)
    exit_of_verify(damaged=any(one.damaged for one in checked), unread=any(one.unread for one in checked))


def tail(
    root: Logs,
    log: LogName = None,
    start: Annotated[str, typer.Option("--from", help="earliest, or a record id.")] = "earliest",
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many records.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for new records.")] = False,
    durable: Annotated[bool, typer.Option(help="Only durable records.")] = False,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Print the records of a log. Safe while a writer runs.

    Lost and damaged records are reported once as an error and skipped; then the command exits with 1. With --json, the
    bytes of a payload that is not UTF-8 are in payload_base64.
    """
    from quiver.aof.reading.files import LogFiles  # noqa: PLC0415 - keeps `--help` quick
    from quiver.aof.reading.reader import Reader  # noqa: PLC0415
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415

    _, directory = one_log(root, log)
    if start != "earliest" and not (start.isdecimal() and int(start) < 1 << 64):
        raise UsageError("--from must be earliest or a record id, an integer of 64 bits")
    source = LogFiles(directory, objects=object_location(objects, option))
    reader = Reader(source, int(start) if start.isdecimal() else 0, durable_only=durable)
    printed = losses = 0
    pause = threading.Condition()
    while printed != count:
        try:
            for record in reader:
                _print_record(record, as_json=as_json)
                printed += 1
                if printed == count:
                    break
        except DataLossError as loss:
            losses += 1
            typer.echo(f"quiver: {loss}", err=True)
            continue
        if not follow:
            break
        with pause:
            SYSTEM_CLOCK.wait(pause, POLL_S)
    if losses:
        raise typer.Exit(1)


def evict(
    root: Logs,
    segment: Annotated[list[int], typer.Argument(help="The ids of sealed segments.")],
    log: LogName = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Pack sealed segments and remove their files. No process may have the logs open."""
    _move(root, segment, log, object_location(objects, option), "evict", as_json=as_json)


def hydrate(
    root: Logs,
    segment: Annotated[list[int], typer.Argument(help="The ids of sealed segments.")],
    log: LogName = None,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Restore the files of sealed segments from their copies. No process may have the logs open."""
    _move(root, segment, log, object_location(objects, option), "hydrate", as_json=as_json)


def _move(
    root: Path, segments: list[int], log: str | None, objects: ObjectLocation | None, what: str, *, as_json: bool
) -> None:
    from quiver.aof import AofConfig, AofManager, TierConfig  # noqa: PLC0415

    name, directory = one_log(root, log)
    config = AofConfig(preallocate_segments=0, tiers=TierConfig(objects=objects))
    with AofManager.open(str(Path(directory).parent), config, background=False) as manager:
        tiers = manager.log(name).tiers
        for segment in segments:
            (tiers.evict if what == "evict" else tiers.hydrate)(segment)
        residency = tiers.snapshot().residency
    rows = [{"segment": segment, "residency": residency[segment]} for segment in segments]
    if as_json:
        print_json(rows)
    else:
        print_table(f"segments of {name}", rows)


def _described(path: Path, rows: int) -> Description:
    from quiver.cli.describers import describe_file  # noqa: PLC0415 - keeps `--help` quick

    return describe_file(path, rows, "quiver aof")


def _sizes(row: dict[str, Any]) -> dict[str, Any]:
    described = {key: value for key, value in row.items() if value is not None}
    return {key: human_bytes(value) if key.endswith("_bytes") else value for key, value in described.items()}


def _segment_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "segment": row["segment_id"],
        "state": row["state"],
        "records": row["records"],
        "end": row["end"],
        "durable": row["durable"],
        "file": human_bytes(row["size_bytes"]),
    }


def _print_file(one: Description) -> None:
    typer.echo(f"{one.name}: {one.kind}, {one.size_bytes:,} bytes, {'intact' if one.is_intact else 'DAMAGED'}")
    print_table("fields", [{"field": name, "value": str(value)} for name, value in one.fields.items()])
    for name, table in one.tables.items():
        print_table(name, table)
    if one.problems:
        rows = [{"offset": at.offset, "level": at.level, "reason": at.reason} for at in one.problems]
        print_table("problems", rows)


def _print_writer(described: dict[str, Any]) -> None:
    row = {
        "writer": described["writer"],
        "state": described["state"],
        "age": human_age(described["age_s"]),
        "meaning": described["meaning"],
    }
    figures = described["figures"]
    print_table("writer", [row if figures is not None else {"meaning": described["meaning"]}])
    if figures is not None:
        plain = {key: value for key, value in figures.items() if not isinstance(value, dict)}
        print_table("writer's figures", [_sizes(plain)])
        for name, values in figures.items():
            if isinstance(values, dict):
                rows = [{"name": key, "value": value} for key, value in _sizes(values).items() if values[key]]
                print_table(f"writer's {name.replace('_', ' ')}", rows, empty="all 0")


def _print_findings(findings: tuple[Finding, ...]) -> None:
    if findings:
        print_table("findings", [finding.as_dict() for finding in findings])


def _print_record(record: Record, *, as_json: bool) -> None:
    payload = bytes(record.payload)
    text = payload.decode("utf-8", "backslashreplace")
    if as_json:
        row = {
            "record_id": record.record_id,
            "timestamp_ns": record.timestamp,
            "ext_id": record.ext_id,
            "payload": text,
        }
        if text.encode() != payload:
            row["payload_base64"] = base64.b64encode(payload).decode()
        print_json(row, in_a_line=True)
        return
    try:
        moment = datetime.fromtimestamp(record.timestamp / 1e9, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        moment = str(record.timestamp)  # beyond the range of dates
    # A payload is not trusted: control characters are escaped.
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    typer.echo(f"{record.record_id}\t{moment}\t{record.ext_id}\t{shown}")


_COMMANDS: dict[Callable[..., None], str] = {
    dump: "Show metrics, residency and queues.",
    inspect: "Describe a file or a directory.",
    verify: "Read and check every record.",
    tail: "Print records.",
    evict: "Pack segments and remove their files.",
    hydrate: "Restore the files of segments.",
    restore: "Restore logs from their objects.",
}
"""The commands in the order of the help, with their short descriptions."""
