"""
The Spark data source `quiver-aof`: batch and streaming reads of append-only logs, and writes to them.

As with `quiver`, Spark makes these objects in several processes and pickles them between, so constructors only keep
what they are given; batches are Arrow of exactly the declared schema; filters are never taken over from Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from quiver.aof.reading.files import LogFiles
from quiver.aof.reading.position import AofPosition, position_from_json
from quiver.aof.reading.view import AOF_SCHEMA, METADATA_SCHEMA, LogView, Piece, read_piece
from quiver.errors import UsageError
from quiver.option_values import refuse_ending, refuse_stream_options
from quiver.spark.aof.options import STREAM_OPTIONS, AofOptions, parse_aof_options
from quiver.spark.aof.sink import AofSink
from quiver.spark.aof.sink_options import AofSinkOptions, check_record_columns, parse_aof_sink_options
from quiver.spark.refused_stream import stream_reader
from quiver.spark.store.sink import BatchWriter, StreamWriter
from quiver.spark.table_options import (
    given_options,
    options_of_table,
    refuse_write_without_options,
    schema_with_options,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["AofBatchReader", "AofDataSource", "AofStreamReader", "PiecesPartition"]


class PiecesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class AofDataSource(DataSource):
    """
    ``format("quiver-aof")`` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options of reads: see `quiver.spark.aof.options`; of writes: `quiver.spark.aof.sink_options`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = given_options(options)

    @cached_property
    def _parsed(self) -> AofOptions:
        # Not at once: a sink has other options.
        parsed = parse_aof_options(self._given)
        # Tasks may run with another working directory.
        return replace(parsed, path=os.path.abspath(parsed.path))  # noqa: PTH100 - kept as text

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "quiver-aof"

    def schema(self) -> StructType:
        """Return the columns of a record; with `includeMetadata` where it lies, too."""
        options = self._parsed
        fields = [AOF_SCHEMA.field(name) for name in options.columns]
        schema = from_arrow_schema(pa.schema([*fields, *(METADATA_SCHEMA if options.include_metadata else ())]))
        return schema_with_options(schema, self.name(), self.options)

    def reader(self, schema: StructType) -> AofBatchReader:
        """Return the batch reader. Spark passes *schema* by keyword."""
        self._given = options_of_table(self._given, schema, self.name())
        refuse_stream_options(self._given, STREAM_OPTIONS)
        return AofBatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """
        Return the streaming reader, which raises what is wrong with the options when it is asked for a position.

        Spark passes *schema* by keyword.
        """
        return stream_reader(lambda: self._stream_reader(schema))

    def _stream_reader(self, schema: StructType) -> AofStreamReader:
        self._given = options_of_table(self._given, schema, self.name())
        refuse_ending(self._given)
        return AofStreamReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """
        Return the batch writer.

        Raises:
            UsageError: an option or a column is unknown, missing or contradicts another, or a log is to be overwritten.
        """
        refuse_write_without_options(self._given, self.name())
        return BatchWriter(AofSink(_sink_options(self._given, schema, overwrite=overwrite)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """
        Return the streaming writer.

        Raises:
            UsageError: as `writer`.
        """
        return StreamWriter(AofSink(_sink_options(self._given, schema, overwrite=overwrite)))


def _sink_options(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> AofSinkOptions:
    if overwrite:
        raise UsageError('a log only grows: write with mode("append"), a stream with outputMode("append")')
    options = parse_aof_sink_options(given)
    check_record_columns({field.name: field.dataType.simpleString() for field in schema.fields})
    return replace(options, path=os.path.abspath(options.path))  # noqa: PTH100 - kept as text


class _Pieces:
    """Reads pieces in a task, as batches of the declared schema."""

    def __init__(self, options: AofOptions, schema: StructType) -> None:
        self._options = options
        self._files = LogFiles(options.path, objects=options.objects)
        self._target = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark turns an empty list of partitions into one with nothing in it.
        options = self._options
        for piece in partition.pieces if isinstance(partition, PiecesPartition) else ():
            for batch in read_piece(
                self._files, piece, options.columns, include_metadata=options.include_metadata,
                fail_on_data_loss=options.fail_on_data_loss,
            ):  # fmt: skip
                yield batch.cast(self._target)


class AofBatchReader(DataSourceReader):
    """Reads the records that are durable when the frame is first used."""

    def __init__(self, options: AofOptions, schema: StructType) -> None:
        self._options = options
        self._pieces = _Pieces(options, schema)

    def partitions(self) -> list[PiecesPartition]:
        """
        Return one partition per task.

        Raises:
            UsageError: there is no log at the path.
            DataLossError: records that were asked for are gone.
        """
        view = _view(self._options)
        start, stop = view.resolve(self._options.starting), view.resolve(self._options.ending)
        return _partitions(view, self._options, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition, in a task."""
        return self._pieces.read(partition)


class AofStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's source. It only reads: its position is in Spark's checkpoint, and nothing waits for it."""

    def __init__(self, options: AofOptions, schema: StructType) -> None:
        if options.starting == "latest":
            raise UsageError(
                "a stream cannot begin at latest: a query that dies in its first batch would ask again, and miss what "
                "came meanwhile; give startingTimestamp, or a record id"
            )
        self._options = options
        self._pieces = _Pieces(options, schema)
        self._view = _view(options)
        self._available: AofPosition | None = None

    def _position(self, value: object) -> AofPosition:
        return position_from_json(value, self._view.identity, self._options.path)

    def _json(self, position: AofPosition) -> dict[str, Any]:
        return position.to_json(self._view.identity)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._json(self._view.resolve(self._options.starting))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit that stands for both options; Spark replaces it where all is to be read at once."""
        return ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """
        Return where the next batch ends.

        Raises:
            DataLossError: records behind *start* are gone, or another log is here.
        """
        began = self._position(start)
        end = self._view.end()
        if self._available is not None and self._available.record_id < end.record_id:
            end = self._available  # what came after the beginning of an available-now run is for the next one
        if end.record_id <= began.record_id:
            return start
        if isinstance(limit, ReadAllAvailable):
            return self._json(end)
        options = self._options
        return self._json(self._view.reach(began, end, rows_max=options.rows_max, bytes_max=options.bytes_max))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the log, for progress reports."""
        return self._json(self._view.end())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this run at what the log holds now."""
        self._available = self._view.end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[PiecesPartition]:
        """Return one partition per task for the records from *start* to before *end*."""
        return _partitions(self._view, self._options, self._position(start), self._position(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition, in a task."""
        return self._pieces.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a log keeps no readers' positions."""

    def stop(self) -> None:
        """Do nothing: nothing is held."""


def _view(options: AofOptions) -> LogView:
    files = LogFiles(options.path, objects=options.objects)
    return LogView(files, fail_on_data_loss=options.fail_on_data_loss)


def _partitions(view: LogView, options: AofOptions, start: AofPosition, stop: AofPosition) -> list[PiecesPartition]:
    pieces = view.pieces(start, stop)
    tasks = view.tasks(pieces, parallelism=_parallelism(), partitions_min=options.partitions_min)
    return [PiecesPartition(part) for part in tasks]


def _parallelism() -> int:
    """Return how many tasks may run at once: Spark does not tell a data source, so this host's cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else (os.cpu_count() or 1))
