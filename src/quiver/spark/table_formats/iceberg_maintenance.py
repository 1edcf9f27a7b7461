"""
Maintenance of an Iceberg table: small files to combine, and files that no snapshot names.

Readers that started before are not disturbed: combined files stay until the snapshots that name them expire, and a file
without a name stays until it is older than the retention, because a writer may be about to commit it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

__all__ = ["current_files", "named_files", "rows_of", "small_files"]

FILES_MIN = 8
"""Fewer small files of a partition are left alone: combining them costs more than it saves readers."""


def small_files(iceberg: Table, target_bytes: int) -> list[list[FileScanTask]]:
    """Return groups of files to combine, each of one partition and together about as large as *target_bytes*."""
    partitions: dict[tuple[object, ...], list[FileScanTask]] = defaultdict(list)
    spec = iceberg.spec()
    for task in iceberg.scan().plan_files():
        one = task.file
        if one.spec_id == spec.spec_id and not task.delete_files and one.file_size_in_bytes < target_bytes // 2:
            partitions[tuple(one.partition[number] for number in range(len(spec.fields)))].append(task)
    return [group for tasks in partitions.values() for group in _groups(tasks, target_bytes)]


def _groups(tasks: Iterable[FileScanTask], target_bytes: int) -> Iterator[list[FileScanTask]]:
    group: list[FileScanTask] = []
    size_bytes = 0
    for task in tasks:
        group.append(task)
        size_bytes += task.file.file_size_in_bytes
        if size_bytes >= target_bytes:
            yield group
            group, size_bytes = [], 0
    if len(group) >= FILES_MIN:
        yield group


def rows_of(iceberg: Table, group: list[FileScanTask]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *group* with the current columns of the table, also where its files lack some."""
    scan = ArrowScan(iceberg.metadata, iceberg.io, iceberg.schema(), AlwaysTrue())
    yield from scan.to_record_batches(group)


def current_files(iceberg: Table) -> list[str]:
    """Return the locations of the data files of the current snapshot."""
    return [task.file.file_path for task in iceberg.scan().plan_files()]


def named_files(iceberg: Table) -> set[str]:
    """Return the locations of all files that the metadata of the table names, of all of its snapshots."""
    named = {iceberg.metadata_location}
    named |= {entry.metadata_file for entry in iceberg.metadata.metadata_log}
    named |= {one.statistics_path for one in iceberg.metadata.statistics}
    seen: set[str] = set()
    for snapshot in iceberg.snapshots():
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(iceberg.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
                named |= {entry.data_file.file_path for entry in entries}
    return named | seen
