"""
The options of the `quiver-fleet` source, parsed once and validated early. Pure.

==========================  =========  ====================================================================
option                      default    meaning
==========================  =========  ====================================================================
``path``                    required   the bucket of the fleet: a URL, a directory, or JSON with ``backend``,
                                       ``root`` and ``options``
``view``                               logs, spans or metrics: one row per record, span or data point
``slot``                               a slot by number or name: its rows as they were stored
``columns``                 all        comma-separated names; no other column is read
``includeMetadata``         false      adds ``_node``, the identity, ``_segment``, ``_index``, ``_row`` and
                                       ``_ingested_at``
``timestampsAs``            timestamp  nanosecond columns of a slot as timestamp (microseconds) or bigint
``subscriber``              required   streams only: the name that the nodes have in ``cold.fleet.subscribers``
``startingOffsets``         earliest   earliest or latest, for a new subscriber. A node that is added later is always
                                       read from its beginning
``maxBytesPerTrigger``      256MiB     streams only: the size of a batch, shared between the nodes
``listInterval``            10s        streams only: the bucket is listed at most this often
``minPartitionBytes``       16MiB      a task for each of this many bytes, up to the number of cores
``minPartitions``           by bytes   the minimum number of tasks, if there are that many segments
``maxSegmentBytes``         512MiB     a larger segment is rejected; a task loads one completely
``failOnDataLoss``          true       true stops a node where its data are missing or damaged, and reads all other
                                       nodes; false counts the loss and continues with the node
``acceptDataLossOf``                   comma-separated identities of nodes for which it is false
==========================  =========  ====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quiver.errors import UsageError
from quiver.objects.location import ObjectLocation
from quiver.option_values import (
    bytes_option,
    count_option,
    duration_option,
    refuse_unknown_options,
    switch_option,
)
from quiver.slots import OTAP
from quiver.store.format.fleet.names import is_identity
from quiver.store.format.names import check_subscriber_id
from quiver.store.reading.partitions import PARTITION_BYTES_MIN
from quiver.store.reading.stream_options import METADATA_COLUMNS, VIEWS, View

__all__ = ["FLEET_METADATA_COLUMNS", "FLEET_STREAM_OPTIONS", "FleetOptions", "parse_fleet_options"]

FLEET_METADATA_COLUMNS = ("_node", *METADATA_COLUMNS)

FLEET_STREAM_OPTIONS = ("subscriber", "maxBytesPerTrigger", "listInterval", "startingOffsets")
"""Options that a batch read refuses, because they would have no effect."""

_NAMES = (
    "path", "view", "slot", "columns", "includeMetadata", "timestampsAs", "subscriber", "startingOffsets",
    "maxBytesPerTrigger", "listInterval", "minPartitionBytes", "minPartitions", "maxSegmentBytes", "failOnDataLoss",
    "acceptDataLossOf",
)  # fmt: skip
_KNOWN = {name.lower(): name for name in _NAMES}

_BATCH_BYTES_MAX = 256 * 1024 * 1024
_SEGMENT_BYTES_MAX = 512 * 1024 * 1024
_LIST_INTERVAL_S = 10.0

Starting = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """The options of one `load()`. See the table above."""

    location: ObjectLocation
    view: View | None = None
    slot: int | None = None
    columns: tuple[str, ...] | None = None
    include_metadata: bool = False
    nanos_as_bigint: bool = False
    subscriber: str | None = None
    starting: Starting = "earliest"
    batch_bytes_max: int = _BATCH_BYTES_MAX
    list_interval_s: float = _LIST_INTERVAL_S
    partitions_min: int = 0
    partition_bytes_min: int = PARTITION_BYTES_MIN
    segment_bytes_max: int = _SEGMENT_BYTES_MAX
    fail_on_data_loss: bool = True
    tolerated: frozenset[str] = frozenset()


def parse_fleet_options(options: Mapping[str, str], *, environment: Mapping[str, str] | None = None) -> FleetOptions:
    """
    Parse the options of one load. Keys are case-insensitive; Spark passes them in lower case.

    Raises:
        UsageError: an option is unknown (the error names the nearest known one), has a bad value, or contradicts
            another.
    """
    given = {key.lower(): str(value) for key, value in options.items()}
    if "paths" in given:
        raise UsageError("one load reads one fleet: set a single path, and union the frames")
    refuse_unknown_options(given, _KNOWN, "quiver-fleet source")
    if not given.get("path"):
        raise UsageError('quiver-fleet needs the bucket of the fleet: .option("path", "s3://bucket/fleet-a")')
    view = next((known for known in VIEWS if known == given.get("view", "").lower()), None)
    if view is None and given.get("view"):
        raise UsageError(f"view: {given['view']!r} is not one of {', '.join(VIEWS)}")
    slot = given.get("slot")
    if (view is None) == (slot is None):
        raise UsageError("quiver-fleet needs view (logs, spans, metrics) or slot (a number or a name)")
    columns = tuple(name.strip() for name in given["columns"].split(",")) if given.get("columns") else None
    if columns is not None and (len(set(columns)) != len(columns) or "" in columns):
        raise UsageError("columns is a comma-separated list of different names")
    subscriber = given.get("subscriber")
    if subscriber is not None:
        check_subscriber_id(subscriber)
    return FleetOptions(
        location=ObjectLocation.from_url(given["path"], environment=environment),
        view=view,
        slot=None if slot is None else OTAP.slot(int(slot) if slot.isdecimal() else slot),
        columns=columns,
        include_metadata=switch_option(given, "includeMetadata", default=False),
        nanos_as_bigint=_word(given, "timestampsAs", ("timestamp", "bigint")) == "bigint",
        subscriber=subscriber,
        starting="latest" if _word(given, "startingOffsets", ("earliest", "latest")) == "latest" else "earliest",
        batch_bytes_max=bytes_option(given, "maxBytesPerTrigger", _BATCH_BYTES_MAX),
        list_interval_s=duration_option(given, "listInterval") or _LIST_INTERVAL_S,
        partitions_min=count_option(given, "minPartitions") or 0,
        partition_bytes_min=bytes_option(given, "minPartitionBytes", PARTITION_BYTES_MIN),
        segment_bytes_max=bytes_option(given, "maxSegmentBytes", _SEGMENT_BYTES_MAX),
        fail_on_data_loss=switch_option(given, "failOnDataLoss", default=True),
        tolerated=_identities(given),
    )


def _word(given: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = given.get(name.lower(), allowed[0])
    if value.lower() not in allowed:
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
    return value.lower()


def _identities(given: Mapping[str, str]) -> frozenset[str]:
    found = [one.strip() for one in given.get("acceptdatalossof", "").split(",") if one.strip()]
    for one in found:
        if not is_identity(one):
            raise UsageError(f"acceptDataLossOf: {one!r} is not the identity of a node: `quiver fleet list` shows them")
    return frozenset(found)
