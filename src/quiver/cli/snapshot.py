"""`quiver snapshot DIR|PIPELINE.yaml TO`, `quiver restore FROM TO|PIPELINE.yaml` and `quiver restore --cold URL TO`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.cold_restore import Cold, DryRun, Stores, restore_cold
from quiver.cli.console.output import JsonFlag, human_bytes, print_json
from quiver.cli.console.paths import pipeline_given
from quiver.cli.object_store import ObjectOptions
from quiver.counted import counted
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
        Path, typer.Argument(metavar="SOURCE", help="A store's directory, or a pipeline file for all its stores.")
    ],
    to: Annotated[Path, typer.Argument(help="A new directory.")],
    check: Annotated[
        bool, typer.Option("--check", help="Verify the complete snapshot before it becomes valid.")
    ] = False,
    assignments: _Assignments = None,
    run_dir: _RunDir = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Copy a store, or all stores of a pipeline, also while writers run. The copy has everything accepted before.

    It includes dead letters, committed batches of Spark sinks, and the pipeline's companion stores; for a pipeline file
    also the checkpoints of its exporters on Spark. Immutable files are hard-linked if possible, so a snapshot on the
    same disk needs little space. Exits with 1 if something could not be copied, and lists it.
    """
    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415 - keeps `--help` quick
    from quiver.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.cores.instances import instance_roots  # noqa: PLC0415
    from quiver.store.snapshots.snapshot import check_snapshot  # noqa: PLC0415
    from quiver.store.snapshots.snapshot import snapshot as take  # noqa: PLC0415

    given = pipeline_given(source, assignments, run_dir)
    now_ns = SYSTEM_CLOCK.now_ns()
    stores: list[str | Path] = [source]
    if given is not None:
        stores = [buffer.config.path for buffer in given[0].buffers if buffer.config.path]
    with ProgressDisplay("copying", of=stores) as progress:
        fs = progress.fs(REAL_FILES)
        if given is not None:
            from quiver.pipeline.backup import snapshot_pipeline  # noqa: PLC0415

            done = snapshot_pipeline(fs, *given, str(to), now_ns=now_ns)
        else:
            instance_roots(fs, str(source))  # report problems of the store itself first
            others, problem = _others(source)
            done = take(fs, str(source), str(to), now_ns=now_ns, companions=others)
            done.notes += [problem] if problem else []
    if check:
        with ProgressDisplay("reading back", of=[to]) as progress:
            done.notes += [str(problem) for problem in check_snapshot(progress.fs(REAL_FILES), str(to))[1]]
    _say(done, as_json=as_json)


def _others(directory: Path) -> tuple[dict[str, str], str | None]:
    """Return the companion stores of *directory* by the suffix of their names, or the reason if they are unknown."""
    from quiver.pipeline.companion_stores import find_companion_stores, sibling_directory  # noqa: PLC0415 - keeps `--help` quick
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415

    try:
        found = find_companion_stores(REAL_FILES, directory)
    except OSError as error:
        return {}, f"the companion stores of {directory}, if any: {error.filename}: {error.strerror}"
    own = sibling_directory(directory, "run").name.removesuffix("run") if found else ""
    return {Path(path).name.removeprefix(own): path for path in found}, None


def restore(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[FROM] TO",
            help="A snapshot (not with --cold), then a new directory for the store, or the pipeline file for a snapshot"
            " of a pipeline.",
        ),
    ],
    cold: Cold = None,
    option: ObjectOptions = None,
    stores: Stores = None,
    dry_run: DryRun = False,
    keep_identity: Annotated[
        bool,
        typer.Option(
            "--keep-identity",
            help="Only if the old store no longer exists: Spark's checkpoints continue with this one.",
        ),
    ] = False,
    damaged_too: Annotated[bool, typer.Option("--damaged-too", help="Restore in spite of damaged files.")] = False,
    assignments: _Assignments = None,
    run_dir: _RunDir = None,
    as_json: JsonFlag = False,
) -> None:
    """
    Restore a store, or all stores of a pipeline, from a snapshot after verifying it. The snapshot is not changed.

    Every subscriber continues at its position in the snapshot, so it may receive later bundles again. The stores of a
    pipeline are created at the paths in its file.

    With --cold, the store is restored from its object tier, without its disk: it has every uploaded segment, its old
    identity, and no subscribers. Exits with 1 if objects are damaged.
    """
    if cold is not None:
        if len(paths) != 1 or keep_identity or damaged_too or assignments or run_dir is not None:
            raise UsageError(
                "quiver restore --cold URL TO takes one directory, --option, --store, --dry-run and --json"
            )
        restore_cold(paths[0], cold, option, stores, dry_run=dry_run, as_json=as_json)
        return
    if len(paths) != 2:
        raise UsageError("quiver restore FROM TO: give a snapshot and a new directory, or an object tier with --cold")
    source, to = paths
    if option or stores or dry_run:
        raise UsageError("--option, --store and --dry-run need --cold")
    import uuid  # noqa: PLC0415 - keeps `--help` quick

    from quiver.cli.console.progress import ProgressDisplay  # noqa: PLC0415
    from quiver.primitives.disk.real_files import REAL_FILES  # noqa: PLC0415
    from quiver.store.snapshots.snapshot import restore as make  # noqa: PLC0415

    identity = str(uuid.uuid4())  # noqa: TID251 - created once, for the new store
    given = pipeline_given(to, assignments, run_dir)
    with ProgressDisplay("restoring", of=[source]) as progress:
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
        typer.echo(f"{done.path}: {counted(done.files, 'file')}, {human_bytes(done.size_bytes)}{linked}")
        for remark in done.remarks:
            typer.echo(remark)
        for note in done.notes:
            typer.echo(f"damaged or missing: {note}", err=True)
    if done.notes:
        raise typer.Exit(1)
