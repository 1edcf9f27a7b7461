"""Positions in a log, as stored in Spark checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quiver.errors import DataLossError, UsageError
from quiver.instant import IngestedAt

__all__ = ["RECORD_ID_MAX", "AofBound", "AofPosition", "position_from_json"]

_VERSION = 1
RECORD_ID_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class AofPosition:
    """The start of the next, perhaps future, record: its id, and its place in the complete log if known."""

    record_id: int
    log_bytes: int | None = None

    def to_json(self, log: str) -> dict[str, Any]:
        """Return the dict that Spark stores. The order of the keys is part of the format."""
        return {"v": _VERSION, "log": log, "record_id": self.record_id, "bytes": self.log_bytes}


AofBound = Literal["earliest", "latest"] | int | IngestedAt
"""An end of the log, a record id, or a timestamp."""


def position_from_json(value: object, log: str, path: str) -> AofPosition:
    """
    Read a position back from a checkpoint.

    Raises:
        UsageError: *value* is not a position of this source, or of a newer version.
        DataLossError: the position belongs to another log than *log*, which is in *path*.
    """
    if not isinstance(value, Mapping) or value.get("v") != _VERSION:
        raise UsageError(f"{str(value)[:120]} is not a position of the quiver-aof source; is this its checkpoint?")
    record_id, count, of = value.get("record_id"), value.get("bytes"), value.get("log")
    if not isinstance(record_id, int) or not isinstance(count, int | None) or not 0 <= record_id <= RECORD_ID_MAX:
        raise UsageError(
            f"{str(dict(value))[:120]} is not a position of the quiver-aof source; is this its checkpoint?"
        )
    if of != log:
        reason = f"the checkpoint belongs to log {of}, but {log} is here"
        raise DataLossError(path, 0, f"{reason}; point the query at the old one, or start it with a new checkpoint")
    return AofPosition(record_id, count)
