"""
The features of the installed PySpark that Quiver uses, and the parts of its API that differ between versions.

A feature is detected in PySpark's Python API and not by its version, because vendors backport features. Code that
needs one calls `require`, which raises one sentence; tests skip with the same sentence.

The streaming API of PySpark 4.0 and 4.1 asks a source for the end of the next batch without telling it where the batch
starts. So a batch cannot be limited there, and `quiver.spark.log_source` acknowledges it only when Spark calls
`commit`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass

import pyarrow as pa
import pyspark
from pyspark.sql.types import StructType

from quiver.errors import UsageError

__all__ = [
    "EXPORTERS",
    "FEATURES",
    "JAVA_MAJOR_MAX",
    "SOURCES",
    "STREAM_LIMITS",
    "TIME_COLUMNS",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "Feature",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "from_arrow_schema",
    "missing_for_exporters",
    "require",
    "to_arrow_schema",
]


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Feature:
    """
    A feature that only some versions of PySpark have.

    Attributes:
        needs: the beginning of the sentence that reports that it is missing.
        since: the first version of PySpark that has it.
        is_available: whether the installed PySpark has it.
    """

    needs: str
    since: str
    is_available: bool

    @property
    def missing(self) -> str:
        """The sentence that reports that the feature is missing."""
        return f"{self.needs} PySpark {self.since} or newer, but {pyspark.__version__} is installed"


def require(feature: Feature) -> None:
    """
    Check that the installed PySpark has *feature*.

    Raises:
        UsageError: it does not; the message names the version that does.
    """
    if not feature.is_available:
        _hide_traceback()
        raise UsageError(feature.missing)


def missing_for_exporters() -> str:
    """Return why exporters cannot run on the installed PySpark; empty if they can."""
    return "" if EXPORTERS.is_available else EXPORTERS.missing


def _hide_traceback() -> None:
    """Make a Python process of Spark report its next error without a traceback. It ends with that error."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


_LIMITS_MODULE = "pyspark.sql.streaming.datasource"

SOURCES = Feature("the formats of Quiver need", "4.0", _has("pyspark.sql.datasource", "DataSourceArrowWriter"))
"""Batch reads and writes, streaming reads and writes."""

TIME_COLUMNS = Feature("columns with a time of day need", "4.1", _has("pyspark.sql.types", "TimeType"))

STREAM_LIMITS = Feature(
    "limits on the size of a streaming batch need", "4.2", _has(_LIMITS_MODULE, "SupportsTriggerAvailableNow")
)
"""`maxBytesPerTrigger` and the like, and acknowledgement of the last batch of a query."""

EXPORTERS = Feature("exporters and pipelines on Spark need", "4.2", STREAM_LIMITS.is_available)
"""They rely on limited batches and on the acknowledgement of the last one."""

JAVA_MAJOR_MAX = None if STREAM_LIMITS.is_available else 21
"""The newest Java that the installed Spark runs on; None: any. Spark 4.0 and 4.1 fail on Java 25."""

FEATURES = {
    "batch read": SOURCES,
    "stream read": SOURCES,
    "sinks": SOURCES,
    "`time` columns": TIME_COLUMNS,
    "limits per trigger": STREAM_LIMITS,
    "exporters, `quiver run`": EXPORTERS,
}
"""The features by the names that the documentation gives them."""

require(SOURCES)
from pyspark.sql import datasource as _datasource  # noqa: E402 - only if there is one
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas import types as _types  # noqa: E402

# PySpark 4.0 passes Arrow batches to every writer that is a `DataSourceArrowWriter`, also in streams.
DataSourceStreamArrowWriter = getattr(_datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter)
"""The base class of streaming writers that take Arrow batches."""

if STREAM_LIMITS.is_available:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:  # type: ignore[no-redef]
        """A placeholder: this PySpark has no limits."""

        def __init__(self, *values: int) -> None:
            """Ignore *values*."""

    ReadAllAvailable = ReadMaxBytes = SupportsTriggerAvailableNow = ReadLimit


_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(_types.to_arrow_schema).parameters else {}


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges rows of *schema*, with timestamps in UTC."""
    return _types.to_arrow_schema(schema, **_UTC)


def from_arrow_schema(schema: pa.Schema) -> StructType:
    """
    Return the Spark schema of *schema*. Timestamps without a zone become `timestamp_ntz` in every version.

    Raises:
        UsageError: a column holds a time of day, and the installed PySpark has no type for it.
    """
    if any(_has_time(field.type) for field in schema):
        require(TIME_COLUMNS)
    return _types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _has_time(kind: pa.DataType) -> bool:
    return pa.types.is_time(kind) or any(_has_time(kind.field(index).type) for index in range(kind.num_fields))
