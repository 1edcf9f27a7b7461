"""The exporter to a topic: the tables of a batch become messages, committed together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK
from quiver.errors import UsageError
from quiver.otap import VIEW_SLOTS
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.exporters.exported import ExportedAmount
from quiver.spark.otlp_rows import is_view
from quiver.spark.spark_features import to_arrow_schema
from quiver.spark.store.sink_options import SinkOptions
from quiver.spark.store.sink_stage import bundles_of, task_place
from quiver.spark.topics.export_settings import CONTENT_ATTRIBUTE, TABLE_ATTRIBUTE, TopicSinkSettings
from quiver.spark.topics.sink import StagedParts, commit_messages, is_batch_committed, stage_messages
from quiver.topics.format.message import NS_PER_MS, SIGNAL_ATTRIBUTE, MessageCodec
from quiver.topics.format.names import check_topic
from quiver.topics.format.sink_batch import INCOMING_DIR, SinkPart, StagedMessage
from quiver.topics.reading.place import TopicPlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from quiver.spark.exporters.table_exporter import BatchOf

__all__ = ["TopicExporter"]

_SIGNALS = {"logs": "logs", "spans": "traces", "metrics": "metrics"}
_STAGED = "part string, topic string, messages bigint, rows bigint, bytes bigint"
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


class TopicExporter:
    """Writes every table to a topic, each batch exactly once."""

    def __init__(self, settings: TopicSinkSettings) -> None:
        self._settings = settings
        # Tasks may run with another working directory.
        root = os.path.abspath(settings.topics)  # noqa: PTH100 - kept as text
        self._place = TopicPlace(root, settings.objects, settings.metadata)
        self._topic = check_topic(settings.topic)

    def has(self, batch: BatchOf) -> bool:
        """Return whether *batch* is committed: its messages are in the topic, or will be before any later ones."""
        return is_batch_committed(REAL_FILES, self._place.root or "", writer=batch.query, batch=batch.number)

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:  # noqa: ARG002 - topics know batches only
        """Return nothing: a topic knows the batches of queries, not their positions in a store."""
        return {}

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that are writers with a committed batch."""
        directory = f"{self._place.root}/{INCOMING_DIR}"
        writers = REAL_FILES.list_dir(directory) if REAL_FILES.exists(directory) else ()
        return {
            name for name in writers
            if name in names and is_batch_committed(REAL_FILES, self._place.root or "", writer=name, batch=0)
        }  # fmt: skip

    def export(self, tables: Mapping[str, DataFrame], batch: BatchOf) -> ExportedAmount:
        """
        Stage every table in the tasks, and commit them together. Durable on return.

        Raises:
            UsageError: the format is OTLP, and a table is not a view.
        """
        staged: list[StagedParts] = []
        exported = ExportedAmount()
        for name, frame in tables.items():
            json = self._settings.format == "json"
            if not json and not is_view(to_arrow_schema(frame.schema), name):
                raise UsageError(
                    f"table {name} has other columns than the view {name}: it cannot become OTLP; use json"
                )
            wanted = _lines(frame) if json else frame
            task = _MessageTask(self._place.root or "", self._topic, name, json, batch.query, batch.number)
            rows = wanted.mapInArrow(task, _STAGED).toArrow().to_pylist()
            staged.append(StagedParts(tuple(SinkPart(row["part"], row["topic"], row["messages"]) for row in rows)))
            exported += ExportedAmount(sum(row["rows"] for row in rows), sum(row["bytes"] for row in rows))
        commit_messages(REAL_FILES, self._place, writer=batch.query, batch=batch.number, staged=staged)
        return exported


@dataclass(frozen=True)
class _MessageTask:
    root: str
    topic: str
    table: str
    json: bool
    writer: str
    batch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, attempt = task_place()
        count = _Count()
        messages = count.messages(self._messages(count.rows_of(batches)))
        staged = stage_messages(
            REAL_FILES, self.root, messages, writer=self.writer, batch=self.batch, partition=partition, attempt=attempt
        )
        parts = staged.parts
        first = [True, *[False] * len(parts)][: len(parts)]
        yield pa.record_batch(
            {
                "part": pa.array([one.path for one in parts], pa.string()),
                "topic": pa.array([one.topic for one in parts], pa.string()),
                "messages": pa.array([one.messages for one in parts], pa.int64()),
                "rows": pa.array([count.rows if is_first else 0 for is_first in first], pa.int64()),
                "bytes": pa.array([count.size_bytes if is_first else 0 for is_first in first], pa.int64()),
            }
        )

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, StagedMessage]]:
        time_ms = SYSTEM_CLOCK.now_ns() // NS_PER_MS
        attributes = {TABLE_ATTRIBUTE: self.table, CONTENT_ATTRIBUTE: "application/json"}
        if not self.json:
            attributes = {SIGNAL_ATTRIBUTE: _SIGNALS[self.table], CONTENT_ATTRIBUTE: "application/x-protobuf"}
        tail = MessageCodec(self.topic).tail_of(attributes)
        for payload in self._lines(batches) if self.json else self._requests(batches):
            yield self.topic, StagedMessage(payload, time_ms, tail)

    def _lines(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for batch in batches:
            yield from (line.encode() for line in batch.column(0).to_pylist())

    def _requests(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for slots in bundles_of(batches, SinkOptions(path=self.root, view=self.table)):
            yield slots[VIEW_SLOTS[self.table]].column(0)[0].as_py()


class _Count:
    """Counts the rows of a task and the bytes of their messages."""

    def __init__(self) -> None:
        self.rows = self.size_bytes = 0

    def rows_of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            yield batch

    def messages(self, found: Iterable[tuple[str, StagedMessage]]) -> Iterator[tuple[str, StagedMessage]]:
        for topic, message in found:
            self.size_bytes += len(message.payload)
            yield topic, message


def _lines(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), _TIMES).alias("line"))
