"""
What a writer has in memory alone, told to those beside it: its counts, its queues, what it refused. A small file that
the writer replaces when that changed, and that `quiver aof dump` reads.

It is advisory: not synced, nothing is decided by it, and a write of it that fails harms nobody. A crash leaves the old
one, the new one, or after a loss of power anything; opening removes it, so what is there is of the last writer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import asdict, dataclass
from typing import Any

from quiver.aof.format.names import LOCK_NAME, STATUS_NAME
from quiver.aof.format.status import STATUS_BYTES_MAX, WriterState, WriterStatus, decode_status, encode_status
from quiver.aof.snapshots import LogSnapshot
from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.disk.atomic import TEMPORARY_SUFFIX, replace_advisory_file
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import holder_of, is_held
from quiver.primitives.scan import Damage, Frame

__all__ = ["STATUS_AFTER_S", "StatusFile", "StatusRead", "read_status"]

STATUS_AFTER_S = 5.0
"""How often a writer looks whether there is something new to tell."""


class StatusFile:
    """
    The status of one log, as its writer keeps it. Thread-safe; no call raises what the disk says.

    Args:
        enabled: with False nothing is written. What an earlier writer left goes all the same.
    """

    def __init__(self, fs: FileSystem, directory: str, *, clock: Clock, observer: Observer, enabled: bool) -> None:
        self._fs = fs
        self._path = f"{directory}/{STATUS_NAME}"
        self._lock_path = _lock_of(directory)
        self._clock = clock
        self._observer = observer
        self._enabled = enabled
        self._lock = threading.Lock()
        self._told: tuple[WriterState, dict[str, Any]] | None = None
        self._is_failing = False
        for path in (self._path, self._path + TEMPORARY_SUFFIX):
            with contextlib.suppress(OSError):  # it says whose it is
                fs.remove(path)

    def publish(self, snapshot: LogSnapshot, state: WriterState) -> None:
        """Replace the file if there is something new to tell."""
        told = (state, _figures(snapshot))
        with self._lock:
            if not self._enabled or told == self._told:
                return
            writer = holder_of(self._fs, self._lock_path) or ""
            data = encode_status(WriterStatus(state, writer, self._clock.now_ns(), told[1]))
            try:
                replace_advisory_file(self._fs, self._path, data)
            except OSError as error:
                if not self._is_failing:
                    self._observer.event("aof.status.failed", level=logging.WARNING, problem=str(error))
                self._is_failing = True
            else:
                self._is_failing, self._told = False, told


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


@dataclass(frozen=True, slots=True)
class StatusRead:
    """
    What a log's directory has of its writer's status, and what is known of the writer.

    Attributes:
        status: None when there is none that can be read; `problem` says why when it is there.
        is_held: whether a process of this machine has the logs open; None where that is not told.
        holder: who had them open last, as their lock says.
    """

    status: WriterStatus | None
    problem: str
    is_held: bool | None
    holder: str

    def as_dict(self, now_ns: int) -> dict[str, Any]:
        """Return the same as plain values, with its age and a sentence on what to make of it."""
        status = self.status
        return {
            "said": self._said(),
            "state": None if status is None else status.state,
            "writer": None if status is None else status.writer,
            "written_at_ns": None if status is None else status.written_at_ns,
            "age_s": None if status is None else round((now_ns - status.written_at_ns) / 1e9, 3),
            "held": self.is_held,
            "holder": self.holder,
            "problem": self.problem,
            "figures": None if status is None else status.figures,
        }

    def _said(self) -> str:
        status = self.status
        if status is None:
            ignored = f"the status file is ignored: {self.problem}" if self.problem else "no status of a writer"
            return f"{ignored}; {self.holder or 'somebody'} has the log open" if self.is_held else ignored
        if self.is_held and self.holder != status.writer:
            return f"stale: {self.holder or 'another process'} has the log open now, and tells nothing yet"
        if status.state == "closed":
            return "the last word of a writer that closed the log"
        if self.is_held is False:
            return "stale: nobody on this machine has the log open; its writer died, or could not close it"
        if status.state == "failed":
            return "the log has failed, and refuses everything until it is opened again"
        whose = (
            "told by the writer, which has the log open" if self.is_held else "whether its writer lives is not known"
        )
        return f"{whose}; told anew within seconds of a change"


def read_status(files: FileSystem, directory: str) -> StatusRead:
    """
    Read what the writer of the log in *directory* tells. Takes no lock and changes nothing.

    Raises:
        OSError: whether the log is open cannot be found out.
    """
    directory = directory.rstrip("/")
    lock_path = _lock_of(directory)
    status, problem = None, ""
    try:
        data = _first_bytes(files, f"{directory}/{STATUS_NAME}", STATUS_BYTES_MAX + 1)
    except FileNotFoundError:
        data = None
    except OSError as error:
        data, problem = None, str(error)
    if data is not None:
        answer = decode_status(memoryview(data))
        if isinstance(answer, Frame):
            status = answer.value
        elif isinstance(answer, Damage):
            problem = answer.reason
    return StatusRead(status, problem, is_held(files, lock_path), holder_of(files, lock_path) or "")


def _first_bytes(files: FileSystem, path: str, size: int) -> bytes:
    file = files.open_read(path)
    try:
        return file.pread(size, 0)
    finally:
        file.close()


def _lock_of(directory: str) -> str:
    parent = directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")
    return f"{parent}/{LOCK_NAME}"
