"""Measure how much an exporter on Spark delivered, and classify its failures."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from quiver.clock import SYSTEM_CLOCK
from quiver.observe import InMemoryObserver
from quiver.primitives.worker import FINISHED, Finished, Worker
from quiver.spark.tables import column_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType

    from quiver.spark.exporters.parquet_commit import StagedFile
    from quiver.store.format.exporter_report import FailureType

__all__ = ["ExportedAmount", "Observed", "exported_parts", "failure_type"]

_log = logging.getLogger("quiver")

OBSERVED_S = 5.0
"""Spark has the figures when a write returns. It never has them if the data source read nothing of the frame."""

MEASURED_EVERY = 16
"""One row in this many is measured: measuring all nested values takes as long as writing them."""
_ROW = "_quiver_row"

_WIDTHS = {"boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4, "date": 4}
_WIDTH = 8
"""The width of other types: long, double, timestamp, decimal."""

_NAME = re.compile(r"(?:[A-Za-z_$][\w$]*\.)*([A-Za-z_$][\w$]*)(?=:|$)")

_TYPES: tuple[tuple[FailureType, re.Pattern[str]], ...] = (
    (
        "data",
        re.compile(r"CorruptionError|DataLossError|InvalidBundleError|BundleUnavailableError|UnsupportedFormatError"),
    ),
    ("denied", re.compile(r"AccessControlException|\w*AuthenticationException|\w*AuthorizationException")),
    (
        "unavailable",
        re.compile(
            r"Connection\w*Error|BrokenPipeError|TimeoutError|TransientError|CapacityError|ObjectsUnavailableError|"
            r"\w*Connect\w*Exception|\w*Timeout\w*|UnknownHostException|\w*SocketException|\w*NoRouteToHost\w*"
        ),
    ),
    (
        "storage",
        re.compile(
            r"OSError|PermissionError|File\w*Error|IsADirectoryError|NotADirectoryError|BlockingIOError|NotRegularFileError|"
            r"DirectoryInUseError|StoreFailedError|\w*IOException|\w*File\w*Exception|FileSystemException|AccessDeniedException"
        ),
    ),
)
"""Names of errors → the kind of failure."""


@dataclass(frozen=True, slots=True)
class ExportedAmount:
    """
    The amount that was delivered of one batch.

    Attributes:
        rows: written rows of all tables.
        size_bytes: of the files or messages. If a sink does not report it: of the values, estimated from a sample.
    """

    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: ExportedAmount) -> ExportedAmount:
        return ExportedAmount(self.rows + other.rows, self.size_bytes + other.size_bytes)


def exported_parts(parts: Iterable[StagedFile]) -> ExportedAmount:
    """Return the total amount of *parts*."""
    return sum((ExportedAmount(part.rows, part.size_bytes) for part in parts), start=ExportedAmount())


def failure_type(text: str) -> FailureType:
    """Return the kind of failure of an error that `quiver.spark.exporters.spark_errors.describe_error` described."""
    if "No space left on device" in text:
        return "storage"
    name = _NAME.match(text)
    if name is None:
        return "other"
    return next((kind for kind, names in _TYPES if names.fullmatch(name[1])), "other")


class Observed:
    """
    Measures how much of a frame is written, for sinks that do not report it. Write `frame` once.

    Args:
        frame: the table.
    """

    def __init__(self, frame: DataFrame) -> None:
        from pyspark.sql import Observation  # noqa: PLC0415 - in the driver only
        from pyspark.sql import functions as f  # noqa: PLC0415

        self._observation: Observation = Observation()
        size = _sum(_size(column_named(field.name), field.dataType) for field in frame.schema.fields)
        is_measured = f.col(_ROW) % MEASURED_EVERY == 0
        numbered = frame.withColumn(_ROW, f.monotonically_increasing_id())  # each partition starts at a large multiple
        observed = numbered.observe(
            self._observation,
            f.count(f.lit(1)).alias("rows"),
            f.count(f.when(is_measured, 1)).alias("measured"),
            f.sum(f.when(is_measured, size).cast("bigint")).alias("bytes"),
        )
        self.frame = observed.drop(_ROW)

    def exported(self) -> ExportedAmount:
        """Return the written amount. Call it after the write returned."""
        found: list[ExportedAmount] = []

        def look() -> Finished:
            row = self._observation.get
            found.append(ExportedAmount(row["rows"], (row["bytes"] or 0) * row["rows"] // max(row["measured"], 1)))
            return FINISHED

        # `get` waits for a write, and forever if there was none.
        worker = Worker(
            "quiver-observed",
            look,
            every=0.0,
            on_death=lambda died: _log.warning("the written amount is unknown: %s", died),
            clock=SYSTEM_CLOCK,
            observer=InMemoryObserver(),
        )
        worker.start()
        worker.join(OBSERVED_S)
        return found[0] if found else ExportedAmount()


def _size(value: Column, kind: DataType) -> Column:
    """Return the size of a value in bytes: the UTF-8 of a string, the width of a number, the sum of nested values."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only
    from pyspark.sql import types  # noqa: PLC0415

    if isinstance(kind, types.StringType | types.BinaryType):
        return f.coalesce(f.octet_length(value), f.lit(0))
    if isinstance(kind, types.StructType):
        return _sum(_size(value.getField(field.name), field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return _size_of_all(value, kind.elementType)
    if isinstance(kind, types.MapType):
        keys, values = f.map_keys(value), f.map_values(value)
        return _size_of_all(keys, kind.keyType) + _size_of_all(values, kind.valueType)
    return f.when(value.isNull(), 0).otherwise(_WIDTHS.get(kind.typeName(), _WIDTH))


def _size_of_all(values: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    size = f.aggregate(values, f.lit(0), lambda sum_of, one: sum_of + _size(one, kind))
    return f.coalesce(size, f.lit(0))


def _sum(sizes: Iterable[Column]) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    return reduce(add, sizes, f.lit(0))
