"""The interface for reading the messages of a topic that are in objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ColdLost", "ColdPiece", "ColdReader"]


@dataclass(frozen=True, slots=True)
class ColdPiece:
    """Encoded messages (frames' payloads) of consecutive offsets from `first_offset` on; at least one."""

    first_offset: int
    bodies: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ColdLost:
    """Messages `first_offset` to `next_offset` − 1 should be in the object `name`; its byte `position` is damaged."""

    first_offset: int
    next_offset: int
    name: str
    position: int
    reason: str


class ColdReader(Protocol):
    """Reads one topic's objects for one reader. Not thread-safe."""

    def take(self, offset: int, end: int) -> ColdPiece | ColdLost | None:
        """
        Return messages from exactly *offset* on and below *end*, or their damage.

        Return None if no object has *offset*.

        Raises:
            TransientError: the store cannot be reached; the same call may succeed later.
        """

    def next_offset(self, offset: int) -> int | None:
        """Return the first offset at or above *offset* that an object has; None if there is none."""

    def offset_at(self, time_ms: int) -> int | None:
        """Return the offset of the first message published at or after *time_ms*; None if the objects have none."""

    def close(self) -> None:
        """Release resources. Idempotent."""
