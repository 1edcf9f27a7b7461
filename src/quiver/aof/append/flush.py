"""
Making records durable: one sync at a time for each log, shared by all who wait for it.

Whoever comes first leads: it syncs everything that is written at that moment. Whoever comes meanwhile waits, looks
whether its record is durable, and leads the next sync when not; so callers that overlap share one.

A sync that fails is tried again after storing the pages once more (`Segment.sync`), with growing delays. After too many
failures in a row producers are refused with `WouldBlockError("flush")`; tries go on, and the first that succeeds lets
them in again. Only when the kernel has lost bytes that were written does the log fail for good.
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
    What flushes did since the log was opened.

    Attributes:
        scheduled_watermark, scheduled_interval: flushes that were asked for, and why.
        synchronous_flushes, asynchronous_flushes: flushes led by a caller that waits, and by the manager's threads.
        retry_attempts, retry_failures: flushes that followed a failed one, and those of them that failed, too.
        flush_failures: how often producers began to be refused because of it.
        metadata_retry_attempts, metadata_retry_failures, metadata_failures: the same for the durability snapshot, of
            which the last counts every write that failed.
        backlog_bytes: written and not yet durable.
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
        again: called with the seconds after which a failed flush should be tried again.
        flushed: called when more has become durable.
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
        Flush in the background: what fails is asked for again.

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

    def until(self, segment: Segment, end: int, record_id: int, timeout_s: float | None) -> None:
        """
        Return when *segment* is durable up to *end*.

        Raises:
            NotDurableError: *timeout_s* passed, or syncs failed too often; the record is written.
            StoreFailedError: written bytes were lost.
            UsageError: *timeout_s* is no number.
        """
        deadline = deadline_of(self._clock, timeout_s)
        failures = 0
        while True:
            with self._turn:
                if segment.durable >= end:
                    return
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise NotDurableError(record_id, f"no sync ended within {timeout_s:g} s")
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
        Make one segment durable, whatever the order of the others: before it is sealed.

        Raises:
            OSError: the disk refused; try again.
            StoreFailedError: written bytes were lost.
        """
        self._sync(segment)

    def _sync(self, segment: Segment) -> None:
        with self._syncing:
            if segment.named and segment.durable == segment.size:
                return  # sealed meanwhile, and perhaps closed
            began = self._clock.monotonic()
            try:
                gained = segment.sync(self._fs, self._directory)
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
