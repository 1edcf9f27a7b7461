"""
The segments at the end of a log that are not sealed: the one that takes records, full ones that wait to be sealed, and
spares that were made ahead.

::

    spare ──activate──▶ active ──retire──▶ pending ──(upkeep seals it)──▶ catalogue

Memory only: upkeep makes, seals and removes the files.
"""

from __future__ import annotations

import threading
from collections import deque

from quiver.aof.append.notify import Notifier
from quiver.aof.append.segment import Segment
from quiver.aof.append.sizing import Sizing
from quiver.aof.append.work_requests import Ask
from quiver.aof.config import AofConfig
from quiver.aof.format.segment_file import FOOTER_BYTES, HEADER_BYTES, SegmentHeader
from quiver.aof.recovered import Recovered
from quiver.clock import Clock

__all__ = ["NEVER", "OVERHEAD_BYTES", "SegmentQueue"]

OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES
NEVER = 1 << 62

_PENDING_MAX = 1
"""With the active segment that makes two that are not finalized."""


class SegmentQueue:
    """
    Which segment takes records, and which come before and after it. Methods need `lock` held unless they say otherwise.

    Attributes:
        segment: the one that takes records, if any.
        pending: full ones that are not sealed yet, oldest first.
        spares: empty ones that were made ahead.
        discards: spares that are not needed any more, to be removed.
        need_bytes: the largest record that waits for a spare that has room for it.
        refused_bytes: the smallest record that the disk had no room for a spare for; 0 while there is room.
        disk_full: what the disk had no room for last; empty while there is room for everything.
    """

    def __init__(self, config: AofConfig, clock: Clock, notifier: Notifier, ask: Ask) -> None:
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
        self._ask = ask
        self._watermark = config.flush.flush_watermark_bytes
        self._unflushed_max = config.flush.max_unflushed_bytes or NEVER

    def _activate(self, need: int) -> Segment | None:
        if len(self.pending) > _PENDING_MAX:
            return None  # two are not finalized; a third would let the writer outrun the disk for ever
        spare = next((one for one in self.spares if one.capacity >= need), None)
        if spare is None:
            self.need_bytes = max(self.need_bytes, need)
            return None
        self.spares.remove(spare)
        return self._begin(spare)

    def _begin(self, spare: Segment) -> Segment:
        header = SegmentHeader(
            self.next_segment_id, self.next_base_record_count, self.next_base_offset, spare.max_size, self._now_ns(), 0,
            self.ext_id,
        )  # fmt: skip
        spare.activate(header, now_s=self._clock.monotonic())
        self.next_segment_id += 1
        self.segment = spare
        self.set_limits()
        self._ask.upkeep()
        return spare

    def retire(self, *, is_full: bool = True) -> Segment | None:
        """
        Take the segment out of use: one with records waits to be sealed and is returned, an empty
        one is discarded.
        """
        segment, self.segment = self.segment, None
        if segment is None:
            return None
        self._ask.upkeep()
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
        segment.watermark = self.coordinator_watermark  # not that of its seal: what came since is elsewhere
        self.next_base_offset = segment.base_offset + segment.size + FOOTER_BYTES
        self.next_base_record_count = segment.base_record_count + segment.record_count

    def take_over(self, recovered: Recovered) -> None:
        """Go on after what recovery found; called once, before anybody appends."""
        with self.lock:
            self.next_segment_id = recovered.next_segment_id
            self.next_base_offset = recovered.next_base_offset
            self.next_base_record_count = recovered.next_base_record_count
            self.last_timestamp = recovered.last_timestamp
            self.ext_id = recovered.ext_id
            self.coordinator_watermark = recovered.coordinator_watermark
            if recovered.tail is not None:
                self.adopt(recovered.tail)
                self.next_segment_id = recovered.next_segment_id

    def adopt(self, segment: Segment) -> None:
        """Take the unsealed segment that recovery found, which ends the log, as the one that takes records."""
        self.segment = segment
        self.next_segment_id = segment.segment_id + 1
        self.ext_id = segment.ext_id
        self.set_limits()

    def unsealed(self) -> list[Segment]:
        """Return the segments that are not sealed, oldest first."""
        return self.pending if self.segment is None else [*self.pending, self.segment]

    @property
    def backlog(self) -> int:
        """Bytes that are written and not yet durable."""
        return sum(one.backlog for one in self.unsealed())

    def set_limits(self) -> None:
        """Work out again how far the segment may be filled, and at which size it is to be flushed."""
        segment = self.segment
        if segment is None:
            return
        others = sum(one.backlog for one in self.pending)
        segment.limit = min(segment.usable, segment.durable + self._unflushed_max - others)
        segment.flush_at = 0 if segment.backlog == 0 else segment.durable + self._watermark

    # ---- for others; these take the lock

    @property
    def record_total(self) -> int:
        """Records of the whole log, those that were retired included."""
        with self.lock:
            segment = self.segment
            return self.next_base_record_count if segment is None else segment.base_record_count + segment.record_count

    def add_spare(self, spare: Segment) -> None:
        """Take a spare that was made."""
        with self.lock:
            self.spares.append(spare)
            if spare.capacity >= self.refused_bytes:
                self.refused_bytes = 0
        self.notifier.notify("admission")

    def spare_wanted(self, count: int) -> int | None:
        """
        Return the bytes that the next spare must have room for, 0 for any; None when the spares are enough.

        One at least is wanted while no segment takes records. Spares above *count* are discarded, the smallest first.
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
        """Take note that the disk has no room for a segment with *need* bytes: smaller records must not wait for it."""
        with self.lock:
            self.need_bytes = 0
            self.refused_bytes = min(need, self.refused_bytes or need)
