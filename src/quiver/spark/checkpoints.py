r"""
The files of a streaming query's checkpoint: copied while the query runs, restored, and checked. No Spark.

::

    metadata       {"id": "…"}                                 the query's id
    offsets/<n>    v1 \n {…} \n one offset per source \n       the end of batch n, written before it runs
    commits/<n>    v1 \n {…}                                   batch n is done

Spark writes each file under a temporary name and renames it, so a file with its final name is complete. A restarted
query continues with the batch after the last commit. If the end of that batch is known, it runs with the same end.
Spark's checksums, in hidden files, are optional and are not copied.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from quiver.errors import CorruptionError, DataLossError, UsageError
from quiver.primitives.checksum import crc32
from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.findings import Finding
from quiver.store.cold.files import ColdFiles
from quiver.store.format.snapshot_list import SnapshotFile, is_listable
from quiver.store.reading.offsets import CoresOffset, StreamOffset
from quiver.store.reading.segments import SegmentList, store_identity, store_roots

__all__ = ["check_checkpoint", "copy_checkpoint", "restore_checkpoint"]

_METADATA = "metadata"
_OFFSETS = "offsets"
_COMMITS = "commits"
_BATCHES_KEPT = 2
"""Spark reads the last two batches."""
_FILE_BYTES_MAX = 16 * 1024 * 1024


def copy_checkpoint(fs: FileSystem, source: str, into: str) -> list[SnapshotFile]:
    """
    Copy the part of the checkpoint *source* that a query needs to *into*. Safe while the query runs.

    Returns:
        The copied files, relative to *into*; none if there is no checkpoint yet.

    Raises:
        OSError: the disk refused.
    """
    copied: list[SnapshotFile] = []

    def copy(name: str) -> None:
        try:
            data = fs.read_all(f"{source}/{name}", size_max=_FILE_BYTES_MAX)
        except FileNotFoundError:
            return  # an old one, which Spark removed
        fs.make_dirs(posixpath.dirname(f"{into}/{name}"))
        replace_file(fs, f"{into}/{name}", data)
        copied.append(SnapshotFile(name, len(data), crc32(data)))

    # The commits first: a batch is planned only after the one before it was committed.
    done = _batches(fs, f"{source}/{_COMMITS}")
    for batch in done[-_BATCHES_KEPT:]:
        copy(f"{_COMMITS}/{batch}")
    last = done[-1] if done else -1
    for batch in _batches(fs, f"{source}/{_OFFSETS}"):
        if last - _BATCHES_KEPT < batch <= last + 1:
            copy(f"{_OFFSETS}/{batch}")
    for name in _others(fs, source, ""):
        copy(name)
    return copied


def restore_checkpoint(fs: FileSystem, directory: str, *, query_id: str, identities: Mapping[str, str]) -> None:
    """
    Make the copy in *directory* the checkpoint of a new query over restored stores. Durable on return.

    The query gets a new id. Sinks identify batches by query and number. After the copy was made, the old query may
    have used the next numbers for other batches: sinks would then treat the new batches as repetitions.

    Args:
        fs: the file system.
        directory: a copy from `copy_checkpoint`.
        query_id: a new UUID.
        identities: identity of a store when the copy was made → its identity now.

    Raises:
        OSError: the disk refused.
    """
    metadata = f"{directory}/{_METADATA}"
    if fs.exists(metadata):
        replace_file(fs, metadata, json.dumps({"id": query_id}).encode())
    for batch in _batches(fs, f"{directory}/{_OFFSETS}"):
        path = f"{directory}/{_OFFSETS}/{batch}"
        text = fs.read_all(path, size_max=_FILE_BYTES_MAX).decode("utf-8", "surrogateescape")
        for old, new in identities.items():
            if old:
                text = text.replace(f'"{old}"', f'"{new}"')
        replace_file(fs, path, text.encode("utf-8", "surrogateescape"))


def check_checkpoint(fs: FileSystem, directory: str, store: str) -> list[Finding]:
    """
    Compare the last batch of the checkpoint in *directory* with the store at *store*. Return the problems.

    Raises:
        UsageError: there is no store.
        OSError: a file cannot be read.
    """
    batches = _batches(fs, f"{directory}/{_OFFSETS}")
    if not batches:
        return []
    path = f"{directory}/{_OFFSETS}/{batches[-1]}"
    roots = store_roots(fs, store)
    try:
        data = fs.read_all(path, size_max=_FILE_BYTES_MAX)
    except FileNotFoundError:
        return []  # the query is being deleted
    try:
        offsets = _offsets(data, {core: store_identity(fs, root) for core, root in roots.items() if core is not None})
        for core, offset in offsets.items():
            if core not in roots:
                continue  # all of that core was delivered, and it is removed
            offset.check_store(store_identity(fs, roots[core]), roots[core])
            segments = SegmentList(ColdFiles(fs), roots[core], slots=None, fail_on_data_loss=False)
            segments.check_reached(offset.position)
    except (UsageError, CorruptionError, DataLossError, ValueError) as problem:
        return [Finding(path, 0, "damaged", str(problem))]
    return []


def _offsets(data: bytes, identities: Mapping[int, str]) -> Mapping[int, StreamOffset] | Mapping[None, StreamOffset]:
    """Return the positions in the file of a batch by core; the key is None for a store without cores."""
    lines = data.decode().splitlines()
    if len(lines) != 3 or lines[0] != "v1":
        raise ValueError("not the offsets of one batch of a query over a store")
    value: Any = json.loads(lines[2])
    if not identities:
        return {None: StreamOffset.from_json(value)}
    return CoresOffset.from_json(value, identities).cores


def _batches(fs: FileSystem, directory: str) -> list[int]:
    try:
        names = fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _others(fs: FileSystem, source: str, below: str) -> Iterator[str]:
    """Yield every file that does not belong to a batch, relative to *source*."""
    try:
        names = fs.list_dir(f"{source}/{below}".rstrip("/"))
    except FileNotFoundError:
        return
    for name in names:
        path = f"{below}/{name}" if below else name
        if path in {_OFFSETS, _COMMITS} or not is_listable(path):
            continue
        try:
            fs.list_dir(f"{source}/{path}")
        except NotADirectoryError:
            yield path
        else:
            yield from _others(fs, source, path)
