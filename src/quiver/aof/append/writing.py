"""The writing side of a log: appending, making durable, sealing. `Aof` adds the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quiver.aof.append.blocking import Waiting
from quiver.aof.append.durability import Durability, Durable
from quiver.aof.append.reservation import Reservation
from quiver.aof.append.tail import Tail
from quiver.aof.segment_index import require_id
from quiver.errors import RolloverError, WouldBlockError
from quiver.lazy_names import renamed_keyword
from quiver.primitives.disk.file_system import Buffer

__all__ = ["LogWriting"]


class LogWriting:
    """Appends records to one log. Thread-safe."""

    _tail: Tail
    _waiting: Waiting
    _durability: Durability

    # ---- appending

    def append_record(self, payload: Buffer, *, ext_id: int | None = None, durable: Durable = False) -> int:
        """
        Append one record, or refuse it at once; return its id. It is written, not yet durable.

        *ext_id* defaults to that of the log (`set_current_ext_id`). With *durable* the call waits, without limit, until
        the record is synced (True) or in the object store ("object").

        Raises:
            WouldBlockError: nothing was written; `kind` says what must come first.
            InvalidRecordError: nothing was written: it is empty, or no segment can hold it.
            NotDurableError: it is written, but could not be synced; never append it again.
            UsageError: there is no such level, or no object store; nothing was written. StoreClosedError,
            StoreFailedError: nothing was written, and nothing will be; with *durable* it may be written.
        """
        if durable:
            return self._durability.durably(lambda _: self._tail.append(payload, ext_id), durable, None)
        return self._tail.append(payload, ext_id)

    def append_records(
        self, payloads: Sequence[Buffer], *, ext_id: int | Sequence[int] | None = None, durable: Durable = False
    ) -> list[int]:
        """
        Append all of *payloads* in one pass, one after the other, or none of them; return their ids.

        *ext_id* is that of all, or one for each. A crash before they are durable may keep the first few.

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
        Append one record, waiting up to *timeout* (None: as long as it takes) while it would block.

        With *durable* that time includes the wait until it is durable.

        Raises:
            WouldBlockError: nothing was written in that time; `kind` says what was missing last.
            NotDurableError: it is written, but not durable in that time; never append it again.
            InvalidRecordError, UsageError, StoreClosedError, StoreFailedError: as `append_record`.
        """
        if durable:
            return self._durability.durably(
                lambda left_s: self.append_record_with_timeout(payload, left_s, ext_id=ext_id), durable, timeout
            )
        try:
            return self._tail.append(payload, ext_id)
        except WouldBlockError:
            return self._waiting.retry(lambda: self._tail.append(payload, ext_id), timeout)

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
        Append all of *payloads*, waiting up to *timeout* while it would block.

        Raises:
            WouldBlockError: none was written in that time. InvalidRecordError, NotDurableError, UsageError,
            StoreClosedError, StoreFailedError: as `append_record_with_timeout`.
        """
        if durable:
            return self._durability.durably(
                lambda left_s: self.append_records_with_timeout(payloads, left_s, ext_id=ext_id), durable, timeout
            )
        try:
            return self._tail.append_many(payloads, ext_id)
        except WouldBlockError:
            return self._waiting.retry(lambda: self._tail.append_many(payloads, ext_id), timeout)

    def append_reserve(self, size: int) -> Reservation:
        """
        Reserve *size* bytes at the end, to be filled in place and committed. See `Reservation`.

        Raises:
            WouldBlockError, InvalidRecordError, StoreClosedError, StoreFailedError: nothing was reserved.
        """
        return Reservation(self._tail, size)

    def append_record_async(self, payload: Buffer, *, ext_id: int | None = None) -> asyncio.Future[int]:
        """
        Append one record from an event loop: the future has its id as soon as it is written.

        Records of one event loop are written in the order of the calls: while one waits for what `WouldBlockError`
        names, those that came after it wait, too. Cancelling the future before it is done means that its record is
        never written. One that fails with any other error holds up no other.
        """
        return self._waiting.in_order(lambda: self._tail.append(payload, ext_id))

    @renamed_keyword("timeout_s", "timeout")
    def wait_for_writable_segment(self, timeout: float | None) -> None:
        """
        Return when a segment takes records, waiting up to *timeout*.

        Raises:
            WouldBlockError: there was none in that time.
            StoreClosedError, StoreFailedError: there will be none.
        """
        self._waiting.retry(self._tail.require_writable, timeout)

    # ---- durability

    @renamed_keyword("timeout_s", "timeout")
    def flush_until(self, record_id: int, *, timeout: float | None = None) -> None:
        """
        Return when the record is durable, and with it all before it. Callers that overlap share one sync.

        Raises:
            NotDurableError: *timeout* passed, or syncs failed; the record is written: never append it again.
            UnknownRecordError, StoreClosedError: there is no such record; whether there is cannot be told any more.
            StoreFailedError: written bytes were lost.
        """
        require_id(record_id)
        self._durability.flush_until(record_id, timeout)

    @renamed_keyword("timeout_s", "timeout")
    def flush(self, *, timeout: float | None = None) -> None:
        """
        Make everything durable that was appended before the call.

        Raises:
            NotDurableError, StoreFailedError: as `flush_until`.
        """
        self._durability.flush(timeout)

    def wait_until_uploaded(self, record_id: int, timeout: float | None = None) -> None:
        """
        Return when the record is in the object store, waiting up to *timeout* seconds (None: as long as it takes).

        Segments are uploaded when they are sealed. One that takes records is sealed for this call; callers that overlap
        share seals and uploads.

        Raises:
            NotDurableError: *timeout* passed; the record is written, and its upload goes on: never append it again.
            UnknownRecordError: there is no such record, or retention removed it.
            CorruptionError: its segment is damaged on the disk, and is not uploaded.
            UsageError: the log has no object store.
            StoreClosedError, StoreFailedError: nothing will be uploaded any more.
        """
        require_id(record_id)
        self._durability.wait_until_uploaded(record_id, timeout)

    # ---- rollover

    def seal_current_segment(self) -> int | None:
        """
        Close the segment that takes records and have it sealed; return its id once that is done, without waiting.

        The first call asks; while the answer is not there, this and every append raise `WouldBlockError("rollover")`.
        None when there is nothing to seal.

        Raises:
            WouldBlockError: the answer is not there yet; call again.
            RolloverError: sealing failed. Nothing is lost, and it is tried again by itself.
            StoreClosedError, StoreFailedError: nothing was sealed.
        """
        rollover = self._tail.ask_rollover()
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
        Have the segment that takes records sealed, and wait until the next one does; return the id of the sealed one.

        None when there is nothing to seal.

        Raises:
            WouldBlockError: it took longer than *timeout*; it goes on.
            RolloverError, StoreClosedError, StoreFailedError: as `seal_current_segment`.
        """
        sealed = self._waiting.retry(self.seal_current_segment, timeout)
        self.wait_for_writable_segment(timeout)
        return sealed
