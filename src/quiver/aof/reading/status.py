"""
The status that a log's writer publishes, read from outside.

The status is advisory: it may be old, damaged or missing. `StatusRead` adds whether a process has the log open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quiver.aof.format.names import LOCK_NAME, STATUS_NAME
from quiver.aof.format.status import STATUS_BYTES_MAX, WriterStatus, decode_status
from quiver.primitives.disk.file_system import FileSystem
from quiver.primitives.disk.lock import holder_of, is_held
from quiver.primitives.scan import Damage, Frame

__all__ = ["StatusRead", "lock_path_of", "read_status"]


@dataclass(frozen=True, slots=True)
class StatusRead:
    """
    The status of a log's writer, and whether that writer is alive.

    Attributes:
        status: None when there is no readable one; if the file is there, `problem` has the reason.
        is_held: whether a process of this machine has the logs open; None where the system cannot find out.
        holder: the process that opened them last, according to their lock.
    """

    status: WriterStatus | None
    problem: str
    is_held: bool | None
    holder: str

    def as_dict(self, now_ns: int) -> dict[str, Any]:
        """Return the fields as plain values, with the age of the status and its meaning in a sentence."""
        status = self.status
        return {
            "meaning": self._meaning(),
            "state": None if status is None else status.state,
            "writer": None if status is None else status.writer,
            "written_at_ns": None if status is None else status.written_at_ns,
            "age_s": None if status is None else round((now_ns - status.written_at_ns) / 1e9, 3),
            "held": self.is_held,
            "holder": self.holder,
            "problem": self.problem,
            "figures": None if status is None else status.figures,
        }

    def _meaning(self) -> str:
        status = self.status
        if status is None:
            ignored = f"the status file is ignored: {self.problem}" if self.problem else "no status of a writer"
            return f"{ignored}; {self.holder or 'a process'} has the log open" if self.is_held else ignored
        if self.is_held and self.holder != status.writer:
            return f"stale: {self.holder or 'another process'} has the log open now and has not published yet"
        if status.state == "closed":
            return "final: the writer has closed the log"
        if self.is_held is False:
            return "stale: no process on this machine has the log open; its writer died or could not close it"
        if status.state == "failed":
            return "the log has failed and refuses every call until it is opened again"
        writer = "the writer has the log open" if self.is_held else "it is not known whether the writer is alive"
        return f"{writer}; published again within seconds of a change"


def read_status(fs: FileSystem, directory: str) -> StatusRead:
    """
    Read the status that the writer of the log in *directory* published. Takes no lock and changes nothing.

    Raises:
        OSError: the lock cannot be read, so it is unknown whether the log is open.
    """
    directory = directory.rstrip("/")
    lock_path = lock_path_of(directory)
    status, problem = None, ""
    try:
        data = _first_bytes(fs, f"{directory}/{STATUS_NAME}", STATUS_BYTES_MAX + 1)
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
    return StatusRead(status, problem, is_held(fs, lock_path), holder_of(fs, lock_path) or "")


def _first_bytes(fs: FileSystem, path: str, size: int) -> bytes:
    file = fs.open_read(path)
    try:
        return file.pread(size, 0)
    finally:
        file.close()


def lock_path_of(directory: str) -> str:
    """Return the path of the lock that protects the log in *directory*: all logs next to each other share one."""
    parent = directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")
    return f"{parent}/{LOCK_NAME}"
