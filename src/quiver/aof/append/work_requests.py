"""What the tail of a log asks of those who work on the disk, and what is asked of it."""

from __future__ import annotations

from typing import Protocol

from quiver.errors import InvalidRecordError

__all__ = ["Ask", "Rollover", "invalid_ext_id", "invalid_payload"]


class Ask(Protocol):
    """How the tail asks for work on the disk. Called with the tail's lock held; must only note it down."""

    def flush(self, *, now: bool) -> None:
        """Flush at once, or when the flush interval has passed."""

    def upkeep(self) -> None:
        """Seal what waits, and make spares."""

    def took(self, seconds: float) -> None:
        """Take note how long one append took that was looked at."""


class Rollover:
    """A rollover that was asked for: requested → (sealing) → done, or failed with a reason."""

    __slots__ = ("done", "error", "segment_id")

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.done = False
        self.error: str | None = None


def invalid_ext_id(ext_id: object) -> InvalidRecordError:
    """Return the refusal of an append for its *ext_id*."""
    return InvalidRecordError(f"ext_id is a whole number of 64 bits, not {ext_id!r}; nothing was written")


def invalid_payload(given: object) -> InvalidRecordError:
    """Return the refusal of an append for what was *given*: a payload, or a list of some."""
    several = given if isinstance(given, list | tuple) else [given]
    found = next((one for one in several if not isinstance(one, bytes | bytearray)), given)
    kind = f"{type(found).__name__} of {found.format}" if isinstance(found, memoryview) else type(found).__name__
    return InvalidRecordError(f"a payload is bytes, not {kind}; nothing was written")
