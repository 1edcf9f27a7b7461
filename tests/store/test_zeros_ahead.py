"""
When the log asks for zeros ahead of it: for syncs that cover little, and for nobody else.
"""

from __future__ import annotations

import pyarrow as pa

from quiver import Bundle, Settings
from quiver.store.opening import open_store
from quiver.store.wal.writer import ZERO_AHEAD_SYNC_BYTES_MAX
from quiver.testing.clock import ManualClock
from quiver.testing.crashfs import CrashFileSystem


def bundle(nbytes: int) -> Bundle:
    return Bundle({30: pa.record_batch({"pad": [b"x" * nbytes]})})


def test_zeros_are_for_small_syncs() -> None:
    """
    Callers that share a sync make it large: zeros, which are synced with the entries, would be a second write of all.
    """
    small, large = bundle(100), bundle(ZERO_AHEAD_SYNC_BYTES_MAX)
    with open_store("/zeros", Settings(), files=CrashFileSystem(), clock=ManualClock(), background=False) as store:
        wal = store._wal
        asked = []
        for one, durable in [(small, False), (small, True), (small, True), (large, True), (small, True), (small, True)]:
            wal.zeros_wanted = False
            store.ingest(one, durable=durable)
            asked.append(wal.zeros_wanted)
        assert asked == [False, True, True, False, False, True]
        store.ingest(large)
        store.ingest(small, durable=True)  # shares its sync with what came before
        wal.zeros_wanted = False
        store.ingest(small, durable=True)
        assert not wal.zeros_wanted
