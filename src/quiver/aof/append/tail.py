"""
The end of a log: the segment that takes records, those that wait to be sealed, and the spares that come next.

Everything here is memory: the lock is never held while the disk works, so an append never waits for it. What the disk
has to do is asked for (`Ask`) and done by `upkeep` and `flush`.

One comparison guards an append. `gated` is set by anything that forbids appending (closed, failed, a rollover that was
asked for, flushes that fail, an open reservation) or has it timed, and `Segment.limit` is where either the segment or
what may be unsynced ends; only behind that comparison is looked at why.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

from quiver.aof.append.notify import Notifier
from quiver.aof.append.segment import AHEAD_BYTES, Segment
from quiver.aof.append.segment_queue import NEVER, OVERHEAD_BYTES, SegmentQueue
from quiver.aof.append.work_requests import Ask, Rollover, invalid_ext_id, invalid_payload
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
    Where records go. Thread-safe: many threads may append, each record is whole and ids only grow.

    Attributes:
        forsaken: bytes of the open reservation, once nobody can finish it any more; set without the lock.
        record_bytes_max: of one pass, heads included: what the largest segment has room for.
    """

    def __init__(self, config: AofConfig, clock: Clock, notifier: Notifier, ask: Ask) -> None:
        super().__init__(config, clock, notifier, ask)
        self.forsaken = 0
        self.flush_failed = False
        self.refusal: Callable[[], QuiverError] | None = None
        self.rollover: Rollover | None = None
        self.watched = False
        self.would_block: dict[str, int] = {}
        self._reserved: Segment | None = None
        self._held = False
        self._looks = True
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
            # The head last: until its length is there, nothing begins here.
            try:
                RECORD_HEAD.pack_into(
                    view, offset, size, (checksum >> 32) ^ (checksum & _HALF), now,
                    self.ext_id if ext_id is None else ext_id,
                )  # fmt: skip
            except struct.error:
                # What is left of a longer payload could one day be read as records behind a shorter one.
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
        self, payloads: Sequence[Buffer], ext_id: int | Sequence[int] | None, *, held: bool = False
    ) -> list[int]:
        """
        Store all of *payloads*, one behind the other in one segment, or none; return their ids.

        *ext_id* is that of all, or one for each. With *held* it is the holder who appends (`hold`).

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
                segment = self._admit(need, held=held)
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

    def _admit(self, need: int, *, held: bool = False) -> Segment:
        """Return the segment that takes *need* bytes, heads included, or say why there is none."""
        if self.refusal is not None:
            raise self.refusal()
        if need <= RECORD_HEAD_BYTES:
            raise InvalidRecordError("a record needs at least one byte: its length of zero would end the log")
        if need > self.record_bytes_max:
            raise InvalidRecordError(
                f"{need} bytes with their heads do not fit into the largest segment, which has room for "
                f"{self.record_bytes_max}; raise segment_max_bytes"
            )
        if self._is_reserved():
            raise self._blocked("tail", _RESERVED)
        if self._held and not held:
            raise self._blocked("tail", "a batch that was committed is being appended")
        if self.rollover is not None and not self.rollover.done:
            raise self._blocked("rollover", f"segment {self.rollover.segment_id} is being sealed")
        if self.flush_failed:
            self._ask.flush(now=True)
            raise self._blocked("flush", "the last flushes failed")
        backlog = self.backlog
        if backlog and backlog + need > self._unflushed_max:
            self._ask.flush(now=True)
            raise self._blocked("flush", f"{backlog} bytes are not yet durable")
        segment = self._with_room(need)
        self._time_this(segment)
        return segment

    def _with_room(self, need: int) -> Segment:
        segment = self.segment
        if segment is not None and segment.size + need > segment.usable:
            if self._must_wait_for_room(segment, need):
                raise self._blocked("admission", f"disk full: there is no room for a segment that takes {need} bytes")
            self.retire()
            segment = None
        segment = segment or self._activate(need)
        if segment is None:
            self._ask.upkeep()
            raise self._blocked("admission", self.disk_full or "there is no writable segment yet")
        return segment

    def _must_wait_for_room(self, segment: Segment, need: int) -> bool:
        # On a full disk a large record must not take a segment away that still has room for smaller ones.
        fits = any(one.capacity >= need for one in self.spares)
        if fits or not 0 < self.refused_bytes <= need or 2 * segment.size > segment.usable:
            return False
        self.need_bytes = max(self.need_bytes, need)
        self._ask.upkeep()
        return True

    def _time_this(self, segment: Segment) -> None:
        # The first append after a flush, because it comes by here and by `_schedule` anyhow.
        if self._looks:
            self._looks = False
            self._regate()
            self._began_s = self._clock.monotonic()
            segment.flush_at = 0

    def require_writable(self) -> None:
        """
        Return when one more record would be taken.

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
        Give this id to the records to come that bring none.

        Raises:
            InvalidRecordError: it is no whole number of 64 bits.
        """
        if not isinstance(ext_id, int) or not 0 <= ext_id < 1 << 64:
            raise invalid_ext_id(ext_id)
        with self.lock:
            self.ext_id = ext_id

    # ---- holding

    def hold(self) -> int:
        """
        Let nobody append but the caller, until `release`; return how many records the log has.

        Raises:
            WouldBlockError: a reservation is open, or it is held.
            StoreClosedError, StoreFailedError: nothing will be appended any more.
        """
        with self.lock:
            if self.refusal is not None:
                raise self.refusal()
            if self._held or self._is_reserved():
                raise self._blocked("tail", "somebody else appends")
            self._held = True
            self._regate()
        return self.record_total

    def release(self) -> None:
        """Let others append again."""
        with self.lock:
            self._held = False
            self._regate()
        self.notifier.notify("tail")

    # ---- reserving

    def reserve(self, size: int) -> tuple[Segment, int]:
        """
        Keep room for one record of *size* bytes at the end; nobody else appends until `complete` or `cancel`.

        Raises:
            WouldBlockError, InvalidRecordError: nothing was reserved.
            StoreClosedError, StoreFailedError: nothing was reserved, and nothing will be.
        """
        need = size + RECORD_HEAD_BYTES
        with self.lock:
            segment = self.segment
            if self._gated or not size or segment is None or segment.size + need > segment.limit:
                segment = self._admit(need)
            self._reserved = segment
            self._began_s = None  # how long the caller takes says nothing about the log
            self._gated = True
            return segment, segment.size

    def complete(self, size: int, reserved: int, ext_id: int | None) -> int:
        """
        Turn the open reservation of *reserved* bytes into a record of its first *size* bytes and return its id.

        Raises:
            InvalidRecordError: no reservation is open, or *size* is not 1 to *reserved*.
            StoreClosedError, StoreFailedError: the log took nothing more meanwhile.
        """
        with self.lock:
            segment = self._reserved
            if self.refusal is not None:
                raise self.refusal()
            if segment is None or not 0 < size <= reserved:
                raise InvalidRecordError(
                    "no reservation is open, or the record is empty or larger than what was reserved"
                )
            # What was reserved and is not used must be zero: it is where the next record begins.
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
        """Give the open reservation of *size* bytes back: its room is zero again and the next record takes it."""
        with self.lock:
            self._give_back(size)
        self.notifier.notify("tail")

    def _give_back(self, size: int) -> None:
        segment = self._reserved
        if segment is None:
            return
        if self.refusal is None:
            segment.zero(segment.size, segment.size + RECORD_HEAD_BYTES + size)
        # Otherwise the log may have been opened again, and others' records stand there now.
        self._reserved = None
        self._regate()

    def _is_reserved(self) -> bool:
        if self.forsaken:
            size, self.forsaken = self.forsaken, 0
            self._give_back(size)
        return self._reserved is not None

    def _schedule(self, segment: Segment) -> None:
        if self._began_s is not None:
            self._ask.took(self._clock.monotonic() - self._began_s)
            self._began_s = None
        # Called when `size` reaches `flush_at`: first for anything unsynced at all, then at the watermark.
        due = segment.durable + self._watermark
        now = segment.size >= due
        segment.flush_at = NEVER if now else due
        self._ask.flush(now=now)

    def _regate(self) -> None:
        rolling = self.rollover is not None and not self.rollover.done
        taken = self._held or self._reserved is not None
        self._gated = self._looks or self.refusal is not None or rolling or self.flush_failed or taken

    # ---- told by those who work on the disk

    def flushed(self) -> None:
        """Take note that what could be synced is: producers that were refused for it may go on."""
        with self.lock:
            self.flush_failed = False
            self._looks = True
            self._regate()
            self.set_limits()
            if self.segment is not None and self.segment.backlog:
                self._schedule(self.segment)
        self.notifier.notify("flush", "records")

    def zero_ahead(self, segment: Segment, gained: int) -> None:
        """
        Prepare the blocks behind *segment*'s records, of which *gained* bytes were just synced, unless that was
        much.
        """
        if gained > AHEAD_BYTES:
            return  # a sync of much costs what it costs, and zeros would be written for nothing
        with self.lock:
            if segment is self.segment and self._reserved is None:
                segment.zero_ahead()

    def flush_keeps_failing(self) -> None:
        """Refuse producers until a flush succeeds."""
        with self.lock:
            self.flush_failed = True
            self._regate()

    def finalized(self, segment: Segment) -> None:
        """
        Take note that *segment* is sealed: the next may be activated, and a rollover that waited for it is
        answered.
        """
        with self.lock:
            self.pending.remove(segment)
            rolled = self.rollover is not None and self.rollover.segment_id == segment.segment_id
            if self.rollover is not None and rolled:
                self.rollover.done = True
                self._regate()
            self.set_limits()
        self.notifier.notify("admission", "rollover", "records")

    def seal_failed(self, segment: Segment, reason: str) -> None:
        """Answer the rollover that waits for *segment*, if any, with an error; sealing is tried again all the same."""
        with self.lock:
            if self.rollover is not None and self.rollover.segment_id == segment.segment_id:
                self.rollover.error = reason
                self.rollover.done = True
                self._regate()
        self.notifier.notify("admission", "rollover")

    def ask_rollover(self) -> Rollover | None:
        """Return the rollover that is under way or was answered, or begin one; None when there is nothing to seal."""
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
        Have *segment* sealed although it is not full, if it takes records and has some; say whether that was done.

        Not while somebody fills a reservation in it, or while another waits to be sealed.
        """
        with self.lock:
            is_active = segment is self.segment and segment.record_count > 0
            if not is_active or self.pending or self.refusal is not None or self._is_reserved():
                return False
            self.retire(is_full=False)
            return True

    def is_quiet(self) -> bool:
        """Say whether there is no unsealed record, and nobody about to append one."""
        with self.lock:
            return self._is_quiet()

    def _is_quiet(self) -> bool:
        busy = self.refusal is not None or self._held or self._is_reserved()
        return not busy and not any(one.record_count for one in self.unsealed())

    def end_with_empty(self, spare: Segment) -> bool:
        """
        Have *spare* sealed without records at the end of a log that is quiet; say whether that was done.

        It keeps the log's place (ids, offsets, counts) when all segments before it expire.
        """
        with self.lock:
            if not self._is_quiet() or self.pending:
                self.discards.append(spare)
                return False
            self.retire()  # one without records
            segment = self._begin(spare)
            segment.write_header(self.last_timestamp)
            segment.last_timestamp = self.last_timestamp
            self.segment = None
            self._await_seal(segment)
            return True

    def forget_rollover(self, rollover: Rollover) -> None:
        """Take note that its answer was collected."""
        with self.lock:
            if self.rollover is rollover:
                self.rollover = None

    def refuse(self, refusal: Callable[[], QuiverError]) -> None:
        """Take nothing from now on; the first reason stays."""
        with self.lock:
            self.refusal = self.refusal or refusal
            self._regate()
        self.notifier.notify_all()
