"""
Snapshot, restore and check a complete pipeline as one unit: its buffers with all their data, and the checkpoints of its
exporters on Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.errors import UsageError
from quiver.pipeline.model import Buffer, Pipeline
from quiver.pipeline.queries import plan_queries
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.findings import Finding
from quiver.spark.checkpoints import check_checkpoint, copy_checkpoint, restore_checkpoint
from quiver.store.cores.instances import instance_roots
from quiver.store.format.snapshot_list import is_listable
from quiver.store.snapshots.snapshot import (
    BUFFERS_DIR,
    CHECKPOINTS_DIR,
    Copied,
    CopyPositions,
    SnapshotStore,
    places_in,
    restore_parts,
    snapshot_parts,
)

__all__ = ["check_checkpoints", "pipeline_roots", "restore_pipeline", "snapshot_pipeline"]


def snapshot_pipeline(fs: FileSystem, pipeline: Pipeline, run_dir: Path, target: str, *, now_ns: int) -> Copied:
    """
    Copy all buffers of *pipeline* on disk, and its checkpoints, to the new directory *target*. Durable and complete on
    return.

    Args:
        fs: the file system.
        pipeline: a validated pipeline; it may be running.
        run_dir: the run directory of the pipeline.
        target: a directory that does not exist yet.
        now_ns: the current time.

    Raises:
        UsageError: the pipeline has no data on disk, or has never run; or *target* exists or is inside a buffer.
        OSError: the disk refused; there is no *target*.
    """
    checkpoints = _checkpoints(pipeline, run_dir)
    parts = []
    for buffer, place in _buffers(pipeline):
        if not fs.exists(buffer.config.path):
            continue
        positions: dict[str, CopyPositions] = {
            _checkpoint_place(route.name): _copier(checkpoints[route.name])
            for route in buffer.routes
            if route.name in checkpoints and not _is_remote(checkpoints[route.name])
        }
        parts.append(SnapshotStore(buffer.config.path, place, positions))
    if not parts:
        raise UsageError(f"{pipeline.source}: none of its buffers exists: {', '.join(_paths(pipeline))}")
    done = snapshot_parts(fs, parts, target, now_ns=now_ns)
    done.notes += [
        f"not in the copy: the checkpoint {checkpoint} of {name} is not on this machine; copy it right after this"
        for name, checkpoint in checkpoints.items()
        if _is_remote(checkpoint)
    ]
    done.remarks += [f"{path} does not exist yet" for path in _paths(pipeline) if not fs.exists(path)]
    done.remarks += [
        f"not in the copy: the data of {buffer.name}, which is in memory"
        for buffer in pipeline.buffers
        if buffer.kind == "memory"
    ]
    return done


def restore_pipeline(
    fs: FileSystem,
    source: str,
    pipeline: Pipeline,
    run_dir: Path,
    *,
    identity: str,
    keep_identity: bool = False,
    damaged_too: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Copied:
    """
    Restore the buffers and checkpoints of *pipeline* from the snapshot at *source* to the places that its file names.

    Args:
        fs: the file system.
        source: a snapshot made by `snapshot_pipeline`; it is not changed.
        pipeline: a validated pipeline that is not running, and of which no buffer exists.
        run_dir: the run directory of the pipeline.
        identity: a new UUID, from which the identities of restored stores and queries are derived.
        keep_identity: let the stores keep their identities. An existing checkpoint is then kept and continued: it is
            newer than the snapshot.
        damaged_too: restore even if files are damaged or missing.
        clock: for the segment numbers, see `quiver.store.snapshots.snapshot.restore`.

    Raises:
        UsageError: the snapshot is not complete, belongs to another pipeline, or a buffer already exists.
        CorruptionError: a file of the snapshot is not what was copied. Nothing was restored.
        OSError: the disk refused.
    """
    buffers = {place: buffer.config.path for buffer, place in _buffers(pipeline)}
    checkpoints = {_checkpoint_place(name): path for name, path in _checkpoints(pipeline, run_dir).items()}
    places = places_in(fs, source)
    if "" in places:
        raise UsageError(f"{source} is the snapshot of a store: quiver restore {source} NEW-DIRECTORY")
    unknown = [place for place in places if place not in {**buffers, **checkpoints}]
    if unknown:
        raise UsageError(f"{source} has {', '.join(unknown)}, which {pipeline.source} does not have")
    remarks = []
    targets = {place: path for place, path in buffers.items() if place in places}
    for place, path in checkpoints.items():
        if place not in places:
            continue
        if not fs.exists(path):
            targets[place] = path
        elif keep_identity:
            remarks.append(f"{path} exists, and goes on")
        else:
            raise UsageError(f"{path} exists: that is the checkpoint of what was there before; move it away")
    done = restore_parts(
        fs,
        source,
        targets,
        identity=None if keep_identity else identity,
        damaged_too=damaged_too,
        clock=clock,
        positions=partial(_restore_checkpoint, fs, identity),
    )
    done.path = pipeline.source
    done.remarks += remarks
    return done


def _restore_checkpoint(
    fs: FileSystem, identity: str, name: str, directory: str, identities: Mapping[str, str]
) -> None:
    query_id = str(uuid.uuid5(uuid.UUID(identity), f"query/{name}"))
    restore_checkpoint(fs, directory, query_id=query_id, identities=identities)


def pipeline_roots(fs: FileSystem, pipeline: Pipeline) -> list[str]:
    """
    Return the directories of all stores and cores of *pipeline* that exist.

    Raises:
        UsageError: there is none, or a buffer's directory is no store.
    """
    roots = [root for path in _paths(pipeline) if fs.exists(path) for root in instance_roots(fs, path)]
    if not roots:
        raise UsageError(f"{pipeline.source}: none of its buffers exists: {', '.join(_paths(pipeline))}")
    return roots


def check_checkpoints(fs: FileSystem, pipeline: Pipeline, run_dir: Path) -> list[Finding]:
    """
    Hold each checkpoint of *pipeline* against the buffer that its query reads; return what is wrong.

    Raises:
        OSError: a file cannot be read.
    """
    found = []
    for plan in plan_queries(pipeline, run_dir):
        if not _is_remote(plan.checkpoint) and fs.exists(plan.store_path):
            found += check_checkpoint(fs, plan.checkpoint, plan.store_path)
    return found


def _buffers(pipeline: Pipeline) -> list[tuple[Buffer, str]]:
    """Return the buffers on disk in the order of the flow, each with its place in a snapshot."""
    found = [
        (buffer, f"{BUFFERS_DIR}/{buffer.name if _is_name(buffer.name) else f'buffer-{number}'}")
        for number, buffer in enumerate(pipeline.buffers)
        if buffer.kind != "memory"
    ]
    if not found:
        raise UsageError(
            f"{pipeline.source} has no persistence node: what waits is in memory, and there is nothing to copy"
        )
    return found


def _is_name(name: str) -> bool:
    return "/" not in name and is_listable(name)


def _paths(pipeline: Pipeline) -> list[str]:
    return [buffer.config.path for buffer, _ in _buffers(pipeline)]


def _checkpoints(pipeline: Pipeline, run_dir: Path) -> dict[str, str]:
    return {plan.name: plan.checkpoint for plan in plan_queries(pipeline, run_dir)}


def _checkpoint_place(name: str) -> str:
    return f"{CHECKPOINTS_DIR}/{name}"


def _copier(checkpoint: str) -> CopyPositions:
    return lambda fs, into: copy_checkpoint(fs, checkpoint, into)


def _is_remote(checkpoint: str) -> bool:
    return "://" in checkpoint
