"""`quiver restore --cold URL DIR`: restore a store from its object tier."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.console.output import human_bytes, print_json, print_table
from quiver.cli.object_store import object_location
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.store.cold.restore import RestoredStore

__all__ = ["Cold", "DryRun", "Stores", "restore_cold"]

Cold = Annotated[
    str | None,
    typer.Option("--cold", metavar="URL", help="Restore from this object tier instead: s3://bucket/prefix."),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="ID",
        help="With --cold, the store to restore if there are several. May be repeated for the cores of one store.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --cold: only list the stores.")]


def restore_cold(
    target: Path, url: str, option: list[str] | None, stores: list[str] | None, *, dry_run: bool, as_json: bool
) -> None:
    """Restore the store *target* from the objects at *url*, or list the stores there."""
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.objects import ObjectLocation, open_objects  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cold.restore import restore_from_tier, stores_in_tier  # noqa: PLC0415

    location = object_location(url, option) or ObjectLocation.from_url(url)
    tier = open_objects(location, writable=False)
    try:
        known = stores_in_tier(tier)
        if not known:
            raise UsageError(f"{location} has no segment of a store; give the location in cold.objects")
        if not stores and len(known) > 1 and not dry_run:
            raise UsageError(f"{location} has several stores; select one with --store: {', '.join(known)}")
        with ProgressDisplay("reading") as progress:
            fs = progress.fs(REAL_FILES)
            if dry_run:
                found = [
                    one
                    for identity in stores or known
                    for one in restore_from_tier(
                        fs, str(target), tier, location, [identity], clock=SYSTEM_CLOCK, dry_run=True
                    )
                ]
            else:
                found = restore_from_tier(fs, str(target), tier, location, stores or known, clock=SYSTEM_CLOCK)
    finally:
        tier.close()
    if as_json:
        print_json([_as_dict(one) for one in found])
    else:
        print_table(f"stores in {location}", [_row(one) for one in found])
        for one in found:
            for key in one.damaged:
                typer.echo(f"damaged: {key} is not the segment of that name", err=True)
    if any(one.damaged for one in found):
        raise typer.Exit(1)


def _row(one: RestoredStore) -> dict[str, Any]:
    described = _as_dict(one)
    return described | {"size_bytes": human_bytes(one.size_bytes), "damaged": len(one.damaged)}


def _as_dict(one: RestoredStore) -> dict[str, Any]:
    times = [entry.ingested_ns for entry in one.segments if entry.ingested_ns is not None]
    return {
        "store": one.identity,
        "path": one.path,
        "segments": len(one.segments),
        "bundles": one.bundles,
        "size_bytes": one.size_bytes,
        "from": _time(min(first for first, _ in times)) if times else None,
        "to": _time(max(last for _, last in times)) if times else None,
        "damaged": one.damaged,
    }


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
