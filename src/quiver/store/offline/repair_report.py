"""The result of a repair, for users and programs. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from quiver.primitives.findings import Finding

__all__ = ["RepairReport", "Repaired"]


@dataclass(frozen=True, slots=True)
class Repaired:
    """
    One problem and its repair.

    Attributes:
        path: the file.
        problem: what was wrong.
        action: the repair (with `dry_run`: the planned one).
        lost: the loss, and whose it is; None without any.
        copy: the copy of the damaged bytes; None if there were none worth keeping.
    """

    path: str
    problem: str
    action: str
    lost: str | None = None
    copy: str | None = None


@dataclass(slots=True)
class RepairReport:
    """All repairs, and the findings of `quiver verify` afterwards."""

    root: str
    dry_run: bool
    repairs: list[Repaired] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether any file is still damaged."""
        return any(finding.damaged for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types."""
        return {
            "directory": self.root,
            "dry_run": self.dry_run,
            "repairs": [asdict(repaired) for repaired in self.repairs],
            "damaged": self.damaged,
            "findings": [finding.as_dict() for finding in self.findings],
        }
