"""
Bundles that fail an exporter on Spark: found, and set aside, so that their batch goes on without them.

::

    batch ─▶ exporter ─▶ fails ─▶ decode every bundle by itself ─▶ bad: a dead letter, durably
                                  process halves of the others, and halves of those that fail ─▶ held (`retry_queue.py`)
                                  │                                             then ─▶ exporter, without them
                                  └▶ none: what fails is the exporter, and the batch with it

The common case costs nothing. What cannot be decoded is so by its bytes, and tried once. What a processor fails on may
pass later, because somebody mended the processor or what it asks: it is tried again as the policy says. A chain that
fails without any bundle is broken itself: then the batch waits.
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
from quiver.observe import Observer
from quiver.primitives.disk.real_files import REAL_FILES
from quiver.spark.bundles import open_bundles_at
from quiver.spark.exporters.retry_queue import (
    BundleExport,
    HeldExports,
    LettersOf,
    blames_nobody,
    names_apart,
    told,
    undecodable,
)
from quiver.spark.processors.bisect import isolate
from quiver.spark.tables import Descriptors
from quiver.store.reading.segments import store_root, store_roots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quiver.delivery.exporter_stats import ExporterStats

__all__ = ["ExportBatch", "LettersOf", "PoisonSieve", "bad_bundles"]

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
    Yield, for each bundle that *descriptors* describe and that holds what cannot be decoded, where it is and why. Runs
    in tasks.

    Args:
        descriptors: path, segment and index of each.
        fail_on_data_loss: False passes over what is gone or damaged, as the export does then.

    Raises:
        DataLossError: a segment is gone.
        CorruptionError: a segment is not what was written, which is not the bundle's fault.
    """
    for path, ref, bundle in open_bundles_at(descriptors, fail_on_data_loss=fail_on_data_loss):
        reason = undecodable(bundle)
        if reason is not None:
            row = {"path": path, "segment": ref.segment, "index": ref.index, "reason": reason}
            yield pa.RecordBatch.from_pylist([row], schema=_FOUND_ARROW)


class PoisonSieve:
    """
    Wraps what exports a batch of a `bundles` query. Pass the result to ``foreachBatch``. A context manager.

    It holds what a processor fails on, and tries it again in a thread of its own: `close` it when the query has
    stopped, and before another one of the same exporter is made in this process.

    Args:
        export: takes a batch and its number; a batch without what is set aside is exported under the same number. Of a
            plain function only the bundles that cannot be decoded are set aside.
        subscriber: the exporter: whose dead letters these are.
        policy: what becomes of a bundle that is set aside: how often and how long it is tried again
            (`quiver.delivery.policy.PROCESSOR_ATTEMPTS` where it says neither), and what then.
        letters: makes the dead letters, if the policy wants any: `quiver.delivery.dead_letters.DeadLetters`.
        fail_on_data_loss: as the query has it.
        store_path: the store: what an earlier life of this exporter held is gone on with. Without it that waits.
        spark: where bundles are tried again before the first batch comes.
        clock: when the next attempt of a bundle is due.
        observer: takes counts and events.
        background: try again in a thread; without it the caller drives `drain`.
        stats: takes the failures of bundles; those of the query its caller sees.

    Raises:
        DirectoryInUseError: another one holds bundles for this exporter.
        UsageError: there is no store, or the policy is to keep dead letters and there is no place for them.
        OSError: the disk refused.
    """

    def __init__(
        self,
        export: ExportBatch,
        subscriber: str,
        policy: RetryPolicy,
        *,
        letters: LettersOf | None = None,
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
        self._held = HeldExports(
            subscriber,
            policy.for_processors(),
            export=self._by_bundle,
            letters=letters,
            clock=clock,
            observer=observer,
            background=background,
            stats=stats,
        )
        # A session of its own: the tables that queries name are then those of one bundle.
        self._held.session = None if spark is None else spark.newSession()
        try:
            for root in () if store_path is None else store_roots(REAL_FILES, store_path).values():
                self._held.take_up(root)
        except BaseException:
            self.close()
            raise

    @property
    def halted(self) -> DeliveryHaltedError | None:
        """Why no batch is taken any more, where the policy says to stop at a bundle and one was tried in vain."""
        return self._held.halted

    @property
    def failed(self) -> StoreFailedError | None:
        """
        Why no batch is taken any more, when the thread that tries bundles again has died: the query must start
        again.
        """
        return self._held.failed

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch, or what is good of it; what is not is set aside, durably, before the rest is exported.

        Raises:
            DeliveryHaltedError: the policy says to stop at a bundle.
            StoreFailedError: the thread that tries bundles again has died.
            CapacityError: so much is held that this batch may not be passed: it is tried again.
            OSError: the disk refused: the batch is tried again.
        """
        if self._held.halted is not None:
            raise self._held.halted
        if self._held.failed is not None:
            raise self._held.failed
        try:
            with self._held.busy:
                self._held.session = batch.sparkSession
                self._one(batch, batch_id)
        except DeliveryHaltedError as halted:
            self._held.halted = halted
            self.close()
            raise

    def _one(self, batch: DataFrame, batch_id: int) -> None:
        wanted = self._wanted(batch)
        try:
            self._export(wanted, batch_id)
        except TransientError:
            raise  # the exporter says itself that it is not a bundle's fault
        except Exception as failure:
            failed = self._failed(wanted, failure)
            if not failed:
                raise
            self._held.set_aside(failed)
            self._export(_without(wanted, failed.keys()), batch_id)
        self._is_first = False

    def _wanted(self, batch: DataFrame) -> DataFrame:
        """Return the batch without what is held, and without what was exported by itself."""
        if self._held.is_empty and not self._is_first:
            return batch
        places = _places(batch.select("path", "segment", "index").toArrow())
        passed = {place for place in places if self._held.has(*place)}
        # Only a batch that was cut short in an earlier life can hold what was tried by itself after that.
        if self._is_first and self._by_bundle is not None:
            names = names_apart(self._subscriber, places)
            passed |= {names[name] for name in self._by_bundle.exported_apart(set(names))}
        return _without(batch, passed) if passed else batch

    def _failed(self, batch: DataFrame, failure: Exception) -> dict[_Place, Transient | Permanent]:
        """Return the bundles because of which *batch* failed; none when it was something else."""
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
        for at, why in isolate(good, probe, reason=reason):
            failed[places[at]] = Transient("PROCESSOR", why)
        return failed

    def drain(self) -> int:
        """
        Try what is held and due once more, now; return how many bundles are held no more.

        Raises:
            DeliveryHaltedError: the policy says to stop at one of them.
            OSError: the disk refused; nothing is lost.
        """
        return self._held.drain()

    def close(self) -> None:
        """Try nothing again any more, and let go of retry sets and dead letters. Idempotent. Stop the query first."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class _Probe:
    """Says why processors fail on some of the bundles of a batch."""

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
            if blames_nobody(error):
                raise
            return told(error)
        return None


def _places(descriptors: pa.Table) -> list[_Place]:
    columns = (descriptors.column(name).to_pylist() for name in ("path", "segment", "index"))
    return [(store_root(path), BundleRef(segment, index)) for path, segment, index in zip(*columns, strict=True)]


def _without(batch: DataFrame, places: Iterable[_Place]) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    root = f.regexp_replace(f.col("path"), "/[^/]*/[^/]*$", "")
    name: Any = f.concat_ws(":", root, f.col("segment"), f.col("index"))
    return batch.where(~name.isin([f"{root}:{ref}" for root, ref in places]))
