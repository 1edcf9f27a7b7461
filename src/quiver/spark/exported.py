"""
What an exporter on Spark delivered, and which kind of failure an error of Spark is.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiver.clock import SYSTEM_CLOCK
from quiver.observe import InMemoryObserver
from quiver.primitives.worker import FINISHED, Finished, Worker
from quiver.spark.tables import column_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, Observation

    from quiver.spark.parquet_commit import Part
    from quiver.store.format.exporter_report import FailureType

__all__ = ["Exported", "Observed", "exported_parts", "failure_type"]

_log = logging.getLogger("quiver")

OBSERVED_S = 5.0
"""Spark has the figures of a write when the write returns. A data source that read nothing of the frame never has."""

_WIDTHS = {
    "boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "float": 4, "double": 8, "date": 4,
    "timestamp": 8, "timestamp_ntz": 8,
}  # fmt: skip

_NAME = re.compile(r"(?:[A-Za-z_$][\w$]*\.)*([A-Za-z_$][\w$]*)(?=:|$)")

_TYPES: tuple[tuple[FailureType, re.Pattern[str]], ...] = (
    ("data", re.compile(r"Damaged|DataLoss|BundleInvalid|BundleUnavailable|FormatUnsupported")),
    ("denied", re.compile(r"AccessControlException|\w*AuthenticationException|\w*AuthorizationException")),
    (
        "unavailable",
        re.compile(
            r"Connection\w*Error|BrokenPipeError|TimeoutError|RetryLater|AtCapacity|ObjectsUnavailable|"
            r"\w*Connect\w*Exception|\w*Timeout\w*|UnknownHostException|\w*SocketException|\w*NoRouteToHost\w*"
        ),
    ),
    (
        "storage",
        re.compile(
            r"OSError|PermissionError|File\w*Error|IsADirectoryError|NotADirectoryError|BlockingIOError|NotRegularFile|"
            r"DirectoryInUse|StoreFailed|\w*IOException|\w*File\w*Exception|FileSystemException|AccessDeniedException"
        ),
    ),
)
"""What the error is called → what failed."""


@dataclass(frozen=True, slots=True)
class Exported:
    """
    What was delivered of one batch.

    Attributes:
        rows: as they were written, of all tables.
        size_bytes: of the files or messages; where a sink does not say, of the values.
    """

    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: Exported) -> Exported:
        return Exported(self.rows + other.rows, self.size_bytes + other.size_bytes)


def exported_parts(parts: Iterable[Part]) -> Exported:
    """
    Return how much is in *parts*.
    """
    return sum((Exported(part.rows, part.size_bytes) for part in parts), start=Exported())


def failure_type(text: str) -> FailureType:
    """
    Return what failed, of an error that `quiver.spark.held.told` told.
    """
    if "No space left on device" in text:
        return "storage"
    name = _NAME.match(text)
    if name is None:
        return "other"
    return next((kind for kind, names in _TYPES if names.fullmatch(name[1])), "other")


class Observed:
    """
    A frame that is written once, and how much was written then: for sinks that do not say it. `frame` is what to write.

    Args:
        frame: the table.
    """

    def __init__(self, frame: DataFrame) -> None:
        from pyspark.sql import Observation  # noqa: PLC0415 - in the driver only
        from pyspark.sql import functions as f  # noqa: PLC0415

        self._observation: Observation = Observation()
        sizes = [_size(column, kind) for column, kind in frame.dtypes]
        size = sum(sizes[1:], start=sizes[0]) if sizes else f.lit(0)
        self.frame = frame.observe(
            self._observation, f.count(f.lit(1)).alias("rows"), f.sum(size.cast("bigint")).alias("bytes")
        )

    def exported(self) -> Exported:
        """
        Return what was written. Call it when the write has returned.
        """
        found: list[Exported] = []

        def look() -> Finished:
            row = self._observation.get
            found.append(Exported(row["rows"], row["bytes"] or 0))
            return FINISHED

        # It waits for a write, for ever where there was none.
        worker = Worker(
            "quiver-observed",
            look,
            every=0.0,
            on_death=lambda died: _log.warning("how much was written is not known: %s", died),
            clock=SYSTEM_CLOCK,
            observer=InMemoryObserver(),
        )
        worker.start()
        worker.join(OBSERVED_S)
        return found[0] if found else Exported()


def _size(column: str, kind: str) -> Column:
    """
    Return the bytes of a column's value: of a text its own, of a number its width, of anything nested those of its
    text.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    if kind in _WIDTHS:
        return f.lit(_WIDTHS[kind])
    value = column_named(column)
    text = value if kind in {"string", "binary"} else value.cast("string")
    return f.coalesce(f.octet_length(text), f.lit(0))
