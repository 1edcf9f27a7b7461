"""
The trail of outcomes on disk: what became of each bundle, for whom, when, and why.

Outcomes are noted in memory and written by `write`, before the progress that they are part of is saved: whatever
progress says is in the trail, and after a crash an outcome may stand there twice. The trail never holds anything up.
What a disk refuses is counted and forgotten; progress goes on.

Two files, each half of the size allowed: when the one is full it takes the place of the other.
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
    AuditRecord,
    Outcome,
    decode_audit,
    encode_audit_record,
    ranges_of,
)
from quiver.store.format.names import AUDIT_PREVIOUS, AUDIT_TRAIL

__all__ = ["AuditTrail", "read_audit"]

_NOTED_MAX = 100_000
"""Outcomes kept in memory when nobody writes them; the oldest go, counted."""

_READ_BYTES_MAX = 1 << 32


class AuditTrail:
    """
    The writer. `resolved` and `dropped` are called by one thread at a time; so are `write` and `close`, by another.

    Args:
        fs: the file system.
        root: the store's directory.
        bytes_max: both files together never take more.
        clock: tells when.
        observer: told what could not be kept.
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

    def resolved(self, subscriber: str, segment: int, index: int, outcome: Outcome, why: str = "") -> None:
        """Note what a consumer decided about one bundle."""
        self._note(AuditRecord(self._clock.now_ns(), subscriber, segment, ((index, index),), outcome, why))

    def dropped(self, subscriber: str, segment: int, bits: int, *, why: str) -> None:
        """Note that the bundles whose bits are set will never be delivered."""
        ranges = ranges_of(bits)
        for first in range(0, len(ranges), AUDIT_RANGES_MAX):
            part = ranges[first : first + AUDIT_RANGES_MAX]
            self._note(AuditRecord(self._clock.now_ns(), subscriber, segment, part, "dropped", why))

    def _note(self, record: AuditRecord) -> None:
        self._noted.append(record)
        self._noted_count += 1

    def write(self) -> None:
        """Write what was noted, durable on return. A disk that refuses costs these lines and nothing else."""
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
        """Join lines into pieces of which each fits a file."""
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
                self._file.pwrite(b"\n", self._size)  # the end of a line that a crash cut short
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
        """Let go of the file."""
        self._forget_file()


def read_audit(fs: FileSystem, root: str) -> Iterator[AuditRecord]:
    """
    Iterate over the trail of the store at *root*, oldest first; empty where none is kept.

    Raises:
        OSError: a file cannot be read.
    """
    for name in (AUDIT_PREVIOUS, AUDIT_TRAIL):
        try:
            data = fs.read_all(f"{root}/{name}", size_max=_READ_BYTES_MAX)
        except FileNotFoundError:
            continue
        yield from decode_audit(data)
