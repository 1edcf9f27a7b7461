"""Calls on an open store that are for other packages of Quiver, not for users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiver.primitives.worker import WorkerDiedError
from quiver.store.context import StoreContext
from quiver.store.format.drop_ledger import DroppedSegment
from quiver.store.limits.admission import Admission
from quiver.store.removal.cleanup import Cleanup

__all__ = ["StoreInternals"]


class StoreInternals:
    """
    `Store.internals`. Thread-safe.

    Args:
        context: the store.
        cleanup: deletes segments.
        admission: knows the limits.
        require_open: raises when the store is closed.
    """

    def __init__(
        self, context: StoreContext, cleanup: Cleanup, admission: Admission, *, require_open: Callable[[], None]
    ) -> None:
        self._context = context
        self._cleanup = cleanup
        self._admission = admission
        self._require_open = require_open
        self.catalog = context.catalog
        """The sealed segments."""

    def guard_removal(self, guard: Callable[[int, int], bool]) -> None:
        """
        Call *guard* before resolved bundles are removed, with the first and the last of their sequence numbers.

        They are kept for now if it returns False. It is called by the thread that runs maintenance, and must not call
        the store. At a size cap or an age limit it is not called.
        """
        self._context.guards.append(guard)

    def next_sequence_min(self) -> int:
        """Return a number that no bundle that is ingested from now on is below."""
        return self._context.sealing.added_through + 1

    def poison(self, died: WorkerDiedError) -> None:
        """Refuse all calls from now on: a thread that callers depend on has died."""
        self._context.wal.poison(died)
        with self._context.lock:
            self._context.room.notify_all()

    def claimed_bytes(self) -> int:
        """Return what counts for the size cap: the bytes on disk, and those in memory that will be a segment."""
        return self._admission.used_bytes

    def note_evicted(self, dropped: Sequence[DroppedSegment]) -> bool:
        """
        Account for segment files that another process removed; return False if its record of them must be kept.

        Args:
            dropped: those of them that some subscriber had not resolved. They are resolved as dropped.

        Raises:
            StoreClosedError: the store was closed.
            OSError: the disk refused; call again.
        """
        with self._context.maintenance:
            self._require_open()
            return self._cleanup.note_evicted(dropped)
