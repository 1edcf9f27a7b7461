"""A progress line on the terminal during operations that take longer than two seconds."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self, TextIO, cast

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.primitives.disk.file_system import File, FileSystem, Mapping

__all__ = ["QUIET_S", "ProgressDisplay"]

QUIET_S = 2.0
"""Shorter operations show no progress."""

_EVERY_S = 0.25
_WIDTH = 100


class ProgressDisplay:
    """
    One line that is overwritten and cleared at the end. Without a terminal, nothing is printed.

    Args:
        what: the operation, such as `reading`.
        clock: the source of time.
        stream: the terminal; None: standard error.
    """

    def __init__(self, what: str, *, clock: Clock = SYSTEM_CLOCK, stream: TextIO | None = None) -> None:
        self._what = what
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._started = clock.monotonic()
        self._reported_at: float | None = None
        self._count = 0

    def __call__(self, where: str) -> None:
        """Show that *where* is being processed."""
        self._count += 1
        now = self._clock.monotonic()
        if now - self._started < QUIET_S or not self._stream.isatty():
            return
        if self._reported_at is not None and now - self._reported_at < _EVERY_S:
            return
        self._reported_at = now
        line = f"{self._what}: {self._count:,}, {now - self._started:.0f} s, {where}"
        self._stream.write("\r" + line[:_WIDTH].ljust(_WIDTH))
        self._stream.flush()

    def fs(self, fs: FileSystem) -> FileSystem:
        """Return *fs* wrapped so that opening a file shows progress."""
        return cast("FileSystem", _TrackedFileSystem(fs, self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reported_at is not None:
            self._stream.write("\r" + " " * _WIDTH + "\r")
            self._stream.flush()


class _TrackedFileSystem:
    """A file system that shows the opened file as progress."""

    def __init__(self, fs: FileSystem, progress: ProgressDisplay) -> None:
        self._fs = fs
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def open_read(self, path: str) -> File:
        self._progress(path)
        return self._fs.open_read(path)

    def create(self, path: str, *, mode: int = 0o600) -> File:
        self._progress(path)
        return self._fs.create(path, mode=mode)

    def map_read(self, path: str) -> Mapping:
        self._progress(path)
        return self._fs.map_read(path)
