"""
The retry queue of an exporter of tables: bundles that its processors failed on, retried individually.

::

    batch ─▶ bundles that fail ─▶ retry set, durably ─▶ the rest is exported and the batch committed
                                     │
    drain ◀── a bundle that is due: exported individually under its own name, or retried later, or a dead letter

A batch and the drain exclude each other. A batch that was interrupted may come again with a bundle that was exported
individually in the meantime. So the first batch after a restart asks the exporter for those names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.batches import read_if_readable, read_stored
from quiver.delivery.policy import Permanent, RetryPolicy, Transient, outcome_of_error
from quiver.delivery.undelivered import Undelivered
from quiver.errors import BundleUnavailableError, CorruptionError, DeliveryHaltedError, QuiverError, StoreFailedError
from quiver.invariant import invariant
from quiver.observe import InMemoryObserver, Observer
from quiver.otap import VIEWS, decode_groups
from quiver.otap.stored import stored_requests
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.spark.exporters.exported import failure_type
from quiver.spark.exporters.parquet_commit import individual_id
from quiver.spark.exporters.spark_errors import describe_error, is_environment_error
from quiver.spark.tables import Descriptors
from quiver.store.format.names import SEGMENTS_DIR, segment_name
from quiver.store.reading.listing import find_segments
from quiver.store.reading.segments import store_identity
from quiver.store.subscribers.progress_store import load_progress
from quiver.store.subscribers.retry_set import RetrySet, load_retry_set
from quiver.store.subscribers.state import SegmentRef, SubscriberState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quiver.delivery.dead_letters import DeadLetters
    from quiver.delivery.exporter_stats import ExporterStats
    from quiver.store.format.exporter_report import FailureType

__all__ = [
    "BundleExport",
    "MakeDeadLetters",
    "RetryQueue",
    "descriptor_of",
    "individual_names",
    "open_undelivered",
    "undecodable",
]

DRAIN_EVERY_S = 0.5
CLOSE_S = 5.0

MakeDeadLetters = Callable[[str, str], "DeadLetters"]
"""
Returns the dead letters of a store's directory and a subscriber. The class `DeadLetters` is one. Callers pass it in,
because it imports the store engine.
"""

_log = logging.getLogger("quiver")


@runtime_checkable
class BundleExport(Protocol):
    """Exports batches, and can export single bundles: `TableBatches` and `ParquetExporter`."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Export one batch."""

    def probe(self, spark: SparkSession, bundles: pa.Table, *, views: AbstractSet[str]) -> None:
        """Run the processors on *bundles* and discard the result. Raises what they raise."""

    def export_one(self, spark: SparkSession, bundle: pa.Table, name: str) -> None:
        """Export one bundle individually, under *name*."""

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually."""


def undecodable(bundle: Bundle) -> str | None:
    """Return why a request in *bundle* can never be decoded; None if all of them can."""
    return next(
        (
            f"a request for {view} cannot be decoded: {why}"
            for view in VIEWS
            for group in decode_groups(stored_requests(bundle.batches, view), view)
            for _, why in group.bad
        ),
        None,
    )


def individual_names(subscriber: str, places: Iterable[tuple[str, BundleRef]]) -> dict[str, tuple[str, BundleRef]]:
    """
    Return the names under which *subscriber* exports bundles individually.

    Args:
        subscriber: the exporter.
        places: the directory of a store, and a bundle in it.
    """
    identities: dict[str, str] = {}
    named = {}
    for root, ref in places:
        if root not in identities:
            identities[root] = store_identity(REAL_FILES, root)
        named[individual_id(subscriber, f"{identities[root]}/{ref}")] = (root, ref)
    return named


def descriptor_of(root: str, ref: BundleRef, bundle: Bundle) -> pa.Table:
    """Return the descriptor of a sealed bundle, as a row of mode `bundles`."""
    path = f"{root}/{SEGMENTS_DIR}/{segment_name(ref.segment)}"
    return pa.table(
        {
            "path": pa.array([path], pa.string()),
            "segment": pa.array([ref.segment], pa.int64()),
            "index": pa.array([ref.index], pa.int64()),
            "slots": pa.array([list(bundle.slots)], pa.list_(pa.int32())),
        }
    )


def open_undelivered(
    root: str,
    subscriber: str,
    policy: RetryPolicy,
    *,
    letters: MakeDeadLetters | None,
    clock: Clock,
    observer: Observer | None,
) -> Undelivered:
    """
    Open the retry set and the dead letters of *subscriber* in the store at *root*.

    Raises:
        DirectoryInUseError: another process delivers for this subscriber.
        UsageError: the policy is to keep dead letters, and *letters* is None.
        OSError: the disk refused.
    """
    wants_dead_letters = letters is not None and policy.on_exhausted == "dead_letter"
    return Undelivered(
        subscriber,
        policy,
        retries=RetrySet.open(
            REAL_FILES, root, subscriber, unresolved=lambda: _unresolved_bundles(root, subscriber), clock=clock
        ),
        letters=letters(root, subscriber) if letters is not None and wants_dead_letters else None,
        clock=clock,
        observer=observer,
    )


def _unresolved_bundles(root: str, subscriber: str) -> list[BundleRef]:
    progress = load_progress(REAL_FILES, root, subscriber)
    state = SubscriberState() if progress is None else SubscriberState.from_progress(progress)
    found = []
    for info in find_segments(REAL_FILES, root).infos:
        left = state.unresolved(SegmentRef.of(info))
        found += [BundleRef(info.seq, index) for index in range(info.bundle_count) if left >> index & 1]
    return found


class RetryQueue:
    """
    The retry queue of one exporter, over all stores that it reads. Retry sets are open while they are not empty.

    Args:
        subscriber: the exporter.
        policy: the retry policy.
        export: exports single bundles; None if the exporter cannot. Then no bundle is ever retried.
        letters: makes the dead letters, if the policy wants any.
        clock: measures when the next attempt of a bundle is due.
        observer: receives counts and events.
        background: retry in a thread; without it the caller calls `drain`.
        stats: receives the failures of bundles.

    Attributes:
        busy: locked while something is exported: a batch, or one bundle by the drain.
        halted: set when the policy halted the drain.
        failed: set when the drain's thread died. No batch may be exported until the exporter restarts.
        session: where the drain runs its jobs; it waits until there is one.
    """

    def __init__(
        self,
        subscriber: str,
        policy: RetryPolicy,
        *,
        export: BundleExport | None,
        letters: MakeDeadLetters | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        background: bool = True,
        stats: ExporterStats | None = None,
    ) -> None:
        self._stats = stats
        self.busy = threading.Lock()
        self.halted: DeliveryHaltedError | None = None
        self.failed: StoreFailedError | None = None
        self.session: SparkSession | None = None
        self._subscriber = subscriber
        self._policy = policy
        self._export = export
        self._letters = letters
        self._clock = clock
        self._observer = observer
        self._background = background and export is not None
        self._stores: dict[str, Undelivered] = {}
        self._guard = threading.Lock()
        self._is_closed = False
        # A daemon thread: a crash may interrupt it at any point.
        self._worker = Worker(
            f"quiver-retries {subscriber}", self._turn, every=DRAIN_EVERY_S, on_death=self._fail, clock=clock,
            observer=observer or InMemoryObserver(),
        )  # fmt: skip
        self._not_before_s = 0.0

    def resume(self, root: str) -> None:
        """
        Continue with the bundles that the exporter queued for the store at *root* before a restart.

        Raises:
            DirectoryInUseError: another instance of the exporter continues with them.
            OSError: the disk refused.
        """
        try:
            there_is = bool(load_retry_set(REAL_FILES, root, self._subscriber))
        except CorruptionError:
            there_is = True
        if there_is:
            self._of(root)
            self._begin()

    def _of(self, root: str) -> Undelivered:
        if root not in self._stores:
            self._stores[root] = open_undelivered(
                root, self._subscriber, self._policy, letters=self._letters, clock=self._clock, observer=self._observer
            )
        return self._stores[root]

    def _begin(self) -> None:
        if self._background:
            self._worker.start()

    @property
    def is_empty(self) -> bool:
        """Whether no bundle is queued."""
        return not any(len(one.retries) for one in self._stores.values())

    @property
    def is_saved(self) -> bool:
        """Whether the queue is durable as it is now."""
        return all(one.retries.saved_changes == one.retries.changes for one in self._stores.values())

    def has(self, root: str, ref: BundleRef) -> bool:
        """Return whether a bundle is queued."""
        return root in self._stores and ref in self._stores[root].retries

    # ── in a batch ───────────────────────────────────────────────────────────────────────────────────

    def add(self, failed: Mapping[tuple[str, BundleRef], Transient | Permanent]) -> None:
        """
        Queue the bundles of a batch that *failed*, by store and reference, or drop them. Durable on return.

        Raises:
            DeliveryHaltedError: the policy is to halt at one of them.
            CapacityError: the queue is full, so the batch must not be committed; try it again.
            OSError: the disk refused; the same applies.
        """
        try:
            for (root, ref), outcome in failed.items():
                self._record(root, ref, outcome)
        finally:
            retry_sets = [one.retries for one in self._stores.values()]
            self._save()
        invariant(
            all(one.saved_changes == one.changes for one in retry_sets),
            "the rest of a batch is exported only after the retry set was saved",
        )
        if not self.is_empty:
            self._begin()

    def _record(self, root: str, ref: BundleRef, outcome: Transient | Permanent) -> None:
        """Record a failed attempt. `_save` makes it durable."""
        undelivered = self._of(root)
        if self._stats is not None:
            kind: FailureType = "data" if isinstance(outcome, Permanent) else "processor"
            self._stats.failed(kind, f"bundle {ref}: {outcome}")
        undelivered.settle(ref, outcome, content=lambda: read_if_readable(REAL_FILES, root, ref))

    def _save(self) -> None:
        for root, undelivered in list(self._stores.items()):
            undelivered.save()
            if not len(undelivered.retries):
                # Closed, since it is rarely needed, and the next instance in this process needs the files, too.
                undelivered.close()
                del self._stores[root]

    # ── individually ─────────────────────────────────────────────────────────────────────────────────

    def _turn(self) -> Finished | None:
        try:
            self.drain()
        except DeliveryHaltedError as halted:
            self.halted = halted
            return FINISHED
        except (QuiverError, OSError) as error:
            self._pause(f"the retry queue cannot be drained: {error}")
        finally:
            if self._is_closed:
                self._release()
        return None

    def _fail(self, died: WorkerDiedError) -> None:
        """Make the next batch fail: no queued bundle would be retried any more."""
        self.failed = StoreFailedError(f"exporter {self._subscriber}: {died}; start the query again")

    def drain(self) -> int:
        """
        Retry every bundle that is due, individually. Return how many left the queue.

        Raises:
            DeliveryHaltedError: the policy is to halt at one of them.
            OSError: the disk refused; nothing is lost.
        """
        left = 0
        due = [(root, entry.ref) for root, one in list(self._stores.items()) for entry in one.retries.due()]
        for root, ref in due:
            if not self.busy.acquire(timeout=DRAIN_EVERY_S):
                break  # a batch takes long, and `close` must not wait for it
            try:
                if self._is_closed or self.session is None or self._clock.monotonic() < self._not_before_s:
                    break
                if not self._is_due(root, ref):
                    continue  # another thread tried it in the meantime
                try:
                    self._retry(self.session, root, ref)
                    left += not self.has(root, ref)
                finally:
                    self._save()
            finally:
                self.busy.release()
        return left

    def _is_due(self, root: str, ref: BundleRef) -> bool:
        return self.has(root, ref) and self._stores[root].retries.wait_s(ref) <= 0

    def _retry(self, spark: SparkSession, root: str, ref: BundleRef) -> None:
        try:
            bundle = read_stored(REAL_FILES, root, ref)
        except BundleUnavailableError:
            self._of(root).resolved(ref)  # removed by policy
            return
        except CorruptionError as error:
            self._record(root, ref, outcome_of_error(error))
            return
        reason = undecodable(bundle)
        outcome = self._exported(spark, root, ref, bundle) if reason is None else Permanent("UNDECODABLE", reason)
        if outcome is not None:
            self._record(root, ref, outcome)

    def _exported(self, spark: SparkSession, root: str, ref: BundleRef, bundle: Bundle) -> Transient | None:
        """Export a bundle. Return the failure of its processors; a failure of the destination is not the bundle's."""
        if self._export is None:
            return None
        row = descriptor_of(root, ref, bundle)
        (name,) = individual_names(self._subscriber, [(root, ref)])
        try:
            self._export.export_one(spark, row, name)
        except Exception as failure:  # noqa: BLE001 - Spark, processors and sinks raise many kinds
            error = self._of_processors(spark, row)
            if error is not None and not is_environment_error(error):
                # A session that is stopped during the probe fails, too.
                return None if self._is_closed else Transient("PROCESSOR", describe_error(error))
            # The destination is down or full: that costs the bundle no attempt.
            description = describe_error(error or failure)
            why = f"bundle {ref} passes the processors, but cannot be exported: {description}"
            if self._stats is not None:
                self._stats.failed(failure_type(description), why)
            self._pause(why)
        else:
            self._of(root).resolved(ref)
        return None

    def _of_processors(self, spark: SparkSession, row: pa.Table) -> Exception | None:
        if self._export is None:
            return None
        try:
            self._export.probe(spark, row, views=Descriptors(row).views)
        except Exception as error:  # noqa: BLE001 - processors raise many kinds
            return error
        return None

    def _pause(self, why: str) -> None:
        self._not_before_s = self._clock.monotonic() + self._policy.max_interval_s
        _log.warning(
            "quiver.spark.held_wait subscriber=%s wait_s=%g reason=%s",
            self._subscriber,
            self._policy.max_interval_s,
            why,
        )

    def close(self) -> None:
        """
        Stop retrying, and release the retry sets and dead letters. Idempotent. Stop the query first.

        `close` waits only briefly for a bundle that is being exported. Until that ends, the next instance of the
        exporter is refused the retry sets: two would export the bundle at the same time, and each would remove what
        the other has written so far.
        """
        self._is_closed = True
        if self._worker.stop(CLOSE_S):
            self._release()
        # Otherwise the thread releases them itself, when its turn ends.

    def _release(self) -> None:
        with self._guard:
            stores, self._stores = self._stores, {}
        for undelivered in stores.values():
            undelivered.close()
