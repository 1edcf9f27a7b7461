"""
A stream that cannot be: what is wrong is said when Spark first asks it for a position.

Spark's process for streaming sources says nothing of an error that is raised while a reader is made: it fails on a
variable of its own instead, and the reason is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from quiver.errors import QuiverError

__all__ = ["RefusedStream", "stream_reader"]


class RefusedStream(DataSourceStreamReader):
    """Raises *error*, whatever is asked of it."""

    def __init__(self, error: QuiverError) -> None:
        self.error = error

    def _refuse(self) -> NoReturn:
        raise self.error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise what is wrong."""
        self._refuse()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise what is wrong."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raise what is wrong."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raise what is wrong."""
        self._refuse()


def stream_reader(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return what *make* makes, or a reader that raises what was wrong with it."""
    try:
        return make()
    except QuiverError as error:
        return RefusedStream(error)
