"""
What an operator skipped for one subscriber: a drop ledger of its own, `quiver.drops.<id>`.

It is written before the progress moves past what it names. Whoever holds the subscriber's lock writes it, so it does
not meet the store's ledger, which the store has in memory.
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
    Return what was skipped for *subscriber*, ascending by segment; nothing where there is no ledger.

    Raises:
        CorruptionError: the ledger is not what was written.
        UsageError: not a valid id.
    """
    path = f"{root}/{skip_ledger_name(subscriber)}"
    return read_checked(fs, path, decode_drop_ledger, DROP_LEDGER_BYTES_MAX) or ()


def record_skipped(fs: FileSystem, root: str, subscriber: str, entries: Sequence[DroppedSegment]) -> None:
    """
    Add *entries* to the ledger of *subscriber*, whose lock the caller holds. Durable on return.

    A segment that was skipped before is named once, as it was last. The oldest make room for new ones.

    Raises:
        CorruptionError: the ledger is not what was written.
        OSError: the disk refused; it is what it was.
    """
    if not entries:
        return
    known = {entry.seq: entry for entry in load_skipped(fs, root, subscriber)}
    known |= {entry.seq: entry for entry in entries}
    newest = sorted(known.values(), key=lambda entry: (entry.dropped_at_ns, entry.seq))[-DROP_ENTRIES_MAX:]
    replace_file(fs, f"{root}/{skip_ledger_name(subscriber)}", encode_drop_ledger(newest))
