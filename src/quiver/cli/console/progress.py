"""Progress on the terminal during operations that take longer than two seconds: a line, or a bar with the time left."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from quiver.cli.console.output import human_age
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.primitives.disk.file_system import File, FileSystem, Mapping

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["QUIET_S", "ProgressDisplay"]

QUIET_S = 2.0
"""Shorter operations show no progress."""

_EVERY_S = 0.25
_WIDTH = 100
_NAME_CHARS_MAX = 40


class ProgressDisplay:
    """
    A line that is overwritten and cleared at the end. Without a terminal, nothing is printed.

    Args:
        what: the operation, such as `reading`.
        of: the directories or files that are processed once, one file after the other: their bytes are the whole, and
            a bar shows the part that is done and the time left. None: the whole is unknown.
        clock: the source of time.
        stream: the terminal; None: standard error.
    """

    def __init__(
        self,
        what: str,
        *,
        of: Sequence[str | Path] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        stream: TextIO | None = None,
    ) -> None:
        self._what = what
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._started = clock.monotonic()
        self._reported_at: float | None = None
        self._count = 0
        self._whole = None if of is None else _Whole(of)
        self._bar: _Bar | None = None

    def __call__(self, where: str) -> None:
        """Show that *where* is being processed."""
        self._count += 1
        if self._whole is not None:
            self._whole.reach(where)
        now = self._clock.monotonic()
        if now - self._started < QUIET_S or not self._stream.isatty():
            return
        if self._reported_at is not None and now - self._reported_at < _EVERY_S:
            return
        self._reported_at = now
        if self._whole is not None and self._whole.total_bytes():
            self._bar = self._bar or _Bar(self._what, self._stream, self._clock, self._started)
            self._bar.show(self._whole.done_bytes, self._whole.total_bytes(), where)
            return
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
        if self._bar is not None:
            self._bar.clear()
        elif self._reported_at is not None:
            self._stream.write("\r" + " " * _WIDTH + "\r")
            self._stream.flush()


class _Whole:
    """The bytes of some files, and how many of them were processed. Sizes are read when a bar is shown."""

    def __init__(self, places: Sequence[str | Path]) -> None:
        self._places = places
        self._reached: dict[str, None] = {}
        self._sizes: dict[str, int] | None = None

    def reach(self, where: str) -> None:
        """Record that *where* is being processed: everything before it is done."""
        self._reached.setdefault(str(Path(where).absolute()))

    def total_bytes(self) -> int:
        """The bytes of all files; those that appear later are not counted."""
        if self._sizes is None:
            self._sizes = {}
            for place in self._places:
                paths = [Path(place)] if Path(place).is_file() else sorted(Path(place).rglob("*"))
                for path in paths:
                    try:
                        self._sizes[str(path.absolute())] = path.stat().st_size if path.is_file() else 0
                    except OSError:
                        continue  # removed meanwhile
        return sum(self._sizes.values())

    @property
    def done_bytes(self) -> int:
        """The bytes of the files that were processed, without the current one."""
        sizes = self._sizes or {}
        return sum(sizes.get(path, 0) for path in list(self._reached)[:-1])


class _Bar:
    """A bar of `rich`, which is imported when the first one is shown."""

    def __init__(self, what: str, stream: TextIO, clock: Clock, started_s: float) -> None:
        from rich.console import Console  # noqa: PLC0415 - takes 20 ms, and few operations are long
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn  # noqa: PLC0415

        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[name]}", markup=False),
            console=Console(file=stream, force_terminal=True, width=_WIDTH),
            auto_refresh=False,
            transient=True,
            get_time=clock.monotonic,
        )
        self._task: TaskID = self._progress.add_task(what, total=None, name="", left="")
        self._clock = clock
        self._started_s = started_s
        self._progress.start()

    def show(self, done: int, total: int, where: str) -> None:
        """Show that *done* of *total* bytes are processed, and *where* is next."""
        name = where if len(where) <= _NAME_CHARS_MAX else f"…{where[-_NAME_CHARS_MAX:]}"
        # The estimate of `rich` begins with the bar; this one includes the time before it was shown.
        elapsed_s = self._clock.monotonic() - self._started_s
        left = f"{human_age(elapsed_s * (total - done) / done)} left" if done else ""
        self._progress.update(self._task, completed=done, total=total, name=name, left=left, refresh=True)

    def clear(self) -> None:
        """Remove the bar from the terminal."""
        self._progress.stop()


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
