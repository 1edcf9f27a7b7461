"""
Human-readable descriptions of files and of their damage. Values only; nothing is read here.

Each log creates them for its own files: `describe` in its `format/` package a `Description` of one file's bytes, its
`check.py` a `Finding` for each remarkable thing in a directory. The commands print them in the same way for every log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from quiver.primitives.disk.file_system import NotRegularFileError
from quiver.primitives.scan import Answer, Damage, Frame, as_damage

__all__ = [
    "A_DIRECTORY",
    "NO_FILE_ERRORS",
    "NO_FILE_REASONS",
    "Description",
    "Finding",
    "Kind",
    "Problem",
    "no_file_reason",
    "too_large_reason",
]

Kind = Literal[
    "damaged", "torn tail", "quarantined", "left over", "other adapter", "not reached", "not read", "in objects"
]  # fmt: skip
"""The kinds of findings. Only `damaged` is bad; data that was not reached or not read may be damaged or intact."""


A_DIRECTORY = "a directory is in the place of a file: move it away; its contents do not belong to the log"
"""The finding for a directory under the name of a file. Only an operator knows its purpose, so it stays unchanged."""

_NOT_REGULAR = "a pipe, a socket or a device is in the place of a file: move it away; it was not read"

NO_FILE_ERRORS = (IsADirectoryError, NotRegularFileError)
"""The errors of a file system when the path of a file names something else."""

NO_FILE_REASONS = frozenset({A_DIRECTORY, _NOT_REGULAR})
"""All values that `no_file_reason` returns."""


def too_large_reason(size_max: int) -> str:
    """Return what to report of a file that was not read because no valid one has more than *size_max* bytes."""
    return f"too large: a valid file has at most {size_max} bytes; it was not read"


def no_file_reason(error: OSError) -> str:
    """Return what to report when opening a file fails with one of `NO_FILE_ERRORS`."""
    return A_DIRECTORY if isinstance(error, IsADirectoryError) else _NOT_REGULAR


@dataclass(frozen=True, slots=True)
class Problem:
    """
    A problem at byte `offset`.

    `level` is "damage" if bytes are not what was written, "warning" if a reader continues regardless.
    """

    offset: int
    reason: str
    level: Literal["damage", "warning"] = "damage"


@dataclass(slots=True)
class Description:
    """
    The contents of a file. All values are JSON values.

    Attributes:
        name: as given.
        kind: the kind of the file; "unknown" if the log has no such files.
        size_bytes: its length.
        version: of its format; None if it cannot be read.
        fields: name → value, in the order of the file.
        tables: name → rows; at most as many rows as requested.
        problems: in the order of their offsets.
    """

    name: str
    kind: str
    size_bytes: int
    version: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """Return whether nothing is damaged; warnings do not count."""
        return all(problem.level == "warning" for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists, ready for `json.dumps`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "size_bytes": self.size_bytes,
            "version": self.version,
            "intact": self.is_intact,
            "fields": self.fields,
            "tables": self.tables,
            "problems": [
                {"offset": problem.offset, "level": problem.level, "reason": problem.reason}
                for problem in self.problems
            ],
        }

    def accept(self, answer: Answer[Any]) -> Any | None:
        """Return the value of *answer*, or record the problem and return None."""
        if isinstance(answer, Frame):
            return answer.value
        self.note(as_damage(answer, self.size_bytes))
        return None

    def note(self, problem: Damage | None) -> None:
        """Record the damage, if there is any."""
        if problem is not None:
            self.problems.append(Problem(problem.offset, problem.reason))


@dataclass(frozen=True, slots=True)
class Finding:
    """A remarkable thing about a file: where, what kind, and the details. Only `damaged` is bad."""

    path: str
    offset: int
    kind: Kind
    reason: str

    @property
    def damaged(self) -> bool:
        """Return whether bytes are not what was written."""
        return self.kind == "damaged"

    @property
    def unread(self) -> bool:
        """Return whether there is data that was not checked."""
        return self.kind in {"not reached", "not read"}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"path": self.path, "offset": self.offset, "kind": self.kind, "reason": self.reason}
