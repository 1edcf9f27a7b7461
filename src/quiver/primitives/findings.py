"""
What is told to people about files: what one holds, and what is wrong with it. Values only; nothing is read here.

Each log makes them of its own files: `describe` in its `format/` room a `Description` of one file's bytes, its
`check.py` a `Finding` for each thing worth saying about a directory. The command prints them, of whichever log.
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
"""What a finding is. Only `damaged` is bad; of what was not reached or not read nobody knows whether it is."""


A_DIRECTORY = "a directory lies where a file belongs: move it away; what is in it is none of this"
"""What is said of a name that is a directory's. Nobody but a person knows what that is, so nothing is done about it."""

_NOT_REGULAR = "a pipe, a socket or a device lies where a file belongs: move it away; it was not read"

NO_FILE_ERRORS = (IsADirectoryError, NotRegularFileError)
"""How a file system answers when the path of a file names something else."""

NO_FILE_REASONS = frozenset({A_DIRECTORY, _NOT_REGULAR})
"""All that `no_file_reason` returns."""


def too_large_reason(size_max: int) -> str:
    """Return what to report of a file that was not read because no valid one has more than *size_max* bytes."""
    return f"too large: a valid file has at most {size_max} bytes; it was not read"


def no_file_reason(error: OSError) -> str:
    """Return what to report when opening a file fails with one of `NO_FILE_ERRORS`."""
    return A_DIRECTORY if isinstance(error, IsADirectoryError) else _NOT_REGULAR


@dataclass(frozen=True, slots=True)
class Problem:
    """
    Something wrong at byte `offset`.

    `level` is "damage" when bytes are not what was written, "warning" when a reader goes on regardless.
    """

    offset: int
    reason: str
    level: Literal["damage", "warning"] = "damage"


@dataclass(slots=True)
class Description:
    """
    What a file holds. All values are those of JSON.

    Attributes:
        name: as given.
        kind: which file it is; "unknown" when the log that was asked does not keep such a file.
        size_bytes: its length.
        version: of its format; None when it cannot be read.
        fields: name → value, in the order of the file.
        tables: name → rows; at most as many rows as were asked for.
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
    def sound(self) -> bool:
        """Say whether nothing is damaged; warnings do not count."""
        return all(problem.level == "warning" for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists, ready for `json.dumps`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "size_bytes": self.size_bytes,
            "version": self.version,
            "sound": self.sound,
            "fields": self.fields,
            "tables": self.tables,
            "problems": [
                {"offset": problem.offset, "level": problem.level, "reason": problem.reason}
                for problem in self.problems
            ],
        }

    def accept(self, answer: Answer[Any]) -> Any | None:
        """Return the value of *answer*, or note the problem and return None."""
        if isinstance(answer, Frame):
            return answer.value
        self.note(as_damage(answer, self.size_bytes))
        return None

    def note(self, problem: Damage | None) -> None:
        """Note the damage, if there is any."""
        if problem is not None:
            self.problems.append(Problem(problem.offset, problem.reason))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying about a file: where, what kind, and what was seen. Only `damaged` is bad."""

    path: str
    offset: int
    kind: Kind
    reason: str

    @property
    def damaged(self) -> bool:
        """Say whether bytes are not what was written."""
        return self.kind == "damaged"

    @property
    def unread(self) -> bool:
        """Say whether there is data that was not looked at."""
        return self.kind in {"not reached", "not read"}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"path": self.path, "offset": self.offset, "kind": self.kind, "reason": self.reason}
