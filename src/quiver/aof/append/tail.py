"""
The end of a log: appends and back-pressure.

Everything here is memory. The lock is never held during disk I/O, so an append never waits for the disk. The tail
requests disk work (`WorkRequests`); maintenance and flushes do it.

One comparison guards an append. `_gated` is set by everything that forbids appending (closed, failed, a requested
rollover, failing flushes, an open reservation) and when the next append is to be timed. `Segment.limit` is the end of
the segment, or the point at which too much would be unsynced. Only if the comparison fails, `_admit` finds the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

from quiver.aof.append.notify import Notifier
from quiver.aof.append.segment import AHEAD_BYTES, Segment
from quiver.aof.append.segment_queue import NEVER, OVERHEAD_BYTES, SegmentQueue
from quiver.aof.append.work_requests import Rollover, WorkRequests, invalid_ext_id, invalid_payload
from quiver.aof.config import AofConfig
from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES
from quiver.clock import Clock
from quiver.errors import InvalidRecordError, QuiverError, WouldBlockError
from quiver.primitives.checksum import crc64_nvme, crc64_nvme_function
from quiver.primitives.disk.file_system import Buffer

__all__ = ["Tail"]

_LARGE_BYTES = 2048
_RESERVED = "a reservation is open: commit or cancel it"
_HALF = 0xFFFF_FFFF


class Tail(SegmentQueue):
    """
    Appends records. Thread-safe: many threads may append, every record is complete, and ids only grow.

    Attributes:
        abandoned: the size of the open reservation if it was garbage-collected, else 0; set without the lock.
        record_bytes_max: the maximum bytes of one append, including heads: the space of the largest segment.
    """

    def __init__(self, config: AofConfig, clock: Clock, notifier: Notifier, requests: WorkRequests) -> None:
        super().__init__(config, clock, notifier, requests)
        self.abandoned = 0
        self.flush_failed = False
        self.refusal: Callable[[], QuiverError] | None = None
        self.rollover: Rollover | None = None
        self.watched = False
        self.would_block: dict[str, int] = {}
        self._reserved: Segment | None = None
        self._is_locked = False
        self._times_next = True
        self._began_s: float | None = None
        self._gated = True
        self._crc = crc64_nvme_function()
        self.record_bytes_max = config.segment_max_bytes - OVERHEAD_BYTES

    # ---- appending

    def append(self, payload: Buffer, ext_id: int | None) -> int:
        """
        Store one record and return its id.

        Raises:
            WouldBlockError, InvalidRecordError: nothing was written.
            StoreClosedError, StoreFailedError: nothing was written, and nothing will be.
        """
        crc = self._crc
        try:
            checksum = crc(payload)
            size = len(payload)
        except TypeError:
            raise invalid_payload(payload) from None
        with self.lock:
            segment = self.segment
            if self._gated or not size or segment is None or segment.size + size + RECORD_HEAD_BYTES > segment.limit:
                segment = self._admit(size + RECORD_HEAD_BYTES)
            now = self._now_ns()
            if now > self.last_timestamp:
                self.last_timestamp = now
            else:
                now = self.last_timestamp
            if not segment.record_count:
                segment.write_header(now)
            offset = segment.size
            start = offset + RECORD_HEAD_BYTES
            end = start + size
            view = segment.view
            try:
                view[start:end] = payload
            except (TypeError, ValueError):
                raise invalid_payload(payload) from None
            # The head comes last: until its length is stored, no record begins here.
            try:
                RECORD_HEAD.pack_into(
                    view, offset, size, (checksum >> 32) ^ (checksum & _HALF), now,
                    self.ext_id if ext_id is None else ext_id,
                )  # fmt: skip
            except struct.error:
                # The rest of a longer payload could later be read as records that follow a shorter one.
                segment.zero(offset, end)
                raise invalid_ext_id(ext_id) from None
            segment.crc64 = crc(payload, segment.crc64)
            segment.record_count += 1
            segment.last_offset = offset
            segment.last_timestamp = now
            segment.size = end
            if end >= segment.flush_at:
                self._schedule(segment)
            if self.watched:
                self.notifier.notify("records")
            return segment.id_base | offset

    def append_many(
        self, payloads: Sequence[Buffer], ext_id: int | Sequence[int] | None, *, is_holder: bool = False
    ) -> list[int]:
        """
        Store all of *payloads* in order in one segment, or none; return their ids.

        *ext_id* is one value for all, or a sequence with one for each. Only the caller that holds the log (`hold`)
        passes *is_holder*.

        Raises:
            WouldBlockError, InvalidRecordError: nothing was written.
            StoreClosedError, StoreFailedError: nothing was written, and nothing will be.
        """
        try:
            sizes = list(map(len, payloads))
            checksums = [(one >> 32) ^ (one & _HALF) for one in map(self._crc, payloads)]
        except TypeError:
            raise invalid_payload(payloads) from None
        if not sizes:
            return []
        if 0 in sizes:
            raise InvalidRecordError("a record needs at least one byte: its length of zero would end the log")
        marks = ext_id if isinstance(ext_id, Sequence) else None
        if marks is not None and len(marks) != len(sizes):
            raise InvalidRecordError(f"{len(marks)} ext_ids for {len(sizes)} records; nothing was written")
        need = sum(sizes) + len(sizes) * RECORD_HEAD_BYTES
        with self.lock:
            segment = self.segment
            if self._gated or segment is None or segment.size + need > segment.limit:
                segment = self._admit(need, is_holder=is_holder)
            now = max(self._now_ns(), self.last_timestamp)
            self.last_timestamp = now
            if not segment.record_count:
                segment.write_header(now)
            offset = segment.size
            end = offset + need
            each = repeat(self.ext_id if ext_id is None else ext_id) if marks is None else marks
            heads = map(RECORD_HEAD.pack, sizes, checksums, repeat(now), each)
            try:
                if need > len(sizes) * _LARGE_BYTES:
                    segment.store_each(heads, payloads)
                else:
                    segment.store_joined(heads, payloads, need)
            except struct.error:
                raise invalid_ext_id(ext_id) from None
            except (TypeError, ValueError):
                raise invalid_payload(payloads) from None
            segment.record_count += len(sizes)
            segment.last_offset = end - sizes[-1] - RECORD_HEAD_BYTES
            segment.last_timestamp = now
            segment.size = end
            if end >= segment.flush_at:
                self._schedule(segment)
            if self.watched:
                self.notifier.notify("records")
            first = segment.id_base | offset
        ids = list(accumulate([size + RECORD_HEAD_BYTES for size in sizes], initial=first))
        ids.pop()
        return ids

    def _admit(self, need: int, *, is_holder: bool = False) -> Segment:
        """Return a segment with space for *need* bytes, including heads, or raise the reason for having none."""
        if self.refusal is not None:
            raise self.refusal()
        if need <= RECORD_HEAD_BYTES:
            raise InvalidRecordError("a record needs at least one byte: its length of zero would end the log")
        if need > self.record_bytes_max:
            raise InvalidRecordError(
                f"{need} bytes with their heads do not fit into the largest segment, which has space for "
                f"{self.record_bytes_max}; raise segment_max_bytes"
            )
        if self._is_reserved():
            raise self._blocked("tail", _RESERVED)
        if self._is_locked and not is_holder:
            raise self._blocked("tail", "a batch that was committed is being appended")
        if self.rollover is not None and not self.rollover.done:
            raise self._blocked("rollover", f"segment {self.rollover.segment_id} is being sealed")
        if self.flush_failed:
            self._requests.flush(now=True)
            raise self._blocked("flush", "the last flushes failed")
        backlog = self.backlog
        if backlog and backlog + need > self._unflushed_max:
            self._requests.flush(now=True)
            raise self._blocked("flush", f"{backlog} bytes are not yet durable")
        segment = self._with_room(need)
        self._time_this(segment)
        return segment

    def _with_room(self, need: int) -> Segment:
        segment = self.segment
        if segment is not None and segment.size + need > segment.usable:
            if self._must_wait_for_room(segment, need):
                raise self._blocked("admission", f"disk full: there is no space for a segment that holds {need} bytes")
            self.retire()
            segment = None
        segment = segment or self._activate(need)
        if segment is None:
            self._requests.maintain()
            raise self._blocked("admission", self.disk_full or "there is no writable segment yet")
        return segment

    def _must_wait_for_room(self, segment: Segment, need: int) -> bool:
        # On a full disk a large record must not retire a segment that still has space for smaller ones.
        fits = any(one.capacity >= need for one in self.spares)
        if fits or not 0 < self.refused_bytes <= need or 2 * segment.size > segment.usable:
            return False
        self.need_bytes = max(self.need_bytes, need)
        self._requests.maintain()
        return True

    def _time_this(self, segment: Segment) -> None:
        # The first append after a flush is timed, because it runs through here and `_schedule` anyway.
        if self._times_next:
            self._times_next = False
            self._regate()
            self._began_s = self._clock.monotonic()
            segment.flush_at = 0

    def require_writable(self) -> None:
        """
        Return if another record would be accepted.

        Raises:
            WouldBlockError, StoreClosedError, StoreFailedError: as `append` would.
        """
        with self.lock:
            self._admit(RECORD_HEAD_BYTES + 1)
            self._began_s = None

    def _blocked(self, kind: str, reason: str) -> WouldBlockError:
        self.would_block[kind] = self.would_block.get(kind, 0) + 1
        return WouldBlockError(kind, reason)

    def set_ext_id(self, ext_id: int) -> None:
        """
        Set the `ext_id` of later records that have none of their own.

        Raises:
            InvalidRecordError: *ext_id* is not an integer of 64 bits.
        """
        if not isinstance(ext_id, int) or not 0 <= ext_id < 1 << 64:
            raise invalid_ext_id(ext_id)
        with self.lock:
            self.ext_id = ext_id

    # ---- exclusive appends

    def hold(self) -> int:
        """
        Block all appends except the caller's until `release`; return how many records the log has.

        Raises:
            WouldBlockError: a reservation is open, or another caller holds the log.
            StoreClosedError, StoreFailedError: the log accepts no more records.
        """
        with self.lock:
            if self.refusal is not None:
                raise self.refusal()
            if self._is_locked or self._is_reserved():
                raise self._blocked("tail", "another caller has reserved or holds the end of the log")
            self._is_locked = True
            self._regate()
        return self.record_total

    def release(self) -> None:
        """Allow appends of other callers again."""
        with self.lock:
            self._is_locked = False
            self._regate()
        self.notifier.notify("tail")

    # ---- reserving

    def reserve(self, size: int) -> tuple[Segment, int]:
        """
        Reserve a record of *size* bytes at the end; other appends are blocked until `complete` or `cancel`.

        Raises:
            WouldBlockError, InvalidRecordError: nothing was reserved.
            StoreClosedError, StoreFailedError: the log accepts no more records; nothing was reserved.
        """
        need = size + RECORD_HEAD_BYTES
        with self.lock:
            segment = self.segment
            if self._gated or not size or segment is None or segment.size + need > segment.limit:
                segment = self._admit(need)
            self._reserved = segment
            self._began_s = None  # the time that the caller takes is not the latency of the log
            self._gated = True
            return segment, segment.size

    def complete(self, size: int, reserved: int, ext_id: int | None) -> int:
        """
        Turn the open reservation of *reserved* bytes into a record of its first *size* bytes and return its id.

        Raises:
            InvalidRecordError: no reservation is open, or *size* is not between 1 and *reserved*.
            StoreClosedError, StoreFailedError: the log has been closed or has failed meanwhile.
        """
        with self.lock:
            segment = self._reserved
            if self.refusal is not None:
                raise self.refusal()
            if segment is None or not 0 < size <= reserved:
                raise InvalidRecordError(
                    "no reservation is open, or the record is empty or larger than the reservation"
                )
            # Unused reserved bytes must be zero: the next record begins there.
            segment.zero(segment.size + RECORD_HEAD_BYTES + size, segment.size + RECORD_HEAD_BYTES + reserved)
            now = self.last_timestamp = max(self._now_ns(), self.last_timestamp)
            if not segment.record_count:
                segment.write_header(now)
            offset = segment.size
            end = offset + RECORD_HEAD_BYTES + size
            payload = segment.view[offset + RECORD_HEAD_BYTES : end]
            checksum = crc64_nvme(payload)
            try:
                RECORD_HEAD.pack_into(
                    segment.view, offset, size, (checksum >> 32) ^ (checksum & _HALF), now,
                    self.ext_id if ext_id is None else ext_id,
                )  # fmt: skip
            except struct.error:
                segment.zero(offset, offset + RECORD_HEAD_BYTES)
                raise invalid_ext_id(ext_id) from None
            segment.crc64 = crc64_nvme(payload, segment.crc64)
            segment.record_count += 1
            segment.last_offset = offset
            segment.last_timestamp = now
            segment.size = end
            self._reserved = None
            self._regate()
            if end >= segment.flush_at:
                self._schedule(segment)
            record_id = segment.id_base | offset
        self.notifier.notify("tail", "records")
        return record_id

    def cancel(self, size: int) -> None:
        """Cancel the open reservation of *size* bytes: the bytes are zero again, and the next record uses them."""
        with self.lock:
            self._give_back(size)
        self.notifier.notify("tail")

    def _give_back(self, size: int) -> None:
        segment = self._reserved
        if segment is None:
            return
        if self.refusal is None:
            segment.zero(segment.size, segment.size + RECORD_HEAD_BYTES + size)
        # Otherwise the log may have been opened again, with other records at this place.
        self._reserved = None
        self._regate()

    def _is_reserved(self) -> bool:
        if self.abandoned:
            size, self.abandoned = self.abandoned, 0
            self._give_back(size)
        return self._reserved is not None

    def _schedule(self, segment: Segment) -> None:
        if self._began_s is not None:
            self._requests.record_latency(self._clock.monotonic() - self._began_s)
            self._began_s = None
        # Called when `size` reaches `flush_at`: first for anything unsynced at all, then at the watermark.
        due = segment.durable + self._watermark
        now = segment.size >= due
        segment.flush_at = NEVER if now else due
        self._requests.flush(now=now)

    def _regate(self) -> None:
        rolling = self.rollover is not None and not self.rollover.done
        taken = self._is_locked or self._reserved is not None
        self._gated = self._times_next or self.refusal is not None or rolling or self.flush_failed or taken

    # ---- called by the workers

    def flushed(self) -> None:
        """Record a successful flush: appends that were blocked by it are accepted again."""
        with self.lock:
            self.flush_failed = False
            self._times_next = True
            self._regate()
            self.set_limits()
            if self.segment is not None and self.segment.backlog:
                self._schedule(self.segment)
        self.notifier.notify("flush", "records")

    def zero_ahead(self, segment: Segment, gained: int) -> None:
        """Zero the blocks after *segment*'s records, if the *gained* bytes of the last sync were few."""
        if gained > AHEAD_BYTES:
            return  # zeroed blocks do not speed up a large sync
        with self.lock:
            if segment is self.segment and self._reserved is None:
                segment.zero_ahead()

    def flush_keeps_failing(self) -> None:
        """Block appends until a flush succeeds."""
        with self.lock:
            self.flush_failed = True
            self._regate()

    def finalized(self, segment: Segment) -> None:
        """Record that *segment* is sealed: another may become active, and a rollover that waited for it is done."""
        with self.lock:
            self.pending.remove(segment)
            rolled = self.rollover is not None and self.rollover.segment_id == segment.segment_id
            if self.rollover is not None and rolled:
                self.rollover.done = True
                self._regate()
            self.set_limits()
        self.notifier.notify("admission", "rollover", "records")

    def seal_failed(self, segment: Segment, reason: str) -> None:
        """Fail the rollover that waits for *segment*, if any; the seal is retried nevertheless."""
        with self.lock:
            if self.rollover is not None and self.rollover.segment_id == segment.segment_id:
                self.rollover.error = reason
                self.rollover.done = True
                self._regate()
        self.notifier.notify("admission", "rollover")

    def request_rollover(self) -> Rollover | None:
        """Return the current rollover, done or not, or begin one; None when there is nothing to seal."""
        with self.lock:
            if self.refusal is not None:
                raise self.refusal()
            if self.rollover is None:
                if self._is_reserved():
                    raise self._blocked("tail", _RESERVED)
                has_records = self.segment is not None and self.segment.record_count
                retired = self.retire(is_full=False) if has_records else None
                if retired is None:
                    return None
                self.rollover = Rollover(retired.segment_id)
                self._regate()
            return self.rollover

    def retire_early(self, segment: Segment) -> bool:
        """
        Retire *segment* before it is full, if it is active and has records; return whether that was done.

        Not with an open reservation in it, or while another segment waits to be sealed.
        """
        with self.lock:
            is_active = segment is self.segment and segment.record_count > 0
            if not is_active or self.pending or self.refusal is not None or self._is_reserved():
                return False
            self.retire(is_full=False)
            return True

    def is_idle(self) -> bool:
        """Return whether there is no unsealed record and no append in progress."""
        with self.lock:
            return self._is_idle()

    def _is_idle(self) -> bool:
        busy = self.refusal is not None or self._is_locked or self._is_reserved()
        return not busy and not any(one.record_count for one in self.unsealed())

    def end_with_empty(self, spare: Segment) -> bool:
        """
        Seal *spare* without records at the end of an idle log; return whether that was done.

        It preserves the log's place (ids, offsets, counts) when all segments before it expire.
        """
        with self.lock:
            if not self._is_idle() or self.pending:
                self.discards.append(spare)
                return False
            self.retire()  # it has no records
            segment = self._begin(spare)
            segment.write_header(self.last_timestamp)
            segment.last_timestamp = self.last_timestamp
            self.segment = None
            self._await_seal(segment)
            return True

    def forget_rollover(self, rollover: Rollover) -> None:
        """Forget a rollover after its result was returned to the caller."""
        with self.lock:
            if self.rollover is rollover:
                self.rollover = None

    def refuse(self, refusal: Callable[[], QuiverError]) -> None:
        """Refuse all calls from now on; the first reason stays."""
        with self.lock:
            self.refusal = self.refusal or refusal
            self._regate()
        self.notifier.notify_all()
