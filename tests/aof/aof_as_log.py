"""Adapt an AOF2 log to the append-log contract, with settings small enough to cover every case."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from quiver.aof.config import AofConfig
from quiver.aof.format.names import parse_segment_name
from quiver.aof.format.record import scan_records
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.log import Aof
from quiver.aof.manager import AofManager
from quiver.errors import CapacityError, RolloverError, WouldBlockError
from quiver.primitives.disk.file_system import FileSystem
from quiver.testing.clock import ManualClock

ROOT = "/aof"
SEGMENTS = f"{ROOT}/orders/segments"


class TinyConfig(AofConfig):
    """Segments of 16 KiB, below what a user may ask for: a handful of records fills one."""

    segment_floor_bytes = 16 * 1024


def tiny(**changes) -> TinyConfig:
    """Return settings with one segment size, changed by *changes*."""
    sizes = {"segment_min_bytes": 1, "segment_target_bytes": 1, "segment_max_bytes": 1}
    return TinyConfig(**{**sizes, **changes})


def open_manager(fs: FileSystem, config: AofConfig | None = None, clock: ManualClock | None = None) -> AofManager:
    """Open a manager without threads, with a clock that only the test advances."""
    return AofManager.open(ROOT, config or tiny(), fs=fs, clock=clock or ManualClock(), background=False)


def payloads(log: Aof) -> list[bytes]:
    """Return every record of an open log."""
    return [bytes(record.payload) for record in log.open_reader()]


def segment_files(fs: FileSystem) -> list[str]:
    """Paths of the segments, oldest first."""
    return [f"{SEGMENTS}/{name}" for name in fs.list_dir(SEGMENTS) if parse_segment_name(name) is not None]


class PatientClock(ManualClock):
    """Stop the time while another thread, which may do the awaited work, is in `appending`.

    Otherwise a waiting thread would use up its timeout before the thread that frees space has run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._appending = 0

    @contextmanager
    def appending(self) -> Iterator[None]:
        with self._lock:
            self._appending += 1
        try:
            yield
        finally:
            with self._lock:
                self._appending -= 1

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        if self._appending > 1 and condition.wait(1.0):
            return True
        return super().wait(condition, timeout)


class AofAsLog:
    """One log of a manager, which is opened and closed with it."""

    def __init__(self, fs: FileSystem, *, rolls: bool, config: AofConfig | None = None) -> None:
        self._rolls = rolls
        self._clock = PatientClock()
        self.manager = open_manager(fs, config, self._clock)
        try:
            self.log = self.manager.log("orders")
        except BaseException:
            self.manager.close()
            raise

    def append(self, record: bytes, *, durable: bool) -> int:
        try:
            with self._clock.appending():
                record_id = self.log.append_record_with_timeout(record, 10)
        except WouldBlockError as blocked:
            raise CapacityError(str(blocked)) from blocked
        if durable:
            self.log.flush_until(record_id)
        return record_id

    def sync(self) -> None:
        self.log.flush()

    def upkeep(self) -> None:
        self._clock.advance(10)
        self.manager.maintain()
        if self._rolls:
            with suppress(RolloverError, WouldBlockError):
                self.log.force_rollover(timeout=10)

    def read(self) -> list[bytes]:
        return payloads(self.log)

    def close(self) -> None:
        self.manager.close()


def tail_of(fs: FileSystem) -> tuple[str, int]:
    """Return the file of the last record and the end of that record."""
    path = segment_files(fs)[-1]
    view = fs.map_read(path).view()
    return path, scan_records(view, HEADER_BYTES, len(view)).end
