"""Repeated display: `--watch`, `--every`, `--count`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Annotated

import typer

from quiver.clock import Clock
from quiver.errors import UsageError

__all__ = ["CountOption", "EveryOption", "WatchOption", "check_watching", "watch"]

WatchOption = Annotated[bool, typer.Option("--watch", help="Update the display until interrupted.")]
EveryOption = Annotated[str, typer.Option(help="The interval between two updates.")]
CountOption = Annotated[
    int | None, typer.Option("-n", "--count", min=1, help="Stop after this many updates.  [default: never]")
]

_CLEAR = "\x1b[2J\x1b[H"
"""Clears a terminal."""


def check_watching(every: str, count: int | None, *, is_watching: bool) -> float:
    """
    Return the interval between two updates in seconds.

    Raises:
        UsageError: the options contradict each other.
    """
    from quiver.settings import parse_duration_s  # noqa: PLC0415 - keeps `--help` quick

    if count is not None and not is_watching:
        raise UsageError("--count needs --watch")
    every_s = parse_duration_s(every, key="--every")
    if every_s <= 0:
        raise UsageError("--every must be positive")
    return every_s


def watch(look: Callable[[], bool], clock: Clock, *, every_s: float, count: int | None, as_json: bool) -> bool:
    """Call *look* every *every_s* seconds, *count* times or until interrupted. Return its last result."""
    never = threading.Condition()
    done = 0
    while True:
        if not as_json and sys.stdout.isatty():
            typer.echo(_CLEAR, nl=False)
        fine = look()
        done += 1
        if count is not None and done >= count:
            return fine
        with never:
            clock.wait(never, every_s)
