"""`quiver snapshot DIR|PIPELINE.yaml TO`, `quiver restore FROM TO|PIPELINE.yaml` and `quiver restore --cold URL TO`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.cold_restore import Cold, DryRun, Stores, restore_cold
from quiver.cli.console.output import JsonFlag, human_bytes, print_json
from quiver.cli.console.paths import pipeline_given
from quiver.cli.object_store import ObjectOptions
from quiver.errors import UsageError

if TYPE_CHECKING:
    from quiver.store.snapshots.snapshot import Copied

__all__ = ["restore", "snapshot"]

_Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Fill {{NAME}} of the pipeline file.")
]
_RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", help="As given to `quiver run`.  [default: <store>.run]", show_default=False),
]


def snapshot(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A store's directory, or a pipeline file for all that it keeps.")
    ],
    to: Annotated[Path, typer.Argument(help="A new directory.")],
    check: Annotated[bool, typer.Option("--check", help="Read the whole snapshot back before it counts.")] = False,
    assignments: _Assignments = None,
    run_dir: _RunDir = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Copy a store, or all stores of a pipeline, beside live writers too: what was accepted before is in the copy.

    Dead letters, committed batches of Spark sinks, and the buffers that a pipeline keeps beside the directory are
    copied as well; of a pipeline file also the checkpoints of its exporters on Spark. Files that never change are
    linked where that is possible, so that a snapshot on the same disk takes little room. Exits with 1 when something
    could not be copied, and lists it.
    """
    from quiver.cli.console.progress import Progress  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.snapshots.snapshot import check_snapshot  # noqa: PLC0415
    from quiver.store.snapshots.snapshot import snapshot as take  # noqa: PLC0415

    given = pipeline_given(source, assignments, run_dir)
    now_ns = SYSTEM_CLOCK.now_ns()
    with Progress("copying") as progress:
        fs = progress.fs(REAL_FILES)
        if given is not None:
            from quiver.pipeline.backup import snapshot_pipeline  # noqa: PLC0415

            done = snapshot_pipeline(fs, *given, str(to), now_ns=now_ns)
        else:
            instance_roots(fs, str(source))  # what is wrong with the store itself is said first
            others, problem = _others(source)
            done = take(fs, str(source), str(to), now_ns=now_ns, beside=others)
            done.notes += [problem] if problem else []
    if check:
        with Progress("reading back") as progress:
            done.notes += [str(problem) for problem in check_snapshot(progress.fs(REAL_FILES), str(to))[1]]
    _say(done, as_json=as_json)


def _others(directory: Path) -> tuple[dict[str, str], str | None]:
    """
    Return the stores that a pipeline keeps beside *directory*, by what their names have after its name; and why they
    are not known.
    """
    from quiver.pipeline.companion_stores import beside, stores_beside  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    try:
        found = stores_beside(REAL_FILES, directory)
    except OSError as error:
        return {}, f"the buffers beside {directory}, if there are any: {error.filename}: {error.strerror}"
    own = beside(directory, "run").name.removesuffix("run") if found else ""
    return {Path(path).name.removeprefix(own): path for path in found}, None


def restore(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[FROM] TO",
            help="A snapshot, which there is none of with --cold; and a new directory for the store, or of a pipeline's"
            " snapshot the pipeline file.",
        ),
    ],
    cold: Cold = None,
    option: ObjectOptions = None,
    stores: Stores = None,
    dry_run: DryRun = False,
    keep_identity: Annotated[
        bool,
        typer.Option(
            "--keep-identity", help="Only when the old store is gone: Spark's checkpoints go on with this one."
        ),
    ] = False,
    damaged_too: Annotated[
        bool, typer.Option("--damaged-too", help="Restore what is there although files are damaged.")
    ] = False,
    assignments: _Assignments = None,
    run_dir: _RunDir = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Make a store, or all stores of a pipeline, from a snapshot, after reading all of it. The snapshot stays as it is.

    Every subscriber goes on where the snapshot found it, and gets what it may have had since once more. The stores of a
    pipeline are made where its file says they are.

    With --cold the store is made from its object tier, without the disk that it was on: it has every segment that was
    sent, its old identity, and no subscribers. Exits with 1 when objects are damaged.
    """
    if cold is not None:
        if len(paths) != 1 or keep_identity or damaged_too or assignments or run_dir is not None:
            raise UsageError(
                "quiver restore --cold URL TO takes one directory, --option, --store, --dry-run and --json"
            )
        restore_cold(paths[0], cold, option, stores, dry_run=dry_run, as_json=as_json)
        return
    if len(paths) != 2:
        raise UsageError("quiver restore FROM TO: name a snapshot and a new directory, or an object tier with --cold")
    source, to = paths
    if option or stores or dry_run:
        raise UsageError("--option, --store and --dry-run are for --cold")
    import uuid  # noqa: PLC0415 - keeps `--help` quick

    from quiver.cli.console.progress import Progress  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.snapshots.snapshot import restore as make  # noqa: PLC0415

    identity = str(uuid.uuid4())  # noqa: TID251 - made once, for the new store
    given = pipeline_given(to, assignments, run_dir)
    with Progress("restoring") as progress:
        fs = progress.fs(REAL_FILES)
        if given is not None:
            from quiver.pipeline.backup import restore_pipeline  # noqa: PLC0415

            done = restore_pipeline(
                fs, str(source), *given, identity=identity, keep_identity=keep_identity, damaged_too=damaged_too
            )
        else:
            done = make(fs, str(source), str(to), identity=None if keep_identity else identity, damaged_too=damaged_too)
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
                "remarks": done.remarks,
            }
        )
    else:
        linked = f", {human_bytes(done.linked_bytes)} of them shared" if done.linked_bytes else ""
        typer.echo(f"{done.path}: {done.files} files, {human_bytes(done.size_bytes)}{linked}")
        for remark in done.remarks:
            typer.echo(remark)
        for note in done.notes:
            typer.echo(f"damaged or missing: {note}", err=True)
    if done.notes:
        raise typer.Exit(1)
