"""
The fields of a partition specification: a column, or the year, month, day or hour of a time. Pure, and without Arrow.

A field is written ``day(time)`` or ``service_name``. Its values in rows are computed in `partition_values.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from quiver.errors import SettingsError

__all__ = ["PartitionField", "Transform", "partition_fields"]

Transform = Literal["identity", "year", "month", "day", "hour"]

_TIME_PARTS = ("year", "month", "day", "hour")
_FIELD = re.compile(r"(?:(?P<transform>[a-z]+)\((?P<inner>[^()]+)\)|(?P<column>[^()]+))")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """
    One field of a partition specification.

    Attributes:
        column: the column that the value is computed from.
        transform: `identity`, or the part of a time.
    """

    column: str
    transform: Transform

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """
        Parse ``day(time)`` or the name of a column.

        Raises:
            SettingsError: it is neither.
        """
        found = _FIELD.fullmatch(text)
        known = ", ".join(f"{name}(column)" for name in _TIME_PARTS)
        if found is None or (found["transform"] is not None and found["transform"] not in _TIME_PARTS):
            raise SettingsError(f"partition_by: {text!r} is not a column, {known}")
        transform: Transform = next((one for one in get_args(Transform) if one == found["transform"]), "identity")
        return cls(found["inner"] or found["column"], transform)

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"

    @property
    def name(self) -> str:
        """The name of the value: that of the column, or ``time_day``."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"


def partition_fields(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """
    Parse a partition specification.

    Raises:
        SettingsError: a field is not valid, or occurs twice.
    """
    fields = tuple(PartitionField.parse(text) for text in texts)
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"partition_by: {twice} occurs twice")
    return fields
