"""
The options of the `quiver-topic` sink, read once and refused early. Pure.

==================  =========  =========================================================================
option              default    meaning
==================  =========  =========================================================================
``path``            required   directory of the topics; made when missing, may be open in another process
``topic``                      ``namespace/topic``; without it the column `topic` says it for each row
``objects``                    where cold objects are, and
``metadata``                   what is in them: where the directory has a cold tier and nobody has it open; both as
                               for a read
``rootPrefix``      /danube    before every key of the metadata
``fileName``        wal.log    of a topic's first log file
``maxMessageSize``  10MiB      a larger payload is refused
``txnAppId``                   batch writes: who writes; together with
``txnVersion``                 batch writes: a number that only grows; a write that is repeated is not
==================  =========  =========================================================================

Columns are those of a read: `payload` (binary or string), and where they are there `key`, `attributes`, `timestamp`
(when it was published; now, where it is null) and `topic`. `offset` and what `includeMetadata` adds is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiver.errors import QuiverError, UsageError
from quiver.option_values import transaction_option
from quiver.primitives.batch_notes import BATCH_MAX, ONCE_PREFIX, is_writer
from quiver.settings import parse_size_bytes
from quiver.spark.topics.options import PLACE_OPTIONS, check_known, parse_place
from quiver.topics.format.names import check_topic
from quiver.topics.reading.place import TopicPlace
from quiver.topics.settings import WalSettings

__all__ = ["TopicSinkOptions", "check_columns", "parse_topic_sink_options"]

_NAMES = (*PLACE_OPTIONS, "topic", "maxMessageSize", "txnAppId", "txnVersion")

_MESSAGE_BYTES_MAX = WalSettings().max_message_size

_COLUMNS = ("payload", "key", "attributes", "timestamp", "topic")
_PASSED_OVER = ("offset", "_producer", "_producer_id", "_request_id", "_broker")


@dataclass(frozen=True, slots=True)
class TopicSinkOptions:
    """Where rows go. See the table above."""

    place: TopicPlace
    topic: str | None = None
    message_bytes_max: int = _MESSAGE_BYTES_MAX
    transaction: tuple[str, int] | None = None

    @property
    def root(self) -> str:
        """The directory of the topics."""
        return self.place.root or ""


def parse_topic_sink_options(options: Mapping[str, str]) -> TopicSinkOptions:
    """
    Read the options of one write. Keys may come in any case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), has a bad value, or contradicts another.
    """
    own = {key: value for key, value in options.items() if key.lower() != "checkpointlocation"}  # Spark hands it over
    given = check_known(own, _NAMES, "sink")
    if not given.get("path"):
        raise UsageError('the quiver-topic sink needs the directory of the topics: .option("path", "topics/")')
    topic = given.get("topic")
    size = given.get("maxmessagesize")
    try:
        size_max = _MESSAGE_BYTES_MAX if size is None else parse_size_bytes(size, key="maxMessageSize")
        WalSettings(max_message_size=size_max)
    except QuiverError as error:
        raise UsageError(f"maxMessageSize: {error}") from error
    return TopicSinkOptions(
        place=parse_place(given),
        topic=None if topic is None else check_topic(topic),
        message_bytes_max=size_max,
        transaction=transaction_option(given, reserved=ONCE_PREFIX, is_writer=is_writer, version_max=BATCH_MAX),
    )


def check_columns(columns: Mapping[str, str], options: TopicSinkOptions) -> None:
    """
    Refuse rows that are no messages. *columns* is name → Spark's word for its type.

    Raises:
        UsageError: a column is missing, unknown, or of another type.
    """
    lawful = {
        "payload": ("binary", "string"), "key": ("string", "binary"), "attributes": ("map<string,string>",),
        "timestamp": ("timestamp",), "topic": ("string",),
    }  # fmt: skip
    for name, kind in columns.items():
        if name in _PASSED_OVER:
            continue
        if name not in lawful:
            raise UsageError(f"column {name} is none of a message; there are {', '.join(_COLUMNS)}")
        if kind not in lawful[name]:
            raise UsageError(f"column {name} is {kind} where {' or '.join(lawful[name])} belongs")
    if "payload" not in columns:
        raise UsageError("a message needs a column payload")
    if options.topic is None and "topic" not in columns:
        raise UsageError("name the topic: as an option, or in a column topic")
