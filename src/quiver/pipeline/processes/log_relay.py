"""
Lines of log files of child processes, passed on to standard output: all of them, or the important ones.

A child writes to its file, whoever reads it: a reader that is slow or gone cannot stop a child. So lines are read from
the files.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from quiver.clock import SYSTEM_CLOCK

__all__ = ["TEXT_FORMAT", "JsonFormatter", "LogFormat", "LogLine", "LogRelay", "as_json", "parse_line"]

LogFormat = Literal["text", "json"]

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
"""The format of the lines that children write."""

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) +([\w.]+) (.*)")
_READ_BYTES_MAX = 1 << 20
_LINE_CHARS_MAX = 8192
_IMPORTANT = frozenset({"WARNING", "ERROR", "CRITICAL"})


class LogLine(NamedTuple):
    """A line of a log; `level` and `logger` are empty, and `time` is None, if it continues the line before it."""

    time: datetime.datetime | None
    level: str
    logger: str
    message: str


def parse_line(text: str) -> LogLine:
    """Return the parts of a line in the format of the children; other lines are a message only."""
    match = _LINE.fullmatch(text)
    if match is None:
        return LogLine(None, "", "", text)
    moment, milliseconds, level, logger, message = match.groups()
    time = datetime.datetime.fromisoformat(f"{moment}.{milliseconds}").astimezone()
    return LogLine(time, level, logger, message)


def as_json(line: LogLine, process: str) -> str:
    """Return *line* as one JSON object: `time`, `level`, `process`, `logger` and `message`."""
    time = line.time or datetime.datetime.fromtimestamp(SYSTEM_CLOCK.now_ns() / 1e9, tz=datetime.UTC).astimezone()
    values = {
        "time": time.isoformat(timespec="milliseconds"),
        "level": (line.level or "INFO").lower(),
        "process": process,
        "logger": line.logger,
        "message": line.message,
    }
    return json.dumps({key: value for key, value in values.items() if value}, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """Formats records of this process like `as_json`; a traceback is a part of the message."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one JSON object."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        time = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC).astimezone()
        return as_json(LogLine(time, record.levelname, record.name, message), self._process)


class LogRelay:
    """
    Passes on the lines that are appended to log files after it was created.

    Args:
        write: called with each line, without its end.
        everything: pass on all lines; otherwise warnings and errors of this package, with the lines that continue them.
        log_format: the format of the lines that are passed on.
    """

    def __init__(self, write: Callable[[str], None], *, everything: bool, log_format: LogFormat) -> None:
        self._write = write
        self._everything = everything
        self._format = log_format
        self._ends: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}
        self._levels: dict[str, str] = {}

    def start(self, files: Mapping[str, Path]) -> None:
        """Begin at the current ends of *files*, which are log files by the names of their processes."""
        for name, path in files.items():
            self._ends.setdefault(name, _size_of(path))

    def look(self, files: Mapping[str, Path]) -> None:
        """Pass on complete lines that were appended since the last call. A file that cannot be read is skipped."""
        for name, path in files.items():
            with contextlib.suppress(OSError):
                for line in self._appended(name, path):
                    self._pass_on(name, line)

    def _appended(self, name: str, path: Path) -> list[str]:
        start = self._ends.get(name, 0)
        size = _size_of(path)
        if size < start:  # rotated: the file begins again
            start, self._rests[name] = 0, b""
        if size == start:
            return []
        with path.open("rb") as file:
            file.seek(start)
            data = self._rests.get(name, b"") + file.read(_READ_BYTES_MAX)
            self._ends[name] = file.tell()
        *lines, rest = data.split(b"\n")
        self._rests[name] = rest[-_READ_BYTES_MAX:]
        return [line.decode(errors="replace")[:_LINE_CHARS_MAX] for line in lines]

    def _pass_on(self, name: str, text: str) -> None:
        line = parse_line(text)
        level = line.level or self._levels.get(name, "")
        self._levels[name] = level
        if not self._everything and not (level in _IMPORTANT and text.strip()):
            return
        if self._format == "json":
            self._write(as_json(line._replace(level=level), name))
        else:
            self._write(f"{name}: {text}" if not self._everything else f"{name:<8} {text}")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
