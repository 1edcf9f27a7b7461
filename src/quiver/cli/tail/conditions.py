"""The conditions of `--where`: a column, an operator and a value. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quiver.errors import UsageError

__all__ = ["Condition", "holds_all", "parse_condition"]

_FORM = re.compile(r"\s*([A-Za-z_][\w.\-/]*)\s*(!=|<=|>=|==|=|<|>|!~|~)\s*(.*?)\s*", re.DOTALL)

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """
    One condition.

    Attributes:
        column: a column, or the key of an attribute; ``attributes.KEY`` names it exactly.
        sign: the operator; ``~`` means that the text contains the value, in any case.
        value: as written.
    """

    column: str
    sign: str
    value: str

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Return whether *row* has a value in this column for which the condition holds."""
        found = _value_of(row, self.column)
        if found is None:
            return False
        if self.sign in {"~", "!~"}:
            return (self.value.lower() in str(found).lower()) == (self.sign == "~")
        return _compare(found, self.sign, self.value)


def parse_condition(text: str, columns: Sequence[str]) -> Condition:
    """
    Return the condition that *text* is, for rows with *columns*.

    Raises:
        UsageError: it is not a condition, or it names a column that such rows cannot have.
    """
    parsed = _FORM.fullmatch(text)
    if parsed is None:
        raise UsageError(f"--where {text!r}: write COLUMN OPERATOR VALUE, for example 'severity_number >= 17'")
    column, sign, value = parsed.groups()
    value = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    has_attributes = any(name.endswith("attributes") for name in columns)
    if columns and not has_attributes and column.partition(".")[0] not in columns:
        raise UsageError(f"--where {text!r}: there is no column {column}; there are: {', '.join(columns)}")
    return Condition(column, "=" if sign == "==" else sign, value)


def holds_all(row: Mapping[str, Any], conditions: Iterable[Condition]) -> bool:
    """Return whether all *conditions* hold for *row*."""
    return all(one.holds(row) for one in conditions)


def _value_of(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    place, _, key = column.partition(".")
    inside = row.get(place)
    if isinstance(inside, Mapping) and key in inside:
        return inside[key]
    maps = (row.get(name) for name in ("attributes", "resource_attributes", "scope_attributes"))
    return next((one[column] for one in maps if isinstance(one, Mapping) and column in one), None)


def _compare(found: Any, sign: str, value: str) -> bool:
    """Compare as numbers if the row has one, and as text otherwise."""
    if isinstance(found, bool):
        return _OPERATORS[sign](str(found).lower(), value.lower())
    if isinstance(found, int | float):
        try:
            return _OPERATORS[sign](found, float(value) if "." in value or "e" in value.lower() else int(value))
        except ValueError:
            return sign == "!="
    return _OPERATORS[sign](str(found), value)
