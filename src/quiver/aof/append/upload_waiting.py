"""
Waiting until records are in the object store: concurrent callers share seals and uploads.

The first caller seals the active segment. Callers that arrive during its upload wait in the next segment, which is
sealed when the upload is done. So a hundred waiting producers do not make a hundred segments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.aof.append.notify import Notifier, deadline_of
from quiver.aof.append.tail import Tail
from quiver.aof.append.workers import Workers
from quiver.aof.format.record import split_record_id
from quiver.aof.reading.catalog import Catalog
from quiver.aof.tiers.uploads import Uploads
from quiver.clock import Clock
from quiver.errors import NotDurableError, UnknownRecordError, UsageError
from quiver.invariant import invariant

__all__ = ["UploadWaiting"]

_ALONE_S = 1.0


class UploadWaiting:
    """
    Waits for uploads of one log. Thread-safe.

    Args:
        name: the name of the log, for messages.
        seal: schedules the log's maintenance, which seals the wanted segment.

    Attributes:
        uploads: uploads the segments of the log; None without tiers.
    """

    def __init__(
        self,
        name: str,
        tail: Tail,
        catalog: Catalog,
        notifier: Notifier,
        workers: Workers,
        *,
        clock: Clock,
        seal: Callable[[], None],
    ) -> None:
        self.uploads: Uploads | None = None
        self._name = name
        self._tail = tail
        self._catalog = catalog
        self._notifier = notifier
        self._workers = workers
        self._clock = clock
        self._seal = seal
        self._guard = threading.Lock()
        self._wanted = -1

    def require_objects(self) -> Uploads:
        """
        Return the uploads of the log.

        Raises:
            UsageError: the log has no object store.
        """
        if self.uploads is None or not self.uploads.enabled:
            raise UsageError(f"the log {self._name} has no object store: give its settings tiers=TierConfig(objects=…)")
        return self.uploads

    def until(self, record_id: int, timeout: float | None) -> None:
        """
        Wait until the segment of an existing record has an object; seal it first if necessary.

        Raises:
            NotDurableError: *timeout* seconds passed; the record is written, and its upload continues.
            UnknownRecordError: its segment was retired.
            CorruptionError: its segment is damaged and is not uploaded.
            StoreClosedError, StoreFailedError: nothing more will be uploaded.
            UsageError: the log has no object store, or *timeout* is not a number.
        """
        uploads = self.require_objects()
        deadline = deadline_of(self._clock, timeout)
        segment_id, _ = split_record_id(record_id)
        while True:
            seen = self._notifier.generation("upload")
            if self._is_uploaded(uploads, segment_id, record_id):
                return
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                reason = f": {uploads.problem}" if uploads.problem else ""
                raise NotDurableError(
                    record_id, f"its segment was not in the object store within {timeout:g} s{reason}"
                )
            with self._guard:
                self._wanted = max(self._wanted, segment_id)
            self._seal()
            pause_s = left
            if not self._workers.threaded:
                self._workers.run_pending()
                pause_s = _ALONE_S if left is None else min(left, _ALONE_S)  # no thread does what is due later
            self._notifier.wait("upload", seen, pause_s)

    def _is_uploaded(self, uploads: Uploads, segment_id: int, record_id: int) -> bool:
        with self._tail.lock:
            is_unsealed = any(one.segment_id == segment_id for one in self._tail.unsealed())
            refusal = self._tail.refusal
        sealed = self._catalog.get(segment_id)
        if sealed is not None and uploads.is_uploaded(sealed):
            _, offset = split_record_id(record_id)
            invariant(offset < sealed.end, "the object of a segment has every record that is confirmed with it")
            return True
        if segment_id in uploads.damaged:
            raise uploads.damaged[segment_id]
        if refusal is not None:
            raise refusal()
        if sealed is None and not is_unsealed:
            raise UnknownRecordError(f"no record {record_id}: its segment was retired")
        return False

    def wants(self, segment_id: int) -> bool:
        """
        Return whether the active segment *segment_id* should be sealed now. Call it without the tail's lock.

        False during an upload: callers that arrive until it ends share the next segment.
        """
        if self.uploads is None or segment_id > self._wanted:
            return False
        sealed = self._catalog.all()[-1:]
        return all(self.uploads.is_uploaded(one) or one.segment_id in self.uploads.damaged for one in sealed)

    def uploaded(self) -> None:
        """Wake the waiting callers after an upload, and seal the segment of those that arrived during it."""
        self._notifier.notify("upload")
        with self._tail.lock:
            segment_id = self._tail.next_segment_id - 1
        if self.wants(segment_id):
            self._seal()
