"""The bundles of a segment that is not written yet, read from memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from quiver.bundle import Adapter, Bundle
from quiver.errors import BundleUnavailableError
from quiver.store.segment.accumulator import OpenSegment, StreamSchema
from quiver.store.segment.log_backed import LogBackedMessage
from quiver.store.segment.pieced import PiecedMessage

__all__ = ["UnsealedBundles"]


class UnsealedBundles:
    """
    The bundles of an open segment, also while its file is being written. Thread-safe.

    Bundles are only added, and each keeps its index in the file. The buffers of a bundle stay valid while it is held.

    Args:
        seq: the number that the segment has.
        segment: the segment.
        adapter: the slot table.
        load: reads a message that is only in the log.
    """

    __slots__ = ("_adapter", "_load", "_segment", "seq")

    def __init__(
        self, seq: int, segment: OpenSegment, adapter: Adapter, load: Callable[[LogBackedMessage], Any]
    ) -> None:
        self.seq = seq
        self._segment = segment
        self._adapter = adapter
        self._load = load

    @property
    def bundle_count(self) -> int:
        """The number of bundles so far."""
        return self._segment.bundle_count

    @property
    def place(self) -> tuple[int, int] | None:
        """Log position and sequence number of the first bundle; None if there is none, or if numbers are missing."""
        segment = self._segment
        if segment.wal_position_start is None or segment.sequence_first is None or not segment.has_all_sequences:
            return None
        return segment.wal_position_start, segment.sequence_first

    def bundle(self, index: int) -> Bundle:
        """
        Return bundle *index*.

        Raises:
            BundleUnavailableError: there is no such bundle.
            OSError: the log, which alone has its bytes, cannot be read.
        """
        if not 0 <= index < self.bundle_count:
            raise BundleUnavailableError(f"segment {self.seq} has {self.bundle_count} bundles, no index {index}")
        slots = {slot: self._batch(schema, message) for slot, schema, message in self._segment.slots_of(index)}
        return Bundle.of_read(slots, self._segment.ingested_at_ns(index), self._adapter)

    def bundles(self, first: int, end: int) -> Iterator[Bundle]:
        """Return the bundles *first* to *end* (excluded), each read when it is due; see `bundle`."""
        return map(self.bundle, range(first, end))

    def _batch(self, stream: StreamSchema, message: Any) -> pa.RecordBatch:
        if type(message) is PiecedMessage:
            return message.batch
        if type(message) is LogBackedMessage:
            message = self._load(message)
        buffer = pa.py_buffer(message)
        if not stream.has_dictionaries:
            return pa.ipc.read_record_batch(buffer, stream.schema)
        with pa.ipc.open_stream(buffer) as reader:
            return reader.read_next_batch()
