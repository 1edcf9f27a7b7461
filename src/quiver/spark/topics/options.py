"""
The options of the `quiver-topic` source, parsed once and rejected early. Pure.

==========================  =========  ====================================================================
option                      default    meaning
==========================  =========  ====================================================================
``path``                    required   directory of the topics; optional if `objects` and `metadata` are given
``topic``                   required   ``namespace/topic``, several with commas, or a pattern such as ``default/*``
``objects``                            where cold objects are: a URL, a directory, or JSON with ``backend``,
                                       ``root`` and ``options``
``metadata``                a file     ``etcd://host:port`` or ``sqlite:///path``: what is in the objects; or JSON with
                                       ``endpoint``, ``ca_file``, ``cert_file``, ``key_file``, ``user``, ``password``
``rootPrefix``              /danube    prefix of every key of the metadata, including its namespace
``fileName``                wal.log    name of a topic's first log file
``columns``                 all        comma-separated: offset, timestamp, key, payload, attributes, topic
``startingOffsets``         earliest   earliest, latest, ``1200`` or ``{"default/orders": 1200}``; applies only to
                                       a new stream, where latest needs a subscription
``startingTimestamp``                  instead: the first message published at this time or later, given as
                                       milliseconds since 1970 or as ``2026-01-31T12:00:00Z``
``endingOffsets``           latest     batch reads only, exclusive, in the same forms
``endingTimestamp``                    instead, in the same forms: batch reads only, exclusive
``maxOffsetsPerTrigger``               streams only; the first limit reached ends the batch
``maxBytesPerTrigger``      256MiB     streams only; estimated from averages
``minPartitions``           by bytes   at least this many tasks, if there are enough messages
``subscription``                       streams only: committed batches move this subscription forward, durably
``includeMetadata``         false      adds ``_producer``, ``_producer_id``, ``_request_id``, ``_broker``
``failOnDataLoss``          true       false skips missing or damaged messages, true raises an error
==========================  =========  ====================================================================

A batch read rejects the options of a stream, and a stream those of a batch read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiver.errors import UsageError
from quiver.instant import parse_timestamp
from quiver.metadata.location import MetadataLocation
from quiver.option_values import bytes_option, count_option, refuse_unknown_options, switch_option
from quiver.spark.topics.offsets import Bound, parse_bound
from quiver.topics.format.names import ACTIVE_FILE, check_file_name, check_subscription, check_topic
from quiver.topics.reading.place import TopicPlace
from quiver.topics.reading.ranges import TopicLimits

__all__ = [
    "PLACE_OPTIONS",
    "STREAM_OPTIONS",
    "TOPIC_COLUMNS",
    "TopicOptions",
    "check_known",
    "parse_place",
    "parse_topic_options",
]

PLACE_OPTIONS = ("path", "objects", "metadata", "rootPrefix", "fileName")

STREAM_OPTIONS = ("subscription", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
"""Options that a batch read rejects, because they would have no effect."""

_NAMES = (
    *PLACE_OPTIONS, "topic", "columns", "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "subscription", "includeMetadata", "failOnDataLoss",
)  # fmt: skip

TOPIC_COLUMNS = ("offset", "timestamp", "key", "payload", "attributes", "topic")

_BYTES_MAX_DEFAULT = 256 * 1024 * 1024
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The options of one `load()`. See the table above."""

    place: TopicPlace
    topics: tuple[str, ...]
    pattern: str | None
    columns: tuple[str, ...]
    starting: Bound
    ending: Bound
    limits: TopicLimits
    partitions_min: int
    subscription: str | None
    include_metadata: bool
    fail_on_data_loss: bool


def parse_topic_options(options: Mapping[str, str]) -> TopicOptions:
    """
    Read the options of one load. Keys may come in any case; Spark hands them over in lower case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), has a bad value, or contradicts another.
    """
    given = check_known(options, _NAMES, "source")
    place = parse_place(given)
    topics, pattern = _topics(given.get("topic", ""))
    subscription = given.get("subscription")
    if subscription is not None:
        check_subscription(subscription)
        if place.root is None:
            raise UsageError("subscription is stored next to the topics: it needs path")
    if pattern is not None and place.root is None:
        raise UsageError(f"topic: the pattern {pattern!r} is matched in the directory of the topics: it needs path")
    return TopicOptions(
        place=place,
        topics=topics,
        pattern=pattern,
        columns=_columns(given.get("columns")),
        starting=_bound(given, "starting", "earliest"),
        ending=_bound(given, "ending", "latest"),
        limits=TopicLimits(
            offsets_max=count_option(given, "maxOffsetsPerTrigger"),
            bytes_max=bytes_option(given, "maxBytesPerTrigger", _BYTES_MAX_DEFAULT),
        ),
        partitions_min=count_option(given, "minPartitions") or 0,
        subscription=subscription,
        include_metadata=switch_option(given, "includeMetadata", default=False),
        fail_on_data_loss=switch_option(given, "failOnDataLoss", default=True),
    )


def _bound(given: Mapping[str, str], which: str, default: str) -> Bound:
    timestamp, offsets = given.get(f"{which}timestamp"), given.get(f"{which}offsets")
    if timestamp is None:
        return parse_bound(default if offsets is None else offsets, option=f"{which}Offsets")
    if offsets is not None:
        raise UsageError(f"{which}Offsets and {which}Timestamp contradict each other: give one of them")
    return parse_timestamp(timestamp, option=f"{which}Timestamp")


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return TOPIC_COLUMNS
    names = tuple(word.strip() for word in text.split(","))
    for name in names:
        if name not in TOPIC_COLUMNS or names.count(name) > 1:
            raise UsageError(f"columns: no column {name!r}, or it is repeated; known are {', '.join(TOPIC_COLUMNS)}")
    return names


def check_known(options: Mapping[str, str], names: tuple[str, ...], what: str) -> dict[str, str]:
    """
    Return *options* with lower-case names.

    Raises:
        UsageError: an option is not one of *names*; the error names the nearest one.
    """
    known = {name.lower(): name for name in names}
    given = {key.lower(): str(value) for key, value in options.items()}
    refuse_unknown_options(given, known, f"quiver-topic {what}")
    return given


def parse_place(given: Mapping[str, str]) -> TopicPlace:
    """
    Return the location of the topics from *given*, whose keys are in lower case.

    Raises:
        UsageError: there is no location, or a name is invalid.
    """
    root = given.get("path", "").removeprefix("file://")
    objects, metadata = given.get("objects"), given.get("metadata")
    if not root and (objects is None or metadata is None):
        raise UsageError(
            'quiver-topic needs the directory of the topics: .option("path", "topics/"); or objects and metadata, to '
            "read objects alone"
        )
    if metadata is not None and objects is None:
        raise UsageError("metadata describes the object store: give objects, too")
    if metadata is not None:
        MetadataLocation.of(metadata)
    prefix = given.get("rootprefix", "/danube").rstrip("/")
    return TopicPlace(
        root=(root.rstrip("/") or "/") if root else None,
        objects=objects,
        metadata=metadata,
        root_prefix=prefix,
        file_name=check_file_name(given.get("filename", ACTIVE_FILE)),
    )


def _topics(text: str) -> tuple[tuple[str, ...], str | None]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError('quiver-topic needs a topic: .option("topic", "default/orders")')
    if _WILD & set(text):
        if len(words) > 1 or words[0].count("/") != 1:
            raise UsageError(f"topic: {text!r} is not a valid pattern: give a single one, such as default/*")
        return (), words[0].removeprefix("/")
    topics = tuple(check_topic(word) for word in words)
    if len(set(topics)) < len(topics):
        raise UsageError(f"topic: {text!r} names a topic twice")
    return topics, None
