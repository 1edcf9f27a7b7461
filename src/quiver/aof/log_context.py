"""
The engine of one open log: it connects the parts and does the work that the manager's threads ask for.

`Aof` is the public face of it. Programs never see the context; the workers hold it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from quiver.aof.append.blocking import BlockedCalls
from quiver.aof.append.durability import DurabilityTracker
from quiver.aof.append.flush import Flusher
from quiver.aof.append.notify import Notifier
from quiver.aof.append.tail import Tail
from quiver.aof.append.upload_waiting import UploadWaiting
from quiver.aof.append.workers import WorkerRequests, Workers
from quiver.aof.compaction import CompactionHook, HeadTrim
from quiver.aof.config import AofConfig
from quiver.aof.format.names import SEGMENTS
from quiver.aof.maintenance import Maintenance
from quiver.aof.reading.catalog import Catalog
from quiver.aof.reading.index import SparseIndexes
from quiver.aof.recovered import RecoveredLog
from quiver.aof.segment_index import OpenSegments
from quiver.aof.snapshots import (
    LogSnapshot,
    SegmentSnapshot,
    end_of,
    log_snapshot,
    missing_ranges,
    segment_snapshots,
)
from quiver.aof.staged_import import StagedImport
from quiver.aof.status import STATUS_AFTER_S, StatusFile
from quiver.aof.tiers.tier_manager import TierManager, has_tiers
from quiver.clock import Clock
from quiver.errors import StoreClosedError, StoreFailedError
from quiver.objects import ObjectTier
from quiver.observe import Observer
from quiver.primitives.disk.file_system import FileSystem

__all__ = ["LogContext"]

_LAST_UPLOADS_S = 10.0
"""How long `close` continues to upload sealed segments. The rest is uploaded when the log is opened again."""

_SINKS_S = 1.0
"""How long a batch that a Spark sink committed waits until it is imported."""


class LogContext:
    """
    The parts of one open log. Thread-safe.

    `AofManager` makes it from what recovery found.

    Attributes:
        closed: whether the log was closed.
        tiers: moves segments between tiers; None for a log without tiers.
        trim: the records before which segments may leave.
    """

    def __init__(
        self,
        name: str,
        config: AofConfig,
        recovered: RecoveredLog,
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
        self.closed = False
        self.clock = clock
        self.observer = observer
        self.workers = workers
        self._recovered = recovered
        self.notifier = Notifier(clock)
        self.blocked_calls = BlockedCalls(self.notifier, workers, clock=clock, observer=observer)
        self.catalog = Catalog(fs, recovered.sealed)
        requests = WorkerRequests(self, workers, observer, config.flush.flush_interval_ms / 1000)
        self.tail = Tail(config, clock, self.notifier, requests)
        self._uploads = UploadWaiting(
            name,
            self.tail,
            self.catalog,
            self.notifier,
            workers,
            clock=clock,
            seal=lambda: workers.schedule_maintenance(self),
        )
        self._flusher = Flusher(
            self.tail, fs, f"{config.root_dir}/{SEGMENTS}", config.flush, clock=clock, observer=observer,
            again=lambda after_s: workers.schedule_flush(self, after_s),
            flushed=self._flushed, fail=self.fail, seed=stream_id,
        )  # fmt: skip
        self.flush_metrics = self._flusher.metrics
        self.trim = HeadTrim(name, compaction if config.compaction == "head_trim" else None, observer)
        self._indexes = SparseIndexes(fs, config.root_dir, enabled=config.enable_sparse_index, observer=observer)
        self._maintenance = Maintenance(
            self.tail, self._flusher, self.catalog, fs, config, stream_id=stream_id, clock=clock, observer=observer,
            again=lambda after_s: workers.schedule_maintenance(self, after_s), fail=self.fail, indexes=self._indexes,
            trim=self.trim, wants_sealed=self._uploads.wants,
        )  # fmt: skip
        self.segments = OpenSegments(config.root_dir, self.tail, self.catalog, self._indexes)
        self.durability = DurabilityTracker(
            name, self.tail, self.catalog, self._flusher, self.segments, self._uploads, clock=clock,
            is_closed=lambda: self.closed,
        )  # fmt: skip
        self._sinks = StagedImport(
            fs, config.root_dir, self.tail, retry=self.blocked_calls.retry, flush=self.durability.flush,
            observer=observer,
        )  # fmt: skip
        self._closing = threading.Lock()
        self._status = StatusFile(fs, config.root_dir, clock=clock, observer=observer, enabled=workers.threaded)
        self.tiers: TierManager | None = None
        self._start(recovered, fs, objects)

    def _flushed(self) -> None:
        self.workers.schedule_maintenance(self, self._maintenance.snapshot_delay_s())

    def _start(self, recovered: RecoveredLog, fs: FileSystem, objects: Callable[[], ObjectTier] | None) -> None:
        """Continue where recovery ended, and register for the work of the threads."""
        self._maintenance.retires = not has_tiers(fs, self.config, self.stream_id)
        self.tail.start_from(recovered)
        self._maintenance.make_first_spares()
        if not self._maintenance.retires:
            self.tiers = self.segments.tiers = self._with_tiers(recovered, fs, objects)
        self._began_at = end_of(self.segment_snapshot(), self.tail)
        self._missing = self._report_missing()
        try:
            self._indexes.remove_others(one.segment_id for one in self.catalog.all())
            self._sinks.recover()
        except OSError:
            self.close()
            raise
        self.workers.add(self, sinks_after_s=_SINKS_S, status_after_s=STATUS_AFTER_S)
        self.workers.schedule_maintenance(self)  # some segments may have expired while the log was closed

    def _with_tiers(
        self, recovered: RecoveredLog, fs: FileSystem, objects: Callable[[], ObjectTier] | None
    ) -> TierManager:
        tiers = TierManager(
            self.catalog, fs, self.config, stream_id=self.stream_id, clock=self.clock, observer=self.observer,
            objects=objects, again=lambda after_s: self.workers.schedule_tiers(self, after_s),
            below=recovered.first_unsealed_id, indexes=self._indexes, trim=self.trim,
            back=lambda: self.notifier.notify("hydration"),
            uploaded=self._uploads.uploaded,
        )  # fmt: skip
        self._uploads.uploads = tiers.uploads
        self._maintenance.room_for_packing = tiers.room_for_packing
        self.workers.schedule_tiers(self)
        place = recovered.next_place(self.catalog.all())
        self.tail.next_base_offset, self.tail.next_base_record_count = place
        return tiers

    def _report_missing(self) -> tuple[tuple[int, int], ...]:
        tiers = None if self.tiers is None else self.tiers.snapshot()
        found = missing_ranges(self.segment_snapshot(), self.tail, tiers)
        for first, end in found:
            self.observer.count("aof_recovery_findings_total", kind="missing")
            self.observer.event(
                "aof.recovery.missing", level=logging.WARNING, log=self.name, path=self.config.root_dir, first=first,
                end=end,
            )  # fmt: skip
        return tuple(found)

    def fail(self, reason: str) -> StoreFailedError:
        """Refuse every call from now on, and return the error with which the log refuses them."""
        message = f"the log {self.name} failed: {reason}; open it again to recover"
        self.tail.refuse(lambda: StoreFailedError(message))
        self.observer.event("aof.failed", level=logging.ERROR, log=self.name, reason=reason)
        return StoreFailedError(message)

    # ---- the work of the manager's threads

    def run_flush(self) -> None:
        """Sync what is written."""
        self._flusher.run()

    def run_maintenance(self) -> None:
        """Seal, make spares, retire old segments."""
        self._maintenance.run()
        if self.tiers is not None or self._maintenance.packages:
            self.workers.schedule_tiers(self)

    def run_tiers(self) -> None:
        """Move segments between tiers; in a log without tiers, pack the segments that leave."""
        if self.tiers is not None:
            self.tiers.run()
        else:
            self._maintenance.package_old()

    def run_sinks(self) -> None:
        """Import what Spark sinks committed, and schedule the next import."""
        self.import_staged()
        self.workers.schedule_sinks(self, _SINKS_S)

    def run_status(self) -> None:
        """Publish the status of the log if it has changed, and schedule the next check."""
        self.workers.schedule_status(self, STATUS_AFTER_S)
        refusal = self.tail.refusal
        failed = refusal is not None and isinstance(refusal(), StoreFailedError)
        self._status.publish(self.snapshot(), "failed" if failed else "open")

    # ---- what Aof delegates

    def import_staged(self) -> int:
        """Append what Spark sinks committed, durably; return how many records were appended."""
        return 0 if self.tail.refusal is not None else self._sinks.import_all()

    def segment_snapshot(self) -> tuple[SegmentSnapshot, ...]:
        """Return all segments, oldest first."""
        return segment_snapshots(self.catalog, self.tail)

    def snapshot(self) -> LogSnapshot:
        """Return the present state of the log."""
        return log_snapshot(
            self.name, self.stream_id, self.catalog, self.tail, flush=self.flush_metrics, began_at=self._began_at,
            truncated_bytes=self._recovered.truncated_bytes, quarantined=self._recovered.quarantined,
            missing=self._missing, tiers=None if self.tiers is None else self.tiers.snapshot(),
        )  # fmt: skip

    def close(self) -> None:
        """
        Make everything durable, seal what is full, and release all files. Idempotent.

        Raises:
            NotDurableError, StoreFailedError, OSError: not everything is durable; the log is closed nevertheless.
        """
        with self._closing:
            if self.closed:
                return
            self.import_staged()
            failed = self.tail.refusal is not None
            self.tail.refuse(lambda: StoreClosedError(f"the log {self.name} was closed"))
            if self.tiers is not None:
                self.tiers.uploads.stopping = True
            self.workers.forget(self)
            try:
                if not failed:
                    self.durability.flush(None)
                    last = self.snapshot()
                    self._maintenance.close()
                    if self.tiers is not None and self.workers.threaded:
                        self.tiers.finish_uploads(_LAST_UPLOADS_S)
                    self._status.publish(last, "closed")
            finally:
                self.closed = True
                self._maintenance.release(remove=False)
                if self.tiers is not None:
                    self.tiers.close()
                self.notifier.notify_all()
