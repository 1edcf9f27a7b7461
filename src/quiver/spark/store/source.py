"""The Spark data source `quiver`: batch and streaming reads of a store's bundles, and writes to it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.bundle import OTAP, BundleRef
from quiver.errors import UsageError
from quiver.instant import IngestedAt
from quiver.otap import slots_of_view, view_schema
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.cast import spark_schema
from quiver.spark.log_source import LogDataSource, ReadableLog, parallelism
from quiver.spark.store.batch_wait import BatchWait
from quiver.spark.store.read_partition import (
    BUNDLE_SCHEMA,
    IPC_SCHEMA,
    METADATA_SCHEMA,
    ROWS_FIELD,
    PartitionReader,
)
from quiver.spark.store.sink_options import parse_sink_options
from quiver.spark.store.sink_stage import store_sink
from quiver.spark.store.unsealed import LoggedBundle, Unsealed, pack_logged, read_unsealed
from quiver.store.cold.files import ColdFiles
from quiver.store.reading.cores import CoresStreamSubscriber
from quiver.store.reading.offsets import StartingOffsets
from quiver.store.reading.partitions import BundleRange, pack, ranges_between
from quiver.store.reading.segments import SegmentList, store_roots
from quiver.store.reading.stream_options import STREAM_OPTIONS, SourceOptions, parse_options
from quiver.store.reading.stream_subscriber import StreamSubscriber
from quiver.store.segment.schemas import is_of_table
from quiver.store.segment.type_promotion import columns_of, common_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from quiver.spark.log_sink import Sink

__all__ = ["QuiverDataSource", "StoreLog"]


class StoreLog(ReadableLog):
    """The bundles of one store. In a query's own process it is a subscriber; in tasks it only reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._subscribed: StreamSubscriber | CoresStreamSubscriber | None = None
        self._wait: BatchWait | None = None
        if options.batch_delay_s_max is not None:
            self._wait = BatchWait(
                REAL_FILES, size_bytes_min=options.batch_bytes_min, delay_s_max=options.batch_delay_s_max
            )

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot travel: tasks only read, and never acknowledge.
        return {**self.__dict__, "_subscribed": None}

    @property
    def bytes_max(self) -> int | None:
        """The size limit of a streaming batch."""
        return self._options.limits.bytes_max

    def schema(self) -> pa.Schema:
        """
        Return the schema that the options ask for. A slot has the columns of all sealed segments together.

        Raises:
            UsageError: no segment has the slot, a column is unknown, or its types cannot be merged.
        """
        options = self._options
        if options.mode == "bundles":
            return pa.schema([*BUNDLE_SCHEMA, ROWS_FIELD]) if options.include_metadata else BUNDLE_SCHEMA
        if options.mode == "ipc":
            return IPC_SCHEMA
        schema = _rows_schema(options)
        return pa.schema([*schema, *METADATA_SCHEMA]) if options.include_metadata else schema

    def check_stream(self) -> None:
        """
        Check that the options make sense for a stream.

        Raises:
            UsageError: they do not.
        """
        if self._options.include_unsealed is not None:
            raise UsageError("includeUnsealed is for batch reads; a stream reads bundles when they are sealed")

    def plan_all(self) -> list[tuple[BundleRange, ...] | tuple[LoggedBundle, ...]]:
        """
        Return what each task reads: the bundles that the store has now, between the bounds of the options.

        Raises:
            UsageError: the path is not a store.
            CorruptionError: a segment cannot be read.
        """
        options = self._options
        roots = store_roots(REAL_FILES, options.path)
        if len(roots) > 1 and any(isinstance(bound, BundleRef) for bound in (options.starting, options.ending)):
            raise UsageError(
                f"{options.path} holds {len(roots)} cores, each with positions of its own: read one of them, such as "
                f"{next(iter(roots.values()))}, or give a time: startingTimestamp, endingTimestamp"
            )
        ranges: list[BundleRange] = []
        logged: list[LoggedBundle] = []
        for root in roots.values():
            unsealed = _unsealed(options, root)  # before the segments are listed
            segments = _segment_list(options, root)
            start = _resolve(options.starting, segments)
            end = _resolve(options.ending, segments)
            found = ranges_between(segments.from_position(start), start, end)
            if unsealed is not None:
                found = [one for one in found if one.segment in unsealed.segments]
                logged += unsealed.between(options.starting, options.ending, start, end)
            ranges += found
        packed = pack(ranges, parallelism=parallelism(), partitions_min=options.partitions_min)
        return [*packed, *pack_logged(logged)]

    def read(self, ranges: tuple[BundleRange | LoggedBundle, ...], target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *ranges*, in a task."""
        options = self._options
        return PartitionReader(
            options.mode,
            options.view,
            options.slot,
            target,
            options.fail_on_data_loss,
            options.table,
            options.event_times,
        ).read(ranges)

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; the subscriber exists durably on return."""
        return self._subscriber.initial()

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Ack everything before *start*, whose batch is committed, and return where the next batch ends: *start* while it
        waits for more.
        """
        end = self._subscriber.latest(start, unlimited=unlimited)
        if self._wait is None or unlimited or end == start or self._subscriber.has_more(end):  # then it is full
            return end
        return end if self._wait.is_over(self._subscriber.pending(start, end)) else dict(start)

    def tail(self) -> dict[str, Any] | None:
        """Return the end of the store, for progress reports."""
        return self._subscriber.tail()

    def available_now(self) -> None:
        """Fix the end of this run at what the store contains now."""
        self._wait = None
        self._subscriber.available_now()

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[BundleRange, ...]]:
        """Return what each task reads of the bundles from *start* to before *end*."""
        return self._subscriber.plan(start, end)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack everything before *end*: its batch is committed."""
        self._subscriber.commit(end)

    def release(self) -> None:
        """Release the subscriber."""
        if self._subscribed is not None:
            self._subscribed.release()

    @property
    def _subscriber(self) -> StreamSubscriber | CoresStreamSubscriber:
        if self._subscribed is None:
            options = self._options
            if None in store_roots(REAL_FILES, options.path):
                self._subscribed = _subscribe(options, options.path)
            else:
                self._subscribed = CoresStreamSubscriber(
                    REAL_FILES,
                    options,
                    # A core that is added later contains nothing from before the query.
                    lambda root, is_first: _subscribe(
                        options if is_first else replace(options, starting="earliest"), root
                    ),
                    parallelism=parallelism(),
                )
        return self._subscribed


class QuiverDataSource(LogDataSource):
    """
    ``format("quiver")`` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options of reads: see `quiver.store.reading.stream_options`; of writes: `quiver.spark.store.sink_options`.
    """

    format_name = "quiver"
    log_kind = "store"
    stream_options = STREAM_OPTIONS

    @staticmethod
    def log(given: Mapping[str, str]) -> StoreLog:
        """Return the store that the options describe."""
        options = parse_options(given)
        # Tasks may run with another working directory.
        return StoreLog(replace(options, path=os.path.abspath(options.path)))  # noqa: PTH100 - kept as text

    @staticmethod
    def sink(given: Mapping[str, str], schema: StructType) -> Sink:  # noqa: ARG004 - any columns
        """Return the sink that the options describe. It takes any columns."""
        return store_sink(parse_sink_options(given))


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
    Return the columns of a slot over all sealed segments, each with the widest type that a segment has for it.

    No data is read: a task checks a segment before it uses it.
    """
    roots = store_roots(REAL_FILES, options.path).values()
    schemas = [
        schema
        for root in roots
        for schema in _segment_list(options, root).schemas()
        if options.table is None or is_of_table(schema, options.table)
    ]
    for root in roots:
        unsealed = _unsealed(options, root)
        found = () if unsealed is None else unsealed.bundles
        of_slot = [one.stored[options.slot].schema for one in found if options.slot is not None]
        schemas += [one for one in of_slot if options.table is None or is_of_table(one, options.table)]
    schemas = list(dict.fromkeys(schemas))
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
    return spark_schema(common_schema(schemas, options.columns), nanos_as_bigint=options.nanos_as_bigint)


def _subscribe(options: SourceOptions, root: str) -> StreamSubscriber:
    segments = _segment_list(options, root)
    starting = options.starting
    if isinstance(starting, IngestedAt):
        starting = _resolve(starting, segments)
    own = replace(options, path=root, starting=starting)
    return StreamSubscriber(REAL_FILES, own, segments, parallelism=parallelism())


def _slots(options: SourceOptions) -> frozenset[int] | None:
    """Return the slots that are read; None for all."""
    if options.view is not None:
        return frozenset(slots_of_view(options.view))
    return None if options.slot is None else frozenset({options.slot})


def _unsealed(options: SourceOptions, root: str) -> Unsealed | None:
    """Return the bundles that are only in the log; None if the options leave them out."""
    slots = _slots(options)
    if options.mode != "rows" or slots is None or options.include_unsealed is False:
        return None
    return read_unsealed(root, slots, fail_on_data_loss=options.fail_on_data_loss)


def _segment_list(options: SourceOptions, root: str) -> SegmentList:
    return SegmentList(ColdFiles(REAL_FILES), root, slots=_slots(options), fail_on_data_loss=options.fail_on_data_loss)


def _resolve(offsets: StartingOffsets, segments: SegmentList) -> BundleRef:
    if isinstance(offsets, BundleRef):
        return offsets
    if isinstance(offsets, IngestedAt):
        return segments.ingested_from(offsets.time_ns)
    return BundleRef(0, 0) if offsets == "earliest" else segments.end(BundleRef(0, 0))
