"""gRPC status codes of the errors of Quiver."""

from __future__ import annotations

from enum import IntEnum

from quiver.errors import (
    CorruptionError,
    DirectoryInUseError,
    QuiverError,
    StoreClosedError,
    StoreFailedError,
    TransientError,
    UsageError,
)

__all__ = ["FlightRefusedError", "StatusCode", "status_of"]


class StatusCode(IntEnum):
    """The codes that the server uses."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class FlightRefusedError(QuiverError):
    """A call ends with this status: `code`, and a message for people."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def status_of(error: Exception) -> StatusCode:
    """Return the code for *error*. UNAVAILABLE means that the same call may succeed later."""
    if isinstance(error, FlightRefusedError):
        return error.code
    if isinstance(error, UsageError):
        return StatusCode.INVALID_ARGUMENT
    if isinstance(error, DirectoryInUseError):
        return StatusCode.FAILED_PRECONDITION
    if isinstance(error, CorruptionError):
        return StatusCode.DATA_LOSS
    if isinstance(error, TransientError | StoreClosedError | StoreFailedError | OSError):
        return StatusCode.UNAVAILABLE
    return StatusCode.INTERNAL
