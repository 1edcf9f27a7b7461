"""
Writes a full segment to its file, then lets the log forget it and subscribers read it.

The order matters: any other would lose data in a crash.

::

    1  the segment's file is durable under its name     crash before: the log has all of it
    2  the log's cursor passes it                       crash before: replay finds it in the segment, and skips it
    3  log files before the cursor are deleted          crash before: the next open deletes them
    4  catalog and subscribers know it                  from here on it is delivered
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from quiver.errors import CapacityError, StoreFailedError
from quiver.invariant import invariant
from quiver.primitives.disk.atomic import remove_durably
from quiver.primitives.disk.disk_full import is_full_disk, what_is_short
from quiver.store.context import StoreContext
from quiver.store.early_delivery import EarlyDelivery
from quiver.store.removal.cleanup import Cleanup
from quiver.store.sealing.schedule import Pending
from quiver.store.segment.info import SegmentInfo
from quiver.store.staged_import import OpenStoreImport
from quiver.store.subscribers.state import SegmentRef
from quiver.store.wal.reread import LogReader

__all__ = ["Sealer"]


class Sealer:
    """
    Writes pending segments. Thread-safe: each call takes the maintenance lock.

    Args:
        context: the store.
        cleanup: records the age of each segment; has a reserve for the cursor when the disk is full.
        early: knows which segments need no file.
    """

    def __init__(self, context: StoreContext, cleanup: Cleanup, early: EarlyDelivery) -> None:
        self._context = context
        self._cleanup = cleanup
        self._early = early
        self._staged_import = OpenStoreImport(context, cleanup)

    def import_staged(self, may_take: Callable[[], bool]) -> int:
        """Import segments that Spark sinks committed (see `staged_import`) while *may_take* allows; return how many."""
        return self._staged_import.import_all(may_take)

    def seal_pending(self, *, may_wait: bool = True) -> int:
        """
        Write the pending segment if there is one and it may be tried; return the number of segments that left memory.

        A segment that every subscriber has resolved is dropped instead. With *may_wait*, one that subscribers may
        still resolve completely is left for the next call.

        Raises:
            StoreFailedError: the disk failed, or the directory was moved, and the log is poisoned.
        """
        context = self._context
        sealing = context.sealing
        with context.maintenance:
            pending = sealing.pending
            if pending is None or not sealing.may_write():
                return 0
            context.place.require()
            if self._drop_resolved(pending):
                return 1
            if may_wait and self._early.may_wait(pending):
                return 0
            try:
                info = sealing.write(self._open_log)
                _check_complete(info, pending)
            except StoreFailedError as failure:
                context.wal.poison(
                    failure.__cause__ if isinstance(failure.__cause__, OSError) else OSError(str(failure))
                )
                raise
            if info is None:
                return 0
            self.forget_log(info.wal_position_end or 0)
            self._cleanup.know(info, pending.born_s)
            context.catalog.add(info)
            context.subscribers.sealed(SegmentRef.of(info))
            self._done()
            context.observer.count("quiver.segment.sealed_total")
            return 1

    def _drop_resolved(self, pending: Pending) -> bool:
        dropped = self._early.drop(pending)
        if dropped:
            self.forget_log()
            self._done()
            self._context.observer.count("quiver.segment.unwritten_total")
        return dropped

    def _done(self) -> None:
        context = self._context
        with context.lock:
            context.sealing.done()
            if context.sealing.full:
                context.sealing.swap()
            context.room.notify_all()

    def _open_log(self, log: LogReader) -> None:
        if log.end:
            with self._context.lock:  # a rotation would rename the file between its name and its opening
                log.open(self._context.wal.spans(log.start, log.end))

    def seal_everything(self) -> None:
        """
        Write the pending segment, then the open one.

        Raises:
            CapacityError: the disk is full; what could not be written is kept and tried again.
            StoreFailedError: the disk failed.
        """
        sealing = self._context.sealing
        sealing.try_now()
        for _ in range(2):
            with self._context.lock:
                sealing.swap()
            if sealing.pending is None:
                return
            if not self.seal_pending(may_wait=False) and sealing.failure is not None:
                raise CapacityError(
                    f"{what_is_short(sealing.failure, self._context.path)}: segment {sealing.pending.seq} waits"
                ) from sealing.failure

    def forget_log(self, position: int = 0) -> int:
        """Delete the log files that are durable in segments; return how many. The next call retries after an error."""
        context = self._context
        try:
            context.wal.advance_cursor(position)
            with context.lock:
                removed = context.wal.purgeable()
            if removed:
                remove_durably(context.fs, [file.path for file in removed])
                with context.lock:
                    context.wal.forget(removed)
                    context.room.notify_all()
        except OSError as error:
            context.observer.event("quiver.wal.cursor", level=logging.WARNING, problem=str(error))
            if not (is_full_disk(error) and self._cleanup.reserve.spend()):
                return 0
            return self.forget_log()
        return len(removed)


def _check_complete(info: SegmentInfo | None, pending: Pending) -> None:
    """Check that the file has all of the segment, because the log forgets it next."""
    sealed = pending.sealed
    invariant(
        info is None
        or (
            (info.seq, info.bundle_count) == (pending.seq, sealed.bundle_count)
            and (info.wal_position_end or 0) <= (sealed.wal_position_end or 0)
        ),
        f"the log may forget only what segment {pending.seq} contains",
    )
