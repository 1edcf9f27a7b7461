"""
The kinds of files of one log: how each is recognized, described and bounded. Bytes only.

Each log has one `FileFormat` in its `format/describe.py`. A new kind of file is one line in that table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quiver.primitives.findings import Description, Problem

__all__ = ["LIST_BYTES_MAX", "LOG_BYTES_MAX", "NOTE_BYTES_MAX", "UNKNOWN", "FileFormat", "FileKind"]

ROWS_MAX = 1000

UNKNOWN = "unknown"
"""The kind of a file that does not belong to the log."""

NOTE_BYTES_MAX = 1 << 20
"""Of a file with a few values."""
LIST_BYTES_MAX = 1 << 30
"""Of a file with an entry for each segment, bundle or file."""
LOG_BYTES_MAX = 4 << 30
"""Of a file with data."""


class FileKind(NamedTuple):
    """A kind of file: adds its contents to a description; *size_max* bounds what is read of it."""

    describe: Callable[[Description, memoryview, int], None]
    size_max: int = NOTE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class FileFormat:
    """
    All kinds of files of one log.

    Attributes:
        log: the log, as in "a file of a store".
        kind_of: returns the kind of a file from its name and the bytes at its start and end, or `UNKNOWN`. Without a
            name, the bytes alone decide.
        kinds: kind → how to describe it.
    """

    log: str
    kind_of: Callable[[str, memoryview], str]
    kinds: Mapping[str, FileKind]

    def size_max(self, kind: str) -> int:
        """Return the maximum size of a file of *kind*."""
        return self.kinds[kind].size_max

    def describe(self, name: str, data: memoryview, *, rows_max: int = ROWS_MAX) -> Description:
        """
        Describe the file *name* with the contents *data*. Never raises, for any bytes.

        *rows_max* limits the rows of each table; counts in `fields` always cover the complete file.
        """
        view = data.cast("B")
        kind = self.kind_of(name, view)
        found = Description(name, kind, len(view))
        if kind == UNKNOWN:
            found.problems.append(Problem(0, f"neither the magic nor the name belongs to a file of {self.log}"))
        else:
            self.kinds[kind].describe(found, view, rows_max)
            found.problems.sort(key=lambda problem: problem.offset)
            if any("magic" in problem.reason for problem in found.problems):
                found.version = None  # the bytes at its place may be anything
        return found
