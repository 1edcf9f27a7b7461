"""The bundles that were ingested into a store recently, read from its segments and its log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from quiver.errors import CorruptionError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.format.names import WAL_ACTIVE, WAL_DIR
from quiver.store.format.wal_entry import ENTRY_TYPE_BUNDLE, WalEntry
from quiver.store.reading.directory import StoreDirectory
from quiver.store.wal.replay import logged_entries

__all__ = ["recent_data", "sync_log"]


def recent_data(
    fs: FileSystem, root: str, since_ns: int, *, logged_since_ns: int
) -> Iterator[tuple[int, dict[int, pa.RecordBatch] | WalEntry]]:
    """
    Yield bundles of the store at *root* with their ingestion times. Damaged ones are skipped, and some come twice.

    Takes no lock: a writer may have the store open.

    Args:
        fs: the file system.
        root: the store's directory.
        since_ns: sealed bundles from this time on are yielded as slot → batch.
        logged_since_ns: bundles in the log from this time on are yielded as entries.

    Raises:
        OSError: the directory cannot be read.
    """
    directory = StoreDirectory(root, fs=fs, strict=False)
    # The log first: a bundle that is sealed in between is in both.
    for entry in logged_entries(fs, f"{root}/{WAL_DIR}") if fs.exists(f"{root}/{WAL_DIR}") else ():
        if entry.entry_type == ENTRY_TYPE_BUNDLE and entry.ingested_at_ns >= logged_since_ns:
            yield entry.ingested_at_ns, entry
    for seq in directory.segments():
        reader = directory.open_segment(seq)
        if reader is None:
            continue
        newest_ns = reader.info.ingested_max_ns
        if newest_ns is None or newest_ns >= since_ns:
            for index in range(reader.bundle_count):
                at_ns = reader.ingested_at_ns(index)
                if at_ns is not None and at_ns < since_ns:
                    continue
                try:
                    batches = reader.bundle(index)
                except CorruptionError:
                    continue
                yield since_ns if at_ns is None else at_ns, dict(batches)
        reader.close()


def sync_log(fs: FileSystem, root: str) -> None:
    """
    Make the log of the store at *root* durable. The store must not be open.

    Raises:
        OSError: the disk reported an error.
    """
    with contextlib.suppress(FileNotFoundError):  # a retired file was synced before
        file = fs.open_read(f"{root}/{WAL_DIR}/{WAL_ACTIVE}")
        try:
            file.sync_data()
        finally:
            file.close()
