"""Type checks for the numbers in settings: a size given as ``"1GB"`` raises a clear error, not a `TypeError`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from quiver.errors import SettingsError

__all__ = ["require_numbers"]


def require_numbers(settings: Any) -> None:
    """
    Check every field of a dataclass that is annotated `int` or `float`, optionally with None.

    Raises:
        SettingsError: a value has another type, or is not a number (NaN).
    """
    for field in fields(settings):
        kind, _, other = str(field.type).partition(" | ")
        if kind not in {"int", "float"}:
            continue
        value = getattr(settings, field.name)
        if value is None and other == "None":
            continue
        known = int if kind == "int" else int | float
        if isinstance(value, bool) or not isinstance(value, known) or value != value:  # noqa: PLR0124 - NaN
            wanted = "a whole number" if kind == "int" else "a number"
            raise SettingsError(f"{field.name} must be {wanted}, not {value!r}")
