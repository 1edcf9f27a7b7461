"""A number with what it counts, in the singular or the plural."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, singular: str) -> str:
    """Return ``1 bundle``, or ``2,000 bundles`` for 2000."""
    return f"{count:,} {singular}" if count == 1 else f"{count:,} {singular}s"
