"""
One append-only log: what programs hold. `AofManager` opens it.

An append returns the record's id: it is written, every reader sees it, the death of the process cannot take it, and a
power loss can until it is durable (`flush_until`, or by itself within the flush interval). An append that raises wrote
nothing. There is no third outcome.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from quiver.aof.append.blocking import Waiting
from quiver.aof.append.durability import Durability
from quiver.aof.append.flush import Flusher
from quiver.aof.append.notify import Notifier
from quiver.aof.append.tail import Tail
from quiver.aof.append.upload_waiting import UploadWaiting
from quiver.aof.append.workers import Workers, WorkersAsked
from quiver.aof.append.writing import LogWriting
from quiver.aof.compaction import CompactionHook, HeadTrim
from quiver.aof.config import AofConfig
from quiver.aof.format.names import SEGMENTS
from quiver.aof.log_reading import LogReading
from quiver.aof.maintenance import NOTE_AFTER_S, Upkeep
from quiver.aof.reading.catalog import Catalog
from quiver.aof.reading.index import SparseIndexes
from quiver.aof.recovered import Recovered
from quiver.aof.segment_index import OpenSegments, require_id
from quiver.aof.snapshots import (
    LogSnapshot,
    SegmentSnapshot,
    end_of,
    log_snapshot,
    missing_ranges,
    segment_snapshots,
)
from quiver.aof.staged_import import SinkAdoption
from quiver.aof.status import STATUS_AFTER_S, StatusFile
from quiver.aof.tiers.tier_manager import Tiers, has_tiers
from quiver.clock import Clock
from quiver.errors import StoreClosedError, StoreFailedError, UsageError
from quiver.objects import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["Aof"]

_LAST_UPLOADS_S = 10.0
"""How long closing goes on with uploads of sealed segments. What is left is uploaded when the log is opened again."""

_SINKS_S = 1.0
"""How long a batch waits that a Spark sink committed."""


class Aof(LogWriting, LogReading):
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
        compaction: CompactionHook | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.stream_id = stream_id
        self._recovered = recovered
        self._closed = False
        self._clock = clock
        self._observer = observer
        self._workers = workers
        self._notifier = Notifier(clock)
        self._waiting = Waiting(self._notifier, workers, clock=clock, observer=observer)
        self._catalog = Catalog(fs, recovered.sealed)
        asks = WorkersAsked(self, workers, observer, config.flush.flush_interval_ms / 1000)
        self._tail = Tail(config, clock, self._notifier, asks)
        self._uploads = UploadWaiting(
            name, self._tail, self._catalog, self._notifier, workers, clock=clock, seal=lambda: workers.ask_upkeep(self)
        )
        self._flusher = Flusher(
            self._tail, fs, f"{config.root_dir}/{SEGMENTS}", config.flush, clock=clock, observer=observer,
            again=lambda after_s: workers.ask_flush(self, after_s),
            flushed=lambda: workers.ask_upkeep(self, NOTE_AFTER_S), poison=self.poison, seed=stream_id,
        )  # fmt: skip
        self.flush_metrics = self._flusher.metrics
        self._trim = HeadTrim(name, compaction if config.compaction == "head_trim" else None, observer)
        self._indexes = SparseIndexes(fs, config.root_dir, enabled=config.enable_sparse_index, observer=observer)
        self._upkeep = Upkeep(
            self._tail, self._flusher, self._catalog, fs, config, stream_id=stream_id, clock=clock, observer=observer,
            again=lambda after_s: workers.ask_upkeep(self, after_s), poison=self.poison, indexes=self._indexes,
            trim=self._trim, wants_sealed=self._uploads.wants,
        )  # fmt: skip
        self._sinks = SinkAdoption(
            fs, config.root_dir, self._tail, retry=self._waiting.retry,
            flush=lambda timeout_s: self.flush(timeout_s=timeout_s), observer=observer,
        )  # fmt: skip
        self._segments = OpenSegments(config.root_dir, self._tail, self._catalog, self._indexes)
        self._durability = Durability(
            name, self._tail, self._catalog, self._flusher, self._segments, self._uploads, clock=clock,
            is_closed=lambda: self._closed,
        )  # fmt: skip
        self._closing = threading.Lock()
        self._status = StatusFile(fs, config.root_dir, clock=clock, observer=observer, enabled=workers.threaded)
        self._tiers: Tiers | None = None
        self._upkeep.retires = not has_tiers(fs, config, stream_id)
        self._tail.take_over(recovered)
        self._upkeep.make_first_spares()
        if not self._upkeep.retires:
            self._tiers = self._segments.tiers = self._with_tiers(recovered, fs, objects)
        self._began_at = end_of(self.segment_snapshot(), self._tail)
        self._missing = self._report_missing()
        try:
            self._indexes.remove_others(one.segment_id for one in self._catalog.all())
            self._sinks.recover()
        except OSError:
            self.close()
            raise
        workers.add(self, sinks_after_s=_SINKS_S, status_after_s=STATUS_AFTER_S)
        workers.ask_upkeep(self)  # what grew old while the log was closed

    def _with_tiers(self, recovered: Recovered, fs: FileSystem, objects: Callable[[], ObjectTier] | None) -> Tiers:
        tiers = Tiers(
            self._catalog, fs, self.config, stream_id=self.stream_id, clock=self._clock, observer=self._observer,
            objects=objects, again=lambda after_s: self._workers.ask_tiers(self, after_s), below=recovered.below,
            indexes=self._indexes, trim=self._trim, back=lambda: self._notifier.notify("hydration"),
            uploaded=self._uploads.uploaded,
        )  # fmt: skip
        self._uploads.uploads = tiers.uploads
        self._upkeep.room_for_packing = tiers.room_for_packing
        self._workers.ask_tiers(self)
        self._tail.next_base_offset, self._tail.next_base_record_count = recovered.behind(self._catalog.all())
        return tiers

    def _report_missing(self) -> tuple[tuple[int, int], ...]:
        tiers = None if self._tiers is None else self._tiers.snapshot()
        found = missing_ranges(self.segment_snapshot(), self._tail, tiers)
        for first, behind in found:
            self._observer.count("aof_recovery_findings_total", kind="missing")
            self._observer.event(
                "aof.recovery.missing", level=logging.WARNING, log=self.name, path=self.config.root_dir, first=first,
                behind=behind,
            )  # fmt: skip
        return tuple(found)

    def poison(self, reason: str) -> StoreFailedError:
        """Refuse everything from now on; return the error that says so. Called by the manager's threads."""
        message = f"the log {self.name} failed: {reason}; open it again to recover"
        self._tail.refuse(lambda: StoreFailedError(message))
        self._observer.event("aof.failed", level=logging.ERROR, log=self.name, reason=reason)
        return StoreFailedError(message)

    # ---- tiers

    @property
    def tiers(self) -> Tiers:
        """
        What moves the segments of the log between tiers: to evict, to hydrate, and to look at.

        Raises:
            UsageError: the log has none.
        """
        if self._tiers is not None:
            return self._tiers
        raise UsageError(f"the log {self.name} has no tiers: give its settings compression or tiers")

    def trim_before(self, record_id: int) -> None:
        """
        Take note that no record before that one is needed any more: segments that end before it leave the log soon.

        They leave as `retention.action` says. The note is not kept: after opening again say it again.

        Raises:
            UsageError: the log's settings have no `compaction="head_trim"`.
        """
        if self.config.compaction != "head_trim":
            raise UsageError(f'the log {self.name} keeps its head: give its settings compaction="head_trim"')
        self._trim.before(record_id)
        self._workers.ask_upkeep(self)

    # ---- what it says of itself

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def coordinator_watermark(self) -> int:
        """
        How far an upstream operation log was taken over, after opening as the sealed segments say.
        Go on behind it.
        """
        return self._tail.coordinator_watermark

    def set_coordinator_watermark(self, watermark: int) -> None:
        """
        Have the segment that takes records now say, once it is sealed, that the upstream log was taken over up to
        *watermark*. It never goes back. Call it when what is upstream was appended, never before.

        Raises:
            UsageError: it is no whole number of 64 bits.
        """
        if not isinstance(watermark, int) or not 0 <= watermark < 1 << 64:
            raise UsageError(f"a watermark is a whole number of 64 bits, not {watermark!r}")
        with self._tail.lock:
            self._tail.coordinator_watermark = max(self._tail.coordinator_watermark, watermark)

    def last_ext_id(self) -> int:
        """Return the `ext_id` of the newest record that is here; 0 when there is none."""
        last = self.find_record_number(self._tail.record_total - 1)
        return 0 if last is None else self.read_record(last).ext_id

    def set_current_ext_id(self, ext_id: int) -> None:
        """Give the records to come, and the segments to come, this id of an external cohort: a number of 64 bits."""
        self._tail.set_ext_id(ext_id)

    def is_durable(self, record_id: int) -> bool:
        """
        Say whether a power loss cannot take the record any more. False for an id that no record has.

        A segment that has no file is brought back for it, as for reading.

        Raises:
            UnknownRecordError: it is no id at all: no whole number of 64 bits.
            ObjectsUnavailableError, StoreClosedError, OSError: the segment cannot be brought back now.
        """
        require_id(record_id)
        return self._durability.is_durable(record_id)

    def segment_snapshot(self) -> tuple[SegmentSnapshot, ...]:
        """Return all segments, oldest first."""
        return segment_snapshots(self._catalog, self._tail)

    def snapshot(self) -> LogSnapshot:
        """Return what the log says of itself now."""
        return log_snapshot(
            self.name, self.stream_id, self._catalog, self._tail, flush=self.flush_metrics, began_at=self._began_at,
            truncated_bytes=self._recovered.truncated_bytes, quarantined=self._recovered.quarantined,
            missing=self._missing, tiers=None if self._tiers is None else self._tiers.snapshot(),
        )  # fmt: skip

    # ---- for the workers, and the end

    def run_flush(self) -> None:
        """Make durable what is written. Called by the manager's threads."""
        self._flusher.run()

    def run_upkeep(self) -> None:
        """Seal, make spares, retire. Called by the manager's threads."""
        self._upkeep.run()
        if self._tiers is not None or self._upkeep.packages:
            self._workers.ask_tiers(self)

    def run_tiers(self) -> None:
        """Move segments between tiers, if there are any, or pack those that leave. Called by the manager's threads."""
        if self._tiers is not None:
            self._tiers.run()
        else:
            self._upkeep.package_old()

    def run_sinks(self) -> None:
        """Look again soon for what Spark sinks committed, and append what is there. Called by the manager's threads."""
        self.adopt()
        self._workers.ask_sinks(self, _SINKS_S)

    def run_status(self) -> None:
        """Tell those beside this process how the log does, if that is new. Called by the manager's threads."""
        self._workers.ask_status(self, STATUS_AFTER_S)
        refusal = self._tail.refusal
        failed = refusal is not None and isinstance(refusal(), StoreFailedError)
        self._status.publish(self.snapshot(), "failed" if failed else "open")

    def adopt(self) -> int:
        """
        Append what Spark sinks committed; return how many records came. Durable on return.

        The log does it by itself: when it is opened, once a second, and when it is closed. What cannot be appended now
        is told to the observer, and tried again.
        """
        return 0 if self._tail.refusal is not None else self._sinks.adopt()

    def close(self) -> None:
        """
        Make everything durable, seal what is full, and let go. Idempotent.

        Raises:
            NotDurableError, StoreFailedError, OSError: not everything is durable; the log is closed all the same.
        """
        with self._closing:
            if self._closed:
                return
            self.adopt()
            failed = self._tail.refusal is not None
            self._tail.refuse(lambda: StoreClosedError(f"the log {self.name} was closed"))
            if self._tiers is not None:
                self._tiers.uploads.stopping = True
            self._workers.forget(self)
            try:
                if not failed:
                    self.flush()
                    last = self.snapshot()
                    self._upkeep.close()
                    if self._tiers is not None and self._workers.threaded:
                        self._tiers.finish_uploads(_LAST_UPLOADS_S)
                    self._status.publish(last, "closed")
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
