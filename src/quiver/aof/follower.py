"""Following a log as it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from quiver.aof.append.notify import Notifier, deadline_of
from quiver.aof.format.segment_file import FOOTER_BYTES
from quiver.aof.reading.reader import Reader
from quiver.aof.reading.source import Record, Sources
from quiver.clock import Clock
from quiver.errors import StoreFailedError
from quiver.lazy_names import renamed_keyword

__all__ = ["TailFollower"]

T = TypeVar("T")


class TailFollower:
    """
    Reads a log as it grows. What is notified is only that there is something; what there is, is read from the log, so
    nothing is missed between two calls.
    """

    def __init__(
        self,
        reader: Reader,
        sources: Sources,
        notifier: Notifier,
        *,
        clock: Clock,
        is_closed: Callable[[], bool],
        failure: Callable[[], StoreFailedError | None],
        sealed_after: int,
    ) -> None:
        self._reader = reader
        self._sources = sources
        self._notifier = notifier
        self._clock = clock
        self._is_closed = is_closed
        self._failure = failure
        self._records = iter(reader)
        self._sealed_segment_id = sealed_after
        self._sealed_end = self._end_of(sealed_after)

    @renamed_keyword("timeout_s", "timeout")
    def next(self, timeout: float | None = None) -> Record | None:
        """
        Return the next record, waiting for it; None when *timeout* passed first, or when the log was closed.

        Raises:
            DataLossError: records are lost or damaged, and that is to be raised; the next call goes on behind them.
            StoreFailedError: the log failed, and all that it can still show was returned.
        """
        return self._wait_for(self._next_record, timeout)

    @renamed_keyword("timeout_s", "timeout")
    def next_sealed_segment(self, timeout: float | None = None) -> int | None:
        """
        Return the id of the next segment that is sealed, in order and each once; None as above.

        Raises:
            DataLossError: some left before this was called, and that is to be raised; the next call goes on behind
            them. StoreFailedError: as `next`.
        """
        before = self._sealed_segment_id
        found = self._wait_for(lambda: self._sources.next_sealed_segment_id(before), timeout)
        if found is None:
            return None
        extent, end = self._sources.extent(found), self._sealed_end
        if extent is not None and end is not None and extent.base_offset != end + FOOTER_BYTES:
            self._sealed_segment_id, self._sealed_end = found - 1, None
            self._reader.report_lost_segments(before + 1, found)
        self._sealed_segment_id, self._sealed_end = found, self._end_of(found)
        return found

    def _end_of(self, segment_id: int) -> int | None:
        """Return how many bytes the log has up to the end of a sealed segment; None where that is not known."""
        extent = self._sources.extent(segment_id)
        return None if extent is None or extent.end is None else extent.base_offset + extent.end

    def _next_record(self) -> Record | None:
        record = next(self._records, None)
        if record is None:
            # A walk knows how far its segment went when it began; a new one knows how far it goes now.
            self._records = iter(self._reader)
            record = next(self._records, None)
        return record

    def _wait_for(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        deadline = deadline_of(self._clock, timeout)
        while True:
            seen = self._notifier.generation("records")
            is_closed, failure = self._is_closed(), self._failure()
            found = look()
            if found is not None or is_closed:
                return found
            if failure is not None:  # nothing becomes durable any more: who waits would wait for ever
                raise failure
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return None
            self._notifier.wait("records", seen, left)

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they come, until the log is closed. Raises as `next`."""
        while (record := self.next()) is not None:
            yield record
