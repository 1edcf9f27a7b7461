"""The Spark data source `quiver-fleet`: batch and streaming reads of all nodes of a fleet."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.errors import AccessDeniedError, DataLossError, TransientError, UsageError
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.otap import view_schema
from quiver.spark.cast import spark_schema
from quiver.spark.fleet.segment_rows import FLEET_METADATA_SCHEMA, OBJECT_TRIES_MAX, FleetRows
from quiver.spark.log_source import LogDataSource, ReadableLog, parallelism
from quiver.spark.spark_features import STREAM_LIMITS, require
from quiver.store.reading.fleet.chains import ChainReader
from quiver.store.reading.fleet.inbox import list_inbox
from quiver.store.reading.fleet.options import FLEET_STREAM_OPTIONS, FleetOptions, parse_fleet_options
from quiver.store.reading.fleet.segments import open_segment
from quiver.store.reading.fleet.subscriber import FleetSegment, FleetSubscriber, pack_segments
from quiver.store.segment.type_promotion import columns_of, common_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from quiver.spark.log_sink import Sink

__all__ = ["FleetDataSource", "FleetLog"]

_SAMPLED_NODES = 16
"""The columns of a slot are those in a segment of each of so many nodes: no more segments are fetched for a schema."""

_log = logging.getLogger("quiver")


class FleetLog(ReadableLog):
    """The nodes of one fleet. In a query's own process it is a subscriber; in tasks it only reads."""

    def __init__(self, options: FleetOptions) -> None:
        self._options = options
        self._subscribed: FleetSubscriber | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A connection cannot travel: tasks only read, and never acknowledge.
        return {**self.__dict__, "_subscribed": None}

    @property
    def bytes_max(self) -> int | None:
        """The size limit of a streaming batch."""
        return self._options.batch_bytes_max

    def schema(self) -> pa.Schema:
        """
        Return the schema that the options ask for. A slot has the columns of one segment of each of a few nodes.

        Raises:
            UsageError: a column is unknown, or no segment that was read has the slot.
            ObjectsUnavailableError: the object store does not answer.
        """
        options = self._options
        schema = self._slot_schema() if options.view is None else view_schema(options.view)
        for name in options.columns or ():
            if name not in schema.names:
                raise UsageError(f"columns: there is no column {name!r}; there are {', '.join(schema.names)}")
        if options.columns is not None:
            schema = pa.schema([schema.field(name) for name in options.columns])
        return pa.schema([*schema, *FLEET_METADATA_SCHEMA]) if options.include_metadata else schema

    def _slot_schema(self) -> pa.Schema:
        options = self._options
        schemas: list[pa.Schema] = []
        tier = self._open(writable=False)
        inbox = list_inbox(tier)
        nodes = sorted(inbox)
        for identity in nodes[:: max(1, len(nodes) // _SAMPLED_NODES)][:_SAMPLED_NODES]:
            newest = next((one for one in reversed(inbox[identity]) if not one.is_gone), None)
            if newest is None:
                continue
            try:
                reader = open_segment(tier, identity, newest, size_bytes_max=options.segment_bytes_max)
                schemas += [reader.schema(one.stream_id) for one in reader.streams.values() if one.slot == options.slot]
            except (AccessDeniedError, TransientError):
                raise
            except Exception as error:  # noqa: BLE001 - any error in the bytes of another machine
                # A task rejects it, if it reads it.
                _log.warning("quiver.fleet.skipped node=%s segment=%d reason=%s", identity, newest.last, error)
        if not schemas:
            raise UsageError(
                f"no segment that was read in {options.location} holds slot {options.slot}; read again when there is "
                "data, or give a schema: .schema(...)"
            )
        schemas = list(dict.fromkeys(schemas))
        names = None if options.columns is None else [name for name in options.columns if name in columns_of(schemas)]
        return spark_schema(common_schema(schemas, names), nanos_as_bigint=options.nanos_as_bigint)

    def check_stream(self) -> None:
        """
        Check that the options make sense for a stream.

        Raises:
            UsageError: the installed PySpark has no limits for streams, which a fleet needs.
        """
        require(STREAM_LIMITS)

    def plan_all(self) -> list[tuple[FleetSegment, ...]]:
        """
        Return what each task reads: the segments of all nodes that are in the bucket now.

        Raises:
            DataLossError: segments are missing or were dropped, and the read stops on data loss.
            ObjectsUnavailableError: the object store does not answer.
        """
        options = self._options
        tier = self._open(writable=False)
        chains = ChainReader(tier, stops_at_loss=options.fail_on_data_loss, tolerated=options.tolerated)
        segments: list[FleetSegment] = []
        for identity, found in list_inbox(tier).items():
            chain = chains.read(identity, found, chains.start(identity, found))
            segments += [FleetSegment(0, identity, one) for one in chain.objects if not one.is_gone]
            if chain.stop is not None and chains.is_strict(identity):
                raise DataLossError(f"node {identity}", 0, f"{chain.stop.reason}; set failOnDataLoss=false to skip it")
            if chain.stop is not None:
                _log.warning("quiver.fleet.node_stopped node=%s reason=%s", identity, chain.stop.reason)
        return pack_segments(segments, options, parallelism=parallelism())

    def read(self, spans: tuple[FleetSegment, ...], target: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *spans*, in a task."""
        return FleetRows(self._options, target).read(spans)

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; this query owns the subscriber on return."""
        return self._subscriber.initial()

    def latest(self, start: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """Acknowledge everything before *start*, whose batch is committed, and return where the next batch ends."""
        return self._subscriber.latest(start, unlimited=unlimited)

    def tail(self) -> dict[str, Any] | None:
        """Return what waits in the bucket, for progress reports."""
        return self._subscriber.tail()

    def available_now(self) -> None:
        """Fix the end of this run at what is in the bucket now."""
        self._subscriber.available_now()

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[FleetSegment, ...]]:
        """Return what each task reads of the batch from *start* to before *end*."""
        return self._subscriber.plan(start, end)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Acknowledge everything before *end*: its batch is committed."""
        self._subscriber.commit(end)

    def release(self) -> None:
        """Close the connection."""
        if self._subscribed is not None:
            self._subscribed.release()

    def _open(self, *, writable: bool) -> ObjectTier:
        return open_objects(self._options.location, writable=writable, tries_max=OBJECT_TRIES_MAX)

    @property
    def _subscriber(self) -> FleetSubscriber:
        if self._subscribed is None:
            self._subscribed = FleetSubscriber(
                self._open(writable=True),
                self._options,
                parallelism=parallelism(),
                name=f"process {os.getpid()} of {socket.gethostname()}",
            )
        return self._subscribed


class FleetDataSource(LogDataSource):
    """
    ``format("quiver-fleet")`` of `spark.read` and `spark.readStream`.

    Options: see `quiver.store.reading.fleet.options`.
    """

    format_name = "quiver-fleet"
    log_kind = "fleet"
    stream_options = FLEET_STREAM_OPTIONS

    @staticmethod
    def log(given: Mapping[str, str]) -> FleetLog:
        """Return the fleet that the options describe."""
        options = parse_fleet_options(given)
        if options.location.backend == "fs":
            # Tasks may run with another working directory.
            absolute = str(Path(options.location.prefix).absolute())
            options = replace(options, location=replace(options.location, prefix=absolute))
        return FleetLog(options)

    @staticmethod
    def sink(given: Mapping[str, str], schema: StructType) -> Sink:  # noqa: ARG004 - there is none
        """Refuse to write: only nodes do."""
        raise UsageError(
            "a fleet cannot be written to by Spark: its nodes are stores with cold.fleet (docs/howto/fleet.md)"
        )
