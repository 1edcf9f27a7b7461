"""`quiver inspect FILE|DIR`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.console.output import JsonFlag, print_json, print_table
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.cli.console.progress import ProgressDisplay
    from quiver.primitives.findings import Description

__all__ = ["inspect"]

FINGERPRINT_DIGITS = 12
SUFFIXES_OF_OTHERS = (".tmp", ".lock")
OTHERS = "for topics there is `quiver topic inspect`, for logs in the AOF2 format `quiver aof inspect`"


def inspect(
    path: Annotated[Path, typer.Argument(help="A file of a store or of a QWP slot, or their directory.")],
    rows: Annotated[int, typer.Option(min=0, help="The number of rows to show of each table.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """
    Describe a file; for a directory, print a line for each file.

    Read-only; safe while a writer runs. Exits with 1 if a file is damaged.
    """
    from quiver.cli.describers import describer_of  # noqa: PLC0415 - keeps `--help` quick

    if path.is_dir():
        found = _directory(path)
        empty = describer_of(path, "quiver") if not found else None
        if not found and (empty is None or empty.if_empty is None):
            raise UsageError(f"{path}: there is no file of a store or of a slot in it")
        if as_json:
            print_json([one.as_dict() for one in found])
        elif empty is not None:
            typer.echo(f"{path}: {empty.if_empty}")
        else:
            print_table(str(path), [_line(one, path) for one in found])
            _print_problems(found)
    else:
        one = _describe(path, rows)
        if one is None:
            raise UsageError(f"{path}: there is no such file")
        if one.kind == "unknown":
            raise UsageError(f"{path} is no file of a store or a slot; {OTHERS}")
        found = [one]
        if as_json:
            print_json(one.as_dict())
        else:
            _print_file(one)
    if not all(one.is_intact for one in found):
        raise typer.Exit(1)


def _directory(root: Path) -> list[Description]:
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick

    with ProgressDisplay("reading", of=[root]) as progress:
        return list(_described(root, progress))


def _described(root: Path, progress: ProgressDisplay) -> Iterator[Description]:
    from quiver.store.format.names import QUARANTINE_DIR  # noqa: PLC0415 - keeps `--help` quick

    for path in _files_below(root):
        if path.suffix in SUFFIXES_OF_OTHERS:
            continue
        progress(str(path))
        # A writer may have deleted it since it was listed.
        one = _describe(path, 0)
        if one is None:
            continue
        if path.parent.name == QUARANTINE_DIR:
            # Quarantined files are expected to be damaged.
            one.kind, one.problems = "kept copy", []
        if one.kind != "unknown":
            yield one


def _files_below(directory: Path) -> Iterator[Path]:
    """Yield every file below *directory*, sorted by name, without following links to directories."""
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            if not path.is_symlink():
                yield from _files_below(path)
        elif path.is_file():
            yield path


def _describe(path: Path, rows: int) -> Description | None:
    from quiver.cli.describers import describe_file  # noqa: PLC0415 - keeps `--help` quick

    try:
        return describe_file(path, rows, "quiver")
    except FileNotFoundError:
        return None


def _line(one: Description, root: Path) -> dict[str, object]:
    return {
        "file": str(Path(one.name).relative_to(root)),
        "kind": one.kind,
        "bytes": one.size_bytes,
        "version": one.version,
        "bundles": one.fields.get("bundles", one.fields.get("bundle_count")),
        "intact": one.is_intact,
    }


def _print_file(one: Description) -> None:
    typer.echo(f"{one.name}: {one.kind}, {one.size_bytes:,} bytes, {'intact' if one.is_intact else 'DAMAGED'}")
    fields = [{"field": "version", "value": str(one.version)}]
    fields += [{"field": name, "value": str(_short(name, value))} for name, value in one.fields.items()]
    print_table("fields", fields)
    for name, table in one.tables.items():
        print_table(name, [{key: _short(key, value) for key, value in row.items()} for row in table])
    _print_problems([one])


def _short(key: str, value: object) -> object:
    """Return a human-readable form of *value*, which JSON has in full."""
    if key == "fingerprint":
        return f"{str(value)[:FINGERPRINT_DIGITS]}…"
    if key.endswith("_ns") and isinstance(value, int):
        try:
            return datetime.fromtimestamp(value / 1e9, tz=UTC).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError, OSError):
            return value  # beyond the range of dates
    return value


def _print_problems(found: list[Description]) -> None:
    rows = [
        {"file": one.name, "offset": problem.offset, "level": problem.level, "reason": problem.reason}
        for one in found
        for problem in one.problems
    ]
    if rows:
        print_table("problems", rows)
