"""Settings whose numbers are numbers: a size that came as ``"1GB"`` is refused in words, not by a comparison."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from quiver.errors import SettingsError

__all__ = ["require_numbers"]


def require_numbers(settings: Any) -> None:
    """
    Look at every field of a dataclass that is annotated `int` or `float`, or so and None.

    Raises:
        SettingsError: one is of another type, or not a number at all (NaN).
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
