"""The Spark data source `quiver-aof`: batch and streaming reads of append-only logs, and writes to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.aof.reading.file_reader import AOF_SCHEMA, METADATA_SCHEMA, LogFileReader, RecordSpan, read_piece
from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.position import AofPosition, position_from_json
from quiver.errors import UsageError
from quiver.spark.aof.options import STREAM_OPTIONS, AofOptions, parse_aof_options
from quiver.spark.aof.sink import AofSink
from quiver.spark.aof.sink_options import check_record_columns, parse_aof_sink_options
from quiver.spark.log_source import LogDataSource, ReadableLog, parallelism

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["AofDataSource", "AofLog"]


class AofLog(ReadableLog):
    """One append-only log. Reading changes nothing: the position is in Spark's checkpoint, and no data waits for it."""

    def __init__(self, options: AofOptions) -> None:
        self._options = options
        self._files = LogFiles(options.path, objects=options.objects)
        self._reader = LogFileReader(self._files, fail_on_data_loss=options.fail_on_data_loss)
        self._available: AofPosition | None = None

    @property
    def bytes_max(self) -> int | None:
        """The size limit of a streaming batch."""
        return self._options.bytes_max

    def schema(self) -> pa.Schema:
        """Return the columns of a record; with `includeMetadata` its location, too."""
        fields = [AOF_SCHEMA.field(name) for name in self._options.columns]
        return pa.schema([*fields, *(METADATA_SCHEMA if self._options.include_metadata else ())])

    def plan_all(self) -> list[tuple[RecordSpan, ...]]:
        """Return what each task reads: the records that are durable now, between the bounds of the options."""
        options = self._options
        return self._plan(self._reader.resolve(options.starting), self._reader.resolve(options.ending))

    def read(self, spans: tuple[RecordSpan, ...], target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of *spans*, in a task."""
        options = self._options
        for piece in spans:
            for batch in read_piece(
                self._files, piece, options.columns, include_metadata=options.include_metadata,
                fail_on_data_loss=options.fail_on_data_loss,
            ):  # fmt: skip
                yield batch.cast(target)

    def check_stream(self) -> None:
        """
        Refuse a stream from `latest`.

        Raises:
            UsageError: the stream starts at latest.
        """
        if self._options.starting == "latest":
            raise UsageError(
                "a stream cannot begin at latest: a query that dies in its first batch would ask again, and miss what "
                "came meanwhile; give startingTimestamp, or a record id"
            )

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts."""
        return self._json(self._reader.resolve(self._options.starting))

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Return where the next batch ends.

        Raises:
            DataLossError: records after *start* are missing, or the log at the path is another one.
        """
        began = self._position(start)
        end = self._reader.end()
        if self._available is not None and self._available.record_id < end.record_id:
            end = self._available  # an available-now run leaves later records to the next run
        if end.record_id <= began.record_id:
            return dict(start)
        if unlimited:
            return self._json(end)
        options = self._options
        return self._json(self._reader.reach(began, end, rows_max=options.rows_max, bytes_max=options.bytes_max))

    def tail(self) -> dict[str, Any] | None:
        """Return the end of the log, for progress reports."""
        return self._json(self._reader.end())

    def available_now(self) -> None:
        """Fix the end of this run at what the log contains now."""
        self._available = self._reader.end()

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[RecordSpan, ...]]:
        """Return what each task reads of the records from *start* to before *end*."""
        return self._plan(self._position(start), self._position(end))

    def _plan(self, start: AofPosition, stop: AofPosition) -> list[tuple[RecordSpan, ...]]:
        pieces = self._reader.pieces(start, stop)
        return self._reader.tasks(pieces, parallelism=parallelism(), partitions_min=self._options.partitions_min)

    def _position(self, value: object) -> AofPosition:
        return position_from_json(value, self._reader.identity, self._options.path)

    def _json(self, position: AofPosition) -> dict[str, Any]:
        return position.to_json(self._reader.identity)


class AofDataSource(LogDataSource):
    """
    ``format("quiver-aof")`` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options of reads: see `quiver.spark.aof.options`; of writes: `quiver.spark.aof.sink_options`.
    """

    format_name = "quiver-aof"
    log_kind = "log"
    stream_options = STREAM_OPTIONS

    @staticmethod
    def log(given: Mapping[str, str]) -> AofLog:
        """Return the log that the options describe."""
        options = parse_aof_options(given)
        # Tasks may run with another working directory.
        return AofLog(replace(options, path=os.path.abspath(options.path)))  # noqa: PTH100 - kept as text

    @staticmethod
    def sink(given: Mapping[str, str], schema: StructType) -> AofSink:
        """Return the sink that the options describe, for rows of *schema*."""
        options = parse_aof_sink_options(given)
        check_record_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        return AofSink(replace(options, path=os.path.abspath(options.path)))  # noqa: PTH100 - kept as text
