"""
The settings of processors. Frozen, validated on creation, without Spark, so pipeline files can be checked without it.

======================  ==================================================================================
`SqlSettings`           a query over the views ``logs``, ``spans``, ``metrics``, or over each table as ``input``
`FilterSettings`        keeps or drops rows by a condition
`AttributesSettings`    inserts, updates, deletes, renames and hashes attributes
`SampleSettings`        keeps a share of the rows, and the same traces everywhere and in every attempt
`RedactSettings`        replaces values by key or by pattern
======================  ==================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from quiver.errors import SettingsError
from quiver.short_process import call_without_loading

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
    "examine_patterns",
    "tables_named",
]

Signal = Literal["logs", "spans", "metrics"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

INPUT = "input"
"""The name of the processed table in a query, whichever table it is."""

Scope = Literal["signal", "scope", "resource"]
"""The level of attributes: of the record, span or point itself, of the scope, or of the resource."""

ATTRIBUTE_COLUMNS: dict[Scope, str] = {
    "signal": "attributes",
    "scope": "scope_attributes",
    "resource": "resource_attributes",
}

AttributeActionKind = Literal["insert", "update", "upsert", "delete", "rename", "hash"]

AttributeValue = str | bool | int | float
"""Types of attribute values, which are preserved."""

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PATTERN_CHARS_MAX = 4096

_OUTSIDE_NAMES = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""String literals and comments of a query: tables named there are not read."""

_TABLE_LIST = re.compile(
    r"\b(?:from|join|table)\s+((?:`?\w+`?(?:\s+(?:as\s+)?(?!on\b|using\b|where\b)\w+)?\s*,\s*)*`?\w+`?)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """
    A query in Spark SQL.

    Over ``input`` it runs for each table of *signals* (all when empty) and replaces it. Otherwise it reads the views
    it names. Its result replaces them, or is an additional table if *output* names it.

    Attributes:
        query: the query.
        output: the name of the result in exporters. Defaults to the view that it reads, if there is only one.
        signals: for a query over ``input``: the tables that it processes.

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
            raise SettingsError(f"query: must read {INPUT}, or one of {', '.join(SIGNALS)}")
        if len(named) > 1 and self.output is None:
            raise SettingsError(f"output: the query reads {' and '.join(named)}; name its result")
        if INPUT in named and self.output is not None:
            raise SettingsError(f"output: a query over {INPUT} replaces each table under its own name")
        if INPUT not in named and self.signals:
            raise SettingsError("signals: the query names its views; signals belong to a query over input")
        if self.output is not None and not _TABLE_NAME.fullmatch(self.output):
            raise SettingsError(
                f"output: {self.output!r} is not a valid table name: use at most 64 letters, digits and underscores"
            )
        _check_tables(self.signals)

    @property
    def reads(self) -> tuple[str, ...]:
        """The views that it reads, or only ``input``."""
        return tables_named(self.query)


def tables_named(query: str) -> tuple[str, ...]:
    """Return those of ``input``, ``logs``, ``spans`` and ``metrics`` that follow FROM, JOIN or TABLE in *query*."""
    found: set[str] = set()
    for match in _TABLE_LIST.finditer(_OUTSIDE_NAMES.sub(" ", query)):
        found.update(part.split()[0].strip("`").lower() for part in match.group(1).split(","))
    return tuple(name for name in (INPUT, *SIGNALS) if name in found)


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """
    A condition in Spark SQL over the columns of a row, such as ``severity_number >= 17``.

    Attributes:
        keep: keeps only rows for which it is true.
        drop: drops rows for which it is true, and keeps those for which it is null. Set either *keep* or *drop*.
        signals: the tables that it processes; empty means all.

    Raises:
        SettingsError: both conditions are set, or none.
    """

    keep: str | None = None
    drop: str | None = None
    signals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [text for text in (self.keep, self.drop) if text is not None]
        if len(given) != 1 or not given[0].strip():
            raise SettingsError("filter: set either keep or drop")
        _check_tables(self.signals)


@dataclass(frozen=True, slots=True)
class AttributeAction:
    """
    One change of attributes.

    Attributes:
        action: insert (if the key is missing), update (if it exists), upsert (both), delete, rename, hash.
        key: the key of the attribute. An existing attribute with an empty key can be changed or deleted, but none is
            created.
        value: for insert, update and upsert: a string, a boolean, an integer or a float.
        from_attribute: copies the value of this attribute, instead of *value*. If it is missing, nothing changes.
        new_key: for rename; replaces an attribute with this key.

    Raises:
        SettingsError: a value that the action needs is missing, or it does not use a value.
    """

    action: AttributeActionKind
    key: str
    value: AttributeValue | None = None
    from_attribute: str | None = None
    new_key: str | None = None

    def __post_init__(self) -> None:
        kinds = get_args(AttributeActionKind)
        if self.action not in kinds:
            raise SettingsError(f"action: {self.action!r} is not one of {', '.join(kinds)}")
        if not self.key and self.action in {"insert", "upsert"}:
            raise SettingsError(f"key: {self.action} would create an attribute with an empty key")
        sources = (self.value is not None) + (self.from_attribute is not None)
        wanted = 1 if self.action in {"insert", "update", "upsert"} else 0
        if sources != wanted:
            needed = "either value or from_attribute" if wanted else "neither value nor from_attribute"
            raise SettingsError(f"action {self.action} of {self.key} needs {needed}")
        if (self.action == "rename") != bool(self.new_key):
            raise SettingsError(f"action {self.action} of {self.key}: only rename takes new_key, and needs it")
        if self.new_key == self.key:
            raise SettingsError(f"action rename of {self.key}: the new name is the old one")
        if isinstance(self.value, int) and not -(2**63) <= self.value < 2**63:
            raise SettingsError(f"value of {self.key}: {self.value} does not fit into 64 bits")


@dataclass(frozen=True, slots=True)
class AttributesSettings:
    """
    Changes of attributes, applied in order.

    Attributes:
        actions: at least one.
        apply_to: the level of the attributes: the signal itself, its scope, its resource.
        signals: the tables to process; empty means all.
        hash_salt: part of every hash, so that hashing a list of likely values does not reveal the originals.

    Raises:
        SettingsError: there is no action, or no level to apply it to.
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
    A sample of the rows. The choice depends only on the row, so a repeated batch gives the same rows.

    Rows of one trace are all kept or all dropped, in every table and every process: the last 56 bits of the trace id
    decide, as in OpenTelemetry's consistent sampling. For rows without a trace id, their contents decide.

    Attributes:
        ratio: the share to keep: 0.1 is a tenth.
        signals: the tables to sample. Metric points are kept unless named here, because sums of a sample are wrong.

    Raises:
        SettingsError: out of range.
    """

    ratio: float
    signals: tuple[str, ...] = ("logs", "spans")

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise SettingsError(f"ratio must be above 0 and at most 1, not {self.ratio}")
        if not self.signals:
            raise SettingsError("signals: name the tables to sample")
        _check_tables(self.signals)


@dataclass(frozen=True, slots=True)
class RedactSettings:
    """
    Redaction of values: in attributes at every level, in bodies, and in values nested in them.

    Attributes:
        keys: patterns (RE2, not anchored); the complete value of an attribute with a matching key is replaced.
        value_patterns: the matching parts of strings are replaced.
        replacement: the text that replaces them.
        columns: additional string columns to search, such as ``name``, which is the name of a span and of its events.
        signals: the tables to process; empty means all.

    Raises:
        SettingsError: there is no pattern, or a pattern is invalid.
    """

    keys: tuple[str, ...] = ()
    value_patterns: tuple[str, ...] = ()
    replacement: str = "****"
    columns: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys and not self.value_patterns:
            raise SettingsError("redact: set keys, value_patterns, or both")
        if self.columns and not self.value_patterns:
            raise SettingsError("columns: value_patterns is missing, so there is nothing to search for")
        _check_patterns("keys", self.keys)
        _check_patterns("value_patterns", self.value_patterns)
        if "\\" in self.replacement:
            raise SettingsError("replacement: use plain text without backslashes")
        _check_tables(self.signals)


ProcessorSettings = SqlSettings | FilterSettings | AttributesSettings | SampleSettings | RedactSettings


def _check_tables(names: tuple[str, ...]) -> None:
    for name in names:
        if not _TABLE_NAME.fullmatch(name):
            raise SettingsError(f"signals: {name!r} is not a table; the tables are {', '.join(SIGNALS)}")


def _check_scopes(scopes: tuple[Scope, ...]) -> None:
    if not scopes:
        raise SettingsError(f"apply_to: name at least one of {', '.join(ATTRIBUTE_COLUMNS)}")
    for scope in scopes:
        if scope not in ATTRIBUTE_COLUMNS:
            raise SettingsError(f"apply_to: {scope!r} is not one of {', '.join(ATTRIBUTE_COLUMNS)}")


def _check_patterns(name: str, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        if not pattern or len(pattern) > _PATTERN_CHARS_MAX:
            raise SettingsError(f"{name}: a pattern has 1 to {_PATTERN_CHARS_MAX} characters")
    for pattern, (reason, matches_empty) in zip(patterns, _examined(patterns), strict=True):
        if reason:
            raise SettingsError(f"{name}: {pattern!r} is not a valid pattern (RE2): {reason}")
        if matches_empty and name == "value_patterns":
            raise SettingsError(f"{name}: {pattern!r} matches the empty string")


@lru_cache(maxsize=64)
def _examined(patterns: tuple[str, ...]) -> Sequence[Sequence[str | bool]]:
    """Return `examine_patterns`, without loading Arrow into a process that has not, as the supervisor of a pipeline."""
    if not patterns:
        return []
    found: Sequence[Sequence[str | bool]] = call_without_loading("pyarrow", f"{__name__}:examine_patterns", patterns)
    return found


def examine_patterns(patterns: Sequence[str]) -> list[tuple[str, bool]]:
    """Return for each pattern why it is invalid, empty if it is valid, and whether it matches the empty string."""
    import pyarrow as pa  # noqa: PLC0415 - see `_examined`
    import pyarrow.compute as pc  # noqa: PLC0415

    found = []
    for pattern in patterns:
        try:
            found.append(("", bool(pc.match_substring_regex(pa.array([""]), pattern)[0].as_py())))
        except pa.ArrowInvalid as error:
            found.append((str(error), False))
    return found
