"""The methods of a log that read: readers, followers, and searches for one record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quiver.aof.append.blocking import BlockedCalls
from quiver.aof.append.notify import Notifier
from quiver.aof.append.tail import Tail
from quiver.aof.follower import TailFollower
from quiver.aof.format.record import split_record_id
from quiver.aof.reading.catalog import Catalog
from quiver.aof.reading.reader import OnDamage, OnLost, Reader
from quiver.aof.reading.search import begin_at, first_at, read_one
from quiver.aof.reading.source import LogPosition, Record
from quiver.aof.segment_index import OpenSegments, require_id
from quiver.clock import Clock
from quiver.errors import StoreFailedError, UsageError
from quiver.observe import Observer

__all__ = ["LogReading"]


class LogReading:
    """The reading half of `Aof`."""

    _tail: Tail
    _catalog: Catalog
    _segments: OpenSegments
    _notifier: Notifier
    _blocked_calls: BlockedCalls
    _clock: Clock
    _observer: Observer
    _is_closed: Callable[[], bool]

    def open_reader(
        self,
        record_id: int = 0,
        *,
        timestamp: int | None = None,
        views: bool = False,
        durable_only: bool = False,
        on_damage: OnDamage | None = None,
        on_lost: OnLost = "raise",
        wait: bool = True,
    ) -> Reader:
        """
        Return a reader of the records from *record_id* on, across all segments; 0 is the first available record.

        With *timestamp* it begins at the record that `find_record` returns, or at the next append. The reader waits
        while a segment without a local file is hydrated. With ``wait=False`` the hydration runs in the background and
        reading raises `WouldBlockError("hydration")`: iterate again later. If no record begins at *record_id*, or its
        segment was retired, reading raises `UnknownRecordError`.

        Where records are lost or damaged, reading raises `DataLossError` once for each range; iterating again continues
        after the range. With ``on_lost="skip"`` the range is added to `Reader.lost` instead. *on_damage* sets the same
        for damaged records and defaults to *on_lost*.

        Raises:
            UsageError: *record_id* is invalid, or an argument has another value.
        """
        require_id(record_id)
        start: int | LogPosition = record_id
        if timestamp is not None:
            found = begin_at(self._segments, _time_of(timestamp))
            start = self._segments.end_place() if found is None else found
        segments = self._segments if wait else self._segments.without_waiting()
        return Reader(
            segments, start, views=views, durable_only=durable_only, on_damage=on_damage, on_lost=on_lost,
            observer=self._observer,
        )  # fmt: skip

    def open_reader_async(
        self, record_id: int = 0, *, on_damage: OnDamage | None = None, on_lost: OnLost = "raise"
    ) -> asyncio.Future[Reader]:
        """
        Return, from an event loop, a future of a reader. It is done when the first segment has its local file.

        For later segments the reader behaves as with ``wait=False``.
        """
        reader = self.open_reader(record_id, on_damage=on_damage, on_lost=on_lost, wait=False)

        def attempt() -> Reader:
            reader.probe()
            return reader

        return self._blocked_calls.future(attempt, passing=frozenset({"hydration"}))

    def read_record(self, record_id: int) -> Record:
        """
        Return one record.

        Raises:
            UnknownRecordError: no record begins there, or its segment was retired.
            CorruptionError: the record is damaged.
        """
        require_id(record_id)
        return read_one(self._segments, record_id)

    def find_record(self, timestamp: int) -> int | None:
        """
        Return the id of the first record that is not older than *timestamp*, in nanoseconds since the Unix epoch.

        None when all are older. Segments that end before the timestamp are skipped without reading them.

        Raises:
            UsageError: *timestamp* is not an integer.
            CorruptionError: the segment of the record cannot be read. A reader from that time on can still be opened.
        """
        return first_at(self._segments, _time_of(timestamp))

    def find_record_number(self, number: int) -> int | None:
        """
        Return the id of record *number* of the log, counted from 0 and including retired records; None if it is gone.

        Raises:
            CorruptionError: because of damage in its segment, the start of the record cannot be found.
        """
        return self._segments.nth(number)

    def tail_follower(
        self,
        record_id: int | None = None,
        *,
        durable_only: bool = True,
        on_damage: OnDamage | None = None,
        on_lost: OnLost = "raise",
    ) -> TailFollower:
        """
        Return a follower of the records from *record_id* on (None: records appended from now on).

        With *durable_only* it returns only records that survive a power loss. *on_damage* and *on_lost* are those of
        `open_reader`: they also apply to records that retention removed before the follower read them.
        """
        if record_id is not None:
            require_id(record_id)
        start = self._segments.end_place() if record_id is None else record_id
        if not durable_only:
            self._tail.watched = True
        reader = Reader(
            self._segments, start, durable_only=durable_only, on_damage=on_damage, on_lost=on_lost,
            observer=self._observer,
        )  # fmt: skip
        sealed = self._catalog.all()
        after = sealed[-1].segment_id if record_id is None and sealed else split_record_id(reader.position)[0] - 1
        return TailFollower(
            reader, self._segments, self._notifier, clock=self._clock, is_closed=self._is_closed,
            failure=self._failure, sealed_after=after,
        )  # fmt: skip

    def _failure(self) -> StoreFailedError | None:
        refusal = self._tail.refusal
        error = None if refusal is None else refusal()
        return error if isinstance(error, StoreFailedError) else None


def _time_of(timestamp: int) -> int:
    if not isinstance(timestamp, int):
        raise UsageError(f"a timestamp is an integer of nanoseconds since 1970, not {timestamp!r}")
    return timestamp
