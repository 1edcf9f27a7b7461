"""A time at which reading begins or ends, as users give it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from quiver.errors import UsageError

__all__ = ["IngestedAt", "parse_timestamp"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class IngestedAt:
    """The first bundle, in the order of the store, that was ingested at this time or later."""

    time_ns: int


def parse_timestamp(text: str, *, option: str) -> IngestedAt:
    """
    Parse ``1769860800000`` (milliseconds since the epoch) or ``2026-01-31T12:00:00Z``.

    Raises:
        UsageError: neither format, or a time without a time zone.
    """
    word = text.strip()
    if word.isascii() and word.isdigit():
        return IngestedAt(int(word) * 1_000_000)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            f"{option}: {text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z"
        )
    passed = moment - _EPOCH
    return IngestedAt((passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1_000)
