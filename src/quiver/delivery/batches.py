"""
A reader in order (a Spark query) that delivers bundle by bundle: what becomes of a batch before it is committed.

::

    a batch       every bundle is tried once; what is in the retry set already is passed over
      delivered   nothing is noted: the position covers it when the batch is committed
      failed      into the retry set, or a dead letter
      end         the retry set is written        only then may the batch be committed
    the set       drained apart, in any order, each bundle when its time has come; newer batches do not wait for it

Killed anywhere: what was not committed is tried once more, what stands in the set stays there, and nothing is
acknowledged that is neither delivered nor kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from quiver.bundle import OTAP, Adapter, Bundle, BundleRef
from quiver.delivery.policy import Again, Delivered, Outcome, outcome_of_error
from quiver.delivery.undelivered import Undelivered
from quiver.errors import BundleUnavailableError, CorruptionError, DeliveryHaltedError, InvalidBundleError
from quiver.primitives.disk.file_system import FileSystem
from quiver.store.cold.files import ColdFiles
from quiver.store.format.names import SEGMENTS_DIR, segment_name
from quiver.store.segment.reader import SegmentReader

__all__ = ["BatchDelivery", "read_stored"]


def read_stored(fs: FileSystem, root: str, ref: BundleRef, *, adapter: Adapter = OTAP) -> Bundle:
    """
    Return the bundle at *ref* of the store at *root*, read beside its writer.

    Raises:
        BundleUnavailableError: its segment is gone, or has no such bundle.
        CorruptionError: the file is not what was written.
        OSError: the disk could not be read.
    """
    path = f"{root}/{SEGMENTS_DIR}/{segment_name(ref.segment)}"
    try:
        reader = SegmentReader.open(ColdFiles(fs), path)
    except FileNotFoundError as error:
        raise BundleUnavailableError(f"bundle {ref} is gone: there is no {path}") from error
    try:
        return Bundle.of_read(reader.bundle(ref.index), reader.ingested_at_ns(ref.index), adapter)
    finally:
        reader.close()


class BatchDelivery:
    """
    Settles batches, and drains what failed in them. Thread-safe: batches in one thread, drains in another.

    Args:
        fs: the file system.
        root: the directory of the store that the bundles come from.
        undelivered: the policy, the retry set and the dead letters; closed by `close`.
        deliver: sends one bundle and says what became of it; an exception counts as `outcome_of_error` says.
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
        """Read and send one bundle; None when it is gone, by policy: there is nothing left to deliver."""
        try:
            return self._deliver(ref, read_stored(self._fs, self._root, ref, adapter=self._adapter))
        except BundleUnavailableError:
            return None
        except Exception as error:  # noqa: BLE001 - the edge: whatever a far side's client raises must not end a query
            return outcome_of_error(error)

    def is_held(self, ref: BundleRef) -> bool:
        """Say whether the retry set has *ref*: then its batch, which is run again, passes it over."""
        return ref in self._undelivered.retries

    def settle(self, outcomes: Iterable[tuple[BundleRef, Outcome]]) -> None:
        """
        Take note of what became of the bundles of a batch. On return it may be committed.

        Raises:
            DeliveryHaltedError: the policy says to stop at this bundle.
            CapacityError: the retry set is full: the batch must not be committed, and is tried again.
            OSError: the disk refused; the same holds.
        """
        try:
            for ref, outcome in outcomes:
                if not isinstance(outcome, Delivered):
                    self._settle(ref, outcome)
        finally:
            self._undelivered.save()

    def _settle(self, ref: BundleRef, outcome: Outcome) -> None:
        if isinstance(outcome, Delivered):
            self._undelivered.resolved(ref)
            return

        verdict = self._undelivered.failed(ref, outcome, content=lambda: self._content(ref), save=False)
        if isinstance(verdict, Again):
            return
        if verdict.how == "halt":
            raise DeliveryHaltedError(self._undelivered.exporter, str(ref), verdict.reason)
        self._undelivered.resolved(ref)

    def _content(self, ref: BundleRef) -> Bundle | None:
        try:
            return read_stored(self._fs, self._root, ref, adapter=self._adapter)
        except (CorruptionError, BundleUnavailableError, InvalidBundleError):
            return None

    def drain(self) -> int:
        """
        Try every bundle of the retry set whose time has come, once; return how many left it.

        Stops at the first that fails transiently when none has succeeded before it: the far side is down, and the
        others would only be told the same.

        Raises:
            DeliveryHaltedError: the policy says to stop at a bundle.
            OSError: the disk refused; nothing is lost.
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
        """Let go of the retry set and the dead letters. Idempotent."""
        self._undelivered.close()
