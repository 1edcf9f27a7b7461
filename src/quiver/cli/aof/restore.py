"""`quiver aof restore`: restore logs from their objects."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.cli.object_store import ObjectOptions, object_location
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.aof.restore import RestoredLog
    from quiver.objects import ObjectLocation, ObjectTier

__all__ = ["restore"]

Target = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory of the logs, created if missing; or of one log.")
]
FromObjects = Annotated[
    str,
    typer.Option("--objects", help="The location of the objects: a directory, or a URL such as s3://bucket/prefix."),
]
LogName = Annotated[
    str | None, typer.Option("--log", help="The name of the log, which its objects do not have. Only for one log.")
]
Stream = Annotated[
    str | None, typer.Option("--stream", help="Only this log: the 16 hexadecimal digits of its objects' folder.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the logs.")]


def restore(
    root: Target,
    objects: FromObjects,
    option: ObjectOptions = None,
    log: LogName = None,
    stream: Stream = None,
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Restore logs from their objects, without their disk. No process may have the directory open.

    Each log is named `stream-` and its number, unless --log is given. An existing log with segments imports the objects
    that are not in its manifest. Records that were never uploaded are lost, and their ids are not used again. Only the
    start and end of each object are read; `quiver aof verify --objects` reads all. Exits with 1 if objects are damaged
    or records are missing between them.
    """
    from quiver.objects import ObjectLocation, open_objects  # noqa: PLC0415 - keeps `--help` quick

    location = object_location(objects, option) or ObjectLocation.from_url(objects)
    tier = open_objects(location, writable=False)
    try:
        restored = _restored(root, tier, location, log, stream, dry_run=dry_run)
    finally:
        tier.close()
    if as_json:
        print_json([_as_dict(one) for one in restored])
    else:
        print_table(f"logs in {location}", [_row(one) for one in restored])
        for one in restored:
            for damaged in one.damaged:
                typer.echo(f"damaged: {damaged}", err=True)
            for first, end in one.missing:
                typer.echo(f"{one.directory}: records {first} to {end - 1} are missing", err=True)
    if not all(one.is_complete for one in restored):
        raise typer.Exit(1)


def _restored(
    root: Path, tier: ObjectTier, location: ObjectLocation, name: str | None, stream: str | None, *, dry_run: bool
) -> list[RestoredLog]:
    from quiver.aof.format.names import is_stream_name, object_folder  # noqa: PLC0415
    from quiver.aof.reading.files import LogFiles, is_log_directory  # noqa: PLC0415
    from quiver.aof.restore import register_objects, restore_log, streams_of  # noqa: PLC0415
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.observe import InMemoryObserver  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    if name is not None and not is_stream_name(name):
        raise UsageError(f"invalid name of a log {name!r}; use up to 64 of A-Z a-z 0-9 _ - and inner dots")
    is_log = is_log_directory(REAL_FILES, str(root))
    below = [root] if is_log else sorted(root.iterdir()) if root.is_dir() else []
    present = {LogFiles(str(path)).stream_id(): str(path) for path in below if is_log_directory(REAL_FILES, str(path))}
    streams = [_number(stream)] if stream is not None else streams_of(tier)
    if is_log:
        streams = [one for one in streams if one in present]
    if not streams:
        raise UsageError(f"{location} has no object of {'this' if is_log else 'a'} log")
    if name is not None and len(streams) > 1:
        described = ", ".join(map(object_folder, streams))
        raise UsageError(f"{location} has objects of several logs; select one of {described} with --stream")
    observer = InMemoryObserver()
    restored = []
    for number in streams:
        directory = present.get(number)
        if directory is not None:
            one = register_objects(
                REAL_FILES, directory, tier, location=location, clock=SYSTEM_CLOCK, observer=observer, dry_run=dry_run
            )
        else:
            new = f"{root}/{name or f'stream-{object_folder(number)}'}"
            one = restore_log(REAL_FILES, new, tier, number, clock=SYSTEM_CLOCK, observer=observer, dry_run=dry_run)
        restored.append(one)
    return restored


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise UsageError(f"--stream must be the hexadecimal digits of the objects' folder, not {text!r}") from None


def _row(one: RestoredLog) -> dict[str, Any]:
    described = _as_dict(one)
    return {
        "stream": described["stream"],
        "log": described["directory"],
        "segments": described["segments"],
        "records": described["records"],
        "from": described["first"],
        "to": described["last"],
        "damaged": len(one.damaged),
        "missing": sum(end - first for first, end in one.missing),
    }


def _as_dict(one: RestoredLog) -> dict[str, Any]:
    from quiver.aof.format.names import object_folder  # noqa: PLC0415

    return {
        "stream": object_folder(one.stream_id),
        "directory": one.directory,
        "segments": len(one.segments),
        "records": one.records,
        "first": _time(one.segments[0].header.base_timestamp) if one.segments else None,
        "last": _time(one.segments[-1].footer.last_timestamp) if one.segments else None,
        "damaged": [{"key": each.path, "offset": each.offset, "reason": each.reason} for each in one.damaged],
        "left_out": one.left_out,
        "missing": [list(each) for each in one.missing],
        "next_segment_id": one.next_segment_id,
    }


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
