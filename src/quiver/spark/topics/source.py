"""The Spark data source `quiver-topic`: batch and streaming reads of topics, and writes to them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.errors import DataLossError, UsageError
from quiver.instant import IngestedAt
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.log_source import LogDataSource, ReadableLog, parallelism
from quiver.spark.topics.offsets import BEGINNING, Bound, offsets_from_json, offsets_to_json
from quiver.spark.topics.options import STREAM_OPTIONS, TopicOptions, parse_topic_options
from quiver.spark.topics.rows import TopicRows
from quiver.spark.topics.sink import TopicSink
from quiver.spark.topics.sink_options import check_columns, parse_topic_sink_options
from quiver.topics.format.names import check_topic, is_namespace, parse_wal_file_name
from quiver.topics.reading.file_reader import TopicFileReader
from quiver.topics.reading.message_rows import PRODUCER_SCHEMA, TOPIC_SCHEMA
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.progress import TopicProgress
from quiver.topics.reading.ranges import Stretch, TopicLimits, pack_stretches, reach, shared_limits

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["TopicDataSource", "TopicsLog"]

_log = logging.getLogger("quiver")


class TopicsLog(ReadableLog):
    """The topics of one load. With a subscription, a query's own process confirms what is committed."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._readers: dict[str, TopicFileReader] = {}
        self._progress: dict[str, TopicProgress] = {}
        self._available: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Locks cannot travel: tasks only read, and never confirm.
        return {**self.__dict__, "_readers": {}, "_progress": {}}

    @property
    def bytes_max(self) -> int | None:
        """The size limit of a streaming batch."""
        return self._options.limits.bytes_max

    def schema(self) -> pa.Schema:
        """Return the columns of a message; with `includeMetadata` those of its producer, too."""
        fields = [TOPIC_SCHEMA.field(name) for name in self._options.columns]
        return pa.schema([*fields, *(PRODUCER_SCHEMA if self._options.include_metadata else ())])

    def plan_all(self) -> list[tuple[Stretch, ...]]:
        """
        Return what each task reads: the messages that are there now, between the bounds of the options.

        Raises:
            UsageError: a topic does not exist.
            OSError, MetadataUnavailableError: the files or the metadata cannot be read.
        """
        options = self._options
        stretches: list[Stretch] = []
        for topic in topics_of(options):
            reader = TopicFileReader(options.place, topic)
            tip = reader.next_offset()
            start = _bound(options.starting, reader, BEGINNING, tip)
            stop = min(_bound(options.ending, reader, tip, tip), tip)
            start = reader.start_offset() if start == BEGINNING else start
            stretches += reader.stretches(start, stop) if start < stop else ()
        return self._pack(stretches)

    def read(self, spans: tuple[Stretch, ...], target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of *spans*, in a task."""
        return TopicRows(self._options.place, target, self._options.fail_on_data_loss).read(spans)

    def check_stream(self) -> None:
        """
        Refuse a stream from `latest` without a subscription.

        Raises:
            UsageError: the stream starts at latest and has no subscription.
        """
        if self._options.starting == "latest" and self._options.subscription is None:
            raise UsageError(
                "startingOffsets=latest needs a subscription, which remembers where that was: a query that dies in its "
                "first batch asks again"
            )

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; its subscriptions exist durably on return."""
        return offsets_to_json({topic: self._first(topic) for topic in topics_of(self._options)})

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Confirm everything before *start*, whose batch is committed, and return where the next batch ends.

        Raises:
            DataLossError: a topic ends before *start*.
        """
        began = offsets_from_json(start)
        self._confirm(began)
        known = dict.fromkeys([*began, *topics_of(self._options)])
        firsts = {topic: began[topic] if topic in began else self._first(topic) for topic in known}
        tips = {topic: self._tip(topic, at) for topic, at in firsts.items()}
        ends = {topic: max(at, tips[topic]) for topic, at in firsts.items()}
        limits = self._options.limits
        if not unlimited and not limits.unlimited:
            waiting = {topic: end - max(firsts[topic], 0) for topic, end in ends.items()}
            for topic, share in shared_limits(limits, waiting).items():
                ends[topic] = self._reach(topic, firsts[topic], ends[topic], share)
        return offsets_to_json(ends)

    def tail(self) -> dict[str, Any] | None:
        """Return the ends of the topics, for progress reports."""
        return offsets_to_json({topic: reader.next_offset() for topic, reader in self._readers.items()})

    def available_now(self) -> None:
        """Fix the end of this run at what the topics contain now."""
        self._available = {topic: self._reader(topic).next_offset(durable=True) for topic in topics_of(self._options)}

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[Stretch, ...]]:
        """
        Return what each task reads of the messages from *start* to before *end*.

        Raises:
            DataLossError: a topic ends before *start*.
        """
        began = offsets_from_json(start)
        stretches: list[Stretch] = []
        for topic, stop in offsets_from_json(end).items():
            reader = self._reader(topic)
            first = began[topic] if topic in began else self._first(topic)
            first = reader.start_offset() if first == BEGINNING else first
            if first > stop:
                self._tip(topic, first)  # a PySpark without limits asks for the end without the start
            stretches += reader.stretches(first, stop) if first < stop else ()
        return self._pack(stretches)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Confirm everything before *end*: its batch is committed."""
        self._confirm(offsets_from_json(end))

    def release(self) -> None:
        """Release the subscriptions."""
        for progress in self._progress.values():
            progress.release()

    def _pack(self, stretches: list[Stretch]) -> list[tuple[Stretch, ...]]:
        return pack_stretches(stretches, parallelism=parallelism(), partitions_min=self._options.partitions_min)

    def _reader(self, topic: str) -> TopicFileReader:
        if topic not in self._readers:
            self._readers[topic] = TopicFileReader(self._options.place, topic)
        return self._readers[topic]

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
            return _bound(self._options.starting, self._reader(topic), BEGINNING, BEGINNING)
        found = progress.position()
        if found is not None:
            return found
        reader = self._reader(topic)
        tip = reader.next_offset(durable=True)
        start = _bound(self._options.starting, reader, BEGINNING, tip)
        return progress.start_at(reader.start_offset() if start == BEGINNING else start)

    def _confirm(self, offsets: Mapping[str, int]) -> None:
        if self._options.subscription is None:
            return
        for topic, offset in offsets.items():
            progress = self._progress_of(topic)
            if progress is not None and offset != BEGINNING:
                progress.confirm(offset)

    def _tip(self, topic: str, start: int) -> int:
        reader = self._reader(topic)
        tip = reader.next_offset(durable=True)
        if start > tip:
            reason = f"the checkpoint asks for message {start}, but the topic ends before {tip}: it is another one now"
            problem = DataLossError(reader.directory or topic, 0, f"{reason}; start with a new checkpoint")
            if self._options.fail_on_data_loss:
                raise problem
            _log.warning("quiver.spark.topic_behind reason=%s", problem)
        # An available-now run leaves later topics and messages to the next run.
        return tip if self._available is None else min(tip, self._available.get(topic, max(start, 0)))

    def _reach(self, topic: str, start: int, end: int, limits: TopicLimits) -> int:
        reader = self._reader(topic)
        first = reader.start_offset() if start == BEGINNING else start
        return reach(reader.stretches(first, end), first, limits) if first < end else end


class TopicDataSource(LogDataSource):
    """
    ``format("quiver-topic")`` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Options of reads: see `quiver.spark.topics.options`; of writes: `quiver.spark.topics.sink_options`.
    """

    format_name = "quiver-topic"
    log_kind = "topic"
    stream_options = STREAM_OPTIONS

    @staticmethod
    def log(given: Mapping[str, str]) -> TopicsLog:
        """Return the topics that the options describe."""
        options = parse_topic_options(given)
        return TopicsLog(replace(options, place=absolute(options.place)))

    @staticmethod
    def sink(given: Mapping[str, str], schema: StructType) -> TopicSink:
        """Return the sink that the options describe, for rows of *schema*."""
        options = parse_topic_sink_options(given)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        return TopicSink(replace(options, place=absolute(options.place)))


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


def _is_topic(place: TopicPlace, name: str) -> bool:
    try:
        names = REAL_FILES.list_dir(f"{place.root}/{check_topic(name)}")
    except (UsageError, NotADirectoryError, FileNotFoundError):
        return False
    return any(parse_wal_file_name(one, place.file_name) is not None for one in names)


def _bound(bound: Bound, reader: TopicFileReader, earliest: int, latest: int) -> int:
    if isinstance(bound, int):
        return bound
    if isinstance(bound, IngestedAt):
        return reader.offset_at(bound.time_ns)
    if bound == "earliest":
        return BEGINNING
    if bound == "latest":
        return latest
    return bound.get(reader.topic, earliest)
