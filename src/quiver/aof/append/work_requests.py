"""The protocol between the tail of a log and the workers: requests for disk work, rollovers, refusals."""

from __future__ import annotations

from typing import Protocol

from quiver.errors import InvalidRecordError

__all__ = ["Rollover", "WorkRequests", "invalid_ext_id", "invalid_payload"]


class WorkRequests(Protocol):
    """How the tail requests disk work. The methods run with the tail's lock held and must only record the request."""

    def flush(self, *, now: bool) -> None:
        """Flush now, or when the flush interval has passed."""

    def maintain(self) -> None:
        """Seal pending segments and make spares."""

    def record_latency(self, seconds: float) -> None:
        """Record the duration of a sampled append."""


class Rollover:
    """A requested rollover: requested → sealing → done, or failed with a reason."""

    __slots__ = ("done", "error", "segment_id")

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.done = False
        self.error: str | None = None


def invalid_ext_id(ext_id: object) -> InvalidRecordError:
    """Return the error for an append with an invalid *ext_id*."""
    return InvalidRecordError(f"ext_id is an integer of 64 bits, not {ext_id!r}; nothing was written")


def invalid_payload(given: object) -> InvalidRecordError:
    """Return the error for an append of *given*: an invalid payload, or a list with one."""
    several = given if isinstance(given, list | tuple) else [given]
    found = next((one for one in several if not isinstance(one, bytes | bytearray)), given)
    kind = f"{type(found).__name__} of {found.format}" if isinstance(found, memoryview) else type(found).__name__
    return InvalidRecordError(f"a payload is bytes, not {kind}; nothing was written")
