"""
`quiver snapshot DIR TO` and `quiver restore FROM TO`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.output import JsonFlag, human_bytes, print_json

if TYPE_CHECKING:
    from quiver.store.snapshot import Copied

__all__ = ["restore", "snapshot"]


def snapshot(
    directory: Annotated[Path, typer.Argument(help="A store's directory.")],
    to: Annotated[Path, typer.Argument(help="A new directory.")],
    check: Annotated[bool, typer.Option("--check", help="Read the whole snapshot back before it counts.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Copy a whole store, beside its live writer too: what was accepted before is in it.

    Files that never change are linked where that is possible, so that a snapshot on the same disk takes little room.
    """
    from quiver.cli.progress import Progress  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.snapshot import check_snapshot  # noqa: PLC0415
    from quiver.store.snapshot import snapshot as take  # noqa: PLC0415

    with Progress("copying") as progress:
        done = take(progress.files(REAL_FILES), str(directory), str(to), now_ns=SYSTEM_CLOCK.now_ns())
    if check:
        with Progress("reading back") as progress:
            done.notes += [str(problem) for problem in check_snapshot(progress.files(REAL_FILES), str(to))[1]]
    _say(done, as_json=as_json)


def restore(
    source: Annotated[Path, typer.Argument(metavar="FROM", help="A snapshot.")],
    to: Annotated[Path, typer.Argument(help="A new directory for the store.")],
    keep_identity: Annotated[
        bool,
        typer.Option(
            "--keep-identity", help="Only when the old store is gone: Spark's checkpoints go on with this one."
        ),
    ] = False,
    damaged_too: Annotated[
        bool, typer.Option("--damaged-too", help="Restore what is there although files are damaged.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """
    Make a store from a snapshot, after reading all of it. The snapshot stays as it is.

    Every subscriber goes on where the snapshot found it, and gets what it may have had since once more.
    """
    import uuid  # noqa: PLC0415 - keeps `--help` quick

    from quiver.cli.progress import Progress  # noqa: PLC0415
    from quiver.primitives.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.snapshot import restore as make  # noqa: PLC0415

    identity = None if keep_identity else str(uuid.uuid4())  # noqa: TID251 - made once, for the new store
    with Progress("restoring") as progress:
        files = progress.files(REAL_FILES)
        done = make(files, str(source), str(to), identity=identity, damaged_too=damaged_too)
    _say(done, as_json=as_json)


def _say(done: Copied, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "path": done.path,
                "files": done.files,
                "size_bytes": done.size_bytes,
                "linked_bytes": done.linked_bytes,
                "problems": done.notes,
            }
        )
    else:
        linked = f", {human_bytes(done.linked_bytes)} of them shared" if done.linked_bytes else ""
        typer.echo(f"{done.path}: {done.files} files, {human_bytes(done.size_bytes)}{linked}")
        for note in done.notes:
            typer.echo(f"damaged: {note}", err=True)
    if done.notes:
        raise typer.Exit(1)
