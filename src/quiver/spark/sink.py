"""
The Spark sink `quiver`: batch and streaming writes into a store, each batch exactly once.

Spark makes a writer in the driver, sends it to the tasks, and commits with another object of the same class: all that a
task has to say travels in its message.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from quiver.errors import WrongUse
from quiver.primitives.batch_notes import ONCE_PREFIX
from quiver.primitives.real_files import REAL_FILES
from quiver.spark.sink_options import SinkOptions
from quiver.spark.sink_stage import Staged, commit_batch, discard, sink_root, stage_here

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchWriter", "StagedMessage", "StreamWriter"]


class StagedMessage(WriterCommitMessage):
    """
    What a task staged, and for whom.
    """

    def __init__(self, writer: str, staged: Staged) -> None:
        self.writer = writer
        self.staged = staged


class BatchWriter(DataSourceArrowWriter):
    """
    ``df.write.format("quiver")``. With `txnAppId` and `txnVersion` a write that is repeated changes nothing.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._root = sink_root(REAL_FILES, options.path)
        once = f"{ONCE_PREFIX}{uuid.uuid4()}", 0  # noqa: TID251 - one write, told apart from all others
        self._writer, self._batch = once if options.transaction is None else options.transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """
        Stage one partition, in a task.
        """
        staged = stage_here(self._root, iterator, writer=self._writer, batch=self._batch, options=self._options)
        return StagedMessage(self._writer, staged)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Make all that was staged one committed write.
        """
        _, staged = _staged(messages)
        commit_batch(REAL_FILES, self._root, writer=self._writer, batch=self._batch, staged=staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Remove what was staged.
        """
        _, staged = _staged(messages)
        discard(REAL_FILES, self._root, writer=self._writer, batch=self._batch, staged=staged)


class StreamWriter(DataSourceStreamArrowWriter):
    """
    ``df.writeStream.format("quiver")``. Batches are counted per query, whose id its checkpoint keeps.
    """

    def __init__(self, options: SinkOptions) -> None:
        if options.transaction is not None:
            raise WrongUse("txnAppId and txnVersion are for batch writes; a streaming query has an id of its own")
        self._options = options
        self._root = sink_root(REAL_FILES, options.path)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """
        Stage one partition of a batch, in a task.
        """
        context = TaskContext.get()
        # Only a task is told them; `commit` knows the number of the batch alone.
        writer = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        return StagedMessage(
            writer, stage_here(self._root, iterator, writer=writer, batch=batch, options=self._options)
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """
        Make all that was staged one committed batch; one that was committed before is not again.
        """
        writer, staged = _staged(messages)
        if writer is not None:
            commit_batch(REAL_FILES, self._root, writer=writer, batch=batchId, staged=staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """
        Remove what was staged.
        """
        writer, staged = _staged(messages)
        if writer is not None:
            discard(REAL_FILES, self._root, writer=writer, batch=batchId, staged=staged)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> tuple[str | None, list[Staged]]:
    # None stands for a task that failed.
    known = [message for message in messages if isinstance(message, StagedMessage)]
    return (known[0].writer if known else None), [message.staged for message in known]
