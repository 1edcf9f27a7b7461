"""
Waiting until a record is in the object store, and sealing for it: one seal and one upload for all who wait.

Whoever comes first has the segment sealed that takes records. Whoever comes while that is uploaded waits in the next
segment, which is sealed when the upload is done; so a hundred producers that wait do not make a hundred segments.
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

__all__ = ["UploadWaiting"]

_ALONE_S = 1.0


class UploadWaiting:
    """
    Those who wait for uploads of one log. Thread-safe.

    Args:
        name: of the log, for messages.
        seal: has the log looked after, so that what waits is sealed.

    Attributes:
        uploads: the object side of the log's tiers; None: there is none.
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
        Return the object side.

        Raises:
            UsageError: the log has no object store.
        """
        if self.uploads is None or not self.uploads.enabled:
            raise UsageError(f"the log {self._name} has no object store: give its settings tiers=TierConfig(objects=…)")
        return self.uploads

    def until(self, record_id: int, timeout: float | None) -> None:
        """
        Return when the segment of a record that exists has an object; seal it first if need be.

        Raises:
            NotDurableError: *timeout* seconds passed; the record is written, and its upload goes on.
            UnknownRecordError: its segment was retired.
            CorruptionError: its segment is not what was sealed, and is not uploaded.
            StoreClosedError, StoreFailedError: nothing will be uploaded any more.
            UsageError: the log has no object store, or *timeout* is no number.
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
                pause_s = _ALONE_S if left is None else min(left, _ALONE_S)  # nobody else does what is due later
            self._notifier.wait("upload", seen, pause_s)

    def _is_uploaded(self, uploads: Uploads, segment_id: int, record_id: int) -> bool:
        with self._tail.lock:
            is_unsealed = any(one.segment_id == segment_id for one in self._tail.unsealed())
            refusal = self._tail.refusal
        sealed = self._catalog.get(segment_id)
        if sealed is not None and uploads.is_uploaded(sealed):
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
        Say whether that segment, which takes records, is to be sealed now. Call it without the lock of the tail.

        Not while an upload is under way: those who come until it ends share the next segment.
        """
        if self.uploads is None or segment_id > self._wanted:
            return False
        sealed = self._catalog.all()[-1:]
        return all(self.uploads.is_uploaded(one) or one.segment_id in self.uploads.damaged for one in sealed)

    def uploaded(self) -> None:
        """Take note that there is one more object: tell those who wait, and seal for those who came meanwhile."""
        self._notifier.notify("upload")
        with self._tail.lock:
            segment_id = self._tail.next_segment_id - 1
        if self.wants(segment_id):
            self._seal()
