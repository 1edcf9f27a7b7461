"""`quiver aof restore`: logs made again from their objects."""

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
    Path, typer.Argument(metavar="DIR", help="The directory of the logs, made when missing; or of one log.")
]
FromObjects = Annotated[
    str, typer.Option("--objects", help="Where objects are: a directory, or s3://bucket/prefix and the like.")
]
LogName = Annotated[
    str | None, typer.Option("--log", help="What the log is to be called; its objects do not say. One log only.")
]
Stream = Annotated[
    str | None, typer.Option("--stream", help="Only this log: the 16 digits that its objects are below.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what is there, and write nothing.")]


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
    Make logs again from their objects, without the disk that they were on. Nobody may have the directory open.

    Each becomes a log of its own, called `stream-` and its number without --log. One that is there already, with its
    segments, takes over the objects that its manifest does not know. Records that were never uploaded are lost; no id
    of theirs comes again. Of each object the ends are read: `quiver aof verify --objects` reads all. Exits with 1 when
    objects are damaged or records are missing between them.
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
            for first, behind in one.missing:
                typer.echo(f"{one.directory}: records {first} to {behind - 1} are missing", err=True)
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
        raise UsageError(f"a log cannot be called {name!r}: use up to 64 of A-Z a-z 0-9 _ - and dots inside")
    is_log = is_log_directory(REAL_FILES, str(root))
    below = [root] if is_log else sorted(root.iterdir()) if root.is_dir() else []
    present = {LogFiles(str(path)).stream_id(): str(path) for path in below if is_log_directory(REAL_FILES, str(path))}
    streams = [_number(stream)] if stream is not None else streams_of(tier)
    if is_log:
        streams = [one for one in streams if one in present]
    if not streams:
        raise UsageError(f"{location} has no object of {'this' if is_log else 'a'} log")
    if name is not None and len(streams) > 1:
        told = ", ".join(map(object_folder, streams))
        raise UsageError(f"{location} has objects of several logs: choose one of {told} with --stream")
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
        raise UsageError(f"--stream takes the hexadecimal digits that objects are below, not {text!r}") from None


def _row(one: RestoredLog) -> dict[str, Any]:
    told = _as_dict(one)
    return {
        "stream": told["stream"],
        "log": told["directory"],
        "segments": told["segments"],
        "records": told["records"],
        "from": told["first"],
        "to": told["last"],
        "damaged": len(one.damaged),
        "missing": sum(behind - first for first, behind in one.missing),
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
