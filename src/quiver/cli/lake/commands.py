"""`quiver lake compact|files`: the Parquet files that an exporter wrote to a directory or a bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import JsonFlag, human_bytes, print_json, print_table
from quiver.cli.object_store import ObjectOptions, object_location
from quiver.errors import UsageError
from quiver.settings import parse_duration_s, parse_size_bytes

if TYPE_CHECKING:
    from quiver.objects import ObjectTier

__all__ = ["build_lake_app"]

Place = Annotated[
    str, typer.Argument(help="The path of the exporter: a directory, or a URL such as s3://bucket/prefix.")
]


def build_lake_app() -> typer.Typer:
    """Return the commands below `quiver lake`."""
    app = typer.Typer(help="Compact and list Parquet files of exporters.", no_args_is_help=True, add_completion=False)
    app.command("compact", short_help="Combine small files.")(compact)
    app.command("files", short_help="List the files that have each row once.")(files)
    return app


def compact(
    place: Place,
    target_size: Annotated[
        str, typer.Option(help="Combine files up to this size; those above half of it stay.")
    ] = "128MiB",
    older_than: Annotated[str, typer.Option(help="Skip younger files: their partition still grows.")] = "1h",
    compression: Annotated[str, typer.Option(help="The compression of new files: zstd, snappy or none.")] = "zstd",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the files that would be combined.")] = False,
    options: ObjectOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Combine small Parquet files of one partition, also while the exporter runs.

    While a group of files is exchanged, a reader that lists them sees its rows twice; a reader that takes its list from
    `quiver lake files` sees each row once. A query may fail if its files are deleted meanwhile: run it again. After a
    kill, the next run finishes the exchange.
    """
    from quiver.spark.lake.compaction import LakeCompactor  # noqa: PLC0415 - keeps `--help` quick

    if compression not in {"zstd", "snappy", "none"}:
        raise UsageError(f"--compression: {compression!r} is not zstd, snappy or none")
    with _opened(place, options, writable=not dry_run) as objects:
        compactor = LakeCompactor(
            objects,
            target_bytes=parse_size_bytes(target_size, key="--target-size"),
            older_than_s=parse_duration_s(older_than, key="--older-than"),
            compression=compression,
        )
        if dry_run:
            found = [
                {"directory": one.directory, "files": len(one.files), "bytes": one.size_bytes}
                for one in compactor.plan()
            ]
        else:
            found = [
                {
                    "directory": one.directory,
                    "files": len(one.inputs),
                    "bytes": sum(file.size_bytes for file in one.inputs),
                    "rows": one.rows,
                    "output": one.output.key,
                    "output_bytes": one.output.size_bytes,
                }
                for one in compactor.run()
            ]
    _report(place, found, dry_run=dry_run, as_json=as_json)


def _report(place: str, found: list[dict[str, Any]], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"place": place, "dry_run": dry_run, "groups": found})
        return
    if not found:
        typer.echo(f"{place}: nothing to compact")
        return
    sizes = {"bytes", "output_bytes"}
    rows = [{key: human_bytes(value) if key in sizes else value for key, value in one.items()} for one in found]
    print_table("would be combined" if dry_run else "combined", rows)
    total = sum(one["files"] for one in found)
    typer.echo(f"{total} files {'would become' if dry_run else 'became'} {len(found)}")


def files(place: Place, options: ObjectOptions = None, as_json: JsonFlag = False) -> None:
    """
    List the Parquet files that together have each row once, also while a compaction runs. One name per line.

    Give the list to a reader that must not see a row twice.
    """
    from quiver.spark.lake.compaction_log import CompactionLog  # noqa: PLC0415 - keeps `--help` quick

    with _opened(place, options, writable=False) as objects:
        found = CompactionLog(objects).current_files()
    root = place.rstrip("/")
    if as_json:
        print_json([{"file": f"{root}/{one.key}", "bytes": one.size_bytes} for one in found])
        return
    for one in found:
        typer.echo(f"{root}/{one.key}")


@contextlib.contextmanager
def _opened(place: str, options: list[str] | None, *, writable: bool) -> Iterator[ObjectTier]:
    from quiver.objects import open_objects  # noqa: PLC0415 - keeps `--help` quick

    is_directory = "://" not in place
    if is_directory and not Path(place).is_dir():
        raise UsageError(f"{place} is not a directory")
    location = object_location(place, options)
    if location is None:
        raise UsageError("name a directory or a bucket")
    mode = _file_mode(Path(place)) if is_directory else None
    with contextlib.closing(
        open_objects(location, writable=writable, check_access=not is_directory, file_mode=mode)
    ) as objects:
        yield objects


def _file_mode(directory: Path) -> int | None:
    """Return the permission bits of the existing files: the same users may read the new ones."""
    one = next(directory.rglob("*.parquet"), None)
    return None if one is None else one.stat().st_mode & 0o666
