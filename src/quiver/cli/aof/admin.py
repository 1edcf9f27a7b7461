"""`quiver aof seal|flush|upload|segments|manifest`, for logs that no process has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.aof.logs import LogName, Logs, checked_logs, logs_of, one_log
from quiver.cli.console.output import JsonFlag, human_bytes, print_json, print_table
from quiver.cli.object_store import ObjectOptions, ObjectsUrl, object_location
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.aof import Aof
    from quiver.aof.reading.check import CheckedLog
    from quiver.objects import ObjectLocation

__all__ = ["add_admin_commands"]

_TIERS = {"warm": 1, "cold": 2, "missing": None}
_TIMEOUT_S = 60.0
_SEAL_S = 5.0

Timeout = Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait for the disk.")]


def add_admin_commands(app: typer.Typer) -> None:
    """Add these commands to `quiver aof`."""
    app.command("seal", short_help="Seal the active segment.")(seal)
    app.command("flush", short_help="Make everything durable.")(flush)
    app.command("upload", short_help="Upload segments without an object.")(upload)
    segments = typer.Typer(help="List the segments of logs, or delete the oldest.", no_args_is_help=True)
    segments.command("list", short_help="Show the tier of each segment.")(list_segments)
    segments.command("delete", short_help="Delete the oldest segments.")(delete_segments)
    app.add_typer(segments, name="segments", short_help="List segments, or delete the oldest.")
    manifest = typer.Typer(help="Check the manifest logs of tiers.", no_args_is_help=True)
    manifest.callback()(_only_below)
    manifest.command("check", short_help="Show and check manifest logs.")(check_manifest)
    app.add_typer(manifest, name="manifest", short_help="Check or repair manifest logs.")


def _only_below() -> None:
    """Check the manifest logs of tiers."""


@contextmanager
def _opened(root: Path, log: str | None, objects: ObjectLocation | None, *, tiered: bool = False) -> Iterator[Aof]:
    """Open one log with recovery; on exit, run its maintenance."""
    from quiver.aof import AofConfig, AofManager, TierConfig  # noqa: PLC0415 - keeps `--help` quick

    name, directory = one_log(root, log)
    tiers = TierConfig(objects=objects) if tiered or objects is not None else None
    config = AofConfig(preallocate_segments=0, tiers=tiers)
    with AofManager.open(str(Path(directory).parent), config, background=False) as manager:
        yield manager.log(name)
        manager.maintain()


def seal(
    root: Logs,
    log: LogName = None,
    timeout_s: Timeout = _TIMEOUT_S,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Seal the active segment if it has records. No process may have the logs open: a writer seals by itself."""
    with _opened(root, log, object_location(objects, option)) as opened:
        _print_row(opened.name, {"sealed": opened.force_rollover(timeout=timeout_s)}, as_json=as_json)


def flush(
    root: Logs,
    log: LogName = None,
    timeout_s: Timeout = _TIMEOUT_S,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Make everything durable, including batches of Spark sinks.

    No process may have the logs open: a writer flushes by itself.
    """
    with _opened(root, log, object_location(objects, option)) as opened:
        opened.import_staged()
        opened.flush(timeout=timeout_s)
        _print_row(opened.name, {"durable_records": opened.snapshot().record_count}, as_json=as_json)


def upload(
    root: Logs,
    log: LogName = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.0, help="Seconds after which no upload starts.")
    ] = 3600,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Seal the active segment, and upload all segments without an object.

    No process may have the logs open: a writer uploads by itself. Exits with 1 if segments are left.
    """
    location = object_location(objects, option)
    if location is None:
        raise UsageError("give the location of the objects: --objects URL")
    rows = [_uploaded(root, name, location, timeout_s) for name in logs_of(root, log)]
    if as_json:
        print_json(rows)
    else:
        print_table("uploads", rows)
    if any(row["left"] for row in rows):
        raise typer.Exit(1)


def _uploaded(root: Path, name: str, location: ObjectLocation, timeout_s: float) -> dict[str, Any]:
    from quiver.errors import WouldBlockError  # noqa: PLC0415

    with _opened(root, name, location) as opened:
        opened.import_staged()
        tiers, uploads = opened.tiers, opened.tiers.uploads
        before = tiers.counts.uploads
        try:
            opened.force_rollover(timeout=_SEAL_S)
        except WouldBlockError:
            if opened.segment_snapshot()[-1].state != "sealed":  # otherwise there is no disk space for the next one
                raise
        tiers.finish_uploads(timeout_s)
        problems = {uploads.problem, *(str(one) for one in uploads.damaged.values())} - {""}
        left = len(uploads.waiting())
    why = "; ".join(sorted(problems)) or "the timeout expired"
    return {"log": name, "uploaded": tiers.counts.uploads - before, "left": left, "problem": why if left else ""}


def list_segments(
    root: Logs,
    log: LogName = None,
    tier: Annotated[int | None, typer.Option(min=0, max=2, help="Only segments of this tier.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the tier and the copies of each segment. Safe while a writer runs."""
    for one in checked_logs(root, log, read_records=False):
        rows = [row for row in _segment_rows(one) if tier is None or row["tier"] == tier]
        if as_json:
            print_json({"log": one.name, "segments": rows}, in_a_line=True)
            continue
        shown = ("file_bytes", "packed_bytes")
        described = [
            {key: human_bytes(value) if key in shown and value is not None else value for key, value in row.items()}
            for row in rows
        ]
        print_table(f"segments of {one.name}", described)


def _segment_rows(one: CheckedLog) -> list[dict[str, Any]]:
    rows = []
    for segment in one.segments:
        entry = one.tiers.entries.get(segment.segment_id)
        has_warm = entry is not None and (entry.has_warm or segment.state == "warm")
        tier = _TIERS.get(segment.state, 0)
        rows.append({
            "segment": segment.segment_id,
            "tier": tier,
            "state": segment.state,
            "records": segment.records,
            "file_bytes": segment.size_bytes if tier == 0 else None,
            "packed_bytes": entry.warm_bytes if entry is not None and has_warm else None,
            "object": entry.remote.object_key if entry is not None and entry.remote is not None else None,
        })  # fmt: skip
    return rows


def delete_segments(
    root: Logs,
    segment: Annotated[list[int], typer.Argument(help="The ids of the oldest sealed segments.")],
    log: LogName = None,
    force: Annotated[bool, typer.Option("--force", help="Confirm that their records are deleted permanently.")] = False,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete the oldest segments with all their copies. No process may have the logs open. Requires `--force`."""
    if not force:
        raise UsageError("the records of these segments would be deleted permanently; confirm with --force")
    with _opened(root, log, object_location(objects, option), tiered=True) as opened:
        opened.tiers.delete_oldest(segment)
        name, deletes = opened.name, opened.tiers.snapshot().delete_queue_depth
    waiting = deletes if objects is None else 0
    _print_row(name, {"deleted": sorted(set(segment)), "objects_left": waiting}, as_json=as_json)


def check_manifest(
    root: Logs,
    log: LogName = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Import existing segments and write a new chunk. No process may have the logs open."
        ),
    ] = False,
    objects: ObjectsUrl = None,
    option: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Read the manifest logs and compare them with the disk. Exits with 1 if something is damaged or missing."""
    location = object_location(objects, option)
    if repair:
        for name in logs_of(root, log):
            if _manifest_row(name, logs_of(root, name)[name])["has_copies"]:
                with _opened(root, name, location, tiered=True) as opened:
                    opened.tiers.rewrite_manifest()
    rows = [_manifest_row(name, directory) for name, directory in logs_of(root, log).items()]
    if as_json:
        print_json(rows)
    else:
        print_table("manifest logs", rows)
    if any(row["problems"] for row in rows):
        raise typer.Exit(1)


def _manifest_row(name: str, directory: str) -> dict[str, Any]:
    from quiver.aof.format.names import WARM  # noqa: PLC0415
    from quiver.aof.reading.files import LogFiles  # noqa: PLC0415
    from quiver.aof.reading.manifest import replay_manifest  # noqa: PLC0415
    from quiver.aof.tiers.copies import Copies  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    stream_id = LogFiles(directory).stream_id()
    replayed = replay_manifest(REAL_FILES, directory, stream_id or 0)
    copies = Copies(REAL_FILES, f"{directory}/{WARM}", objects=None)
    entries = replayed.state.entries.values()
    warm = set(copies.warm_names())
    problems = [f"{path}: {reason}" for path, reason in replayed.damaged.items()]
    problems += [
        f"{one.warm_name} is missing" for one in entries if one.has_warm and copies.warm_bytes(one) != one.warm_bytes
    ]
    problems += [f"{one} is not in the manifest" for one in sorted(warm - {each.warm_name for each in entries})]
    return {
        "log": name,
        "chunks": len(replayed.indexes),
        "records": replayed.records,
        "segments": len(replayed.state.entries),
        "objects": sum(one.remote is not None for one in entries),
        "deletes": len(replayed.state.deletes),
        "has_copies": bool(replayed.indexes or warm),
        "problems": problems,
    }


def _print_row(name: str, row: dict[str, Any], *, as_json: bool) -> None:
    described = {"log": name, **row}
    if as_json:
        print_json(described, in_a_line=True)
    else:
        print_table(name, [described])
