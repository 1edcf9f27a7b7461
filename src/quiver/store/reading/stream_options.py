"""
The options of the `quiver` source, parsed once and validated early. Pure.

==========================  =========  ====================================================================
option                      default    meaning
==========================  =========  ====================================================================
``path``                    required   directory of the store
``mode``                    rows       rows, bundles (one descriptor per bundle) or ipc (one IPC stream per slot)
``view``                               logs, spans or metrics: one row per record, span or data point
``slot``                               a slot by number or name: its rows as they were stored
``table``                              rows of one table received over QWP, by name; the slot can be left out
``columns``                 all        comma-separated names; no other column is read
``includeMetadata``         false      adds ``_segment``, ``_index``, ``_row``, ``_ingested_at``; in mode bundles
                                       ``rows``, a map from slot to number of rows: enough for a count
``timestampsAs``            timestamp  nanosecond columns of a slot as timestamp (microseconds) or bigint
``subscriber``              required   streams only: the name whose progress this query owns
``startingOffsets``         earliest   earliest, latest or ``{"seq":12,"idx":3}``; for a stream it applies
                                       only to a new subscriber
``startingTimestamp``                  instead of it: the first bundle ingested at this time or later, given as
                                       milliseconds since 1970 or as ``2026-01-31T12:00:00Z``
``endingOffsets``           latest     batch reads only, exclusive
``endingTimestamp``                    instead of it, in the same forms: batch reads only, exclusive
``startingEventTime``                  with a view: only rows with this event time or a later one, in the same forms;
                                       segments and bundles with other times are not read
``endingEventTime``                    with a view: only rows with an earlier event time
``includeUnsealed``         true       batch reads of rows only: also bundles that are only in the log
``maxBundlesPerTrigger``               streams only; the first limit that is reached ends the batch
``maxRowsPerTrigger``                  streams only; as exact as the row counts in a segment's directory
``maxBytesPerTrigger``      256MiB     streams only; a batch always has at least one bundle
``minBytesPerTrigger``                 streams only, with the next: a batch waits until this much is stored, or the
                                       batch is full
``maxTriggerDelay``                    streams only: … or the oldest waiting segment was sealed this long ago (``5m``).
                                       Alone, the batch waits only for this time. ``availableNow`` waits for neither
``minPartitionBytes``       16MiB      streams only: a task for each of this many bytes, up to the number of cores
``minPartitions``           by bytes   the minimum number of tasks, if there are that many bundles
``failOnDataLoss``          true       true stops when data is missing or damaged, false continues without it
``checkpoint``                         streams only: the query's ``checkpointLocation`` on a local disk. Its files
                                       are synced before their batch is acknowledged, so it survives a power loss
==========================  =========  ====================================================================

A batch read refuses the options of a stream, and a stream those of a batch read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from quiver.errors import UsageError
from quiver.instant import parse_timestamp
from quiver.option_values import (
    bytes_option,
    count_option,
    duration_option,
    refuse_unknown_options,
    switch_option,
)
from quiver.slots import OTAP, QWP_SLOT
from quiver.store.reading.checkpoint import is_local
from quiver.store.reading.offsets import StartingOffsets, parse_starting
from quiver.store.reading.partitions import PARTITION_BYTES_MIN, Limits
from quiver.store.reading.query.time_range import TimeRange

__all__ = ["METADATA_COLUMNS", "STREAM_OPTIONS", "VIEWS", "Mode", "SourceOptions", "View", "parse_options"]

Mode = Literal["rows", "bundles", "ipc"]
View = Literal["logs", "spans", "metrics"]

VIEWS: tuple[View, ...] = ("logs", "spans", "metrics")
_MODES: tuple[Mode, ...] = ("rows", "bundles", "ipc")

METADATA_COLUMNS = ("_segment", "_index", "_row", "_ingested_at")

_BYTES_MAX_DEFAULT = 256 * 1024 * 1024

STREAM_OPTIONS = (
    "subscriber", "maxBundlesPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger", "minBytesPerTrigger",
    "maxTriggerDelay", "minPartitionBytes", "checkpoint",
)  # fmt: skip
"""Options that a batch read refuses, because they would have no effect."""

_NAMES = (
    "path", "mode", "view", "slot", "table", "columns", "includeMetadata", "timestampsAs", "subscriber",
    "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "startingEventTime",
    "endingEventTime", "includeUnsealed", "maxBundlesPerTrigger",
    "maxRowsPerTrigger", "maxBytesPerTrigger", "minBytesPerTrigger", "maxTriggerDelay", "minPartitionBytes",
    "minPartitions", "failOnDataLoss", "checkpoint",
)  # fmt: skip

_KNOWN = {name.lower(): name for name in _NAMES}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one `load()`. See the table above."""

    path: str
    mode: Mode
    view: View | None
    slot: int | None
    table: str | None
    columns: tuple[str, ...] | None
    include_metadata: bool
    nanos_as_bigint: bool
    subscriber: str | None
    starting: StartingOffsets
    ending: StartingOffsets
    event_times: TimeRange
    include_unsealed: bool | None
    limits: Limits
    partitions_min: int
    fail_on_data_loss: bool
    checkpoint: str | None
    batch_bytes_min: int | None = None
    batch_delay_s_max: float | None = None
    partition_bytes_min: int = PARTITION_BYTES_MIN


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """
    Parse the options of one load. Keys are case-insensitive; Spark passes them in lower case.

    Raises:
        UsageError: an option is unknown (the error names the nearest known one), has a bad value, or contradicts
            another.
    """
    given = {key.lower(): str(value) for key, value in options.items()}
    if "paths" in given:
        raise UsageError("one load reads one store: set a single path, and union the frames")
    refuse_unknown_options(given, _KNOWN, "quiver source")
    path = given.get("path", "").removeprefix("file://")
    if not path:
        raise UsageError('the quiver source needs the directory of a store: .option("path", "buffer/")')
    mode = cast("Mode", _choice(given, "mode", _MODES, "rows"))
    view = cast("View | None", _choice(given, "view", VIEWS, None))
    slot = _slot(given)
    if mode == "rows" and (view is None) == (slot is None):
        raise UsageError("mode rows needs view (logs, spans, metrics), slot (a number or a name) or table")
    table = given.get("table") or None
    if table is not None and mode != "rows":
        raise UsageError(f"table belongs to mode rows; mode {mode} returns complete bundles")
    if mode != "rows" and view is not None:
        raise UsageError(f"view belongs to mode rows; mode {mode} returns complete bundles")
    columns = tuple(name.strip() for name in given["columns"].split(",")) if given.get("columns") else None
    if columns is not None and (mode != "rows" or len(set(columns)) != len(columns) or "" in columns):
        raise UsageError("columns is a comma-separated list of different names, for mode rows")
    return SourceOptions(
        path=path.rstrip("/") or "/",
        mode=mode,
        view=view,
        slot=slot,
        table=table,
        columns=columns,
        include_metadata=switch_option(given, "includeMetadata", default=False),
        nanos_as_bigint=_choice(given, "timestampsAs", ("timestamp", "bigint"), "timestamp") == "bigint",
        subscriber=given.get("subscriber"),
        starting=_bound(given, "starting", "earliest"),
        ending=_bound(given, "ending", "latest"),
        event_times=_event_times(given, view),
        include_unsealed=_include_unsealed(given, mode),
        limits=Limits(
            bundles_max=count_option(given, "maxBundlesPerTrigger"),
            rows_max=count_option(given, "maxRowsPerTrigger"),
            bytes_max=bytes_option(given, "maxBytesPerTrigger", _BYTES_MAX_DEFAULT),
        ),
        partitions_min=count_option(given, "minPartitions") or 0,
        fail_on_data_loss=switch_option(given, "failOnDataLoss", default=True),
        checkpoint=_checkpoint(given),
        **_waiting(given),
        partition_bytes_min=bytes_option(given, "minPartitionBytes", PARTITION_BYTES_MIN),
    )


def _waiting(given: Mapping[str, str]) -> dict[str, Any]:
    delay_s = duration_option(given, "maxTriggerDelay")
    size = bytes_option(given, "minBytesPerTrigger", 0) or None
    if size is not None and delay_s is None:
        raise UsageError("minBytesPerTrigger needs maxTriggerDelay: the last data of a quiet store would wait forever")
    return {"batch_bytes_min": size, "batch_delay_s_max": delay_s}


def _bound(given: Mapping[str, str], which: str, default: str) -> StartingOffsets:
    timestamp, offsets = given.get(f"{which}timestamp"), given.get(f"{which}offsets")
    if timestamp is None:
        return parse_starting(default if offsets is None else offsets, option=f"{which}Offsets")
    if offsets is not None:
        raise UsageError(f"{which}Offsets and {which}Timestamp contradict each other: set only one of them")
    return parse_timestamp(timestamp, option=f"{which}Timestamp")


def _event_times(given: Mapping[str, str], view: View | None) -> TimeRange:
    bounds = []
    for name in ("startingEventTime", "endingEventTime"):
        text = given.get(name.lower())
        if text is not None and view is None:
            raise UsageError(f"{name} belongs to view: filter the rows of a slot by their own columns")
        bounds.append(None if text is None else parse_timestamp(text, option=name).time_ns)
    return TimeRange(*bounds)


def _include_unsealed(given: Mapping[str, str], mode: Mode) -> bool | None:
    if "includeunsealed" not in given:
        return None
    if mode != "rows":
        raise UsageError(f"includeUnsealed belongs to mode rows; mode {mode} returns bundles of segments")
    return switch_option(given, "includeUnsealed", default=True)


def _choice(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str | None) -> str | None:
    value = given.get(name.lower())
    if value is None:
        return default
    if value.lower() not in allowed:
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
    return value.lower()


def _checkpoint(given: Mapping[str, str]) -> str | None:
    checkpoint = given.get("checkpoint") or None
    if checkpoint is not None and not is_local(checkpoint):
        raise UsageError(f"checkpoint: {checkpoint} is not on a local disk: leave the option out, it syncs local files")
    return checkpoint


def _slot(given: Mapping[str, str]) -> int | None:
    value = given.get("slot")
    if value is None:
        return QWP_SLOT if given.get("table") else None
    return OTAP.slot(int(value) if value.isdecimal() else value)
