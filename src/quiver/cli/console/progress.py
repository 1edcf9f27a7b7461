"""A word on the terminal while something takes long. Nothing is said before two seconds have passed."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self, TextIO, cast

from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.primitives.disk.file_system import File, FileSystem, Mapping

__all__ = ["QUIET_S", "Progress"]

QUIET_S = 2.0
"""Who waits no longer than this needs no word."""

_EVERY_S = 0.25
_WIDTH = 100


class Progress:
    """
    One line that is written over, on standard error, and wiped at the end. Nothing where that is no terminal.

    Args:
        what: what is being done: `reading`.
        clock: where time comes from.
        stream: where the line goes; standard error when None.
    """

    def __init__(self, what: str, *, clock: Clock = SYSTEM_CLOCK, stream: TextIO | None = None) -> None:
        self._what = what
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._started = clock.monotonic()
        self._said_at: float | None = None
        self._count = 0

    def __call__(self, where: str) -> None:
        """Take note that *where* is being worked on."""
        self._count += 1
        now = self._clock.monotonic()
        if now - self._started < QUIET_S or not self._stream.isatty():
            return
        if self._said_at is not None and now - self._said_at < _EVERY_S:
            return
        self._said_at = now
        line = f"{self._what}: {self._count:,}, {now - self._started:.0f} s, {where}"
        self._stream.write("\r" + line[:_WIDTH].ljust(_WIDTH))
        self._stream.flush()

    def fs(self, fs: FileSystem) -> FileSystem:
        """Return *fs*, of which this takes note whenever one is opened."""
        return cast("FileSystem", _ToldFiles(fs, self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._said_at is not None:
            self._stream.write("\r" + " " * _WIDTH + "\r")
            self._stream.flush()


class _ToldFiles:
    """A file system that says which file is worked on."""

    def __init__(self, fs: FileSystem, progress: Progress) -> None:
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
