"""
One append-only log, as programs hold it. `AofManager` opens it.

An append returns the id of the record: it is written, every reader sees it, and the death of the process cannot lose
it. A power loss can, until the record is durable: `flush_until` makes it so, or the log itself within the flush
interval. An append that raises wrote nothing. No other outcome is possible.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from quiver.aof.append.writing import LogWriting
from quiver.aof.log_context import LogContext
from quiver.aof.log_reading import LogReading
from quiver.aof.segment_index import require_id
from quiver.aof.snapshots import LogSnapshot, SegmentSnapshot
from quiver.aof.tiers.tier_manager import TierManager
from quiver.errors import UsageError
from quiver.lazy_names import warn_renamed

__all__ = ["Aof"]


class Aof(LogWriting, LogReading):
    """
    A log of records with ids that only grow. Thread-safe; one process at a time.

    `AofManager.log` returns it.
    """

    def __init__(self, context: LogContext) -> None:
        self.name = context.name
        self.config = context.config
        self.stream_id = context.stream_id
        self._context = context
        self._tail = context.tail
        self._catalog = context.catalog
        self._segments = context.segments
        self._notifier = context.notifier
        self._blocked_calls = context.blocked_calls
        self._durability = context.durability
        self._clock = context.clock
        self._observer = context.observer
        self._is_closed = lambda: context.closed

    # ---- tiers

    @property
    def tiers(self) -> TierManager:
        """
        The tiers of the log: to evict and hydrate segments, and to inspect where they are.

        Raises:
            UsageError: the log has none.
        """
        if self._context.tiers is not None:
            return self._context.tiers
        raise UsageError(f"the log {self.name} has no tiers: give its settings compression or tiers")

    def trim_before(self, record_id: int) -> None:
        """
        Release the records before *record_id*: segments that end before it leave the log soon.

        They leave by the action of `retention`. The release is not stored: after opening the log, call this again.

        Raises:
            UsageError: the log's settings do not have `compaction="head_trim"`.
        """
        if self.config.compaction != "head_trim":
            raise UsageError(f'the log {self.name} keeps its head: give its settings compaction="head_trim"')
        self._context.trim.before(record_id)
        self._context.workers.schedule_maintenance(self._context)

    # ---- state

    @property
    def closed(self) -> bool:
        """Whether the log was closed."""
        return self._context.closed

    @property
    def coordinator_watermark(self) -> int:
        """
        How far an upstream operation log was imported. After opening, the highest watermark of the sealed segments.

        Continue with the entry after it.
        """
        return self._tail.coordinator_watermark

    def set_coordinator_watermark(self, watermark: int) -> None:
        """
        Record that the upstream log was imported up to *watermark*. It is stored when the current segment is sealed.

        The watermark never decreases. Call this after the upstream entries were appended, never before.

        Raises:
            UsageError: the watermark is not an integer of 64 bits.
        """
        if not isinstance(watermark, int) or not 0 <= watermark < 1 << 64:
            raise UsageError(f"a watermark is an integer of 64 bits, not {watermark!r}")
        with self._tail.lock:
            self._tail.coordinator_watermark = max(self._tail.coordinator_watermark, watermark)

    def last_ext_id(self) -> int:
        """Return the `ext_id` of the newest record in the log; 0 when there is none."""
        last = self.find_record_number(self._tail.record_total - 1)
        return 0 if last is None else self.read_record(last).ext_id

    def set_current_ext_id(self, ext_id: int) -> None:
        """Set the default `ext_id` of later records and segments: the 64-bit id of an external cohort."""
        self._tail.set_ext_id(ext_id)

    def is_durable(self, record_id: int) -> bool:
        """
        Return whether the record survives a power loss. False for an id that no record has.

        A segment that has no local file is hydrated first, as for reading.

        Raises:
            UnknownRecordError: *record_id* is not an integer of 64 bits.
            ObjectsUnavailableError, StoreClosedError, OSError: the segment cannot be hydrated now.
        """
        require_id(record_id)
        return self._durability.is_durable(record_id)

    def segment_snapshot(self) -> tuple[SegmentSnapshot, ...]:
        """Return all segments, oldest first."""
        return self._context.segment_snapshot()

    def snapshot(self) -> LogSnapshot:
        """Return the present state of the log."""
        return self._context.snapshot()

    # ---- staged batches, and the end

    def import_staged(self) -> int:
        """
        Append what Spark sinks committed; return how many records were appended. They are durable on return.

        The log does this itself when it is opened, once a second, and when it is closed. A batch that cannot be
        appended now is reported to the observer and tried again.
        """
        return self._context.import_staged()

    def adopt(self) -> int:
        """Call `import_staged`, the new name of this method."""
        warn_renamed("Aof", "adopt", "import_staged")
        return self.import_staged()

    def close(self) -> None:
        """
        Make everything durable, seal what is full, and release all files. Idempotent.

        Raises:
            NotDurableError, StoreFailedError, OSError: not everything is durable; the log is closed nevertheless.
        """
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
