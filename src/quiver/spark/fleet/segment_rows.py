"""
Reading a fleet in a Spark task: fetch segments from the bucket, verify them, return batches of the declared schema.

A task has one connection to the bucket, and no file. It fetches a few segments ahead, decodes one completely before it
returns a row of it, and then forgets it. A segment that cannot be read is recorded in the bucket, and the task
continues with the next one: a node that is broken or hostile fails no batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from quiver.bundle import BundleRef
from quiver.errors import AccessDeniedError, CorruptionError, DataLossError, TransientError, UsageError
from quiver.objects.location import ObjectLocation
from quiver.objects.opening import open_objects
from quiver.objects.port import ObjectTier
from quiver.spark.store.read_partition import METADATA_SCHEMA, PartitionReader, StoredBundle
from quiver.spark.task_process import skip_modules_in_collections
from quiver.store.format.fleet.rejected import RejectedCause
from quiver.store.reading.fleet.options import FleetOptions
from quiver.store.reading.fleet.rejected import reject
from quiver.store.reading.fleet.segments import decoding, open_segment, validated
from quiver.store.reading.fleet.subscriber import FleetSegment
from quiver.store.segment.reader import SegmentReader

__all__ = ["FLEET_METADATA_SCHEMA", "OBJECT_TRIES_MAX", "FleetRows"]

OBJECT_TRIES_MAX = 12
"""With its delays, about half a minute: without a cluster, the first task that fails ends its query."""

NODE_FIELD = pa.field("_node", pa.string())

FLEET_METADATA_SCHEMA = pa.schema([NODE_FIELD, *METADATA_SCHEMA])
"""The columns of `includeMetadata`: the node, and the place of a row in it."""

_AHEAD = 8
_AHEAD_BYTES = 64 * 1024 * 1024

_log = logging.getLogger("quiver")


_tiers: dict[str, ObjectTier] = {}
"""The connection of this process to a bucket: a worker of Spark runs many tasks."""


def _tier_of(location: ObjectLocation) -> ObjectTier:
    key = f"{location} {sorted(location.options.items())}"
    if key not in _tiers:
        _tiers.clear()  # a worker rarely reads two fleets
        _tiers[key] = open_objects(location, check_access=False, tries_max=OBJECT_TRIES_MAX)
    return _tiers[key]


class _ForeignBundle(StoredBundle):
    """A bundle of another machine: its Arrow data are validated before anything reads them."""

    def batches(
        self, slots: Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> dict[int, pa.RecordBatch]:
        """Return its batches, or those of *slots* only, with *columns* only."""
        found = super().batches(slots, columns)
        return {slot: validated(batch, self.path) for slot, batch in found.items()}


@dataclass(frozen=True)
class _SegmentRows(PartitionReader):
    """
    Reads all bundles of one segment.

    Attributes:
        refused: why requests could not be decoded; the other rows are returned.
    """

    refused: list[str] = field(default_factory=list)

    def _bundles(self, ranges: Sequence[Any]) -> Iterator[StoredBundle]:
        for reader, number in ranges:
            for index in range(reader.bundle_count):
                yield _ForeignBundle(reader, BundleRef(number, index))

    def _refuse(self, bundle: Any, reason: str) -> None:
        self.refused.append(f"bundle {bundle.ref}: {reason}")


@dataclass(frozen=True)
class FleetRows:
    """
    Reads the segments of a task.

    Attributes:
        options: of the load.
        target: the exact schema of every batch.
    """

    options: FleetOptions
    target: pa.Schema

    def read(self, segments: Sequence[FleetSegment]) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of *segments*, in order.

        Raises:
            DataLossError: in a batch read that stops on data loss: a segment is missing.
            CorruptionError: in such a read: a segment, or a request in it, cannot be read.
            UsageError: in such a read: a stored column does not fit the declared schema.
            ObjectsUnavailableError: the object store does not answer.
            AccessDeniedError: the credentials do not allow it.
        """
        skip_modules_in_collections()
        tier = _tier_of(self.options.location)
        for one, fetched in _fetched(tier, segments, self.options.segment_bytes_max):
            yield from self._rows(tier, one, fetched)

    def _rows(self, tier: ObjectTier, one: FleetSegment, fetched: Future[SegmentReader]) -> list[pa.RecordBatch]:
        cause: RejectedCause
        problem: Exception
        try:
            # Completely, before a row is returned: rows of a segment that is rejected later must not be in the batch.
            batches, refused = self._decode(one, fetched.result())
        except (AccessDeniedError, TransientError):
            raise  # of the object store, not of the segment
        except DataLossError as error:
            cause, problem, batches = "missing", error, []
        except CorruptionError as error:
            cause, problem, batches = "damaged", error, []
        except UsageError as error:
            cause, problem, batches = "schema", error, []
        else:
            if not refused:
                return batches
            problem, cause = (
                CorruptionError("requests", 0, f"{len(refused)} cannot be decoded: {refused[0]}"),
                "requests",
            )
        self._reject(tier, one, cause, problem)
        return batches

    def _decode(self, one: FleetSegment, reader: SegmentReader) -> tuple[list[pa.RecordBatch], list[str]]:
        options = self.options
        inner = pa.schema([column for column in self.target if column.name != NODE_FIELD.name])
        rows = _SegmentRows("rows", options.view, options.slot, inner, fail_on_data_loss=True)
        segment: Any = (reader, one.found.last)  # which its _bundles takes
        with decoding(reader.path):
            batches = list(rows.read([segment]))
        if len(inner) < len(self.target):
            batches = [self._with_node(batch, one.identity) for batch in batches]
        return batches, rows.refused

    def _with_node(self, batch: pa.RecordBatch, identity: str) -> pa.RecordBatch:
        node = pa.repeat(pa.scalar(identity, pa.string()), batch.num_rows)
        columns = [node if column.name == NODE_FIELD.name else batch.column(column.name) for column in self.target]
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def _reject(self, tier: ObjectTier, one: FleetSegment, cause: RejectedCause, problem: Exception) -> None:
        options = self.options
        if options.subscriber is not None:
            found = reject(tier, options.subscriber, one.generation, one.identity, one.found, cause, str(problem))
            _log.error(
                "quiver.fleet.rejected node=%s segment=%d cause=%s problem=%s",
                one.identity, one.found.last, cause, found.reason,
            )  # fmt: skip
        elif options.fail_on_data_loss and one.identity not in options.tolerated:
            raise problem
        else:
            _log.warning("quiver.fleet.skipped node=%s segment=%d reason=%s", one.identity, one.found.last, problem)


def _fetched(
    tier: ObjectTier, segments: Sequence[FleetSegment], size_bytes_max: int
) -> Iterator[tuple[FleetSegment, Future[SegmentReader]]]:
    """Yield each segment with its reader; the next ones are fetched meanwhile, within a limit of bytes."""
    waiting: deque[tuple[FleetSegment, Future[SegmentReader]]] = deque()
    rest = iter(segments)
    size_bytes = 0
    pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="quiver-fleet-fetch")
    try:
        while True:
            while len(waiting) < _AHEAD and (size_bytes < _AHEAD_BYTES or not waiting):
                one = next(rest, None)
                if one is None:
                    break
                size_bytes += one.found.size_bytes
                future = pool.submit(open_segment, tier, one.identity, one.found, size_bytes_max=size_bytes_max)
                waiting.append((one, future))
            if not waiting:
                return
            one, future = waiting.popleft()
            size_bytes -= one.found.size_bytes
            yield one, future
    finally:
        # A task that is interrupted waits for no request.
        pool.shutdown(wait=False, cancel_futures=True)
