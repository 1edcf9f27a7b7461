"""
Small HTML tables, for notebooks: what `_repr_html_` of stores, readers, scans and bundles returns.

Everything is escaped: a name or a value may come from the network.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["facts_html", "rows_html", "section_html"]

_CELL_CHARS_MAX = 120
_STYLE = "style='text-align:left;vertical-align:top'"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def section_html(title: str, *parts: str) -> str:
    """Return *parts*, which are HTML, below *title*, which is text."""
    return f"<div><strong>{html.escape(title)}</strong>{''.join(parts)}</div>"


def facts_html(facts: Mapping[str, Any]) -> str:
    """Return a table with a row for each fact that is not None. Keys that end in ``_bytes`` are sizes."""
    rows = "".join(
        f"<tr><th {_STYLE}>{_label(key)}</th><td {_STYLE}>{_cell(key, value)}</td></tr>"
        for key, value in facts.items()
        if value is not None
    )
    return f"<table>{rows}</table>"


def rows_html(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return a table of *rows* with the keys of the first row, or *columns*, as its head; empty without either."""
    found = list(rows)
    names = list(found[0] if found else ()) if columns is None else list(columns)
    if not names:
        return ""
    head = "".join(f"<th {_STYLE}>{_label(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td {_STYLE}>{_cell(name, row.get(name))}</td>' for name in names)}</tr>" for row in found
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _label(key: str) -> str:
    return html.escape(key.removesuffix("_bytes").replace("_", " "))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key.endswith("_bytes") and isinstance(value, int):
        return _size(value)
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return html.escape(text if len(text) <= _CELL_CHARS_MAX else f"{text[:_CELL_CHARS_MAX]}…")


def _size(count: int) -> str:
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
