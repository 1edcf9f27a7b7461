"""
The Spark data source `quiver-topic`: batch and streaming reads of topics, and writes to them.

As with `quiver`, Spark makes these objects in several processes and pickles them between, so constructors only keep
what they are given; batches are Arrow of exactly the declared schema; filters are never taken over from Spark.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from quiver.errors import DataLossError, UsageError
from quiver.instant import IngestedAt
from quiver.option_values import refuse_ending, refuse_stream_options
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.refused_stream import stream_reader
from quiver.spark.store.sink import BatchWriter, StreamWriter
from quiver.spark.table_options import (
    given_options,
    options_of_table,
    refuse_write_without_options,
    schema_with_options,
)
from quiver.spark.topics.offsets import BEGINNING, Bound, offsets_from_json, offsets_to_json
from quiver.spark.topics.options import STREAM_OPTIONS, TopicOptions, parse_topic_options
from quiver.spark.topics.rows import PRODUCER_SCHEMA, TOPIC_SCHEMA, TopicRows
from quiver.spark.topics.sink import TopicSink
from quiver.spark.topics.sink_options import TopicSinkOptions, check_columns, parse_topic_sink_options
from quiver.topics.format.names import check_topic, is_namespace, parse_wal_file_name
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.progress import TopicProgress
from quiver.topics.reading.ranges import Stretch, TopicLimits, pack_stretches, reach, shared_limits
from quiver.topics.reading.view import TopicView

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StretchesPartition", "TopicBatchReader", "TopicDataSource", "TopicStreamReader"]

_log = logging.getLogger("quiver")


class StretchesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, stretches: tuple[Stretch, ...]) -> None:
        super().__init__(None)
        self.stretches = stretches


class TopicDataSource(DataSource):
    """
    ``format("quiver-topic")`` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options of reads: see `quiver.spark.topics.options`; of writes: `quiver.spark.topics.sink_options`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = given_options(options)

    @cached_property
    def _parsed(self) -> TopicOptions:
        # Not at once: a sink has other options.
        parsed = parse_topic_options(self._given)
        return replace(parsed, place=absolute(parsed.place))

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "quiver-topic"

    def schema(self) -> StructType:
        """Return the columns of a message that are asked for; with `includeMetadata` those of its producer, too."""
        options = self._parsed
        fields = [TOPIC_SCHEMA.field(name) for name in options.columns]
        fields += PRODUCER_SCHEMA if options.include_metadata else ()
        return schema_with_options(from_arrow_schema(pa.schema(fields)), self.name(), self.options)

    def reader(self, schema: StructType) -> TopicBatchReader:
        """Return the batch reader. Spark passes *schema* by keyword."""
        self._given = options_of_table(self._given, schema, self.name())
        refuse_stream_options(self._given, STREAM_OPTIONS)
        return TopicBatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """
        Return the streaming reader, which raises what is wrong with the options when it is asked for a position.

        Spark passes *schema* by keyword.
        """
        return stream_reader(lambda: self._stream_reader(schema))

    def _stream_reader(self, schema: StructType) -> TopicStreamReader:
        self._given = options_of_table(self._given, schema, self.name())
        refuse_ending(self._given)
        return TopicStreamReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        """
        Return the batch writer.

        Raises:
            UsageError: an option or a column is unknown, missing or contradicts another, or a topic is to be
            overwritten.
        """
        refuse_write_without_options(self._given, self.name())
        return BatchWriter(TopicSink(_sink_options(self._given, schema, overwrite=overwrite)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """
        Return the streaming writer.

        Raises:
            UsageError: an option or a column is unknown, missing or contradicts another, or the mode is not append.
        """
        return StreamWriter(TopicSink(_sink_options(self._given, schema, overwrite=overwrite)))


class TopicBatchReader(DataSourceReader):
    """Reads the messages that are there when the frame is first used; the list is frozen from then on."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        self._options = options
        self._rows = _rows(options, schema)

    def partitions(self) -> list[StretchesPartition]:
        """
        Return one partition per task.

        Raises:
            UsageError: there is no such topic.
            OSError, MetadataUnavailableError: as they say.
        """
        options = self._options
        stretches: list[Stretch] = []
        for topic in topics_of(options):
            view = TopicView(options.place, topic)
            tip = view.next_offset()
            start = _bound(options.starting, view, BEGINNING, tip)
            stop = min(_bound(options.ending, view, tip, tip), tip)
            start = view.start_offset() if start == BEGINNING else start
            stretches += view.stretches(start, stop) if start < stop else ()
        parts = pack_stretches(stretches, parallelism=_parallelism(), partitions_min=options.partitions_min)
        return [StretchesPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in a task."""
        return self._rows.read(_stretches(partition))


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's source. With a subscription it keeps that one's progress, in the query's own process only."""

    def __init__(self, options: TopicOptions, schema: StructType) -> None:
        if options.starting == "latest" and options.subscription is None:
            raise UsageError(
                "startingOffsets=latest needs a subscription, which remembers where that was: a query that dies in its "
                "first batch asks again"
            )
        self._options = options
        self._rows = _rows(options, schema)
        self._views: dict[str, TopicView] = {}
        self._progress: dict[str, TopicProgress] = {}
        self._available: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Locks cannot travel: tasks get what reads, never what confirms.
        return {**self.__dict__, "_views": {}, "_progress": {}}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts; its subscriptions exist durably on return."""
        return offsets_to_json({topic: self._first(topic) for topic in topics_of(self._options)})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit that stands for both options; Spark replaces it where all is to be read at once."""
        return ReadMaxBytes(self._options.limits.bytes_max or 1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Confirm what lies before *start*, whose batch is committed, and return where the next batch ends."""
        began = offsets_from_json(start)
        self._confirm(began)
        known = dict.fromkeys([*began, *topics_of(self._options)])
        firsts = {topic: began[topic] if topic in began else self._first(topic) for topic in known}
        tips = {topic: self._tip(topic, at) for topic, at in firsts.items()}
        ends = {topic: max(at, tips[topic]) for topic, at in firsts.items()}
        limits = self._options.limits
        if not isinstance(limit, ReadAllAvailable) and not limits.unlimited:
            waiting = {topic: end - max(firsts[topic], 0) for topic, end in ends.items()}
            for topic, share in shared_limits(limits, waiting).items():
                ends[topic] = self._reach(topic, firsts[topic], ends[topic], share)
        return offsets_to_json(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of the topics, for progress reports."""
        return offsets_to_json({topic: view.next_offset() for topic, view in self._views.items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of this run at what the topics hold now."""
        self._available = {topic: self._view(topic).next_offset(durable=True) for topic in topics_of(self._options)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StretchesPartition]:
        """Return one partition per task for the messages from *start* to before *end*."""
        began = offsets_from_json(start)
        stretches: list[Stretch] = []
        for topic, stop in offsets_from_json(end).items():
            view = self._view(topic)
            first = began[topic] if topic in began else self._first(topic)
            first = view.start_offset() if first == BEGINNING else first
            stretches += view.stretches(first, stop) if first < stop else ()
        options = self._options
        parts = pack_stretches(stretches, parallelism=_parallelism(), partitions_min=options.partitions_min)
        return [StretchesPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in a task."""
        return self._rows.read(_stretches(partition))

    def commit(self, end: dict[str, Any]) -> None:
        """Confirm what lies before *end*: its batch is committed."""
        self._confirm(offsets_from_json(end))

    def stop(self) -> None:
        """Let go of the subscriptions. Spark only comes here after an error; otherwise the process just dies."""
        for one in self._progress.values():
            one.release()

    # ── of each topic ────────────────────────────────────────────────────────────────────────────────────

    def _view(self, topic: str) -> TopicView:
        if topic not in self._views:
            self._views[topic] = TopicView(self._options.place, topic)
        return self._views[topic]

    def _progress_of(self, topic: str) -> TopicProgress | None:
        name, root = self._options.subscription, self._options.place.root
        if name is None or root is None:
            return None
        if topic not in self._progress:
            self._progress[topic] = TopicProgress(REAL_FILES, f"{root}/{topic}", name)
        return self._progress[topic]

    def _first(self, topic: str) -> int:
        progress = self._progress_of(topic)
        if progress is None:
            return _bound(self._options.starting, self._view(topic), BEGINNING, BEGINNING)
        found = progress.position()
        if found is not None:
            return found
        view = self._view(topic)
        tip = view.next_offset(durable=True)
        start = _bound(self._options.starting, view, BEGINNING, tip)
        return progress.start_at(view.start_offset() if start == BEGINNING else start)

    def _confirm(self, offsets: Mapping[str, int]) -> None:
        if self._options.subscription is None:
            return
        for topic, offset in offsets.items():
            progress = self._progress_of(topic)
            if progress is not None and offset != BEGINNING:
                progress.confirm(offset)

    def _tip(self, topic: str, start: int) -> int:
        view = self._view(topic)
        tip = view.next_offset(durable=True)
        if start > tip:
            reason = f"the checkpoint asks for message {start}, but the topic ends before {tip}: it is another one now"
            problem = DataLossError(view.directory or topic, 0, f"{reason}; start with a new checkpoint")
            if self._options.fail_on_data_loss:
                raise problem
            _log.warning("quiver.spark.topic_behind reason=%s", problem)
        # What appeared after the beginning of an available-now run is for the next one.
        return tip if self._available is None else min(tip, self._available.get(topic, max(start, 0)))

    def _reach(self, topic: str, start: int, end: int, limits: TopicLimits) -> int:
        view = self._view(topic)
        first = view.start_offset() if start == BEGINNING else start
        return reach(view.stretches(first, end), first, limits) if first < end else end


def absolute(place: TopicPlace) -> TopicPlace:
    """Return *place* with a directory that means the same in every process: tasks may run in another one."""
    return place if place.root is None else replace(place, root=os.path.abspath(place.root))  # noqa: PTH100


def topics_of(options: TopicOptions) -> list[str]:
    """Return the topics that *options* name, or whose files are there now and match its pattern."""
    if options.pattern is None or options.place.root is None:
        return list(options.topics)
    namespace, _, _ = options.pattern.partition("/")
    found = []
    for outer in REAL_FILES.list_dir(options.place.root):
        if not is_namespace(outer) or not fnmatchcase(outer, namespace):
            continue
        try:
            inner = REAL_FILES.list_dir(f"{options.place.root}/{outer}")
        except NotADirectoryError:
            continue
        found += [f"{outer}/{name}" for name in inner if fnmatchcase(f"{outer}/{name}", options.pattern)]
    return sorted(name for name in found if _is_topic(options.place, name))


def _sink_options(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> TopicSinkOptions:
    if overwrite:
        raise UsageError('a topic only grows: write with mode("append"), a stream with outputMode("append")')
    options = parse_topic_sink_options(given)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
    return replace(options, place=absolute(options.place))


def _is_topic(place: TopicPlace, name: str) -> bool:
    try:
        names = REAL_FILES.list_dir(f"{place.root}/{check_topic(name)}")
    except (UsageError, NotADirectoryError, FileNotFoundError):
        return False
    return any(parse_wal_file_name(one, place.file_name) is not None for one in names)


def _rows(options: TopicOptions, schema: StructType) -> TopicRows:
    return TopicRows(options.place, to_arrow_schema(schema, timezone="UTC"), options.fail_on_data_loss)


def _bound(bound: Bound, view: TopicView, earliest: int, latest: int) -> int:
    if isinstance(bound, int):
        return bound
    if isinstance(bound, IngestedAt):
        return view.offset_at(bound.time_ns)
    if bound == "earliest":
        return BEGINNING
    if bound == "latest":
        return latest
    return bound.get(view.topic, earliest)


def _stretches(partition: InputPartition) -> tuple[Stretch, ...]:
    # Spark turns an empty list of partitions into one with nothing in it.
    return partition.stretches if isinstance(partition, StretchesPartition) else ()


def _parallelism() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else (os.cpu_count() or 1))
