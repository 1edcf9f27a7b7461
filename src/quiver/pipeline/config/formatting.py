"""Formats sizes and durations for people."""

from __future__ import annotations

from quiver.settings import GIB, KIB, MIB

__all__ = ["duration_words", "size_words"]


def size_words(count: int) -> str:
    """Format a size: ``32 MiB`` for 33554432, one decimal when it is not a multiple of the unit."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}" if count % unit == 0 else f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def duration_words(seconds: float) -> str:
    """Format a duration: ``25 ms``, ``1 s`` or ``3 days``."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g} ms"
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
