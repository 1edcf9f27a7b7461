"""
The options of the `quiver-topic` sink, parsed once and rejected early. Pure.

==================  =========  =========================================================================
option              default    meaning
==================  =========  =========================================================================
``path``            required   directory of the topics; created if missing, may be open in another process
``topic``                      ``namespace/topic``; without it, the column `topic` names it for each row
``objects``                    where cold objects are, and
``metadata``                   what is in them: needed if the directory has a cold tier and no process has it open;
                               both as for a read
``rootPrefix``      /danube    prefix of every key of the metadata
``fileName``        wal.log    name of a topic's first log file
``maxMessageSize``  10MiB      a larger payload is rejected
``txnAppId``                   batch writes: the name of the writer; needs
``txnVersion``                 batch writes: a number that only grows; a repeated write changes nothing
==================  =========  =========================================================================

The columns are those of a read: `payload` (binary or string), and optionally `key`, `attributes`, `timestamp` (the
time of publishing; null means now) and `topic`. `offset` and the columns of `includeMetadata` are ignored.
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
    """The destination of rows. See the table above."""

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
    own = {key: value for key, value in options.items() if key.lower() != "checkpointlocation"}  # Spark passes it
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
    Reject rows that are not messages. *columns* maps names to Spark's type names.

    Raises:
        UsageError: a column is missing, unknown, or of another type.
    """
    allowed = {
        "payload": ("binary", "string"), "key": ("string", "binary"), "attributes": ("map<string,string>",),
        "timestamp": ("timestamp",), "topic": ("string",),
    }  # fmt: skip
    for name, kind in columns.items():
        if name in _PASSED_OVER:
            continue
        if name not in allowed:
            raise UsageError(f"column {name} is not a column of a message; the columns are {', '.join(_COLUMNS)}")
        if kind not in allowed[name]:
            raise UsageError(f"column {name} is {kind}, but must be {' or '.join(allowed[name])}")
    if "payload" not in columns:
        raise UsageError("a message needs a column payload")
    if options.topic is None and "topic" not in columns:
        raise UsageError("name the topic: with the option topic, or in a column topic")
