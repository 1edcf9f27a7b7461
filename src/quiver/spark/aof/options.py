"""
The options of the `quiver-aof` source, parsed once and rejected early. Pure.

==========================  =========  ====================================================================
option                      default    meaning
==========================  =========  ====================================================================
``path``                    required   directory of a log, or of several with `log`
``log``                                the name of one of these logs
``objects``                            where the log's objects are: a URL, a directory, or JSON with ``backend``,
                                       ``root`` and ``options``; segments are read there, and not copied back
``columns``                 all        comma-separated: record_id, timestamp, ext_id, payload
``includeMetadata``         false      adds ``_segment``, ``_offset`` and ``_timestamp_ns``
``startingOffsets``         earliest   earliest, latest or a record id; a stream cannot start at latest
``startingTimestamp``                  instead: the first record of this time or later, given as
                                       milliseconds since 1970 or as ``2026-01-31T12:00:00Z``
``endingOffsets``           latest     batch reads only, exclusive
``endingTimestamp``                    instead, in the same forms: batch reads only, exclusive
``maxRowsPerTrigger``                  streams only; the first limit reached ends the batch
``maxBytesPerTrigger``      256MiB     streams only; a batch always has at least one record
``minPartitions``           by bytes   at least this many tasks, if there are enough records
``failOnDataLoss``          true       false skips missing or damaged records, true raises an error
==========================  =========  ====================================================================

Spark stores positions as JSON text and compares the text, so the keys have a fixed order. `bytes` counts from the
beginning of the log. It shows a reader whether the next record directly follows the last one that it read, even after
the segment of that record was removed::

    {"v": 1, "log": "1700000000000000000", "record_id": 12884901952, "bytes": 40312}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from quiver.aof.reading.position import RECORD_ID_MAX, AofBound
from quiver.errors import UsageError
from quiver.instant import parse_timestamp
from quiver.option_values import bytes_option, count_option, refuse_unknown_options, switch_option

__all__ = ["AOF_COLUMNS", "STREAM_OPTIONS", "AofOptions", "parse_aof_options"]

AOF_COLUMNS = ("record_id", "timestamp", "ext_id", "payload")

STREAM_OPTIONS = ("maxRowsPerTrigger", "maxBytesPerTrigger")
"""Options that a batch read rejects, because they would have no effect."""

_NAMES = (
    "path", "log", "objects", "columns", "includeMetadata", "startingOffsets", "startingTimestamp", "endingOffsets",
    "endingTimestamp", "maxRowsPerTrigger", "maxBytesPerTrigger", "minPartitions", "failOnDataLoss",
)  # fmt: skip
_KNOWN = {name.lower(): name for name in _NAMES}
_BYTES_MAX_DEFAULT = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AofOptions:
    """The options of one `load()`. See the table above."""

    path: str
    objects: str | Mapping[str, object] | None
    columns: tuple[str, ...]
    include_metadata: bool
    starting: AofBound
    ending: AofBound
    rows_max: int | None
    bytes_max: int
    partitions_min: int
    fail_on_data_loss: bool

    def __repr__(self) -> str:
        # `objects` may hold credentials.
        return f"AofOptions({self.path})"


def parse_aof_options(options: Mapping[str, str]) -> AofOptions:
    """
    Read the options of one load. Keys may come in any case; Spark hands them over in lower case.

    Raises:
        UsageError: an option is unknown (the nearest known one is named), has a bad value, or contradicts another.
    """
    given = {key.lower(): str(value) for key, value in options.items()}
    refuse_unknown_options(given, _KNOWN, "quiver-aof source")
    path = given.get("path", "").removeprefix("file://").rstrip("/")
    if not path:
        raise UsageError('the quiver-aof source needs the directory of a log: .option("path", "aof/orders")')
    if "/" in given.get("log", ""):
        raise UsageError(f"log: {given['log']!r} is not a valid name of a log")
    return AofOptions(
        path=f"{path}/{given['log']}" if given.get("log") else path,
        objects=_location(given.get("objects")),
        columns=_columns(given.get("columns")),
        include_metadata=switch_option(given, "includeMetadata", default=False),
        starting=_bound(given, "starting", "earliest"),
        ending=_bound(given, "ending", "latest"),
        rows_max=count_option(given, "maxRowsPerTrigger"),
        bytes_max=bytes_option(given, "maxBytesPerTrigger", _BYTES_MAX_DEFAULT),
        partitions_min=count_option(given, "minPartitions") or 0,
        fail_on_data_loss=switch_option(given, "failOnDataLoss", default=True),
    )


def _location(text: str | None) -> str | Mapping[str, object] | None:
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        raise UsageError("objects: expected a URL, a directory or JSON") from None
    return dict(found)


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return AOF_COLUMNS
    names = tuple(word.strip() for word in text.split(","))
    for name in names:
        if name not in AOF_COLUMNS or names.count(name) > 1:
            raise UsageError(f"columns: no column {name!r}, or it is repeated; known are {', '.join(AOF_COLUMNS)}")
    return names


def _bound(given: Mapping[str, str], which: str, default: AofBound) -> AofBound:
    timestamp, offsets = given.get(f"{which}timestamp"), given.get(f"{which}offsets")
    if timestamp is not None:
        if offsets is not None:
            raise UsageError(f"{which}Offsets and {which}Timestamp contradict each other: give one of them")
        return parse_timestamp(timestamp, option=f"{which}Timestamp")
    if offsets is None:
        return default
    word = offsets.strip().lower()
    if word in {"earliest", "latest"}:
        return "earliest" if word == "earliest" else "latest"
    if word.isascii() and word.isdecimal() and int(word) <= RECORD_ID_MAX:
        return int(word)
    raise UsageError(f"{which}Offsets: {offsets!r} is not earliest, latest or a record id")
