"""
The status file of an open log: counts, queues and refusals, which the writer has only in memory.

The writer replaces the file when they change; `reading/status.py` and `quiver aof dump` read it. The file is advisory:
it is not synced, nothing depends on it, and a failed write does no harm. After a crash it is the old one or the new
one, after a power loss it may hold anything. Opening the log removes it, so it always belongs to the last writer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import asdict
from typing import Any

from quiver.aof.format.names import STATUS_NAME
from quiver.aof.format.status import WriterState, WriterStatus, encode_status
from quiver.aof.reading.status import lock_path_of
from quiver.aof.snapshots import LogSnapshot
from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, replace_advisory_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import holder_of

__all__ = ["STATUS_AFTER_S", "StatusFile"]

STATUS_AFTER_S = 5.0
"""How often a writer checks whether its status has changed."""


class StatusFile:
    """
    Publish the status of one log for its writer. Thread-safe; errors of the disk are logged, not raised.

    Args:
        enabled: with False nothing is written. The file of an earlier writer is removed either way.
    """

    def __init__(self, fs: FileSystem, directory: str, *, clock: Clock, observer: Observer, enabled: bool) -> None:
        self._fs = fs
        self._path = f"{directory}/{STATUS_NAME}"
        self._lock_path = lock_path_of(directory)
        self._clock = clock
        self._observer = observer
        self._enabled = enabled
        self._lock = threading.Lock()
        self._published: tuple[WriterState, dict[str, Any]] | None = None
        self._is_failing = False
        for path in (self._path, self._path + TEMPORARY_SUFFIX):
            with contextlib.suppress(OSError):  # the file names its writer
                fs.remove(path)

    def publish(self, snapshot: LogSnapshot, state: WriterState) -> None:
        """Replace the file if the status has changed."""
        current = (state, _figures(snapshot))
        with self._lock:
            if not self._enabled or current == self._published:
                return
            writer = holder_of(self._fs, self._lock_path) or ""
            data = encode_status(WriterStatus(state, writer, self._clock.now_ns(), current[1]))
            try:
                replace_advisory_file(self._fs, self._path, data)
            except OSError as error:
                if not self._is_failing:
                    self._observer.event("aof.status.failed", level=logging.WARNING, problem=str(error))
                self._is_failing = True
            else:
                self._is_failing, self._published = False, current


def _figures(snapshot: LogSnapshot) -> dict[str, Any]:
    tiers = None if snapshot.tiers is None else snapshot.tiers.as_dict()
    return {
        "records": snapshot.record_count,
        "appended_records": snapshot.appended_records,
        "appended_bytes": snapshot.appended_bytes,
        "backlog_bytes": snapshot.backlog_bytes,
        "flush_failed": snapshot.flush_failed,
        "disk_full": snapshot.disk_full,
        "sealed": sum(one.state == "sealed" for one in snapshot.segments),
        "spares": snapshot.spares,
        "coordinator_watermark": snapshot.coordinator_watermark,
        "ext_id": snapshot.ext_id,
        "truncated_bytes": snapshot.truncated_bytes,
        "quarantined": len(snapshot.quarantined),
        "would_block": snapshot.would_block,
        "flush": asdict(snapshot.flush),
        "queues": {
            "seal": sum(one.state == "pending" for one in snapshot.segments),
            **({} if tiers is None else tiers["queues"]),
        },
        "upload_lag_bytes": 0 if snapshot.tiers is None else snapshot.tiers.upload_lag_bytes,
        "tiers": None if tiers is None else tiers["counts"],
    }
