"""Tables and JSON, with the same names in both."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["JsonFlag", "exit_of_verify", "human_age", "human_bytes", "print_json", "print_table"]

PLAIN_WIDTH = 200
_FOLDED_WIDTH = 24
"""A column may be folded to this width to let a table fit."""
_PADDING = 3
_NAME_AND_VALUE = 2
"""Columns of a table that is a list already."""
_UNREAD = 3

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any, *, in_a_line: bool = False) -> None:
    """Print *value* as JSON, on one line with *in_a_line*."""
    typer.echo(json.dumps(value, indent=None if in_a_line else 2, default=str))


def print_table(title: str, rows: Sequence[Mapping[str, Any]], *, empty: str = "none") -> None:
    """
    Print *rows* as a table with the keys of the first row; print *empty* without rows. None is shown as a dash.

    On a terminal that is too narrow, columns without any value are left out. If that is not enough, each row is printed
    as a list of names and values.
    """
    # In a file or a pipe, do not wrap lines.
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(width=width)
    if not rows:
        console.print(f"[bold]{_literal(title)}[/bold]: {_literal(empty)}", highlight=False)
        return
    names = list(rows[0])
    if _width_needed(rows, names) > console.width:
        names = [name for name in names if any(row[name] is not None for row in rows)]
    if len(names) > _NAME_AND_VALUE and _width_needed(rows, names) > console.width:
        console.print(f"[bold]{_literal(title)}[/bold]", highlight=False)
        for row in rows:
            console.print(_as_list(row, names))
    else:
        console.print(_as_table(title, rows, names))


def _width_needed(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    # Rich folds the widest columns first, so no other is folded as long as this width is there.
    widest = (max(len(name), *(len(_cell(row[name])) for row in rows)) for name in names)
    return 1 + sum(min(width, _FOLDED_WIDTH) + _PADDING for width in widest)


def _as_table(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    table = Table(title=_literal(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in names:
        number = all(isinstance(row[name], (int, float)) or row[name] is None for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
    return table


def _as_list(row: Mapping[str, Any], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name in names:
        table.add_row(name.replace("_", " "), _cell(row[name]))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return _literal(", ".join(str(item) for item in value))
    return _literal(str(value))


def _literal(text: str) -> str:
    # A path may have brackets, which rich would interpret as markup.
    return text.replace("[", "\\[")


def human_bytes(count: int) -> str:
    """Return ``1.5 MiB`` for 1572864."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def human_age(seconds: float | None) -> str | None:
    """Return ``2 m 5 s`` for 125; None stays None."""
    if seconds is None:
        return None
    whole_seconds = max(int(seconds), 0)
    if whole_seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(whole_seconds, 60)
    if minutes < 60:
        return f"{minutes} m {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m"


def exit_of_verify(*, damaged: bool, unread: bool) -> None:
    """
    Set the exit code of a verification: 1 if something is damaged, otherwise 3 if something was not read.

    Raises:
        typer.Exit: unless everything was read and is valid.
    """
    if damaged or unread:
        raise typer.Exit(1 if damaged else _UNREAD)
