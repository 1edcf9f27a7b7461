"""
Determine the tables along a route: those of the signals, and those that SQL processors add.

A processor for a table that never arrives would silently do nothing, and an exporter of one would silently write
nothing: data that should be redacted would pass unchanged. So unknown table names are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from quiver.pipeline.config.base import SettingsConfig
from quiver.pipeline.config.parse import Document, nearest
from quiver.pipeline.config.shapes import RawNode
from quiver.short_process import call_without_loading
from quiver.spark.processors.settings import INPUT, SIGNALS, RedactSettings, SqlSettings

if TYPE_CHECKING:
    from quiver.pipeline.model import Node, Pipeline, Route

__all__ = ["check_tables", "text_columns"]

_OTHER_NAMES = {"trace": "spans", "traces": "spans"}
"""Other names of a signal → the name of its table."""
_OTHER_SIGNALS = {"spans": "traces"}
"""A table → its signal, where the names differ."""


def check_tables(document: Document, raw: Mapping[str, RawNode], pipeline: Pipeline) -> None:
    """
    Refuse names of tables and columns that do not exist.

    Raises:
        PipelineError: with the line of the key.
    """
    there: dict[tuple[str, str], set[str]] = {}
    named: dict[tuple[str, str], Iterable[str]] = {}
    for route in pipeline.routes.values():
        for spot, names, known in _named(route):
            # A node on several routes may name the tables of all of them.
            there.setdefault(spot, set()).update(known)
            named[spot] = names
    for (node, key), names in named.items():
        for name in names:
            if there[node, key] and name not in there[node, key]:
                what = "column of text" if key == "columns" else "table"
                hint = nearest(_OTHER_NAMES.get(name, name), there[node, key])
                reason = f"{key}: there is no {what} {name} here{hint}"
                raise document.invalid((*raw[node].path, "config", key), reason)


def _named(route: Route) -> Iterator[tuple[tuple[str, str], Iterable[str], set[str]]]:
    """Yield (node, key), the names it gives, and the names that exist; the latter is empty if any name may exist."""
    # The tables of signals that do not take the route never arrive.
    tables: set[str] = {
        one for one in SIGNALS if route.signals is None or _OTHER_SIGNALS.get(one, one) in route.signals
    }
    has_own, has_query = False, False
    for node in route.processors:
        settings = _settings(node)
        names = getattr(settings, "signals", ())
        yield (node.name, "signals"), names, tables | set(names if has_own else ())
        if isinstance(settings, RedactSettings) and settings.columns:
            columns = settings.columns
            yield (node.name, "columns"), columns, set(columns) if has_own or has_query else _text_columns()
        if isinstance(settings, SqlSettings) and route.signals is not None:
            named = [name for name in settings.reads if name != INPUT]
            yield (node.name, "query"), named, tables | set(SIGNALS if has_own else ())
        if isinstance(settings, SqlSettings) and settings.output is not None:
            tables.add(settings.output)
        has_own = has_own or settings is None
        has_query = has_query or isinstance(settings, SqlSettings)
    if route.into is None:
        names = getattr(route.config, "tables", ())
        yield (route.name, "tables"), names, tables | set(names if has_own else ())


def _settings(node: Node) -> Any:
    """Return the settings of a processor; None for a processor of another package, whose settings are unknown."""
    return node.config.settings() if isinstance(node.config, SettingsConfig) else None


@cache
def _text_columns() -> set[str]:
    return set(call_without_loading("pyarrow", f"{__name__}:text_columns"))


def text_columns() -> list[str]:
    """Return the columns of all views that redaction can search. Loads Arrow."""
    from quiver.otap import VIEWS, view_schema  # noqa: PLC0415 - see `_text_columns`
    from quiver.spark.processors.redaction import text_names  # noqa: PLC0415

    return sorted(set[str]().union(*(text_names(view_schema(view)) for view in VIEWS)))
