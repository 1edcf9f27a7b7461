"""
What each processor is told. Frozen, checked when made, without Spark: a pipeline file is checked where there is none.

======================  ==================================================================================
`SqlSettings`           a query over the views ``logs``, ``spans``, ``metrics``, or over each table as ``input``
`FilterSettings`        rows that a condition keeps, or drops
`AttributesSettings`    attributes inserted, updated, deleted, renamed, hashed
`SampleSettings`        a share of the rows, the same share of traces everywhere and at every try
`RedactSettings`        values made unreadable, by key or by what they look like
======================  ==================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import SettingsError

__all__ = [
    "ATTRIBUTE_COLUMNS",
    "INPUT",
    "SIGNALS",
    "AttributeAction",
    "AttributeActionKind",
    "AttributeValue",
    "AttributesSettings",
    "FilterSettings",
    "ProcessorSettings",
    "RedactSettings",
    "SampleSettings",
    "Scope",
    "Signal",
    "SqlSettings",
    "tables_named",
]

Signal = Literal["logs", "spans", "metrics"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

INPUT = "input"
"""What a query calls the table it is applied to, whichever that is."""

Scope = Literal["signal", "scope", "resource"]
"""Whose attributes: those of the record, span or point itself, of the scope, or of the resource."""

ATTRIBUTE_COLUMNS: dict[Scope, str] = {
    "signal": "attributes",
    "scope": "scope_attributes",
    "resource": "resource_attributes",
}

AttributeActionKind = Literal["insert", "update", "upsert", "delete", "rename", "hash"]

AttributeValue = str | bool | int | float
"""What can be written into an attribute; each stays of its kind."""

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PATTERN_CHARS_MAX = 4096

_OUTSIDE_NAMES = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts and comments of a query: a table named there is not read."""

_TABLE_LIST = re.compile(
    r"\b(?:from|join|table)\s+((?:`?\w+`?(?:\s+(?:as\s+)?(?!on\b|using\b|where\b)\w+)?\s*,\s*)*`?\w+`?)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """
    A query in Spark SQL.

    Over ``input`` it runs for each table of *signals* (all when empty) and replaces it. Otherwise it reads the views
    it names; its result replaces them, or is one more table where *output* says what that is called.

    Attributes:
        query: what is run.
        output: the name of the result: what exporters put it under. The view it reads when there is only one.
        signals: for a query over ``input``: which tables it is for.

    Raises:
        SettingsError: the query reads neither ``input`` nor a view, or several views and *output* is missing.
    """

    query: str
    output: str | None = None
    signals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = tables_named(self.query)
        if INPUT in named and len(named) > 1:
            raise SettingsError(f"query: {INPUT} is each table in turn, which cannot be joined with a view by name")
        if not named:
            raise SettingsError(f"query: it reads none of {INPUT}, {', '.join(SIGNALS)}")
        if len(named) > 1 and self.output is None:
            raise SettingsError(f"output: the query reads {' and '.join(named)}; say what its result is called")
        if INPUT in named and self.output is not None:
            raise SettingsError(f"output: a query over {INPUT} replaces each table under its own name")
        if INPUT not in named and self.signals:
            raise SettingsError("signals: the query names its views; signals belong to a query over input")
        if self.output is not None and not _TABLE_NAME.fullmatch(self.output):
            raise SettingsError(f"output: {self.output!r} is no table name: letters, digits, underscores, at most 64")
        _check_tables(self.signals)

    @property
    def reads(self) -> tuple[str, ...]:
        """The views it reads, or ``input`` alone."""
        return tables_named(self.query)


def tables_named(query: str) -> tuple[str, ...]:
    """Return which of ``input``, ``logs``, ``spans`` and ``metrics`` stand after FROM, JOIN or TABLE in *query*."""
    found: set[str] = set()
    for match in _TABLE_LIST.finditer(_OUTSIDE_NAMES.sub(" ", query)):
        found.update(part.split()[0].strip("`").lower() for part in match.group(1).split(","))
    return tuple(name for name in (INPUT, *SIGNALS) if name in found)


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """
    A condition in Spark SQL over the columns of a row, such as ``severity_number >= 17``.

    Attributes:
        keep: only rows for which it is true go on.
        drop: rows for which it is true do not go on; one for which it is unknown (null) does. One of the two is given.
        signals: the tables it is for; all when empty.

    Raises:
        SettingsError: both conditions or none.
    """

    keep: str | None = None
    drop: str | None = None
    signals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [text for text in (self.keep, self.drop) if text is not None]
        if len(given) != 1 or not given[0].strip():
            raise SettingsError("filter: give keep or drop, one of them")
        _check_tables(self.signals)


@dataclass(frozen=True, slots=True)
class AttributeAction:
    """
    One change of attributes.

    Attributes:
        action: insert (where the key is missing), update (where it is there), upsert (both), delete, rename, hash.
        key: of which attribute. One without a name can come in, and be changed or go, but is not made.
        value: for insert, update and upsert: a text, a truth value, a whole number or a float.
        from_attribute: instead of *value*: copied from there; where that is missing, nothing is done.
        new_key: for rename; an attribute of that name is replaced.

    Raises:
        SettingsError: something the action needs is missing, or it has no use for something.
    """

    action: AttributeActionKind
    key: str
    value: AttributeValue | None = None
    from_attribute: str | None = None
    new_key: str | None = None

    def __post_init__(self) -> None:
        kinds = get_args(AttributeActionKind)
        if self.action not in kinds:
            raise SettingsError(f"action: {self.action!r} is none of {', '.join(kinds)}")
        if not self.key and self.action in {"insert", "upsert"}:
            raise SettingsError(f"key: {self.action} would make an attribute without a name")
        sources = (self.value is not None) + (self.from_attribute is not None)
        wanted = 1 if self.action in {"insert", "update", "upsert"} else 0
        if sources != wanted:
            needed = "value or from_attribute, one of them" if wanted else "neither value nor from_attribute"
            raise SettingsError(f"action {self.action} of {self.key} needs {needed}")
        if (self.action == "rename") != bool(self.new_key):
            raise SettingsError(f"action {self.action} of {self.key}: new_key belongs to rename, and only there")
        if self.new_key == self.key:
            raise SettingsError(f"action rename of {self.key}: the new name is the old one")
        if isinstance(self.value, int) and not -(2**63) <= self.value < 2**63:
            raise SettingsError(f"value of {self.key}: {self.value} is beyond 64 bits")


@dataclass(frozen=True, slots=True)
class AttributesSettings:
    """
    Changes of attributes, done in order.

    Attributes:
        actions: at least one.
        apply_to: whose attributes: those of the signal itself, of its scope, of its resource.
        signals: the tables they are for; all when empty.
        hash_salt: mixed into every hash, so that a list of likely values does not undo it.

    Raises:
        SettingsError: no action, or nowhere to apply it.
    """

    actions: tuple[AttributeAction, ...]
    apply_to: tuple[Scope, ...] = ("signal",)
    signals: tuple[str, ...] = ()
    hash_salt: str = ""

    def __post_init__(self) -> None:
        if not self.actions:
            raise SettingsError("actions: at least one")
        _check_scopes(self.apply_to)
        _check_tables(self.signals)


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """
    A share of the rows. The choice hangs on the row alone, so a batch that is tried again gives the same rows.

    Rows with a trace id share the fate of their trace, in every table and every process: the last 56 bits of the id
    decide, as OpenTelemetry's consistent sampling has it. Others are chosen by their contents.

    Attributes:
        ratio: how much is kept: 0.1 is a tenth.
        signals: the tables it is for. Points of metrics are left alone unless named: sums of a sample are wrong.

    Raises:
        SettingsError: out of range.
    """

    ratio: float
    signals: tuple[str, ...] = ("logs", "spans")

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise SettingsError(f"ratio must be above 0 and at most 1, not {self.ratio}")
        if not self.signals:
            raise SettingsError("signals: name the tables that are sampled")
        _check_tables(self.signals)


@dataclass(frozen=True, slots=True)
class RedactSettings:
    """
    Values made unreadable: in attributes at every level, bodies, and whatever they nest.

    Attributes:
        keys: patterns (RE2, not anchored); the value of an attribute whose key matches is replaced whole.
        value_patterns: what matches inside a text is replaced.
        replacement: what stands there instead.
        columns: further columns of text, such as ``name``, in which values are looked for; ``name`` is the name of a
            span and of its events.
        signals: the tables it is for; all when empty.

    Raises:
        SettingsError: nothing to look for, or a pattern that is none.
    """

    keys: tuple[str, ...] = ()
    value_patterns: tuple[str, ...] = ()
    replacement: str = "****"
    columns: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys and not self.value_patterns:
            raise SettingsError("redact: give keys, value_patterns, or both")
        if self.columns and not self.value_patterns:
            raise SettingsError("columns: they are searched for value_patterns, of which there are none")
        for name, patterns in (("keys", self.keys), ("value_patterns", self.value_patterns)):
            for pattern in patterns:
                _check_pattern(name, pattern)
        if "\\" in self.replacement:
            raise SettingsError("replacement: a plain text, without backslashes")
        _check_tables(self.signals)


ProcessorSettings = SqlSettings | FilterSettings | AttributesSettings | SampleSettings | RedactSettings


def _check_tables(names: tuple[str, ...]) -> None:
    for name in names:
        if not _TABLE_NAME.fullmatch(name):
            raise SettingsError(f"signals: {name!r} is no table; there are {', '.join(SIGNALS)}")


def _check_scopes(scopes: tuple[Scope, ...]) -> None:
    if not scopes:
        raise SettingsError(f"apply_to: name at least one of {', '.join(ATTRIBUTE_COLUMNS)}")
    for scope in scopes:
        if scope not in ATTRIBUTE_COLUMNS:
            raise SettingsError(f"apply_to: {scope!r} is none of {', '.join(ATTRIBUTE_COLUMNS)}")


def _check_pattern(name: str, pattern: str) -> None:
    if not pattern or len(pattern) > _PATTERN_CHARS_MAX:
        raise SettingsError(f"{name}: a pattern has 1 to {_PATTERN_CHARS_MAX} characters")
    try:
        matches_empty = pc.match_substring_regex(pa.array([""]), pattern)[0].as_py()
    except pa.ArrowInvalid as error:
        raise SettingsError(f"{name}: {pattern!r} is no pattern (RE2): {error}") from error
    if matches_empty and name == "value_patterns":
        raise SettingsError(f"{name}: {pattern!r} matches where there is nothing")
