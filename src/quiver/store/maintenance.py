"""
One maintenance pass over an open store. `MaintenancePass.run` is the complete list of its steps, in order.

======================  ==============================================================================================
step                    effect
======================  ==============================================================================================
check the directory     fails if it was moved: another store's files may be at its path
sync the log            only without background threads, which otherwise do it
seal                    the open segment if it is full, old or over age; then every segment that waits for its file
publish                 the number of the open segment, so that its bundles can be delivered before it is sealed
import                  the segments that sinks in other processes staged
write progress          after this nothing that was acknowledged before the pass is delivered again
continue drops          what the drop ledger lists is resolved for all subscribers, and deleted
release local copies    with an object tier: files of segments that the object tier has, beyond the local retention
delete finished         segments that all subscribers have resolved, after their grace period
expire                  segments over age: finished ones, and the others through the drop ledger
trim the log            advance its cursor, delete its old files
refill                  the reserve for a full disk; measure side files; give sinks the space they asked for
object tier             without the maintenance lock: callers do not wait for the object store
======================  ==============================================================================================

Every step can fail on a full disk, or for lack of file descriptors. That is reported, the next steps still run, because
they may free space, and the next pass tries again.

A store in which nothing happens rests: the background thread runs the next pass after a second, or when something
happens in this process. See `MaintenancePass.rest_s` and `Background.end_rest`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quiver.primitives.disk.disk_full import passes
from quiver.store.cold.tier import ColdTier
from quiver.store.context import StoreContext
from quiver.store.early_delivery import EarlyDelivery
from quiver.store.format.sink_commit import INCOMING_DIR
from quiver.store.limits.admission import Admission
from quiver.store.receipts import MaintenanceReport
from quiver.store.removal.cleanup import Cleanup
from quiver.store.sealing.schedule import LAG_SEGMENTS
from quiver.store.sealing.sealer import Sealer

__all__ = ["REST_S_MAX", "MaintenancePass"]

REST_S_MAX = 1.0
"""A store in which nothing happens runs a pass at this interval, to find what other processes did."""


class MaintenancePass:
    """
    Runs maintenance passes, one at a time.

    Args:
        context: the store.
        cleanup: deletes segments.
        sealer: writes segments.
        admission: knows the limits.
        cold_tier: copies segments to the object tier.
        early: delivers bundles before their segment is written.
        require_open: raises when the store is closed.
        sync_log: syncs the log and writes zeros ahead of its tail; None when a background thread does it.
    """

    def __init__(
        self,
        context: StoreContext,
        cleanup: Cleanup,
        sealer: Sealer,
        admission: Admission,
        cold_tier: ColdTier,
        early: EarlyDelivery,
        *,
        require_open: Callable[[], None],
        sync_log: Callable[[], None] | None,
    ) -> None:
        self._context = context
        self._cleanup = cleanup
        self._sealer = sealer
        self._admission = admission
        self._cold_tier = cold_tier
        self._early = early
        self._require_open = require_open
        self._sync_log = sync_log
        self._failures = 0
        self._is_quiet = False
        """Whether the last pass found nothing to do, and no step of it failed."""

    def rest_s(self) -> float | None:
        """
        Return for how many seconds no pass is needed unless something happens in this process; None for no rest.

        Other processes can add names to the directory, or move it; that is noticed after the rest. Where they can do
        more, there is none: with staged batches, or with segments that a subscriber of theirs may finish.
        """
        context, sealing = self._context, self._context.sealing
        with context.lock:
            if sealing.pending is not None or not sealing.open.is_empty:
                return None
        if not (self._is_quiet and self._early.is_published and self._cleanup.is_settled()):
            return None
        if not context.subscribers.are_settled() or self._has_sinks():
            return None
        return min(REST_S_MAX, self._cold_tier.idle_s())

    def _has_sinks(self) -> bool:
        try:
            return self._context.fs.exists(f"{self._context.path}/{INCOMING_DIR}")
        except OSError:
            return True  # unknown

    def run(self) -> MaintenanceReport:
        """Run one pass; see `Store.maintain`."""
        context, cleanup, sealing = self._context, self._cleanup, self._context.sealing
        with context.maintenance:
            self._require_open()
            self._is_quiet = False
            failures = self._failures
            context.place.require()
            if self._sync_log is not None:
                self._sync_log()
            with context.lock:
                if sealing.full or self._is_open_segment_due():
                    sealing.swap()
            self._attempt(self._early.publish)
            sealed = 0
            while sealing.may_write() and self._sealer.seal_pending():
                sealed += 1
            sealed += self._sealer.import_staged(self._admission.may_import)
            if sealing.is_urgent and self._sealer.seal_pending():
                sealed += 1 + self._sealer.import_staged(self._admission.may_import)
            self._attempt(self._early.publish)
            progress_written = self._attempt(cleanup.write_progress)
            self._attempt(cleanup.continue_drops)
            if self._cold_tier.is_used:
                self._attempt(self._release_local_copies)
            deleted = self._attempt(lambda: cleanup.free_finished().segments)
            deleted += self._attempt(lambda: cleanup.expire().segments)
            wal_files_deleted = self._sealer.forget_log()
            cleanup.reserve.keep()
            cleanup.side.measure()
            self._admission.serve_sinks()
        if self._cold_tier.is_used:
            self._cold_tier.run_pending()
        report = MaintenanceReport(sealed, progress_written, deleted, wal_files_deleted)
        self._is_quiet = not any(report) and self._failures == failures
        return report

    def _is_open_segment_due(self) -> bool:
        context = self._context
        born_s = context.sealing.open_born_s()
        if born_s is not None and self._cleanup.retention.is_over_age(born_s, now_s=context.clock.monotonic()):
            return True
        if not context.sealing.is_old():
            return False
        # While all subscribers lag, a segment may grow: sealing it early would not deliver it any sooner. A node of a
        # fleet uploads segments although its subscribers, which acknowledge late, lag.
        is_node = context.settings.fleet_name is not None
        return is_node or context.subscribers.least_lag_segments() < LAG_SEGMENTS

    def _release_local_copies(self) -> None:
        self._context.cold.keep()
        self._cleanup.window.shrink()

    def _attempt(self, step: Callable[[], int | None]) -> int:
        """
        Run *step* and return its count; 0 if it found the disk full or no file descriptor, which is reported.

        Raises:
            OSError: the disk failed otherwise.
        """
        try:
            return step() or 0
        except OSError as error:
            self._failures += 1
            if not passes(error):
                raise
            self._context.observer.event("quiver.engine.tick", level=logging.WARNING, problem=str(error))
            return 0
