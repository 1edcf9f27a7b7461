"""
Find the bundles that make an exporter on Spark fail, and export their batch without them.

::

    batch ─▶ exporter ─▶ fails ─▶ decode each bundle ─▶ undecodable: a dead letter, durably
                                  bisect the others: run the processors on halves ─▶ failing: retry queue
                                  │                                             then ─▶ exporter, without them
                                  └▶ no bundle is at fault: the exporter fails, and the batch with it

A batch that does not fail costs nothing extra. A bundle that cannot be decoded never will be, so it is tried once. A
bundle that a processor fails on may pass later, after the processor or a service it calls was repaired, so the policy
decides how often it is retried. A chain that fails without any bundle is broken itself: then the batch waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from quiver.bundle import BundleRef
from quiver.clock import SYSTEM_CLOCK, Clock
from quiver.delivery.policy import Permanent, RetryPolicy, Transient
from quiver.errors import DeliveryHaltedError, StoreFailedError, TransientError
from quiver.invariant import invariant
from quiver.observe import Observer
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.bundles import open_bundles_at
from quiver.spark.exporters.retry_queue import (
    BundleExport,
    MakeDeadLetters,
    RetryQueue,
    individual_names,
    undecodable,
)
from quiver.spark.exporters.spark_errors import describe_error, is_environment_error
from quiver.spark.processors.bisect import bisect
from quiver.spark.tables import Descriptors
from quiver.store.reading.segments import store_root, store_roots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quiver.delivery.exporter_stats import ExporterStats

__all__ = ["BadBundleFilter", "ExportBatch", "MakeDeadLetters", "bad_bundles"]

_DESCRIPTOR = ("path", "segment", "index", "slots")
_FOUND = "path string, segment bigint, `index` bigint, reason string"
_FOUND_ARROW = pa.schema(
    [("path", pa.string()), ("segment", pa.int64()), ("index", pa.int64()), ("reason", pa.string())]
)

ExportBatch = Callable[["DataFrame", int], None]

_Place = tuple[str, BundleRef]
"""The directory of a store, and a bundle in it."""


def bad_bundles(descriptors: Iterable[pa.RecordBatch], *, fail_on_data_loss: bool = True) -> Iterator[pa.RecordBatch]:
    """
    Yield the place of each bundle that cannot be decoded, and why. Runs in tasks.

    Args:
        descriptors: path, segment and index of each bundle.
        fail_on_data_loss: False skips bundles that are missing or damaged, as the export does then.

    Raises:
        DataLossError: a segment is missing.
        CorruptionError: a segment is damaged, which is not the bundle's fault.
    """
    for path, ref, bundle in open_bundles_at(descriptors, fail_on_data_loss=fail_on_data_loss):
        reason = undecodable(bundle)
        if reason is not None:
            row = {"path": path, "segment": ref.segment, "index": ref.index, "reason": reason}
            yield pa.RecordBatch.from_pylist([row], schema=_FOUND_ARROW)


class BadBundleFilter:
    """
    Wraps the exporter of a `bundles` query. Pass it to ``foreachBatch``. A context manager.

    It queues the bundles that a processor fails on, and retries them in a thread. `close` it when the query has
    stopped, and before creating another one for the same exporter in this process.

    Args:
        export: takes a batch and its number. The batch without bad bundles is exported under the same number. With a
            plain function, only bundles that cannot be decoded are removed.
        subscriber: the exporter, which owns the dead letters.
        policy: the retry policy of queued bundles. `quiver.delivery.policy.PROCESSOR_ATTEMPTS` applies where it
            limits neither attempts nor time.
        letters: makes the dead letters, if the policy wants any: `quiver.delivery.dead_letters.DeadLetters`.
        fail_on_data_loss: the same as for the query.
        store_path: the store whose queued bundles are resumed immediately. None resumes them later.
        spark: the session for retries before the first batch.
        clock: measures when the next attempt of a bundle is due.
        observer: receives counts and events.
        background: retry in a thread; without it the caller calls `drain`.
        stats: receives the failures of bundles. The caller records those of the query.

    Raises:
        DirectoryInUseError: another process has the retry queue of this exporter.
        UsageError: there is no store, or the policy is to keep dead letters and *letters* is None.
        OSError: the disk refused.
    """

    def __init__(
        self,
        export: ExportBatch,
        subscriber: str,
        policy: RetryPolicy,
        *,
        letters: MakeDeadLetters | None = None,
        fail_on_data_loss: bool = True,
        store_path: str | None = None,
        spark: SparkSession | None = None,
        clock: Clock = SYSTEM_CLOCK,
        observer: Observer | None = None,
        background: bool = True,
        stats: ExporterStats | None = None,
    ) -> None:
        self._export = export
        self._by_bundle = export if isinstance(export, BundleExport) else None
        self._subscriber = subscriber
        self._fail = fail_on_data_loss
        self._is_first = True
        self._queue = RetryQueue(
            subscriber,
            policy.for_processors(),
            export=self._by_bundle,
            letters=letters,
            clock=clock,
            observer=observer,
            background=background,
            stats=stats,
        )
        # A separate session: the tables that queries name there are those of one bundle.
        self._queue.session = None if spark is None else spark.newSession()
        try:
            for root in () if store_path is None else store_roots(REAL_FILES, store_path).values():
                self._queue.resume(root)
        except BaseException:
            self.close()
            raise

    @property
    def halted(self) -> DeliveryHaltedError | None:
        """Set when the policy halted delivery at a bundle: no batch is exported any more."""
        return self._queue.halted

    @property
    def failed(self) -> StoreFailedError | None:
        """Set when the thread that retries bundles died: no batch is exported until the query is restarted."""
        return self._queue.failed

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch. If it fails, queue its bad bundles durably and export the rest.

        Raises:
            DeliveryHaltedError: the policy is to halt at a bundle.
            StoreFailedError: the thread that retries bundles died.
            CapacityError: the retry queue is full. The batch must not be committed; Spark tries it again.
            OSError: the disk refused. Spark tries the batch again.
        """
        if self._queue.halted is not None:
            raise self._queue.halted
        if self._queue.failed is not None:
            raise self._queue.failed
        try:
            with self._queue.busy:
                self._queue.session = batch.sparkSession
                self._one(batch, batch_id)
        except DeliveryHaltedError as halted:
            self._queue.halted = halted
            self.close()
            raise

    def _one(self, batch: DataFrame, batch_id: int) -> None:
        wanted = self._wanted(batch)
        try:
            self._export(wanted, batch_id)
        except TransientError:
            raise  # the exporter knows that no bundle is at fault
        except Exception as failure:
            failed = self._failed(wanted, failure)
            if not failed:
                raise
            self._queue.add(failed)
            invariant(self._queue.is_saved, "a batch is exported without its failed bundles only after they are queued")
            self._export(_without(wanted, failed.keys()), batch_id)
        self._is_first = False

    def _wanted(self, batch: DataFrame) -> DataFrame:
        """Return the batch without bundles that are queued or were exported individually."""
        if self._queue.is_empty and not self._is_first:
            return batch
        places = _places(batch.select("path", "segment", "index").toArrow())
        passed = {place for place in places if self._queue.has(*place)}
        # Only the first batch after a restart can be a repetition, with bundles that were exported individually since.
        if self._is_first and self._by_bundle is not None:
            names = individual_names(self._subscriber, places)
            passed |= {names[name] for name in self._by_bundle.exported_individually(set(names))}
        return _without(batch, passed) if passed else batch

    def _failed(self, batch: DataFrame, failure: Exception) -> dict[_Place, Transient | Permanent]:
        """Return the bundles that made *batch* fail; none if the cause is something else."""
        find = partial(bad_bundles, fail_on_data_loss=self._fail)
        rows = batch.select("path", "segment", "index").mapInArrow(find, _FOUND).collect()
        failed: dict[_Place, Transient | Permanent] = {
            (store_root(row["path"]), BundleRef(row["segment"], row["index"])): Permanent("UNDECODABLE", row["reason"])
            for row in rows
        }
        if self._by_bundle is None:
            return failed
        bundles = batch.select(*_DESCRIPTOR).toArrow()
        places = _places(bundles)
        good = [at for at, place in enumerate(places) if place not in failed]
        probe = _Probe(batch.sparkSession, self._by_bundle, bundles)
        reason = probe(good)
        if reason is None:
            return failed
        if probe(()) is not None:
            raise failure
        for at, why in bisect(good, probe, reason=reason):
            failed[places[at]] = Transient("PROCESSOR", why)
        return failed

    def drain(self) -> int:
        """
        Retry the queued bundles that are due. Return how many left the queue.

        Raises:
            DeliveryHaltedError: the policy is to halt at one of them.
            OSError: the disk refused; nothing is lost.
        """
        return self._queue.drain()

    def close(self) -> None:
        """Stop retrying, and release the retry sets and dead letters. Idempotent. Stop the query first."""
        self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _Probe:
    """Runs the processors on some bundles of a batch, and returns why they fail."""

    def __init__(self, spark: SparkSession, export: BundleExport, bundles: pa.Table) -> None:
        self._spark = spark
        self._export = export
        self._bundles = bundles
        self._views: AbstractSet[str] = Descriptors(bundles).views

    def __call__(self, chosen: Sequence[int]) -> str | None:
        bundles = self._bundles.take(pa.array(chosen, pa.int64()))
        try:
            self._export.probe(self._spark, bundles, views=self._views)
        except Exception as error:
            if is_environment_error(error):
                raise
            return describe_error(error)
        return None


def _places(descriptors: pa.Table) -> list[_Place]:
    columns = (descriptors.column(name).to_pylist() for name in ("path", "segment", "index"))
    return [(store_root(path), BundleRef(segment, index)) for path, segment, index in zip(*columns, strict=True)]


def _without(batch: DataFrame, places: Iterable[_Place]) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    root = f.regexp_replace(f.col("path"), "/[^/]*/[^/]*$", "")
    name: Any = f.concat_ws(":", root, f.col("segment"), f.col("index"))
    return batch.where(~name.isin([f"{root}:{ref}" for root, ref in places]))
