"""
Group flushes: one sync at a time for each log, shared by all callers that wait for it.

The first caller leads and syncs everything that is written at that moment. A caller that arrives meanwhile waits,
checks whether its record is durable, and leads the next sync if it is not. So concurrent callers share a sync.

A failed sync is retried with growing delays, after the pages are stored again (`Segment.sync`). After too many
consecutive failures appends raise `WouldBlockError("flush")`; the retries continue, and the first success accepts
appends again. The log fails permanently only when the kernel has lost written bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quiver.aof.append.notify import deadline_of
from quiver.aof.append.segment import Segment
from quiver.aof.append.tail import Tail
from quiver.aof.config import FlushConfig
from quiver.clock import Clock
from quiver.errors import CorruptionError, NotDurableError, StoreFailedError
from quiver.observe import Observer
from quiver.primitives.backoff import Backoff
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["FlushMetrics", "Flusher"]

_BACKOFF = Backoff(first_s=0.005, cap_s=0.25, factor=2.0, jitter=0.5)


@dataclass(slots=True)
class FlushMetrics:
    """
    Counts of flushes since the log was opened.

    Attributes:
        scheduled_watermark, scheduled_interval: requested flushes, by the reason for the request.
        synchronous_flushes, asynchronous_flushes: flushes led by a waiting caller, and by the manager's threads.
        retry_attempts, retry_failures: flushes after a failed one, and those of them that failed.
        flush_failures: how often flush failures began to block appends.
        metadata_retry_attempts, metadata_retry_failures, metadata_failures: the same for the durability snapshot; the
            last counts every failed write.
        backlog_bytes: bytes that are written but not yet durable.
    """

    scheduled_watermark: int = 0
    scheduled_interval: int = 0
    synchronous_flushes: int = 0
    asynchronous_flushes: int = 0
    retry_attempts: int = 0
    retry_failures: int = 0
    flush_failures: int = 0
    metadata_retry_attempts: int = 0
    metadata_retry_failures: int = 0
    metadata_failures: int = 0
    backlog_bytes: int = 0


class Flusher:
    """
    Syncs the unsealed segments of one log.

    Args:
        again: called with the seconds after which to retry a failed flush.
        flushed: called when more records are durable.
    """

    def __init__(
        self,
        tail: Tail,
        fs: FileSystem,
        directory: str,
        config: FlushConfig,
        *,
        clock: Clock,
        observer: Observer,
        again: Callable[[float], None],
        flushed: Callable[[], None],
        fail: Callable[[str], StoreFailedError],
        seed: int,
    ) -> None:
        self.metrics = FlushMetrics()
        self._tail = tail
        self._fs = fs
        self._directory = directory
        self._config = config
        self._clock = clock
        self._observer = observer
        self._again = again
        self._flushed = flushed
        self._fail = fail
        self._turn = threading.Condition()
        self._busy = False
        self._syncing = threading.Lock()
        self._random = Random(seed)  # noqa: S311
        self._delays = _BACKOFF.delays(self._random)
        self._failures = 0
        self._last_failure = ""

    def run(self) -> None:
        """
        Flush in the background, and schedule a retry if that fails.

        Raises:
            StoreFailedError: written bytes were lost.
        """
        with self._turn:
            while self._busy:
                self._clock.wait(self._turn, None)
            self._busy = True
        self.metrics.asynchronous_flushes += 1
        if not self._lead():
            self._again(next(self._delays))

    def until(self, segment: Segment, end: int, record_id: int, timeout: float | None) -> None:
        """
        Wait until *segment* is durable up to *end*.

        Raises:
            NotDurableError: *timeout* passed, or syncs failed too often; the record is written.
            StoreFailedError: written bytes were lost.
            UsageError: *timeout* is not a number.
        """
        deadline = deadline_of(self._clock, timeout)
        failures = 0
        while True:
            with self._turn:
                if segment.durable >= end:
                    return
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise NotDurableError(record_id, f"no sync ended within {timeout:g} s")
                if failures > self._config.retries_max:
                    self._again(next(self._delays))
                    raise NotDurableError(record_id, f"{failures} syncs failed: {self._last_failure}")
                if self._busy:
                    self._clock.wait(self._turn, left)
                    continue
                self._busy = True
            self.metrics.synchronous_flushes += 1
            if self._lead():
                if segment.durable < end and not self._is_unsealed(segment):
                    raise NotDurableError(record_id, "the log was closed, and the last sync failed")
                continue
            failures += 1
            if failures <= self._config.retries_max:
                delay = next(self._delays)
                with self._turn:
                    self._clock.wait(self._turn, delay if left is None else min(delay, left))

    def _is_unsealed(self, segment: Segment) -> bool:
        with self._tail.lock:
            return any(one is segment for one in self._tail.unsealed())

    def sync_segment(self, segment: Segment) -> None:
        """
        Sync one segment before it is sealed, regardless of the others.

        Raises:
            OSError: the sync failed; try again.
            StoreFailedError: written bytes were lost.
        """
        self._sync(segment)

    def _sync(self, segment: Segment) -> None:
        with self._syncing:
            if segment.named and segment.durable == segment.size:
                return  # another thread has sealed it, and perhaps closed it
            began = self._clock.monotonic()
            try:
                with self._tail.lock:
                    written = segment.scanned()
                gained = segment.sync(self._fs, self._directory, written)
            except CorruptionError as lost:
                raise self._fail(str(lost)) from lost
            self._observer.record("aof_flush_latency_seconds", self._clock.monotonic() - began)
            self._observer.count("aof_durable_bytes_total", gained)
            self._tail.zero_ahead(segment, gained)

    def _lead(self) -> bool:
        if self._failures:
            self.metrics.retry_attempts += 1
            self._observer.count("aof_flush_retry_attempts_total")
        try:
            with self._tail.lock:
                unsealed = list(self._tail.unsealed())
            for segment in unsealed:
                if segment.backlog:
                    self._sync(segment)
        except OSError as error:
            self._failed(str(error))
            return False
        else:
            self._failures = 0
            self._delays = _BACKOFF.delays(self._random)
            self._tail.flushed()
            self._flushed()
            return True
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()

    def _failed(self, reason: str) -> None:
        self._last_failure = reason
        if self._failures:
            self.metrics.retry_failures += 1
            self._observer.count("aof_flush_retry_failures_total")
        self._failures += 1
        if self._failures > self._config.retries_max and not self._tail.flush_failed:
            self.metrics.flush_failures += 1
            self._observer.count("aof_flush_failures_total")
            self._observer.event("aof.flush.failed", level=logging.ERROR, reason=reason, attempts=self._failures)
            self._tail.flush_keeps_failing()
