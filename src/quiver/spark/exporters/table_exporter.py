"""What an exporter of tables is to the batch that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quiver.bundle import BundleRef
from quiver.spark.exporters.exported import Exported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchOf", "TableExporter", "Tables"]


Tables = Mapping[str, "DataFrame"]


@dataclass(frozen=True, slots=True)
class BatchOf:
    """
    Which batch of which query, and how far it goes.

    Attributes:
        query: Spark's id of the query, the same over restarts from one checkpoint.
        number: Spark's number of the batch.
        stores: identities of the stores that are read.
        through: identity of a store → the position behind the last of its bundles.
    """

    query: str
    number: int
    stores: tuple[str, ...] = ()
    through: Mapping[str, BundleRef] | None = None


class TableExporter(Protocol):
    """Where the tables of a batch go."""

    def has(self, batch: BatchOf) -> bool:
        """Say whether *batch* is exported already; then it is not to be computed again."""

    def exported_through(self, batch: BatchOf) -> Mapping[str, BundleRef]:
        """
        Return identity of a store → the position before which another query of the same exporter exported
        everything.
        """

    def exported_individually(self, names: AbstractSet[str]) -> set[str]:
        """Return those of *names* that are queries of one batch each, number 0, and exported: bundles by themselves."""

    def export(self, tables: Tables, batch: BatchOf) -> Exported:
        """Export the tables of *batch*; return how much that was. On return they are where they belong."""
