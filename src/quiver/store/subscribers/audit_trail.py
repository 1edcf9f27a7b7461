"""
The audit trail on disk: the outcome of each bundle for each subscriber, with time and reason.

Outcomes are collected in memory. `write` writes them before the progress that includes them is saved. So everything
that is in progress is in the trail, and after a crash an outcome may be there twice. The trail never blocks progress:
lines that the disk refuses are counted and discarded.

The trail has two files, each with half of the allowed size. When the current one is full it replaces the previous one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator

from quiver.clock import Clock
from quiver.observe import Observer
from quiver.primitives.disk.file_system import File, FileSystem
from quiver.store.format.audit import (
    AUDIT_RANGES_MAX,
    AuditOutcome,
    AuditRecord,
    decode_audit,
    encode_audit_record,
    ranges_of,
)
from quiver.store.format.names import AUDIT_PREVIOUS, AUDIT_TRAIL

__all__ = ["AuditTrail", "read_audit"]

_NOTED_MAX = 100_000
"""Outcomes kept in memory until they are written; beyond this many the oldest are discarded and counted."""

_READ_BYTES_MAX = 1 << 32


class AuditTrail:
    """
    Writes the trail. One thread at a time may add outcomes, and another call `write` and `close`.

    Args:
        fs: the file system.
        root: the store's directory.
        bytes_max: the maximum size of both files together.
        clock: supplies the time of each outcome.
        observer: receives losses.
    """

    def __init__(self, fs: FileSystem, root: str, *, bytes_max: int, clock: Clock, observer: Observer) -> None:
        self._fs = fs
        self._root = root
        self._path = f"{root}/{AUDIT_TRAIL}"
        self._file_bytes_max = bytes_max // 2
        self._clock = clock
        self._observer = observer
        self._noted: deque[AuditRecord] = deque(maxlen=_NOTED_MAX)
        self._noted_count = 0
        self._written_count = 0
        self._file: File | None = None
        self._size = 0

    def resolved(self, subscriber: str, segment: int, index: int, outcome: AuditOutcome, why: str = "") -> None:
        """Add the outcome of one bundle."""
        self._note(AuditRecord(self._clock.now_ns(), subscriber, segment, ((index, index),), outcome, why))

    def resolved_many(self, subscriber: str, segment: int, bits: int, outcome: AuditOutcome, why: str = "") -> None:
        """Add the outcome of the bundles whose bits are set."""
        ranges = ranges_of(bits)
        for first in range(0, len(ranges), AUDIT_RANGES_MAX):
            part = ranges[first : first + AUDIT_RANGES_MAX]
            self._note(AuditRecord(self._clock.now_ns(), subscriber, segment, part, outcome, why))

    def dropped(self, subscriber: str, segment: int, bits: int, *, why: str) -> None:
        """Add that the bundles whose bits are set will never be delivered."""
        self.resolved_many(subscriber, segment, bits, "dropped", why)

    def _note(self, record: AuditRecord) -> None:
        self._noted.append(record)
        self._noted_count += 1

    def write(self) -> None:
        """Write the collected outcomes, durable on return. If the disk refuses, only these lines are lost."""
        lines: list[bytes] = []
        while self._noted:
            lines.append(encode_audit_record(self._noted.popleft()))
        lost = self._noted_count - self._written_count - len(lines)
        self._written_count = self._noted_count
        try:
            for part in self._parts(lines):
                self._append(part)
        except OSError as error:
            self._forget_file()
            lost += len(lines)
            self._observer.event("quiver.subscriber.audit", level=logging.ERROR, problem=str(error), lost_lines=lost)
        if lost > 0:
            self._observer.count("quiver.subscriber.audit_lost_lines_total", lost)

    def _parts(self, lines: list[bytes]) -> Iterator[bytes]:
        """Join lines into parts that each fit in a file."""
        part: list[bytes] = []
        size = 0
        for line in lines:
            if part and size + len(line) >= self._file_bytes_max:
                yield b"".join(part)
                part, size = [], 0
            part.append(line)
            size += len(line)
        if part:
            yield b"".join(part)

    def _append(self, data: bytes) -> None:
        file = self._opened()
        if self._size and self._size + len(data) > self._file_bytes_max:
            file = self._rotated()
        file.pwrite(data, self._size)
        file.sync_data()
        self._size += len(data)

    def _opened(self) -> File:
        if self._file is not None:
            return self._file
        if self._fs.exists(self._path):
            self._file = self._fs.open_write(self._path)
            self._size = self._file.size()
            if self._size and self._file.pread(1, self._size - 1) != b"\n":
                self._file.pwrite(b"\n", self._size)  # terminate a line that a crash truncated
                self._size += 1
        else:
            self._file = self._fs.create(self._path)
            self._size = 0
            self._fs.sync_dir(self._root)
        return self._file

    def _rotated(self) -> File:
        self._forget_file()
        self._fs.rename(self._path, f"{self._root}/{AUDIT_PREVIOUS}")
        return self._opened()

    def _forget_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the file."""
        self._forget_file()


def read_audit(fs: FileSystem, root: str) -> Iterator[AuditRecord]:
    """
    Iterate over the trail of the store at *root*, oldest first; empty if there is none.

    Raises:
        OSError: a file cannot be read.
    """
    for name in (AUDIT_PREVIOUS, AUDIT_TRAIL):
        try:
            data = fs.read_all(f"{root}/{name}", size_max=_READ_BYTES_MAX)
        except FileNotFoundError:
            continue
        yield from decode_audit(data)
