"""The methods of a log that write: append, flush, seal. `Aof` inherits them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quiver.aof.append.blocking import BlockedCalls
from quiver.aof.append.durability import DurabilityTracker, Durable
from quiver.aof.append.reservation import Reservation
from quiver.aof.append.tail import Tail
from quiver.aof.segment_index import require_id
from quiver.errors import RolloverError, WouldBlockError
from quiver.lazy_names import renamed_keyword
from quiver.primitives.disk.file_system import Buffer

__all__ = ["LogWriting"]


class LogWriting:
    """The writing half of `Aof`. Thread-safe."""

    _tail: Tail
    _blocked_calls: BlockedCalls
    _durability: DurabilityTracker

    # ---- appending

    def append_record(self, payload: Buffer, *, ext_id: int | None = None, durable: Durable = False) -> int:
        """
        Append one record without waiting, and return its id. The record is written but not yet durable.

        *ext_id* defaults to that of the log (`set_current_ext_id`). With *durable* the call waits, without limit, until
        the record is synced (True) or in the object store ("object").

        Raises:
            WouldBlockError: nothing was written; `kind` names the cause.
            InvalidRecordError: nothing was written: the record is empty, or no segment can hold it.
            NotDurableError: the record is written, but could not be synced; never append it again.
            UsageError: *durable* has another value, or the log has no object store; nothing was written.
            StoreClosedError, StoreFailedError: the log accepts no more records. Nothing was written, but with *durable*
            the record may be.
        """
        if durable:
            return self._durability.durably(lambda _: self._tail.append(payload, ext_id), durable, None)
        return self._tail.append(payload, ext_id)

    def append_records(
        self, payloads: Sequence[Buffer], *, ext_id: int | Sequence[int] | None = None, durable: Durable = False
    ) -> list[int]:
        """
        Append all of *payloads* in order, or none of them; return their ids.

        *ext_id* is one value for all, or a sequence with one for each. A crash before they are durable may keep the
        first few only.

        Raises:
            WouldBlockError, InvalidRecordError, NotDurableError, UsageError, StoreClosedError, StoreFailedError: as
            `append_record`.
        """
        if durable:
            return self._durability.durably(lambda _: self._tail.append_many(payloads, ext_id), durable, None)
        return self._tail.append_many(payloads, ext_id)

    @renamed_keyword("timeout_s", "timeout")
    def append_record_with_timeout(
        self, payload: Buffer, timeout: float | None, *, ext_id: int | None = None, durable: Durable = False
    ) -> int:
        """
        Append one record; while the append would block, wait up to *timeout* seconds (None: without limit).

        With *durable* the timeout includes the wait until the record is durable.

        Raises:
            WouldBlockError: the timeout passed and nothing was written; `kind` names the last cause.
            NotDurableError: the timeout passed and the record is written but not durable; never append it again.
            InvalidRecordError, UsageError, StoreClosedError, StoreFailedError: as `append_record`.
        """
        if durable:
            return self._durability.durably(
                lambda left_s: self.append_record_with_timeout(payload, left_s, ext_id=ext_id), durable, timeout
            )
        try:
            return self._tail.append(payload, ext_id)
        except WouldBlockError:
            return self._blocked_calls.retry(lambda: self._tail.append(payload, ext_id), timeout)

    @renamed_keyword("timeout_s", "timeout")
    def append_records_with_timeout(
        self,
        payloads: Sequence[Buffer],
        timeout: float | None,
        *,
        ext_id: int | Sequence[int] | None = None,
        durable: Durable = False,
    ) -> list[int]:
        """
        Append all of *payloads*; while the append would block, wait up to *timeout* seconds.

        Raises:
            WouldBlockError: the timeout passed and nothing was written.
            InvalidRecordError, NotDurableError, UsageError, StoreClosedError, StoreFailedError: as
            `append_record_with_timeout`.
        """
        if durable:
            return self._durability.durably(
                lambda left_s: self.append_records_with_timeout(payloads, left_s, ext_id=ext_id), durable, timeout
            )
        try:
            return self._tail.append_many(payloads, ext_id)
        except WouldBlockError:
            return self._blocked_calls.retry(lambda: self._tail.append_many(payloads, ext_id), timeout)

    def append_reserve(self, size: int) -> Reservation:
        """
        Reserve a record of *size* bytes, to be filled in place and committed. See `Reservation`.

        Raises:
            WouldBlockError, InvalidRecordError, StoreClosedError, StoreFailedError: nothing was reserved.
        """
        return Reservation(self._tail, size)

    def append_record_async(self, payload: Buffer, *, ext_id: int | None = None) -> asyncio.Future[int]:
        """
        Append one record from an event loop; the future returns its id once it is written.

        Records of one event loop are written in the order of the calls: while one append is blocked, later ones wait,
        too. If the future is cancelled before it is done, its record is never written. An append that fails with any
        error other than `WouldBlockError` does not delay the others.
        """
        return self._blocked_calls.in_order(lambda: self._tail.append(payload, ext_id))

    @renamed_keyword("timeout_s", "timeout")
    def wait_for_writable_segment(self, timeout: float | None) -> None:
        """
        Wait up to *timeout* seconds until a segment accepts records.

        Raises:
            WouldBlockError: the timeout passed.
            StoreClosedError, StoreFailedError: the log accepts no more records.
        """
        self._blocked_calls.retry(self._tail.require_writable, timeout)

    # ---- durability

    @renamed_keyword("timeout_s", "timeout")
    def flush_until(self, record_id: int, *, timeout: float | None = None) -> None:
        """
        Wait until the record and all records before it are durable. Concurrent callers share one sync.

        Raises:
            NotDurableError: *timeout* passed, or syncs failed. The record is written: never append it again.
            UnknownRecordError: no such record exists.
            StoreClosedError: the log was closed, so it is unknown whether it has the record.
            StoreFailedError: written bytes were lost.
        """
        require_id(record_id)
        self._durability.flush_until(record_id, timeout)

    @renamed_keyword("timeout_s", "timeout")
    def flush(self, *, timeout: float | None = None) -> None:
        """
        Make all records that were appended before the call durable.

        Raises:
            NotDurableError, StoreFailedError: as `flush_until`.
        """
        self._durability.flush(timeout)

    def wait_until_uploaded(self, record_id: int, timeout: float | None = None) -> None:
        """
        Wait up to *timeout* seconds (None: without limit) until the record is in the object store.

        Segments are uploaded when they are sealed; this call seals the active segment if the record is in it.
        Concurrent callers share seals and uploads.

        Raises:
            NotDurableError: *timeout* passed. The record is written and its upload continues: never append it again.
            UnknownRecordError: no such record exists, or retention removed it.
            CorruptionError: its segment is damaged on the disk and is not uploaded.
            UsageError: the log has no object store.
            StoreClosedError, StoreFailedError: nothing more will be uploaded.
        """
        require_id(record_id)
        self._durability.wait_until_uploaded(record_id, timeout)

    # ---- rollover

    def seal_current_segment(self) -> int | None:
        """
        Request that the active segment is sealed, without waiting; return its id once it is sealed.

        The first call makes the request. Until it is done, this method and every append raise
        `WouldBlockError("rollover")`. Returns None when there is nothing to seal.

        Raises:
            WouldBlockError: the segment is not sealed yet; call again.
            RolloverError: sealing failed. Nothing is lost, and the log retries it.
            StoreClosedError, StoreFailedError: nothing was sealed.
        """
        rollover = self._tail.request_rollover()
        if rollover is None:
            return None
        if not rollover.done:
            raise WouldBlockError("rollover", f"segment {rollover.segment_id} is being sealed")
        self._tail.forget_rollover(rollover)
        if rollover.error is not None:
            raise RolloverError(f"segment {rollover.segment_id} could not be sealed yet: {rollover.error}")
        return rollover.segment_id

    @renamed_keyword("timeout_s", "timeout")
    def force_rollover(self, *, timeout: float | None = None) -> int | None:
        """
        Seal the active segment and wait until the next one accepts records; return the id of the sealed one.

        Returns None when there is nothing to seal.

        Raises:
            WouldBlockError: *timeout* passed; the seal continues in the background.
            RolloverError, StoreClosedError, StoreFailedError: as `seal_current_segment`.
        """
        sealed = self._blocked_calls.retry(self.seal_current_segment, timeout)
        self.wait_for_writable_segment(timeout)
        return sealed
