"""
A query that delivers bundle by bundle to a far side of one's own: with retries, dead letters and a position.

::

    batch ─▶ in the driver, several at once: deliver(bundle, batch id) ─▶ settled ─▶ committed
                                                                          │
    drain thread ◀── what failed, when its time has come ◀── retry set ◀──┘

Only descriptors come with the batch; the bundles are read from the segments where they are sent. Offsets move on
behind a bundle that fails, and its segment stays (`quiver.delivery`).
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
from quiver.delivery.undelivered import Undelivered
from quiver.errors import DeliveryHaltedError, ObjectsUnavailableError, StoreFailedError
from quiver.observe import InMemoryObserver, Observer
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.primitives.worker import FINISHED, Finished, Worker, WorkerDiedError
from quiver.spark.bundle_query import start_bundle_query
from quiver.spark.exporters.retry_queue import LettersOf, unresolved_bundles
from quiver.store.reading.segments import store_identity, store_root, store_roots
from quiver.store.subscribers.retry_set import RetrySet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["BundleDelivery", "Deliver", "start_delivery"]

DRAIN_EVERY_S = 0.5

Deliver = Callable[[Bundle, str], Outcome]
"""
Sends one bundle. The string is its batch id, the same whenever this bundle is sent again. Called from several threads.
"""

_log = logging.getLogger("quiver")


class BundleDelivery:
    """
    Delivers each batch of a `bundles` query, and drains what failed in a thread of its own. Pass it to
    ``foreachBatch``. A context manager.

    Args:
        store_path: the store that the bundles come from, with cores or without.
        subscriber: as whom the query reads.
        deliver: sends one bundle; an exception counts as `quiver.delivery.policy.outcome_of_error` says.
        policy: how often, how long, and what then.
        letters: makes the dead letters, if the policy wants any: `quiver.delivery.dead_letters.DeadLetters`.
        in_flight_max: bundles of a batch being sent at once.
        clock: when the next attempt of a bundle is due.
        observer: takes counts and events.

    Raises:
        UsageError: the policy is to keep dead letters, and there is no place for them.
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
        letters: LettersOf | None = None,
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
        # A daemon: it is in the middle of nothing that a crash could not interrupt.
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
        letters = None
        if self._letters is not None and self._policy.on_exhausted == "dead_letter":
            letters = self._letters(root, self._subscriber)
        undelivered = Undelivered(
            self._subscriber,
            self._policy,
            retries=RetrySet.open(
                REAL_FILES,
                root,
                self._subscriber,
                unresolved=lambda: unresolved_bundles(root, self._subscriber),
                clock=self._clock,
            ),
            letters=letters,
            clock=self._clock,
            observer=self._observer,
        )
        identity = self._identities[root] = store_identity(REAL_FILES, root)
        return BatchDelivery(
            REAL_FILES, root, undelivered, lambda ref, bundle: self._deliver(bundle, f"{identity}/{ref}")
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        """
        Try every bundle of a batch once; on return the batch may be committed.

        Raises:
            DeliveryHaltedError: the policy says to stop at a bundle.
            StoreFailedError: the thread that tries bundles again has died.
            CapacityError: so many bundles wait already that this one may not be passed over.
            OSError: the disk refused.
        """
        self.deliver(
            (row["path"], row["segment"], row["index"])
            for row in batch.select("path", "segment", "index").toLocalIterator()
        )

    def deliver(self, descriptors: Iterable[tuple[str, int, int]]) -> None:
        """The same for path, segment and index of each bundle."""
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
            # A core that went and came back is another store, whose bundles have the places of the old one's.
            del self._stores[root]
            known.close()
        if root not in self._stores:
            self._stores[root] = self._open(root)  # a core that came later
        return self._stores[root]

    def _try(self, store: BatchDelivery, refs: Iterable[BundleRef]) -> None:
        wanted = [ref for ref in refs if not store.is_held(ref)]
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
        """Let the next batch fail: nothing that failed before would be tried again."""
        self._failed = StoreFailedError(f"exporter {self._subscriber}: {died}; start the query again")

    def close(self) -> None:
        """Stop draining, and let go of the retry sets and dead letters. Idempotent. Stop the query first."""
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
    Start a query that delivers with *delivery*; return it. Stop it before *delivery* is closed.

    Args:
        spark: a session, such as `quiver.spark.session()` gives.
        store_path: the store's directory; it may be in use by its writer.
        delivery: made for the same store and subscriber.
        subscriber: one live query each. A new one starts at the earliest bundle.
        checkpoint: directory of the query's own notes.
        trigger: as `DataStreamWriter.trigger` takes it (default: 1 second), or ``{"availableNow": True}``.
        options: more options of the source: limits per trigger, failOnDataLoss, startingOffsets.
    """
    return start_bundle_query(
        spark, store_path, subscriber, delivery, checkpoint=checkpoint, trigger=trigger, options=dict(options or {})
    )
