"""
The Spark data source `quiver`: batch and streaming reads of a store's sealed bundles.

Spark makes these objects in several processes and pickles them between, so constructors only keep what they
are given. Batches are Arrow, always of exactly the declared schema. Filters are never taken over from Spark:
4.3 shares a pushed filter between all scans of a frame and then returns wrong rows; choose less with options.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from quiver.bundle import OTAP
from quiver.errors import UsageError
from quiver.instant import IngestedAt
from quiver.option_values import refuse_ending, refuse_stream_options
from quiver.otap import slots_of_view, view_schema
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.cast import spark_schema
from quiver.spark.refused_stream import stream_reader
from quiver.spark.store.read_partition import (
    BUNDLE_SCHEMA,
    IPC_SCHEMA,
    METADATA_SCHEMA,
    ROWS_FIELD,
    PartitionReader,
)
from quiver.spark.store.sink import BatchWriter, StreamWriter
from quiver.spark.store.sink_options import SinkOptions, parse_sink_options
from quiver.spark.store.sink_stage import store_sink
from quiver.spark.table_options import (
    given_options,
    options_of_table,
    refuse_write_without_options,
    schema_with_options,
)
from quiver.store.cold.files import ColdFiles
from quiver.store.reading.cores import CoresSubscription
from quiver.store.reading.offsets import Position, StartingOffsets
from quiver.store.reading.partitions import Span, pack, spans_between
from quiver.store.reading.segments import SegmentList, store_roots
from quiver.store.reading.stream_options import STREAM_OPTIONS, SourceOptions, parse_options
from quiver.store.reading.subscription import Subscription
from quiver.store.segment.schemas import is_of_table
from quiver.store.segment.type_promotion import columns_of, representative

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "QuiverDataSource", "SpansPartition", "StreamReader"]


class SpansPartition(InputPartition):
    """What one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(None)
        self.spans = spans


class QuiverDataSource(DataSource):
    """
    ``format("quiver")`` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options of reads: see `quiver.store.reading.stream_options`; of writes: `quiver.spark.store.sink_options`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = given_options(options)

    @cached_property
    def _parsed(self) -> SourceOptions:
        # Not at once: a sink has other options.
        parsed = parse_options(self._given)
        # Tasks may run with another working directory.
        return replace(parsed, path=os.path.abspath(parsed.path))  # noqa: PTH100 - kept as text

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "quiver"

    def schema(self) -> StructType:
        """
        Return the schema the options ask for.

        A slot's columns are those of all sealed segments together; with a schema given to `load` nothing is
        looked at.

        Raises:
            UsageError: no segment has the slot, a column is unknown, or its types do not go together.
        """
        options = self._parsed
        if options.mode == "bundles":
            schema = pa.schema([*BUNDLE_SCHEMA, ROWS_FIELD]) if options.include_metadata else BUNDLE_SCHEMA
        elif options.mode == "ipc":
            schema = IPC_SCHEMA
        else:
            schema = _rows_schema(options)
            if options.include_metadata:
                schema = pa.schema([*schema, *METADATA_SCHEMA])
        return schema_with_options(from_arrow_schema(schema), self.name(), self.options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the batch reader. Spark passes *schema* by keyword."""
        self._given = options_of_table(self._given, schema, self.name())
        refuse_stream_options(self._given, STREAM_OPTIONS)
        return BatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """
        Return the streaming reader, which raises what is wrong with the options when it is asked for a position.

        Spark passes *schema* by keyword.
        """
        return stream_reader(lambda: self._stream_reader(schema))

    def _stream_reader(self, schema: StructType) -> StreamReader:
        self._given = options_of_table(self._given, schema, self.name())
        refuse_ending(self._given)
        return StreamReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: ARG002, FBT001 - Spark's signature
        """
        Return the batch writer.

        Raises:
            UsageError: an option is unknown, missing or contradicts another, or what is there is to be overwritten.
        """
        refuse_write_without_options(self._given, self.name())
        return BatchWriter(store_sink(_append_options(self._given, overwrite=overwrite)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, FBT001, N802
        """
        Return the streaming writer.

        Raises:
            UsageError: an option is unknown, missing or contradicts another, or the output mode is not append.
        """
        return StreamWriter(store_sink(_append_options(self._given, overwrite=overwrite)))


class BatchReader(DataSourceReader):
    """Reads the bundles that are sealed when the frame is first used; the list is frozen from then on."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reader = _partition_reader(options, schema)

    def partitions(self) -> list[SpansPartition]:
        """
        Return one partition per task.

        Raises:
            UsageError: there is no store at the path.
            CorruptionError: a segment cannot be read.
        """
        options = self._options
        roots = store_roots(REAL_FILES, options.path)
        if len(roots) > 1 and any(isinstance(bound, Position) for bound in (options.starting, options.ending)):
            raise UsageError(
                f"{options.path} holds {len(roots)} cores, each with positions of its own: read one of them, such as "
                f"{next(iter(roots.values()))}, or give a time: startingTimestamp, endingTimestamp"
            )
        spans: list[Span] = []
        for root in roots.values():
            segments = _segment_list(options, root)
            start = _resolve(options.starting, segments)
            end = _resolve(options.ending, segments)
            spans += spans_between(segments.from_position(start), start, end)
        parts = pack(spans, parallelism=_parallelism(), partitions_min=options.partitions_min)
        return [SpansPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in a task."""
        return self._reader.read(_spans(partition))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's source. In the query's own process it is a subscriber; elsewhere it only reads."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reader = _partition_reader(options, schema)
        self._made: Subscription | CoresSubscription | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot travel: tasks get what reads, never what acks.
        return {**self.__dict__, "_made": None}

    @property
    def _subscription(self) -> Subscription | CoresSubscription:
        if self._made is None:
            options = self._options
            if None in store_roots(REAL_FILES, options.path):
                self._made = _subscribed(options, options.path)
            else:
                self._made = CoresSubscription(
                    REAL_FILES,
                    options,
                    # A core that comes later has nothing that was there before the query.
                    lambda root, is_first: _subscribed(
                        options if is_first else replace(options, starting="earliest"), root
                    ),
                    parallelism=_parallelism(),
                )
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts; the subscriber exists durably on return."""
        return self._subscription.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit that stands for the three options; Spark replaces it where all is to be read at once."""
        return ReadMaxBytes(self._options.limits.bytes_max or 1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Ack what lies before *start*, whose batch is committed, and return where the next batch ends."""
        return self._subscription.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the store, for progress reports."""
        return self._subscription.tail()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this run at what the store holds now."""
        self._subscription.available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SpansPartition]:
        """Return one partition per task for the bundles from *start* to before *end*."""
        return [SpansPartition(spans) for spans in self._subscription.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in a task."""
        return self._reader.read(_spans(partition))

    def commit(self, end: dict[str, Any]) -> None:
        """Ack what lies before *end*: its batch is committed."""
        self._subscription.commit(end)

    def stop(self) -> None:
        """Let go of the subscriber. Spark only comes here after an error; otherwise the process just dies."""
        if self._made is not None:
            self._made.release()


def _append_options(given: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise UsageError('a store only grows: write with mode("append"), a stream with outputMode("append")')
    return parse_sink_options(given)


def _rows_schema(options: SourceOptions) -> pa.Schema:
    if options.view is None:
        schema = _slot_schema(options)
    else:
        schema = view_schema(options.view)
        _check_columns(options.columns, schema.names)
    return schema if options.columns is None else pa.schema([schema.field(name) for name in options.columns])


def _check_columns(columns: Iterable[str] | None, names: list[str]) -> None:
    for name in columns or ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise UsageError(f"columns: there is no column {name!r}; {hint}")


def _slot_schema(options: SourceOptions) -> pa.Schema:
    """
    Return the columns of a slot over all sealed segments, each under the widest type that one of them has it in.

    The data is not read: a task checks a segment before it uses it.
    """
    roots = store_roots(REAL_FILES, options.path).values()
    schemas = [
        schema
        for root in roots
        for schema in _segment_list(options, root).schemas()
        if options.table is None or is_of_table(schema, options.table)
    ]
    if not schemas and options.table is not None:
        raise UsageError(
            f"no sealed segment of {options.path} holds rows of a table {options.table!r}; "
            "read again when there is data, or give a schema: .schema(...)"
        )
    if not schemas:
        slot = OTAP.slots.get(options.slot or 0, "")
        raise UsageError(
            f"no sealed segment of {options.path} holds slot {options.slot} {slot}; "
            "read again when there is data, or give a schema: .schema(...)"
        )
    _check_columns(options.columns, columns_of(schemas))
    return spark_schema(representative(schemas, options.columns), nanos_as_bigint=options.nanos_as_bigint)


def _subscribed(options: SourceOptions, root: str) -> Subscription:
    segments = _segment_list(options, root)
    starting = options.starting
    if isinstance(starting, IngestedAt):
        starting = _resolve(starting, segments)
    own = replace(options, path=root, starting=starting)
    return Subscription(REAL_FILES, own, segments, parallelism=_parallelism())


def _segment_list(options: SourceOptions, root: str) -> SegmentList:
    slots = None
    if options.view is not None:
        slots = frozenset(slots_of_view(options.view))
    elif options.slot is not None:
        slots = frozenset({options.slot})
    return SegmentList(ColdFiles(REAL_FILES), root, slots=slots, fail_on_data_loss=options.fail_on_data_loss)


def _partition_reader(options: SourceOptions, schema: StructType) -> PartitionReader:
    target = to_arrow_schema(schema, timezone="UTC")
    return PartitionReader(options.mode, options.view, options.slot, target, options.fail_on_data_loss, options.table)


def _resolve(offsets: StartingOffsets, segments: SegmentList) -> Position:
    if isinstance(offsets, Position):
        return offsets
    if isinstance(offsets, IngestedAt):
        return segments.ingested_from(offsets.time_ns)
    return Position(0, 0) if offsets == "earliest" else segments.end(Position(0, 0))


def _spans(partition: InputPartition) -> tuple[Span, ...]:
    # Spark turns an empty list of partitions into one with nothing in it.
    return partition.spans if isinstance(partition, SpansPartition) else ()


def _parallelism() -> int:
    """Return how many tasks may run at once: Spark does not tell a data source, so this host's cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else (os.cpu_count() or 1))
