"""Parsing of times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from quiver.errors import SettingsError, UsageError
from quiver.settings import parse_duration_s

__all__ = ["parse_instant", "parse_start"]

_FORMS = "write for example 2026-01-31T12:00:00Z, or 90m for 90 minutes ago"


def parse_instant(text: str, *, option: str, now_ns: int) -> datetime:
    """
    Return the time for ``2026-01-31T12:00:00Z``, or for a duration before now such as ``90m``.

    Raises:
        UsageError: neither of the two, or a time without a zone.
    """
    try:
        age_s = parse_duration_s(text, key=option)
    except SettingsError:
        age_s = None
    if age_s is not None:
        return datetime.fromtimestamp(now_ns / 1e9, tz=UTC) - timedelta(seconds=age_s)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a time; {_FORMS}") from None
    if found.tzinfo is None:
        raise UsageError(f"{option} {text!r} has no time zone; append Z for UTC")
    return found


def parse_start(text: str, *, option: str, now_ns: int) -> str | int | datetime:
    """
    Parse ``earliest``, ``latest``, a segment number or a time.

    Raises:
        UsageError: none of them.
    """
    if text in {"earliest", "latest"}:
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    return parse_instant(text, option=option, now_ns=now_ns)
