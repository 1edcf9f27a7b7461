"""
A bundle that can never be decoded, in a batch of an exporter on Spark: set aside, so that the batch goes on without it.

::

    batch ─▶ exporter ─▶ fails ─▶ decode every bundle by itself ─▶ none is bad: the failure stands
                                                                └▶ dead letters, durably ─▶ exporter, without them

The common case costs nothing. What is bad is so by its bytes, so a batch that is run again leaves out the same bundles,
and each is one letter however often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver.bundle import BundleRef
from quiver.delivery.batches import read_stored
from quiver.delivery.policy import GiveUp, Permanent, RetryPolicy
from quiver.delivery.undelivered import Undelivered
from quiver.errors import DeliveryHalted, StoreFailed
from quiver.observe import Observer
from quiver.otap import VIEWS, decode_groups, stored_requests
from quiver.primitives.real_files import REAL_FILES
from quiver.spark.bundles import open_bundles_at
from quiver.spark.segments import store_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from quiver.delivery.dead_letters import DeadLetters

__all__ = ["ExportBatch", "LettersOf", "PoisonSieve", "bad_bundles"]

_FOUND = "path string, segment bigint, `index` bigint, reason string"
_FOUND_ARROW = pa.schema(
    [("path", pa.string()), ("segment", pa.int64()), ("index", pa.int64()), ("reason", pa.string())]
)

ExportBatch = Callable[["DataFrame", int], None]

LettersOf = Callable[[str, str], "DeadLetters"]
"""The directory of a store and a subscriber → its dead letters; the class is one. Handed in: it brings the engine."""


def bad_bundles(descriptors: Iterable[pa.RecordBatch], *, fail_on_data_loss: bool = True) -> Iterator[pa.RecordBatch]:
    """
    Yield, for each bundle that *descriptors* describe and that holds what cannot be decoded, where it is and why. Runs
    in tasks.

    Args:
        descriptors: path, segment and index of each.
        fail_on_data_loss: False passes over what is gone or damaged, as the export does then.

    Raises:
        DataLoss: a segment is gone.
        Damaged: a segment is not what was written, which is not the bundle's fault.
    """
    for path, ref, bundle in open_bundles_at(descriptors, fail_on_data_loss=fail_on_data_loss):
        reason = next(
            (
                f"a request for {view} cannot be decoded: {why}"
                for view in VIEWS
                for group in decode_groups(stored_requests(bundle.batches, view), view)
                for _, why in group.bad
            ),
            None,
        )
        if reason is not None:
            row = {"path": path, "segment": ref.segment, "index": ref.index, "reason": reason}
            yield pa.RecordBatch.from_pylist([row], schema=_FOUND_ARROW)


@dataclass(frozen=True)
class _Bad:
    path: str
    ref: BundleRef
    reason: str


class PoisonSieve:
    """
    Wraps what exports a batch of a `bundles` query. Pass the result to ``foreachBatch``.

    Args:
        export: takes a batch and its number; a batch without what is bad is exported under the same number.
        subscriber: the exporter: whose dead letters these are.
        policy: what becomes of a bad bundle; only `on_exhausted` counts, since nothing is gained by trying again.
        letters: makes the dead letters, if the policy wants any: `quiver.delivery.dead_letters.DeadLetters`.
        fail_on_data_loss: as the query has it.
        observer: takes counts and events.
    """

    def __init__(
        self,
        export: ExportBatch,
        subscriber: str,
        policy: RetryPolicy,
        *,
        letters: LettersOf | None = None,
        fail_on_data_loss: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self._export = export
        self._subscriber = subscriber
        self._policy = policy
        self._letters = letters
        self._fail = fail_on_data_loss
        self._observer = observer
        self._stores: dict[str, Undelivered] = {}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """
        Export one batch, or what is good of it; what is bad is set aside, durably, before the rest is exported.

        Raises:
            DeliveryHalted: the policy says to stop at a bad bundle.
            StoreFailed: a letter could not be written: the batch is tried again.
        """
        try:
            self._export(batch, batch_id)
        except Exception:
            bad = self._find(batch)
            if not bad:
                raise
            try:
                for one in bad:
                    self._set_aside(one)
            finally:
                # Not kept open: it is rare, and the next life of this query, in this process, needs them too.
                self._close()
            self._export(_without(batch, bad), batch_id)

    def _find(self, batch: DataFrame) -> list[_Bad]:
        find = partial(bad_bundles, fail_on_data_loss=self._fail)
        rows = batch.select("path", "segment", "index").mapInArrow(find, _FOUND).collect()
        return [_Bad(row["path"], BundleRef(row["segment"], row["index"]), row["reason"]) for row in rows]

    def _set_aside(self, bad: _Bad) -> None:
        root = store_root(bad.path)
        verdict = self._of(root).failed(
            bad.ref, Permanent("UNDECODABLE", bad.reason), content=lambda: read_stored(REAL_FILES, root, bad.ref)
        )
        if not isinstance(verdict, GiveUp):
            raise StoreFailed(f"{self._subscriber}: the dead letter of bundle {bad.ref} could not be written")
        if verdict.how == "halt":
            raise DeliveryHalted(self._subscriber, str(bad.ref), verdict.reason)

    def _of(self, root: str) -> Undelivered:
        if root not in self._stores:
            letters = None
            if self._letters is not None and self._policy.on_exhausted == "dead_letter":
                letters = self._letters(root, self._subscriber)
            self._stores[root] = Undelivered(self._subscriber, self._policy, letters=letters, observer=self._observer)
        return self._stores[root]

    def _close(self) -> None:
        for one in self._stores.values():
            one.close()
        self._stores.clear()


def _without(batch: DataFrame, bad: Iterable[_Bad]) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    name: Any = f.concat_ws(":", f.col("path"), f.col("segment"), f.col("index"))
    return batch.where(~name.isin([f"{one.path}:{one.ref}" for one in bad]))
