"""
The unsealed segments at the end of a log: the active one, pending ones that wait to be sealed, and spares.

::

    spare ──activate──▶ active ──retire──▶ pending ──(maintenance seals it)──▶ catalog

Memory only: maintenance makes, seals and removes the files.
"""

from __future__ import annotations

import threading
from collections import deque

from quiver.aof.append.notify import Notifier
from quiver.aof.append.segment import Segment
from quiver.aof.append.sizing import Sizing
from quiver.aof.append.work_requests import WorkRequests
from quiver.aof.config import AofConfig
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, SegmentHeader
from quiver.aof.recovered import RecoveredLog
from quiver.clock import Clock
from quiver.invariant import invariant

__all__ = ["NEVER", "OVERHEAD_BYTES", "SegmentQueue"]

OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES
NEVER = 1 << 62

_PENDING_MAX = 1
"""Together with the active segment, two are not finalized."""


class SegmentQueue:
    """
    The active segment and its neighbours. Call the methods with `lock` held unless they are documented otherwise.

    Attributes:
        segment: the active segment, if any.
        pending: full segments that are not sealed yet, oldest first.
        spares: empty segments that were made ahead.
        discards: spares that are no longer needed, to be removed.
        need_bytes: the largest record that waits for a spare with enough space.
        refused_bytes: the smallest record for which the disk had no space for a spare; 0 while there is space.
        disk_full: the last failure for lack of space; empty while there is space.
    """

    def __init__(self, config: AofConfig, clock: Clock, notifier: Notifier, requests: WorkRequests) -> None:
        self.lock = threading.Lock()
        self.notifier = notifier
        self.segment: Segment | None = None
        self.pending: list[Segment] = []
        self.spares: deque[Segment] = deque()
        self.discards: list[Segment] = []
        self.next_segment_id = self.next_base_offset = self.next_base_record_count = 0
        self.last_timestamp = self.ext_id = self.coordinator_watermark = 0
        self.sizing = Sizing(
            bytes_min=config.segment_min_bytes,
            bytes_max=config.segment_max_bytes,
            bytes_first=config.segment_target_bytes,
        )
        self.need_bytes = self.refused_bytes = 0
        self.disk_full = ""
        self._clock = clock
        self._now_ns = clock.now_ns
        self._requests = requests
        self._watermark = config.flush.flush_watermark_bytes
        self._unflushed_max = config.flush.max_unflushed_bytes or NEVER

    def _activate(self, need: int) -> Segment | None:
        if len(self.pending) > _PENDING_MAX:
            return None  # two are not finalized; with a third the writer could outrun the disk without limit
        spare = next((one for one in self.spares if one.capacity >= need), None)
        if spare is None:
            self.need_bytes = max(self.need_bytes, need)
            return None
        self.spares.remove(spare)
        return self._begin(spare)

    def _begin(self, spare: Segment) -> Segment:
        is_new = all(one.segment_id < self.next_segment_id for one in self.pending)
        invariant(is_new, "an append never uses the id of an earlier segment")
        header = SegmentHeader(
            self.next_segment_id, self.next_base_record_count, self.next_base_offset, spare.max_size, self._now_ns(), 0,
            self.ext_id,
        )  # fmt: skip
        spare.activate(header, now_s=self._clock.monotonic())
        self.next_segment_id += 1
        self.segment = spare
        self.set_limits()
        self._requests.maintain()
        return spare

    def retire(self, *, is_full: bool = True) -> Segment | None:
        """Retire the active segment: with records it becomes pending and is returned, otherwise it is discarded."""
        segment, self.segment = self.segment, None
        if segment is None:
            return None
        self._requests.maintain()
        if not segment.record_count:
            self.next_segment_id = segment.segment_id
            self.discards.append(segment)
            return None
        if is_full:
            self.sizing.filled(segment.max_size, self._clock.monotonic() - segment.activated_s)
        else:
            self.sizing.cut_short(segment.size)
        self._await_seal(segment)
        return segment

    def _await_seal(self, segment: Segment) -> None:
        self.pending.append(segment)
        segment.watermark = (
            self.coordinator_watermark
        )  # the watermark at this moment, not at the seal: later entries are in later segments
        self.next_base_offset = segment.base_offset + segment.size + FOOTER_BYTES
        self.next_base_record_count = segment.base_record_count + segment.record_count

    def start_from(self, recovered: RecoveredLog) -> None:
        """Continue where recovery ended; called once, before the first append."""
        with self.lock:
            self.next_segment_id = recovered.next_segment_id
            self.next_base_offset = recovered.next_base_offset
            self.next_base_record_count = recovered.next_base_record_count
            self.last_timestamp = recovered.last_timestamp
            self.ext_id = recovered.ext_id
            self.coordinator_watermark = recovered.coordinator_watermark
            if recovered.tail is not None:
                self.resume(recovered.tail)
                self.next_segment_id = recovered.next_segment_id

    def resume(self, segment: Segment) -> None:
        """Make the unsealed segment that recovery found at the end of the log the active one."""
        self.segment = segment
        self.next_segment_id = segment.segment_id + 1
        self.ext_id = segment.ext_id
        self.set_limits()

    def unsealed(self) -> list[Segment]:
        """Return the segments that are not sealed, oldest first."""
        return self.pending if self.segment is None else [*self.pending, self.segment]

    @property
    def backlog(self) -> int:
        """Bytes that are written but not yet durable."""
        return sum(one.backlog for one in self.unsealed())

    def set_limits(self) -> None:
        """Recompute how far the active segment may be filled, and at which size it is flushed."""
        segment = self.segment
        if segment is None:
            return
        others = sum(one.backlog for one in self.pending)
        segment.limit = min(segment.usable, segment.durable + self._unflushed_max - others)
        segment.flush_at = 0 if segment.backlog == 0 else segment.durable + self._watermark

    # ---- called by others; these methods take the lock

    @property
    def record_total(self) -> int:
        """How many records the log has had, including retired ones."""
        with self.lock:
            segment = self.segment
            return self.next_base_record_count if segment is None else segment.base_record_count + segment.record_count

    def add_spare(self, spare: Segment) -> None:
        """Add a new spare."""
        with self.lock:
            self.spares.append(spare)
            if spare.capacity >= self.refused_bytes:
                self.refused_bytes = 0
        self.notifier.notify("admission")

    def spare_wanted(self, count: int) -> int | None:
        """
        Return the bytes that the next spare must have space for, 0 for any; None when there are enough spares.

        At least one is wanted while no segment is active. Spares above *count* are discarded, the smallest first.
        """
        with self.lock:
            wanted = max(count, self.segment is None or self.need_bytes > 0)
            fits = any(one.capacity >= self.need_bytes for one in self.spares)
            if not wanted or (len(self.spares) >= wanted and fits):
                self.need_bytes = 0
                while len(self.spares) > wanted:
                    smallest = min(self.spares, key=lambda one: one.max_size)
                    self.spares.remove(smallest)
                    self.discards.append(smallest)
                return None
            return self.need_bytes if not fits else 0

    def refuse_need(self, need: int) -> None:
        """Record that the disk has no space for a segment with *need* bytes: smaller records must not wait for it."""
        with self.lock:
            self.need_bytes = 0
            self.refused_bytes = min(need, self.refused_bytes or need)
