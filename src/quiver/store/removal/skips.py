"""
The segments that an operator skipped for one subscriber: a separate drop ledger, `quiver.drops.<id>`.

It is written before the progress moves past the segments in it. The holder of the subscriber's lock writes it, so it
does not conflict with the store's ledger, which the store keeps in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver.primitives.disk.atomic import replace_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.small_file import read_checked
from quiver.store.format.drop_ledger import (
    DROP_ENTRIES_MAX,
    DROP_LEDGER_BYTES_MAX,
    DroppedSegment,
    decode_drop_ledger,
    encode_drop_ledger,
)
from quiver.store.format.names import skip_ledger_name

__all__ = ["load_skipped", "record_skipped"]


def load_skipped(fs: FileSystem, root: str, subscriber: str) -> tuple[DroppedSegment, ...]:
    """
    Return the segments skipped for *subscriber*, ascending; empty without a ledger.

    Raises:
        CorruptionError: the ledger is damaged.
        UsageError: *subscriber* is not a valid id.
    """
    path = f"{root}/{skip_ledger_name(subscriber)}"
    return read_checked(fs, path, decode_drop_ledger, DROP_LEDGER_BYTES_MAX) or ()


def record_skipped(fs: FileSystem, root: str, subscriber: str, entries: Sequence[DroppedSegment]) -> None:
    """
    Add *entries* to the ledger of *subscriber*, durable on return. The caller must hold its lock.

    A segment that was skipped before keeps only its latest entry. The oldest entries are removed for new ones.

    Raises:
        CorruptionError: the ledger is damaged.
        OSError: the disk refused; the ledger is unchanged.
    """
    if not entries:
        return
    known = {entry.seq: entry for entry in load_skipped(fs, root, subscriber)}
    known |= {entry.seq: entry for entry in entries}
    newest = sorted(known.values(), key=lambda entry: (entry.dropped_at_ns, entry.seq))[-DROP_ENTRIES_MAX:]
    replace_file(fs, f"{root}/{skip_ledger_name(subscriber)}", encode_drop_ledger(newest))
