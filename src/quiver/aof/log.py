"""
One append-only log: what programs hold. `AofManager` opens it.

An append returns the record's id: it is written, every reader sees it, the death of the process cannot take it, and a
power loss can until it is durable (`flush_until`, or by itself within the flush interval). An append that raises wrote
nothing. There is no third outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from quiver.aof.catalog import Catalog
from quiver.aof.config import AofConfig
from quiver.aof.flush import Flusher
from quiver.aof.format.names import SEGMENTS
from quiver.aof.format.record import RECORD_HEAD, RECORD_HEAD_BYTES, split_record_id
from quiver.aof.format.segment_file import HEADER_BYTES
from quiver.aof.notify import Notifier, in_loop
from quiver.aof.reader import OnDamage, Reader, Record, TailFollower, first_at, read_one
from quiver.aof.recovery import Recovered
from quiver.aof.reservation import Reservation
from quiver.aof.segment import Segment
from quiver.aof.snapshots import LogSnapshot, SegmentSnapshot
from quiver.aof.source import Source
from quiver.aof.tail import Tail
from quiver.aof.tiers.keeper import Tiers, has_tiers
from quiver.aof.upkeep import NOTE_AFTER_S, Upkeep
from quiver.aof.workers import Workers
from quiver.clock import Clock
from quiver.errors import QuiverError, RecordUnknown, RolloverFailed, StoreClosed, StoreFailed, WouldBlock, WrongUse
from quiver.objects import ObjectTier
from quiver.observe import Observer
from quiver.primitives.files import Buffer, FileSystem

__all__ = ["Aof"]

_WAITED_FOR = frozenset({"admission", "rollover", "flush", "tail"})
"""Kinds of back-pressure that pass by themselves; the others are for the caller to route."""

T = TypeVar("T")


class _Asks:
    """
    What the tail asks of the workers.
    """

    def __init__(self, log: Aof, workers: Workers, interval_s: float) -> None:
        self._log = log
        self._workers = workers
        self._interval_s = interval_s

    def flush(self, *, now: bool) -> None:
        if now:
            self._log.flush_metrics.scheduled_watermark += 1
            self._workers.ask_flush(self._log, 0.0)
        elif self._interval_s:
            self._log.flush_metrics.scheduled_interval += 1
            self._workers.ask_flush(self._log, self._interval_s)

    def upkeep(self) -> None:
        self._workers.ask_upkeep(self._log)


class Aof:
    """
    A log of records, each with an id that only grows. Thread-safe; one process at a time.

    Made by `AofManager.log`, from what recovery found.
    """

    def __init__(
        self,
        name: str,
        config: AofConfig,
        recovered: Recovered,
        *,
        stream_id: int,
        fs: FileSystem,
        clock: Clock,
        observer: Observer,
        workers: Workers,
        objects: Callable[[], ObjectTier] | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.stream_id = stream_id
        self._recovered = recovered
        self._clock = clock
        self._observer = observer
        self._workers = workers
        self._notifier = Notifier(clock)
        self._catalog = Catalog(fs)
        asks = _Asks(self, workers, config.flush.flush_interval_ms / 1000)
        self._tail = Tail(config, clock, self._notifier, asks)
        self._flusher = Flusher(
            self._tail, fs, f"{config.root_dir}/{SEGMENTS}", config.flush, clock=clock, observer=observer,
            again=lambda after_s: workers.ask_flush(self, after_s),
            flushed=lambda: workers.ask_upkeep(self, NOTE_AFTER_S), poison=self._poison, seed=stream_id,
        )  # fmt: skip
        self.flush_metrics = self._flusher.metrics
        self._upkeep = Upkeep(
            self._tail, self._flusher, self._catalog, fs, config, stream_id=stream_id, clock=clock, observer=observer,
            again=lambda after_s: workers.ask_upkeep(self, after_s), poison=self._poison,
        )  # fmt: skip
        self._closing = threading.Lock()
        self._closed = False
        self._tiers: Tiers | None = None
        self._upkeep.retires = not has_tiers(fs, config, stream_id)
        self._take_over(recovered)
        if not self._upkeep.retires:
            below = recovered.next_segment_id if recovered.tail is None else recovered.tail.segment_id
            self._tiers = Tiers(
                self._catalog, fs, config, stream_id=stream_id, clock=clock, observer=observer, objects=objects,
                again=lambda after_s: workers.ask_tiers(self, after_s), below=below,
            )  # fmt: skip
            workers.ask_tiers(self)

    def _take_over(self, recovered: Recovered) -> None:
        for segment in recovered.sealed:
            self._catalog.add(segment)
        tail = self._tail
        tail.next_segment_id = recovered.next_segment_id
        tail.next_base_offset = recovered.next_base_offset
        tail.next_base_record_count = recovered.next_base_record_count
        tail.last_timestamp = recovered.last_timestamp
        tail.ext_id = recovered.ext_id
        if recovered.tail is not None:
            with tail.lock:
                tail.adopt(recovered.tail)
            tail.next_segment_id = recovered.next_segment_id
        self._upkeep.coordinator_watermark = recovered.coordinator_watermark
        self._upkeep.make_spares()

    def _poison(self, reason: str) -> StoreFailed:
        message = f"the log {self.name} failed: {reason}; open it again to recover"
        self._observer.event("aof.failed", level=logging.ERROR, log=self.name, reason=reason)
        self._tail.refuse(lambda: StoreFailed(message))
        return StoreFailed(message)

    # ---- appending

    def append_record(self, payload: Buffer, *, ext_id: int | None = None) -> int:
        """
        Append one record without waiting for anything; return its id. It is written, not yet durable.

        *ext_id* defaults to that of the log (`set_current_ext_id`).

        Raises:
            WouldBlock: nothing was written; `kind` says what must come first.
            RecordInvalid: nothing was written: it is empty, or no segment can hold it.
            StoreClosed, StoreFailed: nothing was written, and nothing will be.
        """
        return self._tail.append(payload, ext_id)

    def append_records(self, payloads: Sequence[Buffer], *, ext_id: int | None = None) -> list[int]:
        """
        Append all of *payloads* in one pass, one behind the other, or none of them; return their ids.

        A crash before they are durable may keep the first few.

        Raises:
            WouldBlock, RecordInvalid, StoreClosed, StoreFailed: as `append_record`.
        """
        return self._tail.append_many(payloads, ext_id)

    def append_record_with_timeout(self, payload: Buffer, timeout_s: float | None, *, ext_id: int | None = None) -> int:
        """
        Append one record, waiting up to *timeout_s* (None: as long as it takes) while it would block.

        Raises:
            WouldBlock: nothing was written in that time; `kind` says what was missing last.
            RecordInvalid, StoreClosed, StoreFailed: as `append_record`.
        """
        try:
            return self._tail.append(payload, ext_id)
        except WouldBlock:
            return self._retry(lambda: self._tail.append(payload, ext_id), timeout_s)

    def append_records_with_timeout(
        self, payloads: Sequence[Buffer], timeout_s: float | None, *, ext_id: int | None = None
    ) -> list[int]:
        """
        Append all of *payloads*, waiting up to *timeout_s* while it would block.

        Raises:
            WouldBlock, RecordInvalid, StoreClosed, StoreFailed: none was written.
        """
        try:
            return self._tail.append_many(payloads, ext_id)
        except WouldBlock:
            return self._retry(lambda: self._tail.append_many(payloads, ext_id), timeout_s)

    def append_reserve(self, size: int) -> Reservation:
        """
        Reserve *size* bytes at the end, to be filled in place. See `Reservation`.

        Raises:
            WouldBlock, RecordInvalid, StoreClosed, StoreFailed: nothing was reserved.
        """
        return Reservation(self._tail, size)

    def append_record_async(self, payload: Buffer, *, ext_id: int | None = None) -> asyncio.Future[int]:
        """
        Append one record from an event loop: the future has its id as soon as it is written.

        Cancelling the future before that means that it is never written. It waits for what `WouldBlock` names, and
        fails with any other error, and with a `WouldBlock` of a kind that does not pass by itself.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()

        def attempt() -> None:
            # In the thread of the loop, as cancelling is: either the record is written and the future has its id,
            # or the future was cancelled first.
            if future.done():
                return
            seen = {kind: self._notifier.generation(kind) for kind in _WAITED_FOR}
            try:
                future.set_result(self._tail.append(payload, ext_id))
            except WouldBlock as blocked:
                if blocked.kind in _WAITED_FOR:
                    self._notifier.call_once(blocked.kind, seen[blocked.kind], in_loop(loop, attempt))
                else:
                    future.set_exception(blocked)
            except QuiverError as error:
                future.set_exception(error)

        attempt()
        return future

    def wait_for_writable_segment(self, timeout_s: float | None) -> None:
        """
        Return when a segment takes records, waiting up to *timeout_s*.

        Raises:
            WouldBlock: there was none in that time.
            StoreClosed, StoreFailed: there will be none.
        """
        self._retry(self._tail.require_writable, timeout_s)

    def _retry(self, attempt: Callable[[], T], timeout_s: float | None) -> T:
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            seen = {kind: self._notifier.generation(kind) for kind in _WAITED_FOR}
            try:
                return attempt()
            except WouldBlock as blocked:
                if blocked.kind not in _WAITED_FOR:
                    raise
                kind = blocked.kind
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise
            if not self._workers.threaded:
                self._workers.run_pending()
            self._notifier.wait(kind, seen[kind], left)

    # ---- durability

    def flush_until(self, record_id: int, *, timeout_s: float | None = None) -> None:
        """
        Return when the record is durable, and with it all before it. Callers that overlap share one sync.

        Raises:
            NotYetDurable: *timeout_s* passed, or syncs failed; the record is written: never append it again.
            RecordUnknown, StoreClosed: there is no such record; whether there is cannot be told any more.
            StoreFailed: written bytes were lost.
        """
        segment_id, offset = split_record_id(record_id)
        segment = self._unsealed(segment_id)
        if segment is None:
            if self._catalog.get(segment_id) is None:
                if self._closed:
                    raise StoreClosed(f"the log {self.name} was closed; open it to see whether it has {record_id}")
                raise RecordUnknown(f"no record {record_id}: there is no segment {segment_id}")
            return
        if not HEADER_BYTES <= offset <= segment.last_offset or not segment.record_count:
            raise RecordUnknown(f"no record {record_id} is in segment {segment_id} yet")
        (length, *_) = RECORD_HEAD.unpack_from(segment.view, offset)
        end = min(offset + RECORD_HEAD_BYTES + length, segment.size)
        for earlier in self._earlier(segment_id):
            self._flusher.until(earlier, earlier.size, record_id, timeout_s)
        self._flusher.until(segment, end, record_id, timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """
        Make everything durable that was appended before the call.

        Raises:
            NotYetDurable, StoreFailed: as `flush_until`.
        """
        with self._tail.lock:
            written = [(one, one.size) for one in self._tail.unsealed() if one.record_count]
        for segment, size in written:
            self._flusher.until(segment, size, segment.id_base | segment.last_offset, timeout_s)

    def _unsealed(self, segment_id: int) -> Segment | None:
        with self._tail.lock:
            return next((one for one in self._tail.unsealed() if one.segment_id == segment_id), None)

    def _earlier(self, segment_id: int) -> list[Segment]:
        with self._tail.lock:
            return [one for one in self._tail.pending if one.segment_id < segment_id]

    # ---- rollover

    def seal_current_segment(self) -> int | None:
        """
        Close the segment that takes records and have it sealed; return its id once that is done, without waiting.

        The first call asks; while the answer is not there, this and every append raise `WouldBlock("rollover")`. None
        when there is nothing to seal.

        Raises:
            WouldBlock: the answer is not there yet; call again.
            RolloverFailed: sealing failed. Nothing is lost, and it is tried again by itself.
            StoreClosed, StoreFailed: nothing was sealed.
        """
        rollover = self._tail.ask_rollover()
        if rollover is None:
            return None
        if not rollover.done:
            raise WouldBlock("rollover", f"segment {rollover.segment_id} is being sealed")
        self._tail.forget_rollover(rollover)
        if rollover.error is not None:
            raise RolloverFailed(f"segment {rollover.segment_id} could not be sealed yet: {rollover.error}")
        return rollover.segment_id

    def force_rollover(self, *, timeout_s: float | None = None) -> int | None:
        """
        Have the segment that takes records sealed, and wait until the next one does; return the id of the sealed one.

        None when there is nothing to seal.

        Raises:
            WouldBlock: it took longer than *timeout_s*; it goes on.
            RolloverFailed, StoreClosed, StoreFailed: as `seal_current_segment`.
        """
        sealed = self._retry(self.seal_current_segment, timeout_s)
        self.wait_for_writable_segment(timeout_s)
        return sealed

    # ---- reading

    def open_reader(
        self,
        record_id: int = 0,
        *,
        views: bool = False,
        durable_only: bool = False,
        on_damage: OnDamage = "raise",
    ) -> Reader:
        """
        Return a reader of the records from *record_id* on, whatever segment they are in; 0 is the first there is.
        """
        return Reader(self, record_id, views=views, durable_only=durable_only, on_damage=on_damage)

    def read_record(self, record_id: int) -> Record:
        """
        Return one record.

        Raises:
            RecordUnknown: none begins there, or its segment was retired.
            Damaged: it is not what was written.
        """
        return read_one(self, record_id)

    def find_record(self, timestamp: int) -> int | None:
        """
        Return the id of the first record that is not older than *timestamp*, in nanoseconds since the Unix epoch.

        None when all are older. Segments that end before it are passed over unread.
        """
        return first_at(self, timestamp)

    def tail_follower(
        self, record_id: int | None = None, *, durable_only: bool = True, on_damage: OnDamage = "raise"
    ) -> TailFollower:
        """
        Return a follower of the records from *record_id* on (None: those that come from now on).

        With *durable_only* it sees what a power loss cannot take back any more.
        """
        start = self._tail.end_id() if record_id is None else record_id
        if not durable_only:
            self._tail.watched = True
        reader = Reader(self, start, durable_only=durable_only, on_damage=on_damage)
        sealed = self._catalog.all()
        after = sealed[-1].segment_id if record_id is None and sealed else split_record_id(start)[0] - 1
        return TailFollower(
            reader, self, self._notifier, clock=self._clock, is_closed=lambda: self._closed, sealed_after=after
        )

    def source(self, segment_id: int, *, durable_only: bool) -> Source | None:
        """
        Return the segment with that id, as far as it can be read now; None when there is none.
        """
        with self._tail.lock:
            for one in self._tail.unsealed():
                if one.segment_id == segment_id:
                    end = max(one.durable, HEADER_BYTES) if durable_only else one.size
                    complete = one is not self._tail.segment and end == one.size
                    return Source(segment_id, one.path, one.view.toreadonly(), end, complete, one.last_timestamp)
        sealed = self._catalog.get(segment_id)
        if sealed is None:
            return None
        view = None
        with contextlib.suppress(FileNotFoundError):  # retired between the lines above
            view = self._catalog.view(sealed) if self._tiers is None else self._tiers.view(sealed)
        if view is None:
            return None
        return Source(segment_id, sealed.path, view, sealed.end, True, sealed.footer.last_timestamp)

    def next_segment_id(self, segment_id: int) -> int | None:
        """
        Return the lowest id above *segment_id* that a segment has.
        """
        with self._tail.lock:
            unsealed = [one.segment_id for one in self._tail.unsealed() if one.segment_id > segment_id]
        sealed = self.next_sealed_segment_id(segment_id)
        return min([*unsealed, *([] if sealed is None else [sealed])], default=None)

    def next_sealed_segment_id(self, segment_id: int) -> int | None:
        """
        Return the lowest id above *segment_id* that a sealed segment has.
        """
        sealed = self._catalog.after(segment_id)
        return None if sealed is None else sealed.segment_id

    def last_timestamp(self, segment_id: int) -> int | None:
        """
        Return the timestamp of the last record of a sealed segment; None for any other.
        """
        sealed = self._catalog.get(segment_id)
        return None if sealed is None else sealed.footer.last_timestamp

    # ---- tiers

    @property
    def tiers(self) -> Tiers:
        """
        What moves the segments of the log between tiers: to evict, to hydrate, and to look at.

        Raises:
            WrongUse: the log has none.
        """
        if self._tiers is not None:
            return self._tiers
        raise WrongUse(f"the log {self.name} has no tiers: give its settings compression or tiers")

    # ---- what it says of itself

    @property
    def closed(self) -> bool:
        """
        Whether it was closed.
        """
        return self._closed

    @property
    def coordinator_watermark(self) -> int:
        """
        How far an upstream operation log was taken over, as the newest sealed segment says; go on with the next.
        """
        return self._upkeep.coordinator_watermark

    def set_coordinator_watermark(self, watermark: int) -> None:
        """
        Have the next sealed segment say that the upstream log was taken over up to *watermark*. It never goes back.
        """
        self._upkeep.coordinator_watermark = max(self._upkeep.coordinator_watermark, watermark)

    def set_current_ext_id(self, ext_id: int) -> None:
        """
        Give the records to come, and the segments to come, this id of an external cohort: a number of 64 bits.
        """
        self._tail.set_ext_id(ext_id)

    def is_durable(self, record_id: int) -> bool:
        """
        Say whether a power loss cannot take the record any more. False for what is not there.
        """
        segment_id, offset = split_record_id(record_id)
        if (segment := self._unsealed(segment_id)) is not None:
            return offset < segment.durable
        sealed = self._catalog.get(segment_id)
        return sealed is not None and offset < sealed.end

    def segment_snapshot(self) -> tuple[SegmentSnapshot, ...]:
        """
        Return all segments, oldest first.
        """
        sealed = [
            SegmentSnapshot(
                one.segment_id, "sealed", one.header.base_offset, one.header.base_record_count, one.footer.record_count,
                one.end, one.end, one.header.max_size, one.header.created_at, one.path,
            )
            for one in self._catalog.all()
        ]  # fmt: skip
        with self._tail.lock:
            rest = [
                SegmentSnapshot(
                    one.segment_id, "active" if one is self._tail.segment else "pending", one.base_offset,
                    one.base_record_count, one.record_count, one.size, one.durable, one.max_size, one.created_at,
                    one.path,
                )
                for one in self._tail.unsealed()
            ]  # fmt: skip
        return (*sealed, *(one for one in rest if one.segment_id not in {each.segment_id for each in sealed}))

    def snapshot(self) -> LogSnapshot:
        """
        Return what the log says of itself now.
        """
        segments = self.segment_snapshot()
        with self._tail.lock:
            backlog = self._tail.backlog
            spares = len(self._tail.spares)
            would_block = dict(self._tail.would_block)
        newest = segments[-1] if segments else None
        return LogSnapshot(
            name=self.name,
            stream_id=self.stream_id,
            segments=segments,
            spares=spares,
            record_count=newest.base_record_count + newest.record_count if newest else 0,
            backlog_bytes=backlog,
            coordinator_watermark=self.coordinator_watermark,
            ext_id=self._tail.ext_id,
            flush_failed=self._tail.flush_failed,
            would_block=would_block,
            flush=dataclasses.replace(self.flush_metrics, backlog_bytes=backlog),
            truncated_bytes=self._recovered.truncated_bytes,
            quarantined=tuple(self._recovered.quarantined),
            tiers=None if self._tiers is None else self._tiers.snapshot(),
        )

    # ---- for the workers, and the end

    def run_flush(self) -> None:
        """
        Make durable what is written. Called by the manager's threads.
        """
        self._flusher.run()

    def run_upkeep(self) -> None:
        """
        Seal, make spares, retire. Called by the manager's threads.
        """
        self._upkeep.run()
        if self._tiers is not None:
            self._workers.ask_tiers(self)

    def run_tiers(self) -> None:
        """
        Move segments between tiers, if there are any. Called by the manager's threads.
        """
        if self._tiers is not None:
            self._tiers.run()

    def close(self) -> None:
        """
        Make everything durable, seal what is full, and let go. Idempotent.

        Raises:
            NotYetDurable, StoreFailed, OSError: not everything is durable; the log is closed all the same.
        """
        with self._closing:
            if self._closed:
                return
            failed = self._tail.refusal is not None
            self._tail.refuse(lambda: StoreClosed(f"the log {self.name} was closed"))
            self._workers.forget(self)
            try:
                if not failed:
                    self.flush()
                    self._upkeep.close()
            finally:
                self._closed = True
                self._upkeep.release(remove=False)
                if self._tiers is not None:
                    self._tiers.close()
                self._notifier.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
