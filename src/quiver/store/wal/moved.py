"""The error of a store whose directory was moved while it was open."""

from __future__ import annotations

__all__ = ["DirectoryMovedError"]


class DirectoryMovedError(OSError):
    """The directory was moved, removed or replaced while the store was open."""
