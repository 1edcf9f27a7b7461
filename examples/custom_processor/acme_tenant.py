"""A processor of one's own: it keeps the rows of one tenant, and says in a column whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["tenant"]


def tenant(name: str, *, attribute: str = "tenant") -> Callable[[DataFrame], DataFrame]:
    """
    Return the function that takes each table of a batch: logs, spans, metrics.

    Args:
        name: of the tenant; the node's config has it, as it has every argument.
        attribute: of the resource, in which it stands.
    """

    def process(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions  # noqa: PLC0415 - `quiver run --check` works where there is no Spark

        found = functions.col("resource_attributes")[attribute]["string_value"]
        return frame.where(found == name).withColumn("tenant", functions.lit(name))

    return process
