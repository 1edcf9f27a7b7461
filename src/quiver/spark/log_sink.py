"""
Batch and streaming writes to `quiver`, `quiver-topic` and `quiver-aof`, each batch exactly once.

Spark creates a writer in the driver, sends it to the tasks, and commits with another object of the same class. So
everything that the commit needs from a task travels in its message. Each sink defines what is staged and how it is
committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import TaskContext

from quiver.bundle import complete_batch
from quiver.errors import UsageError
from quiver.primitives.batch_notes import ONCE_PREFIX
from quiver.spark.spark_features import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "Sink", "StagedRows", "StreamWriter"]


class Sink(Protocol):
    """The destination of rows. Tasks stage them, and a commit makes them visible. Can be pickled."""

    @property
    def transaction(self) -> tuple[str, int] | None:
        """The writer and number that the program gave this write, if any."""

    def stage(self, rows: Iterator[pa.RecordBatch], *, writer: str, batch: int) -> Any:
        """Write and sync one partition, in a task. Return what the commit needs to know of it."""

    def commit(self, *, writer: str, batch: int, staged: Sequence[Any]) -> None:
        """Commit everything that was staged as one batch, unless that batch was committed before."""

    def discard(self, *, writer: str, batch: int, staged: Sequence[Any]) -> None:
        """Remove what was staged, unless it is committed."""


class StagedRows(WriterCommitMessage):
    """The result of a task, with the writer that it staged for."""

    def __init__(self, writer: str, staged: Any) -> None:
        self.writer = writer
        self.staged = staged


class BatchWriter(DataSourceArrowWriter):
    """``df.write``. With `txnAppId` and `txnVersion`, a repeated write changes nothing."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        once = f"{ONCE_PREFIX}{uuid.uuid4()}", 0  # noqa: TID251 - identifies one write
        self._writer, self._batch = once if sink.transaction is None else sink.transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage one partition, in a task."""
        rows = map(complete_batch, iterator)
        return StagedRows(self._writer, self._sink.stage(rows, writer=self._writer, batch=self._batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit everything that was staged as one write."""
        self._sink.commit(writer=self._writer, batch=self._batch, staged=_staged(messages)[1])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged."""
        self._sink.discard(writer=self._writer, batch=self._batch, staged=_staged(messages)[1])


class StreamWriter(DataSourceStreamArrowWriter):
    """
    ``df.writeStream``. Batches are numbered per query, whose id is in its checkpoint.

    Raises:
        UsageError: the options have a transaction.
    """

    def __init__(self, sink: Sink) -> None:
        if sink.transaction is not None:
            raise UsageError("txnAppId and txnVersion are for batch writes; a streaming query has its own id")
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Stage one partition of a batch, in a task."""
        context = TaskContext.get()
        # Only a task knows both; `commit` gets the number of the batch alone.
        writer = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        return StagedRows(writer, self._sink.stage(map(complete_batch, iterator), writer=writer, batch=batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit everything that was staged as one batch, unless that batch was committed before."""
        writer, staged = _staged(messages)
        if writer is not None:
            self._sink.commit(writer=writer, batch=batchId, staged=staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was staged."""
        writer, staged = _staged(messages)
        if writer is not None:
            self._sink.discard(writer=writer, batch=batchId, staged=staged)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> tuple[str | None, list[Any]]:
    # None represents a task that failed.
    known = [message for message in messages if isinstance(message, StagedRows)]
    return (known[0].writer if known else None), [message.staged for message in known]
