"""
A batch of descriptors → one frame for each signal in it, decoded in the tasks.

The driver collects the descriptors, which are small. So it knows the contents of the batch before anything is decoded:
which signals it has, and the last bundle of each store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from quiver.bundle import BundleRef
from quiver.errors import CorruptionError
from quiver.otap import VIEWS, decode_groups, slots_of_view, view_schema
from quiver.otap.stored import StoredTables, stored_requests
from quiver.primitives.scan import Damage
from quiver.spark.bundles import open_bundles_at
from quiver.spark.spark_features import from_arrow_schema
from quiver.store.reading.offsets import STORE_UNKNOWN
from quiver.store.reading.segments import store_root
from quiver.store.segment.cast import cast_to_schema, coalesce

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Descriptors", "ViewInput", "column_named", "tables_of", "view_inputs"]

_log = logging.getLogger("quiver")


def column_named(name: str) -> Column:
    """Return the column called *name*, with any characters in it: `service.name` is not a field of `service`."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - in the driver only

    return f.col(f"`{name.replace('`', '``')}`")


@dataclass(frozen=True)
class Descriptors:
    """
    The bundles of one batch.

    Attributes:
        table: a row per bundle: path, segment, index, slots.
    """

    table: pa.Table

    @classmethod
    def of(cls, batch: DataFrame) -> Descriptors:
        """Collect the descriptors of a frame of mode `bundles`."""
        return cls(batch.select("path", "segment", "index", "slots").toArrow())

    def after(self, exported_through: Mapping[str, BundleRef]) -> Descriptors:
        """Return those after the position that was exported before, per directory of a store."""
        if not exported_through:
            return self
        columns = (self.table.column(name).to_pylist() for name in ("path", "segment", "index"))
        wanted = [
            BundleRef(segment, index) >= exported_through.get(store_root(path), BundleRef(0, 0))
            for path, segment, index in zip(*columns, strict=True)
        ]
        return Descriptors(self.table.filter(pa.array(wanted, pa.bool_())))

    def through(self, identities: Mapping[str, str]) -> dict[str, BundleRef]:
        """Return the position after the last bundle of each store, by identity. *identities* are by directory."""
        reached: dict[str, BundleRef] = {}
        columns = (self.table.column(name).to_pylist() for name in ("path", "segment", "index"))
        for path, segment, index in zip(*columns, strict=True):
            store = identities.get(store_root(path), STORE_UNKNOWN)
            position = BundleRef(segment, index + 1)
            reached[store] = max(reached.get(store, position), position)
        return reached

    @cached_property
    def views(self) -> set[str]:
        """The views that they have data of."""
        return {view for view in VIEWS if self.with_slots(slots_of_view(view)).num_rows}

    def with_slots(self, slots: Iterable[int]) -> pa.Table:
        """Return those that have one of *slots*."""
        wanted = set(slots)
        has = [bool(wanted.intersection(found or ())) for found in self.table.column("slots").to_pylist()]
        return self.table.filter(pa.array(has, pa.bool_()))


def tables_of(
    spark: SparkSession,
    descriptors: Descriptors,
    *,
    also: Collection[str] = (),
    only: Collection[str] | None = None,
    fail_on_data_loss: bool = True,
    skip_undecodable: bool = False,
) -> dict[str, DataFrame]:
    """
    Return a frame for each view that the bundles have data of. Nothing is decoded before a frame is used.

    Slots that do not belong to a signal are ignored.

    Args:
        spark: the session of the batch.
        descriptors: of the batch.
        also: views to return even if the bundles have no data of them, with a frame without rows.
        only: the views to return at most; None for all.
        fail_on_data_loss: False skips missing or damaged bundles, with a warning.
        skip_undecodable: skip requests that cannot be decoded, with a warning.
    """
    inputs = view_inputs(
        spark,
        descriptors,
        also=also,
        only=only,
        fail_on_data_loss=fail_on_data_loss,
        skip_undecodable=skip_undecodable,
    )
    return {view: one.frame for view, one in inputs.items()}


@dataclass(frozen=True)
class ViewInput:
    """
    A view of the bundles of a batch that is not decoded yet.

    Attributes:
        descriptors: a row per bundle.
        decode: applied in a task, turns descriptors into rows; can be pickled.
        schema: the columns of the rows.
    """

    descriptors: DataFrame
    decode: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    schema: pa.Schema

    @property
    def frame(self) -> DataFrame:
        """The rows."""
        return self.descriptors.mapInArrow(self.decode, from_arrow_schema(self.schema))


def view_inputs(
    spark: SparkSession,
    descriptors: Descriptors,
    *,
    also: Collection[str] = (),
    only: Collection[str] | None = None,
    fail_on_data_loss: bool = True,
    skip_undecodable: bool = False,
) -> dict[str, ViewInput]:
    """Return the views that `tables_of` returns as frames, for a task that decodes them itself."""
    inputs = {}
    for view in VIEWS:
        if only is not None and view not in only:
            continue
        found = descriptors.with_slots(slots_of_view(view))
        if not found.num_rows and view not in also:
            continue
        frame = spark.createDataFrame(found.select(["path", "segment", "index"]))
        inputs[view] = ViewInput(frame, _ViewTask(view, fail_on_data_loss, skip_undecodable), view_schema(view))
    return inputs


@dataclass(frozen=True)
class _ViewTask:
    view: str
    fail_on_data_loss: bool
    skip_undecodable: bool

    def __call__(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = view_schema(self.view)
        yield from coalesce((None, cast_to_schema(batch, target)) for batch in self._rows(descriptors))

    def _rows(self, descriptors: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        origins: list[str] = []
        for group in decode_groups(self._requests(descriptors, origins), self.view):
            for index, reason in group.bad:
                problem = CorruptionError(origins[group.first + index], 0, f"a request cannot be decoded: {reason}")
                if not self.skip_undecodable:
                    raise problem
                _log.warning("quiver.spark.request_skipped reason=%s", problem)
            if group.batch.num_rows:
                yield group.batch

    def _requests(
        self, descriptors: Iterable[pa.RecordBatch], origins: list[str]
    ) -> Iterator[bytes | StoredTables | Damage]:
        for path, _, bundle in open_bundles_at(descriptors, fail_on_data_loss=self.fail_on_data_loss):
            for request in stored_requests(bundle.batches, self.view):
                origins.append(path)
                yield request
