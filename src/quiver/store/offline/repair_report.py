"""What a repair did to a store, for people and programs. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from quiver.primitives.findings import Finding

__all__ = ["Mend", "RepairReport"]


@dataclass(frozen=True, slots=True)
class Mend:
    """
    One thing that was not as it should be.

    Attributes:
        path: where.
        problem: what was wrong.
        mended: what was done about it (with `dry_run`: would be).
        gave_up: what is lost, for whom; None when nothing is.
        copy: where the damaged bytes are kept; None when there were none worth it.
    """

    path: str
    problem: str
    mended: str
    gave_up: str | None = None
    copy: str | None = None


@dataclass(slots=True)
class RepairReport:
    """What was mended, and what `quiver verify` still finds afterwards."""

    root: str
    dry_run: bool
    mends: list[Mend] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Say whether something is still damaged."""
        return any(finding.damaged for finding in self.left)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {
            "directory": self.root,
            "dry_run": self.dry_run,
            "mends": [asdict(mend) for mend in self.mends],
            "damaged": self.damaged,
            "left": [finding.as_dict() for finding in self.left],
        }
