"""
Delivery, bundle by bundle, for a reader that commits batches in order (a Spark query).

::

    a batch       each bundle is tried once; bundles already in the retry set are skipped
      delivered   nothing is recorded: committing the batch moves the position past the bundle
      failed      the bundle enters the retry set, or becomes a dead letter
      end         the retry set is written        only then may the batch be committed
    retry set     drained separately, in any order, each bundle when its retry is due; newer batches do not wait

After a crash at any point, uncommitted bundles are tried again and the retry set is intact. No bundle is acknowledged
that was neither delivered nor stored as a retry or a dead letter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
from quiver.delivery.policy import Delivered, Outcome, outcome_of_error
from quiver.delivery.undelivered import Undelivered
from quiver.errors import BundleUnavailableError, CorruptionError, InvalidBundleError
from quiver.invariant import invariant
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cold.files import ColdFiles
from quiver.store.format.names import SEGMENTS_DIR, segment_name
from quiver.store.segment.reader import SegmentReader

__all__ = ["BatchDelivery", "read_if_readable", "read_stored"]


def read_stored(fs: FileSystem, root: str, ref: BundleRef, *, adapter: Adapter = OTAP) -> Bundle:
    """
    Return the bundle at *ref* of the store at *root*. Safe while a writer has the store open.

    Raises:
        BundleUnavailableError: its segment was removed, or has no such bundle.
        CorruptionError: the file is damaged.
        OSError: the disk could not be read.
    """
    path = f"{root}/{SEGMENTS_DIR}/{segment_name(ref.segment)}"
    try:
        reader = SegmentReader.open(ColdFiles(fs), path)
    except FileNotFoundError as error:
        raise BundleUnavailableError(f"bundle {ref} was removed: {path} does not exist") from error
    try:
        return Bundle.of_read(reader.bundle(ref.index), reader.ingested_at_ns(ref.index), adapter)
    finally:
        reader.close()


def read_if_readable(fs: FileSystem, root: str, ref: BundleRef, *, adapter: Adapter = OTAP) -> Bundle | None:
    """
    Return the bundle at *ref* of the store at *root*, or None if it was removed or is damaged.

    Raises:
        OSError: the disk could not be read.
    """
    try:
        return read_stored(fs, root, ref, adapter=adapter)
    except (CorruptionError, BundleUnavailableError, InvalidBundleError):
        return None


class BatchDelivery:
    """
    Settles batches and retries the bundles that failed in them.

    Thread-safe: one thread may settle batches while another drains the retry set.

    Args:
        fs: the file system.
        root: the directory of the store that the bundles come from.
        undelivered: the policy, the retry set and the dead letters; closed by `close`.
        deliver: sends one bundle and returns the outcome; `outcome_of_error` classifies an exception.
        adapter: the slot table.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        undelivered: Undelivered,
        deliver: Callable[[BundleRef, Bundle], Outcome],
        *,
        adapter: Adapter = OTAP,
    ) -> None:
        self._fs = fs
        self._root = root
        self._undelivered = undelivered
        self._deliver = deliver
        self._adapter = adapter
        self._drain = threading.Lock()

    def try_one(self, ref: BundleRef) -> Outcome | None:
        """Read and send one bundle. Return None if the policy removed it: there is nothing left to deliver."""
        try:
            return self._deliver(ref, read_stored(self._fs, self._root, ref, adapter=self._adapter))
        except BundleUnavailableError:
            return None
        except Exception as error:  # noqa: BLE001 - no exception of a client library may end a query
            return outcome_of_error(error)

    def is_waiting_for_retry(self, ref: BundleRef) -> bool:
        """Return whether *ref* is in the retry set. A batch that runs again skips such a bundle."""
        return ref in self._undelivered.retries

    def settle(self, outcomes: Iterable[tuple[BundleRef, Outcome]]) -> None:
        """
        Record the outcomes of the bundles of a batch. On return the batch may be committed.

        Raises:
            DeliveryHaltedError: the policy is to halt at this bundle.
            CapacityError: the retry set is full. Do not commit the batch; try it again.
            OSError: the disk failed. Do not commit the batch; try it again.
        """
        retries = self._undelivered.retries
        try:
            for ref, outcome in outcomes:
                if not isinstance(outcome, Delivered):
                    self._settle(ref, outcome)
        finally:
            changes = retries.changes
            self._undelivered.save()
        invariant(
            retries.saved_changes >= changes, "a position passes a failed bundle only after the retry set was saved"
        )

    def _settle(self, ref: BundleRef, outcome: Outcome) -> None:
        if isinstance(outcome, Delivered):
            self._undelivered.resolved(ref)
            return

        def content() -> Bundle | None:
            return read_if_readable(self._fs, self._root, ref, adapter=self._adapter)

        self._undelivered.settle(ref, outcome, content=content)

    def drain(self) -> int:
        """
        Try each bundle of the retry set that is due once. Return how many left the set.

        Stops at the first transient failure if no bundle left the set before it: the destination is down, and the
        other bundles would fail for the same reason.

        Raises:
            DeliveryHaltedError: the policy is to halt at a bundle.
            OSError: the disk failed; nothing is lost.
        """
        left = 0
        with self._drain:
            try:
                for entry in self._undelivered.retries.due():
                    outcome = self.try_one(entry.ref)
                    if outcome is None:
                        self._undelivered.resolved(entry.ref)
                        left += 1
                        continue
                    self._settle(entry.ref, outcome)
                    if entry.ref not in self._undelivered.retries:
                        left += 1
                    elif not left:
                        break
            finally:
                self._undelivered.save()
        return left

    def close(self) -> None:
        """Close the retry set and the dead letters. Idempotent."""
        self._undelivered.close()
