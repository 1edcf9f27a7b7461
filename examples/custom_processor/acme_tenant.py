"""A custom processor: it keeps the rows of one tenant, and adds a column with the tenant's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["tenant"]


def tenant(name: str, *, attribute: str = "tenant") -> Callable[[DataFrame], DataFrame]:
    """
    Return the function that processes each table of a batch: logs, spans, metrics.

    Args:
        name: the tenant. Every argument comes from the `config` of the node.
        attribute: the resource attribute that contains the tenant.
    """

    def process(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions  # noqa: PLC0415 - `quiver run --check` works where there is no Spark

        found = functions.col("resource_attributes")[attribute]["string_value"]
        return frame.where(found == name).withColumn("tenant", functions.lit(name))

    return process
