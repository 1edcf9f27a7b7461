"""The interface of an exporter of tables, and the batch that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from quiver.bundle import BundleRef
from quiver.spark.exporters.exported import ExportedAmount

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from quiver.spark.tables import ViewInput

__all__ = ["BatchOf", "TableExporter", "Tables", "ViewExporter"]


Tables = Mapping[str, "DataFrame"]


@dataclass(frozen=True, slots=True)
class BatchOf:
    """
    A batch of a query, and its position in each store.

    Attributes:
        query: Spark's id of the query, which stays the same over restarts from one checkpoint.
        number: Spark's number of the batch.
        stores: identities of the source stores.
        through: per store identity, the position after the last bundle of the batch.
    """

    query: str
    number: int
    stores: tuple[str, ...] = ()
    through: Mapping[str, BundleRef] | None = None


class TableExporter(Protocol):
    """The destination of the tables of a batch."""

    def has(self, batch: BatchOf) -> bool:
        """Return whether *batch* is already exported. Then the caller does not compute it again."""

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:
        """Return, per store identity, the position before which another query of this exporter exported all data."""

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* under which a bundle was exported individually, as batch 0 of its own query."""

    def export(self, tables: Tables, batch: BatchOf) -> ExportedAmount:
        """Export the tables of *batch* to their destination, and return the exported amount."""


@runtime_checkable
class ViewExporter(Protocol):
    """An exporter of tables whose tasks can decode the views that they write."""

    def export_views(self, views: Mapping[str, ViewInput], batch: BatchOf) -> ExportedAmount:
        """Export the views of *batch*, which no processor changes, and return the exported amount."""
