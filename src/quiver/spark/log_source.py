"""
The shell that Spark sees of every log it reads: data source, batch reader and streaming reader, written once.

A format provides a `ReadableLog` and a subclass of `LogDataSource`. Three rules of Spark's shape both:

- Spark creates these objects in several processes and pickles them in between. Constructors only store what they
  receive, and a `ReadableLog` drops its locks and connections when it is pickled.
- Every batch must have exactly the declared schema.
- No filter is ever pushed down: Spark 4.3 shares a pushed filter between all scans of a frame and then returns wrong
  rows. Options select less instead.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import pyarrow as pa

from quiver.errors import QuiverError, UsageError
from quiver.option_values import refuse_ending, refuse_stream_options
from quiver.spark.log_sink import BatchWriter, Sink, StreamWriter
from quiver.spark.spark_features import (
    STREAM_LIMITS,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
    from_arrow_schema,
    require,
    to_arrow_schema,
)
from quiver.spark.table_options import (
    given_options,
    options_of_table,
    refuse_write_without_options,
    schema_with_options,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "BatchReader",
    "LogDataSource",
    "ReadableLog",
    "RefusedStream",
    "StreamReader",
    "TaskPartition",
    "UnlimitedStreamReader",
    "parallelism",
]

Spans = tuple[Any, ...]
"""The stretches of the log that one task reads, in the log's own type. They pickle."""


class ReadableLog(ABC):
    """
    A log as Spark reads it, configured by the options of one load.

    Offsets are dicts that Spark stores as JSON text and compares as text, so their keys have a fixed order.
    """

    @property
    @abstractmethod
    def bytes_max(self) -> int | None:
        """The size limit of a streaming batch; None: no limit."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """
        Return the columns that the options ask for.

        Raises:
            UsageError: the log has no such column.
        """

    @abstractmethod
    def plan_all(self) -> list[Spans]:
        """
        Return what each task of a batch read reads, between the bounds of the options.

        Raises:
            UsageError: the log does not exist.
            DataLossError: data between the bounds is missing.
        """

    @abstractmethod
    def read(self, spans: Spans, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield *spans* as batches of exactly the schema *target*, in a task."""

    # ── streams: called in the process of the query, strictly in turn ────────────────────────────────────

    def check_stream(self) -> None:  # noqa: B027 - optional
        """
        Check that the options make sense for a stream.

        Raises:
            UsageError: they do not.
        """

    @abstractmethod
    def initial(self) -> dict[str, Any]:
        """
        Return where a query without a checkpoint starts.

        Spark asks again after a crash in the first batch, so what decides the answer is durable on return.
        """

    @abstractmethod
    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Confirm everything before *start*, whose batch is committed, and return where the next batch ends.

        Args:
            start: the end of the last committed batch.
            unlimited: whether to ignore the limits of the options.

        Raises:
            DataLossError: data after *start* is missing, or the checkpoint belongs to another log.
        """

    @abstractmethod
    def tail(self) -> dict[str, Any] | None:
        """Return the end of the log, for progress reports; None when it is not known yet."""

    @abstractmethod
    def available_now(self) -> None:
        """Fix the end of this run at what the log contains now."""

    @abstractmethod
    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Spans]:
        """Return what each task reads of the batch from *start* to before *end*. Changes nothing."""

    def commit(self, end: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Confirm everything before *end*: its batch is committed."""

    def release(self) -> None:  # noqa: B027 - optional
        """Release locks."""


class TaskPartition(InputPartition):
    """The spans that one task reads."""

    def __init__(self, spans: Spans) -> None:
        super().__init__(None)
        self.spans = spans


class LogDataSource(DataSource):
    """
    A format of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Attributes:
        format_name: the name of the format.
        log_kind: what error messages call one such log.
        stream_options: options that a batch read rejects, because they would have no effect.
    """

    format_name: ClassVar[str]
    log_kind: ClassVar[str]
    stream_options: ClassVar[tuple[str, ...]]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Not parsed here: a sink has other options.
        self._given = given_options(options)

    @staticmethod
    @abstractmethod
    def log(given: Mapping[str, str]) -> ReadableLog:
        """Return the log that the options describe."""

    @staticmethod
    @abstractmethod
    def sink(given: Mapping[str, str], schema: StructType) -> Sink:
        """Return the sink that the options describe, for rows of *schema*."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def schema(self) -> StructType:
        """
        Return the schema that the options ask for. Spark does not ask when `load` is given one.

        Raises:
            UsageError: an option is wrong, or the installed PySpark lacks what it needs.
        """
        schema = from_arrow_schema(self.log(self._given).schema())
        # `load` reports this, before there is a query; a batch read accepts the options in no version.
        _require_limits(self._given)
        return schema_with_options(schema, self.name(), self.options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the batch reader. Spark passes *schema* by keyword."""
        given = options_of_table(self._given, schema, self.name())
        refuse_stream_options(given, self.stream_options)
        return BatchReader(self.log(given), schema)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> StreamReader | UnlimitedStreamReader | RefusedStream:
        """
        Return the streaming reader. Spark passes *schema* by keyword.

        Wrong options are reported when Spark first asks for an offset: it loses an error that is raised here, and
        fails on an unset variable of its own instead.
        """
        try:
            given = options_of_table(self._given, schema, self.name())
            refuse_ending(given)
            log = self.log(given)
            log.check_stream()
            _require_limits(given)
        except QuiverError as error:
            return RefusedStream(error)
        return (StreamReader if STREAM_LIMITS.is_available else UnlimitedStreamReader)(log, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """
        Return the batch writer.

        Raises:
            UsageError: an option or a column is unknown, missing or contradicts another, or the mode is overwrite.
        """
        refuse_write_without_options(self._given, self.name())
        return BatchWriter(self._sink(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """
        Return the streaming writer.

        Raises:
            UsageError: an option or a column is unknown, missing or contradicts another, or the mode is not append.
        """
        return StreamWriter(self._sink(schema, overwrite=overwrite))

    def _sink(self, schema: StructType, *, overwrite: bool) -> Sink:
        if overwrite:
            raise UsageError(
                f'a {self.log_kind} only grows: write with mode("append"), a stream with outputMode("append")'
            )
        return self.sink(self._given, schema)


def _require_limits(given: Mapping[str, str]) -> None:
    """Check that the installed PySpark has limits per trigger, if *given* sets one."""
    if any(name.lower().endswith("pertrigger") for name in given):
        require(STREAM_LIMITS)


class _TaskReader:
    """The part of both readers that runs in a task."""

    def __init__(self, log: ReadableLog, schema: StructType) -> None:
        self._log = log
        self._target = to_arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in a task."""
        # Spark replaces an empty list of partitions by one empty partition.
        return self._log.read(partition.spans if isinstance(partition, TaskPartition) else (), self._target)


class BatchReader(_TaskReader, DataSourceReader):
    """Reads what the log contains when the frame is first used; with PySpark 4.0, at each use."""

    def partitions(self) -> list[TaskPartition]:
        """Return one partition per task. Raises what `ReadableLog.plan_all` raises."""
        return [TaskPartition(spans) for spans in self._log.plan_all()]


class _StreamTasks(_TaskReader):
    """The part of a streaming reader that is the same with and without limits."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskPartition]:
        """Return one partition per task for the batch from *start* to before *end*."""
        return [TaskPartition(spans) for spans in self._log.plan(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Confirm everything before *end*: its batch is committed."""
        self._log.commit(end)

    def stop(self) -> None:
        """Release locks. Spark calls this only after an error; otherwise the process just dies."""
        self._log.release()


class StreamReader(_StreamTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a streaming query. It keeps progress in the query's own process; in tasks it only reads."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._log.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit that represents those of the options. Spark replaces it to read everything at once."""
        return ReadMaxBytes(self._log.bytes_max or 1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Confirm everything before *start*, whose batch is committed, and return where the next batch ends."""
        return self._log.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the log, for progress reports."""
        return self._log.tail()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this run at what the log contains now."""
        self._log.available_now()


class UnlimitedStreamReader(_StreamTasks, DataSourceStreamReader):
    """
    The source of a streaming query in a PySpark without limits: each batch ends where the log ends.

    Spark does not tell `latestOffset` where the batch starts, so a batch is confirmed only by `commit`, which Spark
    calls while it plans the next one. The last batch of a query stays unconfirmed until the query runs again.
    `partitions` must not confirm its start: after a restart, Spark calls it for an empty range at the end of a batch
    that is not committed.
    """

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._log.initial()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the log."""
        # The confirmed position is never after the checkpoint's, so nothing is confirmed or skipped here.
        return self._log.latest(self._log.initial(), unlimited=True)


class RefusedStream(DataSourceStreamReader):
    """A stream with wrong options: every call raises *error*."""

    def __init__(self, error: QuiverError) -> None:
        self.error = error

    def _refuse(self) -> NoReturn:
        raise self.error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        self._refuse()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raise the error."""
        self._refuse()


def parallelism() -> int:
    """Return how many tasks may run at once. A data source cannot ask Spark, so this counts the host's cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else (os.cpu_count() or 1))
