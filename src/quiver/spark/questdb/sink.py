"""
The Spark sink `questdb`: each partition is sent through store and forward, in its own slot.

A task writes its rows to the slot and syncs it. Then they are safe, whether the server is reachable or not. The next
task of the partition, or any other sender that drains the slot, sends the rows that the server has not confirmed. A
batch that Spark repeats is recognized by query, batch and contents, as long as its tasks find the same slots.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from pyspark import TaskContext

from quiver.bundle import complete_batch
from quiver.errors import UsageError
from quiver.spark.questdb.options import QuestdbOptions, parse_questdb_options
from quiver.spark.spark_features import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["QuestdbBatchWriter", "QuestdbDataSource", "QuestdbStreamWriter"]

_WRITER_DIGITS = 8


class QuestdbDataSource(DataSource):
    """``format("questdb")`` of `df.write` and `df.writeStream`. Options: see `quiver.spark.questdb.options`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "questdb"

    def writer(self, schema: StructType, overwrite: bool) -> QuestdbBatchWriter:  # noqa: FBT001 - Spark's signature
        """
        Return the batch writer.

        Raises:
            UsageError: an option is invalid, names a missing column, or the mode is overwrite.
            SettingsError: the connect string is invalid.
        """
        return QuestdbBatchWriter(self._checked(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> QuestdbStreamWriter:  # noqa: FBT001, N802
        """
        Return the streaming writer.

        Raises:
            UsageError: an option is invalid, names a missing column, or the output mode is not append.
            SettingsError: the connect string is invalid.
        """
        options = self._checked(schema, overwrite=overwrite)
        if options.transaction is not None:
            raise UsageError("txnAppId and txnVersion are for batch writes; a streaming query has its own id")
        return QuestdbStreamWriter(options)

    def _checked(self, schema: StructType, *, overwrite: bool) -> QuestdbOptions:
        if overwrite:
            raise UsageError('rows are only added: write with mode("append"), a stream with outputMode("append")')
        options = parse_questdb_options(self._given)
        sf_dir = _task().check_write(options, schema.names)
        return replace(options, sf_dir=os.path.abspath(sf_dir))  # noqa: PTH100 - kept as text


class _Sent(WriterCommitMessage):
    """The amount that a task sent."""

    def __init__(self, messages: int, known: int) -> None:
        self.messages = messages
        self.known = known


class QuestdbBatchWriter(DataSourceArrowWriter):
    """``df.write.format("questdb")``. With `txnAppId` and `txnVersion` a repeated write sends nothing."""

    def __init__(self, options: QuestdbOptions) -> None:
        self._options = options
        once = f"once-{uuid.uuid4()}", 0  # noqa: TID251 - identifies one write
        self._writer, self._batch = once if options.transaction is None else options.transaction

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Sent:
        """Send one partition, in a task."""
        # A slot is never removed, so writes without a transaction share the same slots.
        slots = "batch" if self._options.transaction is None else _digits(self._writer)
        return _send(self._options, slots, (self._writer, self._batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: the rows are in slots."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: sent rows cannot be taken back."""


class QuestdbStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("questdb")``. Batches are numbered per query, whose id is in its checkpoint."""

    def __init__(self, options: QuestdbOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Sent:
        """Send one partition of a batch, in a task."""
        context = TaskContext.get()
        writer = context.getLocalProperty("sql.streaming.queryId")
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        return _send(self._options, _digits(writer), (writer, batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the rows are in slots."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: sent rows are recognized when the batch is repeated."""


def _digits(writer: str) -> str:
    return str(blake3(writer.encode()).hexdigest()[:_WRITER_DIGITS])


def _task() -> Any:
    # Imported by name: a session registers the format even if the extra `qwp` is not installed.
    return import_module("quiver.spark.questdb.task")


def _send(options: QuestdbOptions, slots: str, group: tuple[str, int], batches: Iterator[pa.RecordBatch]) -> _Sent:
    rows = map(complete_batch, batches)
    sent = _task().send_partition(options, slots, TaskContext.get().partitionId(), group, rows)
    return _Sent(sent.messages, sent.known)
