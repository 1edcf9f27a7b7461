"""
A query that delivers single bundles to a custom destination, with retries, dead letters and a position.

::

    batch ─▶ in the driver, concurrently: deliver(bundle, batch id) ─▶ settled ─▶ committed
                                                                       │
    drain thread ◀── failed bundles that are due ◀── retry set ◀───────┘

A batch has only descriptors. The driver reads the bundles from the segments and sends them. Offsets move past a bundle
that fails, and its segment stays (`quiver.delivery`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quiver.bundle import Bundle, BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.batches import BatchDelivery
from quiver.delivery.policy import Outcome, RetryPolicy
from quiver.errors import DeliveryHaltedError, ObjectsUnavailableError, StoreFailedError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.spark.bundle_query import start_bundle_query
from quiver.spark.exporters.retry_queue import MakeDeadLetters, open_undelivered
from quiver.store.reading.segments import store_identity, store_root, store_roots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["BundleDelivery", "Deliver", "start_delivery"]

DRAIN_EVERY_S = 0.5

Deliver = Callable[[Bundle, str], Outcome]
"""
Sends one bundle. The string is its batch id, which stays the same in every attempt. Called from several threads.
"""

_log = logging.getLogger("quiver")


class BundleDelivery:
    """
    Delivers each batch of a `bundles` query, and retries failed bundles in a thread. Pass it to ``foreachBatch``.

    A context manager.

    Args:
        store_path: the store that the bundles come from, with one core or several.
        subscriber: the subscriber of the query.
        deliver: sends one bundle; `quiver.delivery.policy.outcome_of_error` classifies an exception.
        policy: the retry policy.
        letters: makes the dead letters, if the policy wants any: `quiver.delivery.dead_letters.DeadLetters`.
        in_flight_max: how many bundles of a batch are sent concurrently.
        clock: measures when the next attempt of a bundle is due.
        observer: receives counts and events.

    Raises:
        UsageError: the policy is to keep dead letters, and *letters* is None.
        DirectoryInUseError: another process delivers for this subscriber.
        OSError: the disk refused.
    """

    def __init__(
        self,
        store_path: str,
        subscriber: str,
        deliver: Deliver,
        *,
        policy: RetryPolicy | None = None,
        letters: MakeDeadLetters | None = None,
        in_flight_max: int = 4,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        self._subscriber = subscriber
        self._deliver = deliver
        self._policy = policy or RetryPolicy(on_exhausted="drop" if letters is None else "dead_letter")
        self._letters = letters
        self._in_flight_max = in_flight_max
        self._clock = clock
        self._observer = observer
        self._halted: DeliveryHaltedError | None = None
        self._failed: StoreFailedError | None = None
        self._stores: dict[str, BatchDelivery] = {}
        self._identities: dict[str, str] = {}
        # A daemon thread: a crash may interrupt it at any point.
        self._worker = Worker(
            f"quiver-drain {subscriber}", self._drain, every=DRAIN_EVERY_S, on_death=self._fail, clock=clock,
            observer=observer or InMemoryObserver(),
        )  # fmt: skip
        try:
            for root in store_roots(REAL_FILES, str(Path(store_path).absolute())).values():
                self._stores[root] = self._open(root)
        except BaseException:
            self.close()
            raise
        self._worker.start()

    def _open(self, root: str) -> BatchDelivery:
        undelivered = open_undelivered(
            root, self._subscriber, self._policy, letters=self._letters, clock=self._clock, observer=self._observer
        )
        identity = self._identities[root] = store_identity(REAL_FILES, root)
        return BatchDelivery(
            REAL_FILES, root, undelivered, lambda ref, bundle: self._deliver(bundle, f"{identity}/{ref}")
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """
        Try every bundle of a batch once. On return the batch may be committed.

        Raises:
            DeliveryHaltedError: the policy is to halt at a bundle.
            StoreFailedError: the thread that retries bundles died.
            CapacityError: the retry set is full, so the batch must not be committed.
            OSError: the disk refused.
        """
        self.deliver(
            (row["path"], row["segment"], row["index"])
            for row in batch.select("path", "segment", "index").toLocalIterator()
        )

    def deliver(self, descriptors: Iterable[tuple[str, int, int]]) -> None:
        """Do the same for the path, segment and index of each bundle."""
        if self._halted is not None:
            raise self._halted
        if self._failed is not None:
            raise self._failed
        of: dict[str, list[BundleRef]] = {}
        for path, segment, index in descriptors:
            of.setdefault(store_root(path), []).append(BundleRef(segment, index))
        for root, refs in of.items():
            self._try(self._store_at(root), refs)

    def _store_at(self, root: str) -> BatchDelivery:
        known = self._stores.get(root)
        if known is not None and self._identities[root] != store_identity(REAL_FILES, root):
            # A core that was removed and created again is another store, which reuses the bundle references.
            del self._stores[root]
            known.close()
        if root not in self._stores:
            self._stores[root] = self._open(root)  # a core that was added later
        return self._stores[root]

    def _try(self, store: BatchDelivery, refs: Iterable[BundleRef]) -> None:
        wanted = [ref for ref in refs if not store.is_waiting_for_retry(ref)]
        with ThreadPoolExecutor(self._in_flight_max, thread_name_prefix="quiver-deliver") as pool:
            outcomes = zip(wanted, pool.map(store.try_one, wanted), strict=True)
            store.settle((ref, outcome) for ref, outcome in outcomes if outcome is not None)

    def _drain(self) -> Finished | None:
        for store in list(self._stores.values()):
            try:
                store.drain()
            except DeliveryHaltedError as halted:
                self._halted = halted
                return FINISHED
            except (OSError, ObjectsUnavailableError) as error:
                _log.warning("quiver.spark.drain_failed subscriber=%s error=%s", self._subscriber, error)
        return None

    def _fail(self, died: WorkerDiedError) -> None:
        """Make the next batch fail: no failed bundle would be retried any more."""
        self._failed = StoreFailedError(f"exporter {self._subscriber}: {died}; start the query again")

    def close(self) -> None:
        """Stop draining, and release the retry sets and dead letters. Idempotent. Stop the query first."""
        self._worker.stop()
        for store in self._stores.values():
            store.close()
        self._stores.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def start_delivery(
    spark: SparkSession,
    store_path: str,
    delivery: BundleDelivery,
    subscriber: str,
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """
    Start a query that delivers with *delivery*. Stop the query before you close *delivery*.

    Args:
        spark: a session, such as `quiver.spark.session()` gives.
        store_path: the store's directory; a writer may have it open.
        delivery: created for the same store and subscriber.
        subscriber: at most one live query each. A new one starts at the earliest bundle.
        checkpoint: the directory of the query's checkpoint.
        trigger: as for `DataStreamWriter.trigger` (default: 1 second), or ``{"availableNow": True}``.
        options: more options of the source: limits per trigger, failOnDataLoss, startingOffsets.
    """
    return start_bundle_query(
        spark, store_path, subscriber, delivery, checkpoint=checkpoint, trigger=trigger, options=dict(options or {})
    )
